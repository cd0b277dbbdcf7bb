"""A collection's vectors in one memory-mapped file beside its store, for exact comparisons.

The file is a cache: every vector is in the store as well. All processes share its pages through the
system's page cache. `vector_format` has its format.

The file does not say how many records are valid. The caller keeps that number where it commits the
rows, so that both change in one transaction. Records behind it are left over from interrupted
changes, and the next append overwrites them. So an append needs no flush to disk: a record that a
power failure loses does not match its checksum, and its row is read from the store again.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.vector_format import (
    HEADER_BYTES,
    Floats,
    Labels,
    Layout,
    MappedBlocks,
    Words,
)
from flowvec.errors import ClosedError, CollectionError
from flowvec.files import staged_file

__all__ = [
    "VectorFile",
    "VectorFileError",
    "path_of",
    "remove_other_generations",
    "write_generation",
]


_FILES = re.compile(r"(vectors-\d+\.f32|codes-\d+\.q4)(\.\d+\.partial)?")


class VectorFileError(CollectionError):
    """A vectors file cannot be read or written. The store has its vectors: make a new file."""


class VectorFile:
    """One open vectors file. One process at a time appends; any number read.

    Attributes:
        path: the file.
        layout: where its records are.
    """

    def __init__(self, path: Path, layout: Layout, *, read_only: bool) -> None:
        """Map a file whose header was checked; use `create` or `open`."""
        self.path, self.layout = path, layout
        self._mapped: MappedBlocks | None = None
        self._file = path.open("rb" if read_only else "r+b", buffering=0)
        try:
            self._map()
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(cls, folder: Path, number: int, dim: int) -> VectorFile:
        """Create an empty file, replacing one of the same number.

        Args:
            folder: the collection's folder.
            number: the file's generation; the caller records which one is in use.
            dim: length of the vectors.

        Raises:
            VectorFileError: it cannot be written.
        """
        write_generation(folder, number, dim, ())
        return cls.open(path_of(folder, number), dim)

    @classmethod
    def open(cls, path: Path, dim: int, read_only: bool = False) -> VectorFile:
        """Open a file.

        Args:
            path: the file.
            dim: length of the vectors.
            read_only: whether it is opened for searches alone.

        Raises:
            VectorFileError: it is missing, is not a vectors file of this version and dim, or cannot
                be read.
        """
        try:
            if path.is_symlink() or not path.is_file():
                raise VectorFileError(f"{path} is missing")
            return cls(path, Layout.read(path, dim), read_only=read_only)
        except (OSError, ValueError) as error:
            raise VectorFileError(f"cannot read {path}: {error}") from error

    def close(self) -> None:
        """Close the file. Arrays that are in use keep their part of the mapping."""
        self._mapped = None
        self._file.close()

    def retire(self) -> None:
        """Close the file, but keep its mapping for searches that still use it."""
        self._file.close()

    # --- reading --------------------------------------------------------------------------------

    @property
    def blocks(self) -> MappedBlocks:
        """The mapped blocks, read-only.

        Raises:
            ClosedError: the file is closed.
        """
        mapped = self._mapped
        if mapped is None:
            raise ClosedError(f"{self.path} is closed")
        return mapped

    @property
    def capacity(self) -> int:
        """How many records the mapping has room for."""
        return int(self.blocks.labels.size)

    def _map(self) -> None:
        """Map the whole file as it is now. Earlier arrays keep the older mapping."""
        if self._file.closed:
            raise ClosedError(f"{self.path} is closed")
        handle = self._file.fileno()
        size = os.fstat(handle).st_size
        count = self.layout.blocks_in(size)
        content = mmap.mmap(handle, size, access=mmap.ACCESS_READ) if count else None
        self._mapped = self.layout.map(content, count)

    def require(self, n: int) -> None:
        """Map at least n records; another process may have made the file longer.

        Raises:
            VectorFileError: it is shorter.
        """
        if n > self.capacity:
            try:
                self._map()
            except (OSError, ValueError) as error:
                raise VectorFileError(f"cannot read {self.path}: {error}") from error
            if n > self.capacity:
                raise VectorFileError(f"{self.path} is damaged: it is shorter than {n} records")

    def labels(self, n: int, first: int = 0) -> Labels:
        """Labels of the records from `first` to before n, int64, a copy. They are not verified.

        Raises:
            VectorFileError: the file is too short.
        """
        self.require(n)
        mapped = self.blocks.labels
        parts = [mapped[block, inside] for block, inside, _ in self.layout.parts(first, n)]
        return np.concatenate([np.empty(0, np.int64), *parts])

    def gather(self, slots: Labels) -> Floats:
        """Vectors of records, float32 (slots, dim), a copy. They are not verified."""
        vectors: Floats = self.blocks.vectors[divmod(slots, self.layout.rows)]
        return vectors

    def checksums_of(self, slots: Labels) -> Words:
        """Checksums of records as they are in the file, uint64 (slots,), a copy."""
        sums: Words = self.blocks.checksums[divmod(slots, self.layout.rows)]
        return sums

    def damaged(self, first: int, n: int) -> Labels:
        """Slots from `first` to before n whose records do not match their checksums, ascending."""
        bad = [np.empty(0, np.int64)]
        mapped = self.blocks
        for block, inside, part in self.layout.parts(first, n):
            sums = self.layout.checksums(
                mapped.labels[block, inside], mapped.vectors[block, inside]
            )
            differ = np.flatnonzero(sums != mapped.checksums[block, inside])
            bad.append(differ + (first + part.start))
        return np.concatenate(bad)

    # --- appending ------------------------------------------------------------------------------

    def append(
        self, first: int, labels: Labels, vectors: Floats, newest: int | None = None
    ) -> None:
        """Write records; they are valid once the caller has committed their number.

        Only for the one process that may change the collection now.

        Args:
            first: the number of valid records: the new ones replace all behind it.
            labels: ascending, above those of the valid records, int64 (rows,).
            vectors: float32 (rows, dim), as the metric compares them.
            newest: the label of the last valid record, if this object wrote it, and nobody has
                written since; None looks.

        Raises:
            VectorFileError: the disk is full, or the file cannot be written. Valid records stay as
                they are.
        """
        if not len(labels):
            return
        is_next = newest is not None
        if newest is None:
            newest = int(self.labels(first, first - 1)[0]) if first else 0
        if labels[0] <= newest or (len(labels) > 1 and (np.diff(labels) <= 0).any()):
            raise VectorFileError(f"{self.path} takes labels in ascending order, each once")
        layout = self.layout
        try:
            self._reserve(first + len(labels))
            if not is_next:
                self._clear(first, len(labels))
            for block, inside, part in layout.parts(first, first + len(labels)):
                rows = np.ascontiguousarray(vectors[part], "<f4")
                numbers = np.ascontiguousarray(labels[part], "<i8")
                self._write(block, 4 * layout.dim * inside.start, rows)
                self._write(block, layout.labels_at + 8 * inside.start, numbers)
                sums = layout.checksums(numbers, rows)
                self._write(block, layout.checksums_at + 8 * inside.start, sums)
        except (OSError, ValueError) as error:
            raise VectorFileError(f"cannot write {self.path}: {error}") from error

    def _reserve(self, n: int) -> None:
        """Grow the file to n records or more. It never shrinks: other processes have mapped it."""
        if n > self.capacity:
            self._map()  # another process may have made it longer
        blocks, needed = len(self.blocks.labels), -(-n // self.layout.rows)
        if needed > blocks:
            # It stays sparse: that the disk is full shows when records are written.
            count = max(needed, blocks + blocks // 4)
            self._file.truncate(HEADER_BYTES + count * self.layout.block_bytes)
            self._map()

    def _clear(self, first: int, count: int) -> None:
        """Make records of interrupted changes invalid on disk before their slots are used again.

        A power failure may lose a new record and leave the older one, which could have the same
        label and would match its checksum.
        """
        parts = self.layout.parts
        if not any(self._is_valid(block, rows) for block, rows, _ in parts(first, first + count)):
            return
        for block, rows, part in parts(first, self.capacity):
            if self._is_valid(block, rows):
                zeros = np.zeros(part.stop - part.start, np.uint64)
                self._write(block, self.layout.checksums_at + 8 * rows.start, zeros)
        os.fsync(self._file.fileno())

    def _is_valid(self, block: int, rows: slice) -> bool:
        """Whether records may have a checksum.

        (To read what was never written through the mapping takes memory of a tmpfs, and kills the
        process if there is none.)
        """
        offset = HEADER_BYTES + block * self.layout.block_bytes
        offset += self.layout.checksums_at + 8 * rows.start
        size = 8 * (rows.stop - rows.start)
        if sys.platform == "win32":
            self._file.seek(offset)
            found = self._file.read(size) or b""
        else:
            found = os.pread(self._file.fileno(), size, offset)
        return found.count(b"\0") < len(found)

    def _write(self, block: int, place: int, values: npt.NDArray[Any]) -> None:
        """Write into a block. (Through the mapping a full disk would kill the process.)"""
        rest = values.data.cast("B")
        offset = HEADER_BYTES + block * self.layout.block_bytes + place
        while len(rest):
            if sys.platform == "win32":
                self._file.seek(offset)
                written = self._file.write(rest) or 0
            else:
                written = os.pwrite(self._file.fileno(), rest, offset)
            rest, offset = rest[written:], offset + written


def write_generation(
    folder: Path, number: int, dim: int, blocks: Iterable[tuple[Labels, Floats]]
) -> int:
    """Write a file with records, flush it to disk and give it its name.

    Args:
        folder: the collection's folder.
        number: the file's generation; a file of the same number is replaced.
        dim: length of the vectors.
        blocks: labels, ascending, and vectors, as `VectorFile.append` takes them.

    Returns:
        How many records it has.

    Raises:
        VectorFileError: it cannot be written; a file of the same number stays as it was.
    """
    path, count = path_of(folder, number), 0
    try:
        layout = Layout.of(dim)
        with staged_file(path) as staged:
            staged.write_bytes(layout.header())
            file = VectorFile(staged, layout, read_only=False)
            try:
                for labels, vectors in blocks:
                    file.append(count, labels, vectors)
                    count += len(labels)
            finally:
                file.close()
    except (OSError, ValueError) as error:
        raise VectorFileError(f"cannot write {path}: {error}") from error
    return count


def remove_other_generations(folder: Path, number: int | None) -> None:
    """Remove all vectors files and their codes except one's, and what interrupted writes left.

    Processes that have another one open go on with it. (On Windows it stays until later.)
    """
    kept = () if number is None else (path_of(folder, number).name, f"codes-{number}.q4")
    for file in folder.iterdir():
        if file.name not in kept and _FILES.fullmatch(file.name):
            with suppress(OSError):
                file.unlink()


def path_of(folder: Path, number: int) -> Path:
    """The file of a generation."""
    return folder / f"vectors-{number}.f32"
