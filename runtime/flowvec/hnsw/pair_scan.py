"""The best pairs of rows, by a scan of their codes in the native library."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import numpy.typing as npt

from flowvec.hnsw.frame import Frame
from flowvec.hnsw.library import HnswError, address, check, library

__all__ = ["PairScan"]

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

# Numbers that are encoded in one call: about 50 ms. Python looks for Ctrl-C between calls.
_STEP_NUMBERS = 1 << 22
# With fewer rows, a basis takes longer than it saves: see bench/log/2026-11-30.md.
_LEAST_FITTED = 30_000
# Three quarters of the numbers tell of nearly all pairs that they are far away.
_SHARE = 0.75


class PairScan:
    """Finds the best pairs of rows exactly, and computes few of their scores.

    A code says how high a score can be at most. Only pairs that may be among the best are computed,
    from the vectors. Python's lock is released.
    """

    def __init__(self, rows: Floats, threads: int = 1) -> None:
        """Make the codes.

        Args:
            rows: of length 1 or 0, float32 (rows, dim).
            threads: how many compute, here and later.

        Raises:
            HnswError: dim is out of range.
            MemoryError: there is not enough memory.
        """
        self._rows, self._threads = np.ascontiguousarray(rows, np.float32), threads
        count, dim = self._rows.shape
        self._lib = library()
        self._handle = ctypes.c_void_p()
        if count < _LEAST_FITTED:
            frame = Frame.at_random(self._rows, _SHARE)
        else:
            frame = Frame.fit(self._rows, _SHARE, certain=True)
        check(
            self._lib.flowvec_hnsw_pairs_create(
                address(self._rows), count, dim, address(frame.centre),
                None if frame.basis is None else address(frame.basis), frame.part,
                ctypes.byref(self._handle),
            )
        )  # fmt: skip
        weakref.finalize(self, self._lib.flowvec_hnsw_pairs_free, self._handle).atexit = False
        step = max(1, _STEP_NUMBERS // dim)
        for _ in range(0, count, step):
            check(self._lib.flowvec_hnsw_pairs_add(self._handle, step, threads))

    def best(
        self, first: int, last: int, k: int, floor: float, most: int
    ) -> tuple[Floats, Indices] | None:
        """The k best pairs of some rows with later rows.

        Args:
            first: the first of the rows.
            last: the row after the last one.
            k: how many pairs.
            floor: least dot product.
            most: how many products may be computed.

        Returns:
            Dot products float32 (pairs,), the largest first, and the two rows of each pair, int64
            (pairs, 2); equal products are in the order of rows. None if more products would have to
            be computed.

        Raises:
            HnswError: there are not so many rows.
            MemoryError: there is not enough memory.
        """
        if not 0 <= first <= last <= len(self._rows):
            raise HnswError(f"rows {first} to {last} are not all there")
        k = min(k, most + 1)  # with fewer, the k-th best could rule out pairs that count
        scores, pairs = np.empty(k, np.float32), np.empty((k, 2), np.int64)
        count = ctypes.c_size_t()
        check(
            self._lib.flowvec_hnsw_pairs_best(
                self._handle, first, last, k, floor, most, self._threads, address(scores),
                address(pairs), ctypes.byref(count),
            )
        )  # fmt: skip
        found = count.value
        return None if found > k else (scores[:found], pairs[:found])

    def __reduce__(self) -> str:
        raise TypeError("a scan cannot be pickled; make it again from the rows")
