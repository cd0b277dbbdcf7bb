"""Exact search of an inverted file, by the native library."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from flowvec.hnsw.library import HnswError, address, check, library

__all__ = ["best_rows"]

_MOST_ROWS = 1 << 31


def best_rows(
    rows: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    factors: npt.NDArray[np.float32],
    count: int,
    k: int,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """The k rows with the largest dot product above zero; equal ones by ascending row.

    Scores are sums in double precision, in the order of the lists. Any number of threads may call
    it; it releases Python's lock.

    Args:
        rows: the rows of all lists, int32 (weights,): each from 0 to `count` - 1, ascending within
            a list. They are not checked.
        weights: float32 (weights,).
        starts: where the list of each term of the query begins, int64 (terms,).
        ends: where it ends, int64 (terms,).
        factors: the query's weight of each term, float32 (terms,).
        count: how many rows there are.
        k: most rows to return.
        allowed: which rows may be returned, bool (count,); None is all.

    Returns:
        Rows, int32, and scores, float64, best first.

    Raises:
        HnswError: the arrays do not fit together.
        MemoryError: there is not enough memory.
    """
    rows, weights = np.ascontiguousarray(rows, np.int32), np.ascontiguousarray(weights, np.float32)
    starts, ends = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    factors = np.ascontiguousarray(factors, np.float32)
    if rows.shape != weights.shape or not len(starts) == len(ends) == len(factors):
        raise HnswError("an inverted file has a weight for each row of a list")
    if len(starts) and not (
        starts.min() >= 0 and (starts <= ends).all() and ends.max() <= len(rows)
    ):
        raise HnswError(f"a list lies outside of the {len(rows)} weights")
    if not 0 <= count < _MOST_ROWS:
        raise HnswError(f"an inverted file has at most 2^31 rows, not {count}")
    if allowed is not None:
        allowed = np.ascontiguousarray(allowed, np.bool_)
        if allowed.shape != (count,):
            raise HnswError(f"{len(allowed)} marks for {count} rows")
    k = max(0, min(k, count))
    best, scores = np.empty(k, np.int32), np.empty(k, np.float64)
    found = ctypes.c_size_t()
    check(
        library().flowvec_hnsw_best_rows(
            address(rows), address(weights), address(starts), address(ends), address(factors),
            len(starts), count, None if allowed is None else address(allowed), k,
            address(best), address(scores), ctypes.byref(found),
        )
    )  # fmt: skip
    return best[: found.value], scores[: found.value]
