"""Where the vectors of rows are, for the native library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec.hnsw.library import HnswError, address

__all__ = ["Places"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the vectors of rows are in memory; whoever holds it keeps the memory.

    Attributes:
        blocks: vectors of the first rows, float32 (blocks, rows, dim); each block is contiguous.
        in_blocks: how many rows those are.
        others: vectors of the rows after them, float32 (rows, dim), contiguous.
        used: for each block, uint8 (blocks,); becomes 1 where scores are computed from it.
    """

    blocks: Floats | None
    in_blocks: int
    others: Floats
    used: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        """How many rows there are."""
        return self.in_blocks + len(self.others)

    def arguments(self, dim: int) -> tuple[int | None, ...]:
        """What the library takes; these places must be kept while it reads them.

        Raises:
            HnswError: they do not fit together, or the vectors have another length than `dim`.
        """
        blocks, others, used = self.blocks, self.others, self.used
        if others.ndim != 2 or others.shape[1] != dim or not others.flags.c_contiguous:
            raise HnswError(f"vectors have shape {others.shape} instead of (rows, {dim})")
        if blocks is None and not self.in_blocks:
            return None, 0, 1, 0, address(others), None
        if blocks is None or blocks.ndim != 3 or blocks.shape[2] != dim:
            raise HnswError(f"there are no blocks of vectors of length {dim}")
        if self.in_blocks > blocks.shape[0] * blocks.shape[1]:
            raise HnswError(f"blocks of shape {blocks.shape} do not hold {self.in_blocks} rows")
        if used is not None and len(used) < len(blocks):
            raise HnswError(f"{len(used)} marks are too few for the blocks")
        marks = None if used is None else address(used)
        size = blocks.strides[0]
        return address(blocks), self.in_blocks, blocks.shape[1], size, address(others), marks
