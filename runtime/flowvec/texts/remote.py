"""Inputs by URL: object stores and everything that fsspec supports, through pyarrow.

pyarrow itself reads `s3://`, `gs://`, `abfs://`, `hdfs://` and `file://`; fsspec reads other
schemes. These libraries find credentials themselves (environment, profile, machine role). Options
can be in the URL: `s3://bucket/texts?region=eu-central-1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

from flowvec.arrow import imported_arrow
from flowvec.errors import FlowvecError, InputValueError, MissingDependencyError, first_line
from flowvec.texts.compression import is_hidden

__all__ = [
    "RemoteFile",
    "from_anywhere",
    "is_url",
    "name_of",
    "open_remote",
    "remote_files",
    "shown",
    "state_of",
    "without_keys",
]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# A question mark without an option after it belongs to a glob.
_OPTIONS = re.compile(r"\?[\w.-]+=.*$")
_MAGIC = re.compile(r"[*?\[]")
# A key and its secret, as pyarrow takes them; not the `@` of abfs://container@account.
_KEYS = re.compile(r"(?<=://)[^/@]*:[^@]*@")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file with a URL.

    Attributes:
        url: its URL.
        bytes: its size.
        modified: modification time, ns since 1970; 0 if the store does not say.
    """

    url: str
    bytes: int
    modified: int


def is_url(path: str) -> bool:
    """Whether a path is a URL. A drive letter is not a scheme."""
    return _URL.match(path) is not None


def name_of(path: str) -> str:
    """A path; for a URL without its options, so that it ends in the file's extension.

    The scheme of a URL is in lower case.
    """
    if not is_url(path):
        return path
    scheme, _, rest = _OPTIONS.sub("", path).partition("://")
    return f"{scheme.lower()}://{rest}"


def without_keys(path: str) -> str:
    """A path or URL without a key and its secret."""
    return _KEYS.sub("", path) if is_url(path) else path


def shown(path: str) -> str:
    """A path or URL for messages: without options, which may be secrets, and without keys."""
    return without_keys(name_of(path))


def from_anywhere(path: str) -> str:
    """The absolute path of a file; a URL stays as it is."""
    return path if is_url(path) else str(Path(path).absolute())


def remote_files(url: str) -> list[RemoteFile]:
    """The files of a URL, by name: itself, all files below a folder, or those of a glob.

    `*` and `?` in a glob stay within a folder; `**/` matches folders below.

    Raises:
        InputValueError: there is no such file, or it cannot be reached.
        MissingDependencyError: pyarrow or the scheme's library is not installed.
    """
    arrow = imported_arrow("reading a URL")
    base = name_of(url)
    options = url[len(base) :]
    magic = _MAGIC.search(base)
    folder = (base if magic is None else base[: base.rindex("/", 0, magic.start())]).rstrip("/")
    with _naming_url(url):
        system, path = _located(folder + options)
        info = system.get_file_info(path)
        if magic is None and info.is_file:
            return [_file(url, info)]
        if info.type != arrow.fs.FileType.Directory:
            raise InputValueError(f"cannot read {shown(url)}: there is no such file")
        listing = system.get_file_info(arrow.fs.FileSelector(path, recursive=True))
    below = {str(PurePosixPath(one.path).relative_to(path)): one for one in listing if one.is_file}
    if magic is None:
        names = [name for name in below if not is_hidden(PurePosixPath(name).parts)]
    else:
        pattern = _pattern(base[len(folder) + 1 :])
        names = [name for name in below if pattern.fullmatch(name)]
    return [_file(f"{folder}/{name}{options}", below[name]) for name in sorted(names)]


def state_of(url: str) -> RemoteFile:
    """A file's size and time.

    Raises:
        InputValueError: it is gone, or cannot be reached.
    """
    with _naming_url(url):
        system, path = _located(url)
        info = system.get_file_info(path)
    if not info.is_file:
        raise InputValueError(f"cannot read {shown(url)}: there is no such file")
    return _file(url, info)


def open_remote(url: str) -> IO[bytes]:
    """A seekable file; failures are OSErrors.

    Raises:
        InputValueError: it cannot be reached.
    """
    with _naming_url(url):
        system, path = _located(url)
        file: IO[bytes] = system.open_input_file(path)
    return file


def _file(url: str, info: Any) -> RemoteFile:
    return RemoteFile(url, info.size or 0, info.mtime_ns or 0)


@contextmanager
def _naming_url(url: str) -> Iterator[None]:
    """Name the URL in errors."""
    arrow = imported_arrow("reading a URL")
    try:
        yield
    except (OSError, ValueError, arrow.ArrowException) as error:
        if isinstance(error, FlowvecError):
            raise
        raise InputValueError(f"cannot read {shown(url)}: {_reason(error, url)}") from None
    except ImportError as error:
        raise MissingDependencyError(f"cannot read {shown(url)}: {first_line(error)}") from None


def _reason(error: BaseException, url: str) -> str:
    """A library's message, which may have the URL with its options and keys."""
    given = [url, name_of(url), url.partition("://")[2], name_of(url).partition("://")[2]]
    text = first_line(error)
    for form in given:
        if form:
            text = text.replace(form, shown(url))
    return _KEYS.sub("", text)


@lru_cache(maxsize=256)
def _located(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import pyarrow
    from pyarrow.fs import FileSystem

    base = name_of(url)  # pyarrow takes schemes in lower case only
    url = base + url[len(base) :]
    try:
        system, path = FileSystem.from_uri(url)
    except pyarrow.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise
        system, path = FileSystem.from_uri(f"fsspec+{url}")
    return system, path


def _pattern(glob: str) -> re.Pattern[str]:
    """A glob below a folder, as a regular expression."""
    words = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*|\?|\[[^]/]+\])", glob)
    return re.compile(
        "".join(
            words.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else re.escape(part))
            for part in parts
        )
    )
