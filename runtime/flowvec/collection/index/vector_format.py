"""The format of a vectors file. Little-endian:

- a header of 4,096 bytes: `_HEADER`, then zeros;
- blocks of `rows` records each. A block holds its vectors, float32 (rows, dim), then its labels,
  int64 (rows,), then its checksums, uint64 (rows,). Record `slot` is row `slot % rows` of block
  `slot // rows`. Labels ascend.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["HEADER_BYTES", "Floats", "Labels", "Layout", "MappedBlocks", "Words"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

HEADER_BYTES = 4096
_MAGIC, _VERSION = b"flowvecs", 1
_HEADER = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("dim", "<u4"), ("rows", "<u4"), ("crc", "<u4")]
)
# numpy multiplies a block with a query on one core without waiting for OpenBLAS's other threads,
# which on a busy machine takes longer than the product. OpenBLAS uses them above 460,800 numbers.
_BLOCK_NUMBERS = 400_000
_LEAST_ROWS = 64
_MOST_DIM = 1 << 20
# Added to every checksum, so that a record of zeros is not valid.
_SALT = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class MappedBlocks:
    """Blocks in memory: vectors (blocks, rows, dim), labels and checksums (blocks, rows)."""

    vectors: Floats
    labels: Labels
    checksums: Words


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the records of a file are.

    Attributes:
        dim: length of the vectors.
        rows: records of a block.
    """

    dim: int
    rows: int
    _weights: Words = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        weights = _mixed(np.arange(1, 2 + (self.dim + 1) // 2, dtype=np.uint64)) | np.uint64(1)
        object.__setattr__(self, "_weights", weights)

    @classmethod
    def of(cls, dim: int) -> Layout:
        """The layout of a new file.

        Raises:
            ValueError: vectors of this length cannot be stored.
        """
        if not 0 < dim <= _MOST_DIM:
            raise ValueError(f"dim must be from 1 to {_MOST_DIM}, but is {dim}")
        return cls(dim, max(_LEAST_ROWS, 1 << (_BLOCK_NUMBERS // dim).bit_length() - 1))

    @classmethod
    def read(cls, path: Path, dim: int) -> Layout:
        """The layout of a file, from its header.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not a vectors file of this version and dim.
        """
        with path.open("rb") as file:
            content = file.read(_HEADER.itemsize).ljust(_HEADER.itemsize, b"\0")
        header = np.frombuffer(content, _HEADER)[0]
        if header["magic"] != _MAGIC or header["crc"] != zlib.crc32(content[:-4]):
            raise ValueError("it is damaged, or is not a vectors file")
        if header["version"] != _VERSION or header["dim"] != dim:
            raise ValueError(
                f"it has version {header['version']} and dim {header['dim']}, instead of "
                f"{_VERSION} and {dim}"
            )
        return cls(dim, int(header["rows"]))

    def header(self) -> bytes:
        """The header of a file."""
        header = np.zeros(1, _HEADER)
        header[0] = (_MAGIC, _VERSION, self.dim, self.rows, 0)
        header["crc"] = zlib.crc32(header.tobytes()[:-4])
        return header.tobytes().ljust(HEADER_BYTES, b"\0")

    @property
    def block_bytes(self) -> int:
        """Size of a block."""
        return self.rows * (4 * self.dim + 16)

    @property
    def labels_at(self) -> int:
        """Where the labels begin in a block."""
        return self.rows * 4 * self.dim

    @property
    def checksums_at(self) -> int:
        """Where the checksums begin in a block."""
        return self.rows * (4 * self.dim + 8)

    def blocks_in(self, size: int) -> int:
        """How many whole blocks a file of this size has."""
        return max(0, size - HEADER_BYTES) // self.block_bytes

    def map(self, content: Any, blocks: int) -> MappedBlocks:
        """Arrays over the blocks of a whole file in memory."""
        rows, dim, step = self.rows, self.dim, self.block_bytes
        if not blocks:
            content = bytes(HEADER_BYTES + step)

        def at(place: int, shape: tuple[int, ...], kind: str, *steps: int) -> Any:
            start = HEADER_BYTES + place
            return np.ndarray((blocks, *shape), kind, content, start, (step, *steps))

        return MappedBlocks(
            at(0, (rows, dim), "<f4", 4 * dim, 4),
            at(self.labels_at, (rows,), "<i8", 8),
            at(self.checksums_at, (rows,), "<u8", 8),
        )

    def parts(self, first: int, last: int) -> Iterator[tuple[int, slice, slice]]:
        """Blocks of the slots from `first` to before `last`: block, rows in it, rows of all."""
        slot = first
        while slot < last:
            block, row = divmod(slot, self.rows)
            count = min(self.rows - row, last - slot)
            yield block, slice(row, row + count), slice(slot - first, slot - first + count)
            slot += count

    def checksums(self, labels: Labels, vectors: Floats) -> Words:
        """A checksum of each record, uint64 (rows,): a weighted sum of its words.

        All weights are odd, so that a flipped bit always changes the sum. They differ, so that
        words cannot change places.
        """
        if self.dim % 2:
            vectors = np.pad(vectors, ((0, 0), (0, 1)))
        words = vectors.view("<u8")
        of_vectors: Words = np.einsum("ij,j->i", words, self._weights[1:])
        of_labels: Words = labels.astype(np.uint64) * self._weights[0] + _SALT
        return of_vectors + of_labels


def _mixed(words: Words) -> Words:
    """Numbers that look random, uint64 like the given ones (splitmix64; Steele et al. 2014)."""
    words = words * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
