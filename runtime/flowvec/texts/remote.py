"""Inputs by URL: object stores and everything that fsspec supports, through pyarrow.

pyarrow itself reads `s3://`, `gs://`, `abfs://`, `hdfs://` and `file://`; fsspec reads other
schemes. These libraries find credentials themselves (environment, profile, machine role). Options
can be in the URL: `s3://bucket/texts?region=eu-central-1`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import IO, Any, cast

from flowvec.arrow import imported_arrow
from flowvec.errors import FlowvecError, InputValueError, MissingDependencyError, first_line
from flowvec.texts.compression import is_hidden
from flowvec.texts.urls import name_of, shown, without_secrets

__all__ = ["RemoteFile", "glob_pattern", "open_remote", "remote_files", "state_of"]

_MAGIC = re.compile(r"[*?\[]")


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


def remote_files(url: str) -> list[RemoteFile]:
    """The files of a URL, by name: itself, all files below a folder, or those of a glob.

    `*` and `?` in a glob stay within a folder; `**/` matches folders below. The output of bulk jobs
    in folders below is not found, unless a glob matches nothing else.

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
        below = {str(PurePosixPath(one.path).relative_to(path)): one
                 for one in listing if one.is_file}  # fmt: skip
        if magic is None:
            names = [name for name in below if not is_hidden(PurePosixPath(name).parts)]
        else:
            pattern = glob_pattern(base[len(folder) + 1 :])
            names = [name for name in below if pattern.fullmatch(name)]
        jobs = _jobs_of(system, below)
    others = [name for name in names if jobs.isdisjoint(PurePosixPath(name).parents)]
    names = others if others or magic is None else names
    return [_file(f"{folder}/{name}{options}", below[name]) for name in sorted(names)]


def _jobs_of(system: Any, below: Mapping[str, Any]) -> set[PurePosixPath]:
    """Folders of bulk jobs below a folder, by the files that it has."""
    jobs = set()
    for name, info in below.items():
        file = PurePosixPath(name)
        if len(file.parts) > 1 and file.match("_manifest*.json"):
            with suppress(OSError), system.open_input_stream(info.path) as opened:
                if b'"flowvec_bulk"' in opened.read(100):
                    jobs.add(file.parent)
    return jobs


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
    from pyarrow.fs import PyFileSystem

    return cast(IO[bytes], _FsspecFile(file, url)) if isinstance(system, PyFileSystem) else file


class _FsspecFile(io.RawIOBase):
    """A file of fsspec whose errors are OSErrors without secrets.

    Some libraries raise errors of their own, with the URL as it was given.
    """

    def __init__(self, file: IO[bytes], url: str) -> None:
        self._file = file
        self._url = url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with self._hiding_secrets():
            return self._file.read() if size is None or size < 0 else self._file.read(size)

    def readinto(self, buffer: Any) -> int:
        with self._hiding_secrets():
            count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        return count

    def seek(self, offset: int, whence: int = 0) -> int:
        with self._hiding_secrets():
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._hiding_secrets():
                self._file.close()

    @contextmanager
    def _hiding_secrets(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise OSError(without_secrets(reason, self._url)) from None


def _file(url: str, info: Any) -> RemoteFile:
    return RemoteFile(url, info.size or 0, info.mtime_ns or 0)


@contextmanager
def _naming_url(url: str) -> Iterator[None]:
    """Name the URL in errors."""
    imported_arrow("reading a URL")
    try:
        yield
    except FlowvecError:
        raise
    except ImportError as error:
        reason = without_secrets(first_line(error), url)
        raise MissingDependencyError(f"cannot read {shown(url)}: {reason}") from None
    except Exception as error:  # libraries of fsspec have errors of their own
        reason = without_secrets(first_line(error), url)
        raise InputValueError(f"cannot read {shown(url)}: {reason}") from None


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


def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob below a folder, as a regular expression."""
    words = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*|\?|\[[^]/]+\])", glob)
    return re.compile(
        "".join(
            words.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else re.escape(part))
            for part in parts
        )
    )
