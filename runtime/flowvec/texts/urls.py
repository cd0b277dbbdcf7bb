"""URLs as inputs and outputs: their names, and how they are shown and recorded without secrets.

A URL can hold secrets: a user name and a password (`https://user:password@host/a.jsonl`), or
options (`abfs://...?account_key=...`, and the signatures of S3, Azure, Google Cloud and
CloudFront). They are needed to open the URL, and are never written or printed. One rule decides
what stays of a URL:

- A user name and a password are left out, but not the container of `abfs://container@account`.
- Options whose names say that they are secrets, or belong to a signature, are left out.
- Options that say which version of an object is meant, and options of the connection, stay.
- Any other option could be a secret, and could also tell two inputs apart (`?id=1` and `?id=2`):
  it is replaced by a digest of its value.

So an input is still the same when a key or a signature changes.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, unquote_plus

from flowvec.texts.unicode import printable

__all__ = [
    "from_anywhere",
    "is_url",
    "name_of",
    "public",
    "recorded",
    "shown",
    "shown_command",
    "without_secrets",
]

# fsspec chains schemes: `simplecache::https://...`.
_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+://")
# A Path drops one of the two slashes of a URL; its secrets are still there.
_MAYBE_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]+:/+")
_URL_IN_TEXT = re.compile(_URL.pattern + r"[^\s'\"<>]+")
# A question mark without an option after it belongs to a glob, except in http.
_OPTIONS = re.compile(r"\?[^/?=]*=.*$", re.DOTALL)
_HTTP_OPTIONS = re.compile(r"[?#].*$", re.DOTALL)
_HTTP = ("http", "https")
_IS_HTTP = re.compile(r"(?:.*::)?https?:/", re.IGNORECASE)
# What is before `@` there is a container, or a user without a password.
_NAMED_BEFORE_AT = ("abfs", "abfss", "wasb", "wasbs", "hdfs")
# A key and its secret, which may contain a slash, as pyarrow takes them.
_KEY_AND_SECRET = re.compile(r"[^/@]*:[^@]*@")

# Names of options, in small letters and digits alone.
_VERSIONS = frozenset(("versionid", "version", "generation", "snapshot", "revision"))
_CONNECTION = frozenset(
    (
        "region", "endpointoverride", "endpointurl", "scheme", "anon", "anonymous", "accountname",
        "blobstorageauthority", "blobstoragescheme", "dfsstorageauthority", "dfsstoragescheme",
        "enabletls", "project", "allowbucketcreation", "allowbucketdeletion", "requesttimeout",
        "connecttimeout", "retrylimitseconds",
    )
)  # fmt: skip
_SECRET = re.compile(
    r"secret|token|passw|passphrase|pwd|credential|signature|sharedaccess|connectionstring|cookie"
    r"|bearer|jwt|session|auth(?!ors?$)|keys?$|keyid$|keypairid$|accessid$"
    r"|^(?:sig|sas|pass|pw|pin|user|username|login|expires|policy)$|^x(?:amz|goog|ms|oss|cos|obs)"
)
# The other options of a shared access signature of Azure.
_SAS = frozenset(
    (
        "sv", "ss", "srt", "sr", "st", "se", "sp", "sip", "spr", "si", "ses", "skoid", "sktid",
        "skt", "ske", "sks", "skv", "saoid", "suoid", "scid", "sdd",
    )
)  # fmt: skip
_DIGEST = re.compile(r"sha256-[0-9a-f]{12}")
_SHORTEST_SECRET = 3


def is_url(path: str) -> bool:
    """Whether a path is a URL. A drive letter is not a scheme."""
    return _URL.match(path) is not None


def name_of(path: str) -> str:
    """A path; for a URL without its options, so that it ends in the file's extension.

    The scheme of a URL is in lower case. A password in it stays: see `shown`.
    """
    return _split(path)[0] if is_url(path) else path


def shown(path: str) -> str:
    """A path or URL for messages: without secrets and options of the connection, in one line."""
    return printable(public(path))


def public(path: str) -> str:
    """A path or URL without secrets and options of the connection, otherwise as it is."""
    return _public(path, _VERSIONS)


def recorded(path: str) -> str:
    """A path or URL as it is recorded: without secrets. It tells inputs apart.

    Options are in the order of their names, and `recorded(recorded(path)) == recorded(path)`.
    """
    return _public(path, _VERSIONS | _CONNECTION)


def without_secrets(text: str, *urls: str) -> str:
    """A library's message, without secrets of the URLs in it.

    Args:
        text: the message.
        urls: URLs that may be in it, whole or in part.
    """
    for url in urls:
        rest, name = url.partition("://")[2], name_of(url)
        for form in (url, name, rest, name.partition("://")[2]):
            if form:
                text = text.replace(form, shown(url))
    text = _URL_IN_TEXT.sub(lambda found: shown(found[0]), text)
    # A secret may be part of a longer one, which would then be replaced in part.
    for secret in sorted({secret for url in urls for secret in _secrets(url)}, key=len)[::-1]:
        text = text.replace(secret, "***")
    return text


def shown_command(words: Sequence[str]) -> str:
    """A command line for messages. A URL with secrets is as it would be recorded."""
    return shlex.join(_word(word) for word in words)


def _word(word: str) -> str:
    found = _URL.search(word)  # after `--out=`, perhaps
    if found is None:
        return word
    url = word[found.start() :]
    name, options = _split(url)
    public, _, kept = recorded(url).partition("?")
    is_public = name == public and sorted(options[1:].split("&")) == kept.split("&")
    return word if is_public else word[: found.start()] + recorded(url)


def from_anywhere(path: str) -> str:
    """The absolute path of a file; a URL stays as it is."""
    return path if is_url(path) else str(Path(path).absolute())


def _split(path: str) -> tuple[str, str]:
    """A URL's name and its options."""
    found = _MAYBE_URL.match(path)
    if found is None:
        return path, ""
    scheme, slashes = found[0].rstrip("/").lower(), found[0].partition(":/")[2]
    rest = path[found.end() :]
    name = (_HTTP_OPTIONS if _IS_HTTP.match(path) else _OPTIONS).sub("", rest)
    return f"{scheme}/{slashes}{name}", rest[len(name) :]


def _pairs(options: str) -> list[tuple[str, str, str]]:
    """Options of a URL: their names in small letters and digits, and as they are, and values."""
    parts = re.split("[&;]", options.partition("#")[0].removeprefix("?"))
    named = [(part.partition("=")) for part in parts if part]
    return [
        (re.sub("[^a-z0-9]", "", unquote_plus(name).lower()), name, value)
        for name, _, value in named
    ]


def _is_secret(name: str, names: set[str]) -> bool:
    if name in _VERSIONS or name in _CONNECTION:
        return False
    return _SECRET.search(name) is not None or (name in _SAS and "sig" in names)


def _public(path: str, plain: frozenset[str]) -> str:
    """A path or URL without secrets, with some options as they are."""
    if _MAYBE_URL.match(path) is None:
        return path
    name, options = _split(path)
    name = "::".join(_without_user(one) for one in name.split("::"))
    pairs = _pairs(options)
    names = {one for one, _, _ in pairs}
    kept = []
    for plain_name, given, value in pairs:
        if plain_name in plain:
            kept.append(f"{given}={_without_user_in(value)}")
        elif plain_name not in _CONNECTION and not _is_secret(plain_name, names):
            kept.append(f"{given}={_digest_of(value)}" if value else _digest_of(given))
    return f"{name}?{'&'.join(sorted(kept))}" if kept else name


def _without_user(url: str) -> str:
    found = _MAYBE_URL.match(url)
    if found is None:
        return url
    scheme, rest = found[0].partition(":")[0], url[found.end() :]
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at and not (scheme in _NAMED_BEFORE_AT and ":" not in user):
        return f"{found[0]}{host}{slash}{path}"
    key = None if at or scheme in _HTTP else _KEY_AND_SECRET.match(rest)
    return url if key is None else found[0] + rest[key.end() :]


def _without_user_in(value: str) -> str:
    """The value of an option, such as an endpoint, which can also have a password."""
    if "@" not in unquote(value):
        return value
    return re.split("@|%40", value)[-1]


def _digest_of(value: str) -> str:
    if _DIGEST.fullmatch(value):  # it was recorded before
        return value
    content = value.encode("utf-8", "surrogateescape")
    return f"sha256-{hashlib.sha256(content).hexdigest()[:12]}"


def _secrets(url: str) -> set[str]:
    """The values of a URL that must not be in a message, as they are and decoded."""
    name, options = _split(url)
    pairs = _pairs(options)
    names = {one for one, _, _ in pairs}
    values = {value for one, _, value in pairs if _is_secret(one, names)}
    for one in name.split("::"):
        left_out = len(one) - len(_without_user(one))
        rest = _MAYBE_URL.sub("", one, count=1)
        values |= set(rest[:left_out].rstrip("@").split(":", 1))
    values |= {unquote(value) for value in values}
    return {value for value in values if len(value) >= _SHORTEST_SECRET}
