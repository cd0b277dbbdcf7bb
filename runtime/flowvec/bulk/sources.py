"""What a bulk job reads: files named one by one, by globs, by folders, or standard input."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flowvec.errors import InputValueError, MissingDependencyError

__all__ = [
    "FORMATS",
    "STDIN",
    "Source",
    "find_sources",
    "is_compressed",
    "open_binary",
    "pyarrow_parquet",
]

STDIN = "-"
FORMATS = ("txt", "jsonl", "csv", "parquet")
_EXTENSIONS = {
    ".txt": "txt",
    ".text": "txt",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda file: pyarrow_parquet().CompressedInputStream(file, "zstd"),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read.

    Attributes:
        path: as it was found; `-` is standard input.
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
    def file(self) -> Path:
        """What is opened."""
        return Path(self.absolute or self.path)


# --- finding ------------------------------------------------------------------------------------


def find_sources(inputs: Iterable[str | Path], file_format: str | None = None) -> list[Source]:
    """The files that inputs stand for, in their order; those of a folder or glob by name.

    Args:
        inputs: files, folders (all below them that can be read, but for names that begin with a
            dot or an underscore), globs (`**` goes into folders), or `-` alone.
        file_format: of all of them; None goes by each file's extension, and by `txt` for standard
            input.

    Raises:
        InputValueError: there is no such file, a glob or folder holds none, a format is unknown,
            or a file is named twice.
    """
    if file_format is not None and file_format not in FORMATS:
        raise InputValueError(f"the format must be one of {', '.join(FORMATS)}, not {file_format}")
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
        if path.is_dir():
            files = [str(file) for file in sorted(path.rglob("*")) if _is_read(file, path)]
            files = [file for file in files if file_format or _format_of(file)]
        elif not path.exists() and glob.has_magic(one):
            matches = glob.glob(one, recursive=True)  # noqa: PTH207 - absolute ones, too
            files = sorted(file for file in matches if Path(file).is_file())
        else:
            files = [one]
        if not files:
            raise InputValueError(f"{one} holds no file to read")
        found += [_source(file, file_format) for file in files]
    seen: set[Path] = set()
    for source in found:
        real = Path(source.path).resolve()
        if real in seen:
            raise InputValueError(f"{source.path} is named twice")
        seen.add(real)
    return found


def _is_read(file: Path, folder: Path) -> bool:
    """Whether a file of a folder is one of its texts: others' notes begin with . or _."""
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return file.is_file() and not hidden


def _format_of(path: str) -> str | None:
    file = Path(path)
    if file.suffix.lower() in _COMPRESSED:
        file = file.with_suffix("")
        found = _EXTENSIONS.get(file.suffix.lower())
        return None if found == "parquet" else found
    return _EXTENSIONS.get(file.suffix.lower())


def _source(path: str, file_format: str | None) -> Source:
    if path == STDIN:
        if file_format == "parquet":
            raise InputValueError("Parquet cannot be read from standard input")
        return Source(path, file_format or "txt")
    found = file_format or _format_of(path)
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


def pyarrow_parquet() -> Any:
    """pyarrow, with what reads and writes Parquet.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(
            'this needs pyarrow: python -m pip install "flowvec[cpu,files]"'
        ) from None
    return pyarrow


@contextmanager
def open_binary(source: Source, offset: int = 0) -> Iterator[IO[bytes]]:
    """A text file's bytes, decompressed, from an offset on.

    Raises:
        InputValueError: it cannot be read, or is damaged; also within the block.
    """
    name = "standard input" if source.path == STDIN else source.path
    try:
        if source.path == STDIN:
            if sys.stdin is None:
                raise InputValueError("there is no standard input to read")
            # The stream stays open: it is not ours to close.
            with io.FileIO(sys.stdin.fileno(), closefd=False) as raw:
                yield raw
            return
        with source.file.open("rb", buffering=0) as raw:
            opener = _COMPRESSED.get(Path(source.path).suffix.lower())
            if opener is None:
                raw.seek(offset)
                yield raw
            else:
                with opener(raw) as file:
                    yield file
    # bz2 and zstd report damage as a plain OSError.
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        raise InputValueError(f"{name} is damaged or cannot be read: {_why(error)}") from None


def is_compressed(path: str) -> bool:
    """Whether a file is read through a decompressor, and cannot be begun in the middle."""
    return Path(path).suffix.lower() in _COMPRESSED
