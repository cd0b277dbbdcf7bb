"""Files of texts: what their names say of them, and their bytes without compression."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import PurePath
from typing import IO, Any

from flowvec.arrow import imported_arrow

__all__ = ["DAMAGE", "TEXT_FORMATS", "decompressed", "format_of", "is_compressed", "is_hidden"]

TEXT_FORMATS = ("txt", "jsonl", "csv")
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
    ".zst": lambda file: imported_arrow().CompressedInputStream(file, "zstd"),
}
# What a damaged file raises while it is read; bz2 and zstd report it as a plain OSError.
DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)


def format_of(path: str) -> str | None:
    """`txt`, `jsonl`, `csv` or `parquet`, going by the name; None where it does not tell.

    A compressed file's own format is what counts. Parquet compresses by itself.
    """
    file = PurePath(path)
    if is_compressed(path):
        found = _EXTENSIONS.get(file.with_suffix("").suffix.lower())
        return None if found == "parquet" else found
    return _EXTENSIONS.get(file.suffix.lower())


def is_compressed(path: str) -> bool:
    """Whether a file is read through a decompressor, and cannot be begun in the middle."""
    return PurePath(path).suffix.lower() in _COMPRESSED


def is_hidden(parts: tuple[str, ...]) -> bool:
    """Whether a path below a folder is none of its texts: others' notes begin with . or _."""
    return any(part.startswith((".", "_")) for part in parts)


def decompressed(path: str, file: IO[bytes]) -> IO[bytes]:
    """A file's bytes, read through the decompressor that its name asks for.

    Args:
        path: its name.
        file: its bytes as they lie there.

    Raises:
        MissingDependencyError: zstd needs pyarrow.
    """
    opener = _COMPRESSED.get(PurePath(path).suffix.lower())
    found: IO[bytes] = file if opener is None else opener(file)
    return found
