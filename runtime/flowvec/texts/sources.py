"""What a bulk job reads: files named one by one, by globs, by folders, or standard input."""

from __future__ import annotations

import glob
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from flowvec.arguments import choice
from flowvec.errors import InputValueError
from flowvec.texts.compression import (
    DAMAGE,
    TEXT_FORMATS,
    decompressed,
    format_of,
    is_compressed,
    is_hidden,
)
from flowvec.texts.remote import is_url, name_of, open_remote, remote_files, state_of

__all__ = ["FORMATS", "STDIN", "Source", "find_sources", "open_binary"]

STDIN = "-"
FORMATS = (*TEXT_FORMATS, "parquet")
_BLOCK = 1 << 20

_Binary = IO[bytes]


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read.

    Attributes:
        path: as it was found, a URL too; `-` is standard input.
        format: `txt`, `jsonl`, `csv` or `parquet`.
        bytes: its size; None of standard input, as are those that follow.
        modified: when it was changed last, ns since 1970.
        sha256: of its bytes as they lie there.
        rows: lines of txt and jsonl, records of csv, rows of Parquet.
        absolute: its path from anywhere, for workers; None where `path` will do.
    """

    path: str
    format: str
    bytes: int | None = None
    modified: int | None = None
    sha256: str | None = None
    rows: int | None = None
    absolute: str | None = None

    @property
    def name(self) -> str:
        """What people are told."""
        return "standard input" if self.path == STDIN else self.path

    @property
    def is_compressed(self) -> bool:
        """Whether it is read through a decompressor, and cannot be begun in the middle."""
        return is_compressed(name_of(self.path))

    def open(self) -> _Binary:
        """Its bytes as they lie there, unbuffered.

        Raises:
            OSError: it cannot be opened.
            InputValueError: its URL cannot be reached.
        """
        if self.path == STDIN:
            if sys.stdin is None:
                raise InputValueError("there is no standard input to read")
            # The stream stays open: it is not ours to close.
            return io.FileIO(sys.stdin.fileno(), closefd=False)
        if is_url(self.path):
            return open_remote(self.path)
        return io.FileIO(self.absolute or self.path)

    def for_arrow(self) -> Any:
        """What pyarrow opens: a path, or an open file.

        Raises:
            InputValueError: its URL cannot be reached.
        """
        return open_remote(self.path) if is_url(self.path) else self.absolute or self.path

    def state(self) -> tuple[int, int]:
        """How large it is, and when it was changed last, ns since 1970.

        Raises:
            OSError: it is gone.
            InputValueError: its URL cannot be reached.
        """
        if is_url(self.path):
            there = state_of(self.path)
            return there.bytes, there.modified
        found = Path(self.absolute or self.path).stat()
        return found.st_size, found.st_mtime_ns


# --- finding ------------------------------------------------------------------------------------


def find_sources(inputs: Iterable[str | Path], file_format: str | None = None) -> list[Source]:
    """The files that inputs stand for, in their order; those of a folder or glob by name.

    Args:
        inputs: files, folders (all below them that can be read, but for names that begin with a
            dot or an underscore) and globs (`**` goes into folders), or URLs of such
            (`s3://bucket/texts`, see `flowvec.texts.remote`); or `-` alone.
        file_format: of all of them; None goes by each file's extension, and by `txt` for standard
            input.

    Raises:
        InputValueError: there is no such file, a glob or folder holds none, a format is unknown,
            or a file is named twice.
    """
    if file_format is not None:
        choice("the format", file_format, FORMATS)
    named = [str(one) for one in inputs]
    if not named:
        raise InputValueError("there is nothing to read")
    if STDIN in named:
        if len(named) > 1:
            raise InputValueError("standard input is read alone")
        return [_source(STDIN, file_format)]
    found: list[Source] = []
    for one in named:
        path = Path(one)
        if is_url(one):
            found += _remote_sources(one, file_format)
            continue
        if path.is_dir():
            files = [str(file) for file in sorted(path.rglob("*")) if _is_read(file, path)]
            files = [file for file in files if file_format or format_of(file)]
        elif not path.exists() and glob.has_magic(one):
            matches = glob.glob(one, recursive=True)  # noqa: PTH207 - absolute ones, too
            files = sorted(file for file in matches if Path(file).is_file())
        else:
            files = [one]
        if not files:
            raise InputValueError(f"{one} holds no file to read")
        found += [_source(file, file_format) for file in files]
    seen: set[str | Path] = set()
    for source in found:
        real = source.path if is_url(source.path) else Path(source.path).resolve()
        if real in seen:
            raise InputValueError(f"{source.path} is named twice")
        seen.add(real)
    return found


def _is_read(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is one of its texts."""
    return file.is_file() and not is_hidden(file.relative_to(folder).parts)


def _remote_sources(url: str, file_format: str | None) -> list[Source]:
    files = remote_files(url)
    kinds = [file_format or format_of(name_of(file.url)) for file in files]
    if files and files[0].url == url and kinds[0] is None:
        raise InputValueError(f"cannot tell how to read {url}; give --format {'|'.join(FORMATS)}")
    known = [
        Source(file.url, kind, file.bytes, file.modified)
        for file, kind in zip(files, kinds, strict=True)
        if kind is not None
    ]
    if not known:
        raise InputValueError(f"{url} holds no file to read")
    return known


def _source(path: str, file_format: str | None) -> Source:
    if path == STDIN:
        if file_format == "parquet":
            raise InputValueError("Parquet cannot be read from standard input")
        return Source(path, file_format or "txt")
    found = file_format or format_of(path)
    if found is None:
        raise InputValueError(f"cannot tell how to read {path}; give --format {'|'.join(FORMATS)}")
    try:
        state = Path(path).stat()
    except (OSError, ValueError) as error:
        raise InputValueError(f"cannot read {path}: {_why(error)}") from None
    if not Path(path).is_file():
        raise InputValueError(f"cannot read {path}: it is no plain file")
    return Source(path, found, state.st_size, state.st_mtime_ns)


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


# --- opening ------------------------------------------------------------------------------------


@contextmanager
def open_binary(
    source: Source, offset: int = 0, seen: Callable[[memoryview], object] | None = None
) -> Iterator[IO[bytes]]:
    """A text file's bytes, decompressed, from an offset on.

    Args:
        source: the file.
        offset: where to begin; 0 of a compressed one.
        seen: called with all of its bytes as they lie there, in their order.

    Raises:
        InputValueError: it cannot be read, or is damaged; also within the block.
    """
    try:
        with source.open() as raw:
            if offset:
                raw.seek(offset)
            watched = raw if seen is None else cast(IO[bytes], _Watched(raw, seen))
            yield decompressed(name_of(source.path), watched)
            if seen is not None:  # what a decompressor has no use for
                while watched.read(_BLOCK):
                    pass
    except DAMAGE as error:
        raise InputValueError(
            f"{source.name} is damaged or cannot be read: {_why(error)}"
        ) from None


class _Watched(io.RawIOBase):
    """Bytes on their way, which somebody else sees, too."""

    def __init__(self, raw: IO[bytes], seen: Callable[[memoryview], object]) -> None:
        self._raw = raw
        self._seen = seen

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got: int = self._raw.readinto(buffer)  # type: ignore[attr-defined]
        self._seen(memoryview(buffer)[:got])
        return got
