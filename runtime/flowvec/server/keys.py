"""API keys: kept as hashes in a file, one a line."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flowvec.errors import InputValueError

__all__ = ["Key", "Keys", "make_key"]

_PREFIX = "fv-"
_LINE = re.compile(r"(?P<name>[\w.@-]{1,64})\s+sha256:(?P<digest>[0-9a-f]{64})(?P<admin>\s+admin)?")


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of an API key.

    Attributes:
        name: of its holder, for metrics and fair shares.
        digest: SHA-256 of the key. Keys are random, so a salt would add nothing.
        is_admin: whether it may reload models.
    """

    name: str
    digest: bytes
    is_admin: bool = False


class Keys:
    """API keys by their hashes."""

    def __init__(self, keys: Iterable[Key]) -> None:
        """Some keys.

        Raises:
            InputValueError: two have the same name, or there is none.
        """
        self._keys = tuple(keys)
        names = [key.name for key in self._keys]
        if not names:
            raise InputValueError("there are no API keys: `flowvec serve --new-key NAME` makes one")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputValueError(f"two API keys are called {twice!r}")

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read a file of lines `NAME sha256:DIGEST`, with ` admin` for keys that may administer.

        Empty lines, and those that begin with #, are left out.

        Raises:
            InputValueError: the file is not UTF-8, or a line is something else; it is not shown,
                since it may be a key.
            OSError: the file cannot be read.
        """
        keys: list[Key] = []
        try:
            content = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputValueError(f"{path} is not UTF-8: {error.reason}") from None
        for number, line in enumerate(content.splitlines(), 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            match = _LINE.fullmatch(text)
            if match is None:
                raise InputValueError(
                    f"{path}, line {number} is not `NAME sha256:DIGEST`, as `flowvec serve "
                    "--new-key NAME` prints it"
                )
            digest = bytes.fromhex(match["digest"])
            keys.append(Key(match["name"], digest, is_admin=match["admin"] is not None))
        return cls(keys)

    @property
    def are_several(self) -> bool:
        """Whether there is more than one."""
        return len(self._keys) > 1

    def find(self, token: str) -> Key | None:
        """The key that a caller sent; None if it is unknown. All are compared, in constant time."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def make_key(name: str, *, is_admin: bool = False) -> tuple[str, str]:
    """A new random key, and its line for the file.

    Raises:
        InputValueError: the name has other characters than letters, digits and `.@_-`.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    line = f"{name} sha256:{digest}{' admin' if is_admin else ''}"
    if _LINE.fullmatch(line) is None:
        raise InputValueError(f"{name!r} cannot be a key's name: letters, digits and .@_- can")
    return token, line
