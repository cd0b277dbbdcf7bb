"""Sparse vectors that a caller gives, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputTypeError, InputValueError
from flowvec.sparse.vectors import SparseVectors

__all__ = ["checked_sparse", "chosen_rows"]

_MOST_DIM = (1 << 31) - 1


def checked_sparse(name: str, value: object) -> SparseVectors:
    """Sparse vectors from `SparseVectors`, a list of them, or a sparse matrix of scipy.

    Args:
        name: what messages call them.
        value: the caller's.

    Raises:
        InputTypeError: it is none of these.
        InputValueError: the arrays do not fit together, or hold NaN or infinity; those of a list
            differ in `dim`.
    """
    if isinstance(value, SparseVectors):
        vectors = value
    elif hasattr(value, "tocsr"):
        vectors = SparseVectors.from_scipy(value)
    elif isinstance(value, list) and value and all(isinstance(v, SparseVectors) for v in value):
        vectors = SparseVectors.joined(value)
    else:
        raise InputTypeError(
            f"{name} must be SparseVectors, a list of them or a sparse matrix of scipy, not "
            f"{_described(value)}"
        )
    indptr, terms, weights = vectors.arrays
    if not 1 <= vectors.dim <= _MOST_DIM:
        raise InputValueError(f"{name} must have 1 to {_MOST_DIM} dimensions, not {vectors.dim}")
    if (
        len(indptr) < 1
        or indptr[0] != 0
        or (np.diff(indptr) < 0).any()
        or not indptr[-1] == len(terms) == len(weights)
    ):
        raise InputValueError(f"{name} are not compressed sparse rows: indptr does not fit")
    row_of = np.repeat(np.arange(len(vectors)), vectors.active_dims)
    if len(terms) and (terms.min() < 0 or terms.max() >= vectors.dim):
        row = row_of[np.flatnonzero((terms < 0) | (terms >= vectors.dim))[0]]
        raise InputValueError(f"row {row} of {name} has an index that is not below {vectors.dim}")
    unordered = (np.diff(terms) <= 0) & (np.diff(row_of) == 0)
    if unordered.any():
        row = row_of[np.flatnonzero(unordered)[0]]
        raise InputValueError(f"row {row} of {name} has indices that do not ascend")
    if not np.isfinite(weights).all():
        row = row_of[np.flatnonzero(~np.isfinite(weights))[0]]
        raise InputValueError(f"row {row} of {name} holds NaN or infinity")
    return vectors


def chosen_rows(
    vectors: SparseVectors, rows: Sequence[int] | npt.NDArray[np.int64]
) -> SparseVectors:
    """The sparse vectors of some rows, in their order."""
    chosen = np.asarray(rows, np.int64)
    lengths = vectors.active_dims[chosen]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    places = np.repeat(vectors.indptr[chosen] - indptr[:-1], lengths) + np.arange(indptr[-1])
    return SparseVectors(
        indptr, vectors.indices[places], vectors.values[places], vectors.dim, vectors.vocabulary
    )


def _described(value: object) -> str:
    """What messages call a value of the wrong type."""
    if not isinstance(value, list):
        return type(value).__name__
    others = [type(v).__name__ for v in value if not isinstance(v, SparseVectors)]
    return f"a list with {others[0]}" if others else "an empty list"
