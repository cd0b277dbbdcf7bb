"""Formats of text files by their names, and decompression."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import IO, Any

from flowvec.arrow import imported_arrow

__all__ = [
    "DAMAGE",
    "TEXT_FORMATS",
    "decompressed",
    "format_of",
    "is_compressed",
    "is_hidden",
    "without_links",
]

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
    ".zst": lambda file: imported_arrow("zstd").CompressedInputStream(file, "zstd"),
}
# What reading a damaged file raises; bz2 and zstd raise a plain OSError.
DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)


def format_of(path: str) -> str | None:
    """`txt`, `jsonl`, `csv` or `parquet`, by the name; None if unknown.

    For a compressed file it is the format inside. Parquet has its own compression.
    """
    file = PurePath(path)
    if is_compressed(path):
        name = _EXTENSIONS.get(file.with_suffix("").suffix.lower())
        return None if name == "parquet" else name
    return _EXTENSIONS.get(file.suffix.lower())


def is_compressed(path: str) -> bool:
    """Whether a file is read through a decompressor, so that reading cannot start in the middle."""
    return PurePath(path).suffix.lower() in _COMPRESSED


def is_hidden(parts: tuple[str, ...]) -> bool:
    """Whether a path below a folder is hidden: a name in it starts with . or _."""
    return any(part.startswith((".", "_")) for part in parts)


def without_links(files: Sequence[str]) -> list[str]:
    """Files without links to another of them; of several hard links to a file, the first stays."""
    chosen: dict[tuple[int, int], str] = {}
    for file in sorted(files, key=os.path.islink):  # the file itself comes before links to it
        status = os.stat(file)  # noqa: PTH116 - a name that is not UTF-8, too
        chosen.setdefault((status.st_dev, status.st_ino), file)
    kept = set(chosen.values())
    return [file for file in files if file in kept]


def decompressed(path: str, file: IO[bytes]) -> IO[bytes]:
    """A file's bytes, through the decompressor for its name.

    Args:
        path: its name.
        file: its raw bytes.

    Raises:
        MissingDependencyError: zstd needs pyarrow.
    """
    opener = _COMPRESSED.get(PurePath(path).suffix.lower())
    stream: IO[bytes] = file if opener is None else opener(file)
    return stream
