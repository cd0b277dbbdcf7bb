"""Codes of vectors, and the nearest rows by a scan of them, in the native library."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec.hnsw.library import HnswError, address, check, library

__all__ = ["Codes", "Places", "has_fast_scan"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the vectors of rows are in memory; whoever holds it keeps the memory.

    Attributes:
        blocks: vectors of the first rows, float32 (blocks, rows, dim); each block is contiguous.
        in_blocks: how many rows those are.
        others: vectors of the rows after them, float32 (rows, dim), contiguous.
    """

    blocks: Floats | None
    in_blocks: int
    others: Floats


def has_fast_scan() -> bool:
    """Whether this processor has an instruction set that scans are written for: AVX2."""
    return bool(library().flowvec_hnsw_simd() != b"base")


class Codes:
    """Codes of 4 bits for each number of rows, with which a scan finds the nearest.

    They are codes of the differences from the mean of the rows that are added first. A scan
    estimates all scores from codes, and computes those that may be among the best from the
    vectors. So the scores that it returns are exact, and it misses a row only if its estimate is
    wrong by more than `reach` standard deviations. Estimates are as in RaBitQ (arXiv 2405.12497),
    with 4 bits (arXiv 2409.09913).

    Any number of threads may search, also while one adds rows. Python's lock is released.
    """

    def __init__(self, dim: int, *, squared: bool, seed: int = 0) -> None:
        """No codes yet.

        Args:
            dim: length of the vectors.
            squared: whether rows are compared by their Euclidean distance instead of the dot
                product.
            seed: for the random rotation.

        Raises:
            HnswError: a size is out of range.
        """
        self.dim, self.squared = dim, squared
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(
            self._lib.flowvec_hnsw_codes_create(
                dim, squared, seed & (1 << 64) - 1, ctypes.byref(self._handle)
            )
        )
        weakref.finalize(self, self._lib.flowvec_hnsw_codes_free, self._handle).atexit = False

    def _sizes(self) -> list[int]:
        sizes = (ctypes.c_uint64 * 2)()
        check(self._lib.flowvec_hnsw_codes_sizes(self._handle, ctypes.byref(sizes)))
        return list(sizes)

    def __len__(self) -> int:
        """How many rows there are."""
        return self._sizes()[0]

    @property
    def nbytes(self) -> int:
        """Their memory."""
        return self._sizes()[1]

    def add(self, vectors: Floats, threads: int = 1) -> bool:
        """Add rows; one thread at a time.

        Args:
            vectors: finite, float32 (rows, dim).
            threads: how many compute them.

        Returns:
            False if a row is so long (1e18) that estimates may be infinite: do not search then.

        Raises:
            MemoryError: there is not enough memory. No row was added.
        """
        rows = np.ascontiguousarray(vectors, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise HnswError(f"vectors have shape {rows.shape} instead of (rows, {self.dim})")
        are_short = ctypes.c_int()
        check(
            self._lib.flowvec_hnsw_codes_add(
                self._handle, address(rows), len(rows), threads, ctypes.byref(are_short)
            )
        )
        return bool(are_short.value)

    def search(
        self,
        queries: Floats,
        k: int,
        places: Places,
        *,
        first: int = 0,
        last: int,
        allowed: npt.NDArray[np.bool_] | None = None,
        reach: float,
        threads: int = 1,
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """The k nearest rows of each query, best first; equal scores in the order of rows.

        Args:
            queries: finite, float32 (queries, dim).
            k: how many; at least so many rows may be returned.
            places: the vectors of all rows.
            first: the first row that may be returned.
            last: the row after the last one.
            allowed: which rows may be returned, bool (at least `last`,); None is all.
            reach: how many standard deviations an estimate may be wrong.
            threads: how many search.

        Returns:
            Rows int64 and scores float32, (queries, k): dot products, or negative distances.

        Raises:
            HnswError: the arguments do not fit together.
            MemoryError: there is not enough memory.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise HnswError(f"queries have shape {queries.shape} instead of (n, {self.dim})")
        if not 0 <= first <= last <= places.in_blocks + len(places.others):
            raise HnswError(f"rows {first} to {last} are not all there")
        if allowed is not None:
            allowed = np.ascontiguousarray(allowed, np.bool_)
            if len(allowed) < last:
                raise HnswError(f"{len(allowed)} marks for {last} rows")
        blocks, others = places.blocks, places.others
        others = np.ascontiguousarray(others, np.float32)
        rows = np.empty((len(queries), k), np.int64)
        scores = np.empty((len(queries), k), np.float32)
        check(
            self._lib.flowvec_hnsw_codes_search(
                self._handle, address(queries), len(queries), k, first, last,
                None if allowed is None else address(allowed), reach,
                None if blocks is None else address(blocks), places.in_blocks,
                1 if blocks is None else blocks.shape[1],
                0 if blocks is None else blocks.strides[0],
                address(others), threads, address(rows), address(scores),
            )
        )  # fmt: skip
        return rows, scores

    def __reduce__(self) -> str:
        raise TypeError("codes cannot be pickled; make them again from the vectors")
