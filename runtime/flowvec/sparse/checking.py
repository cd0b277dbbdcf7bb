"""Sparse vectors that a caller gives, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
        InputTypeError: it is none of these, or the arrays hold something else than numbers.
        InputValueError: the arrays do not fit together, or hold NaN, infinity or a number above
            float32's; those of a list differ in `dim`.

    Returns:
        The vectors, whose arrays have the dtypes that `SparseVectors` says.
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
    indptr = _array(f"indptr of {name}", vectors.indptr, "iu").astype(np.int64, copy=False)
    terms = _array(f"indices of {name}", vectors.indices, "iu")
    with np.errstate(over="ignore"):  # an infinity is reported with its row
        weights = _array(f"values of {name}", vectors.values, "iuf").astype(np.float32, copy=False)
    if not 1 <= vectors.dim <= _MOST_DIM:
        raise InputValueError(f"{name} must have 1 to {_MOST_DIM} dimensions, not {vectors.dim}")
    if (
        len(indptr) < 1
        or indptr[0] != 0
        or (np.diff(indptr) < 0).any()
        or not indptr[-1] == len(terms) == len(weights)
    ):
        raise InputValueError(f"{name} are not compressed sparse rows: indptr does not fit")
    row_of = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if len(terms) and (terms.min() < 0 or terms.max() >= vectors.dim):
        row = row_of[np.flatnonzero((terms < 0) | (terms >= vectors.dim))[0]]
        raise InputValueError(f"row {row} of {name} has an index that is not below {vectors.dim}")
    terms = terms.astype(np.int32, copy=False)
    unordered = (np.diff(terms) <= 0) & (np.diff(row_of) == 0)
    if unordered.any():
        row = row_of[np.flatnonzero(unordered)[0]]
        raise InputValueError(f"row {row} of {name} has indices that do not ascend")
    if not np.isfinite(weights).all():
        row = row_of[np.flatnonzero(~np.isfinite(weights))[0]]
        raise InputValueError(f"row {row} of {name} holds NaN or infinity in float32")
    return SparseVectors(indptr, terms, weights, vectors.dim, vectors.vocabulary)


def _array(name: str, value: object, kinds: str) -> npt.NDArray[Any]:
    """An array of one axis, whose numbers are of a kind of dtypes.

    Raises:
        InputTypeError: it holds something else.
        InputValueError: it has another number of axes.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputTypeError(f"{name} must be numbers: {error}") from None
    if array.ndim != 1:
        raise InputValueError(f"{name} must be of one axis, not of shape {array.shape}")
    if array.dtype.kind not in kinds and len(array):
        wanted = "numbers" if "f" in kinds else "whole numbers"
        raise InputTypeError(f"{name} must be {wanted}, not {array.dtype}")
    return array


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
