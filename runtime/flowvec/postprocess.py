"""The only numerics outside the graph: checks and L2 normalisation of finished vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["non_finite_rows", "normalize"]


def normalize(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Divide each row by its L2 norm; a zero row stays zero. float32 (batch, dim) in and out."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # A subnormal norm would turn the quotient into infinity.
    norms[norms < np.finfo(np.float32).tiny] = 1.0
    unit: npt.NDArray[np.float32] = np.divide(vectors, norms, dtype=np.float32)
    return unit


def non_finite_rows(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Indices of the rows that hold NaN or infinity; int64 (rows,)."""
    # One sum over everything is finite only if all is: the common case costs one pass, no mask.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(vectors.sum(dtype=np.float64)):
            return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~np.isfinite(vectors).all(axis=-1)).astype(np.int64)
