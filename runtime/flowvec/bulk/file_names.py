"""Names of a bulk job's files, and writing them whole."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from flowvec.files import staged_file, write_file

__all__ = [
    "partial_of",
    "row_map_name",
    "row_map_of",
    "texts_name",
    "write_whole",
    "written_whole",
]

_PROCESS_TOKEN = uuid.uuid4().hex[:8]


def row_map_name(name: str) -> str:
    """The name of a .npy file's row map."""
    return name.removesuffix(".npy") + ".rows.jsonl"


def texts_name(name: str) -> str:
    """The name of a shard's texts file, from the name of the shard's file."""
    return f"_{name.partition('.')[0]}.texts"


def row_map_of(path: Path) -> Path:
    """The row map of a .npy file: one line of JSON per row."""
    return path.with_name(row_map_name(path.name))


def partial_of(path: Path) -> Path:
    """The temporary name under which this process writes a file.

    No other process uses it, not even a worker that was believed dead and still runs beside its
    replacement.
    """
    name = path.name if path.name.startswith("_") else f"_{path.name}"
    return path.with_name(f"{name}.{os.getpid()}-{_PROCESS_TOKEN}.partial")


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file of the job, atomically and durably."""
    write_file(path, content, partial_of(path))


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file of the job that is renamed at the end of the block, durably."""
    with staged_file(path, partial_of(path)) as partial:
        file = partial.open("wb")
        try:
            yield file
            file.close()
        finally:
            with suppress(OSError):  # the rest does not fit on a full disk
                file.close()
