"""The first principal components of vectors, and vectors projected on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Axes", "principal_axes"]

Floats = npt.NDArray[np.float32]

# Orthogonal iteration on a few more columns than are kept converges in this many rounds.
_ROUNDS = 24
_MORE_COLUMNS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """Principal axes.

    Attributes:
        mean: of the vectors, float32 (dim,).
        axes: float32 (dim, components), orthonormal, largest variance first.
        shares: share of the variance on each axis, of all variance.
    """

    mean: Floats
    axes: Floats
    shares: tuple[float, ...]

    def project(self, vectors: Floats) -> Floats:
        """Coordinates of vectors, float32 (rows, dim) to (rows, components)."""
        return ((vectors - self.mean) @ self.axes).astype(np.float32, copy=False)


def principal_axes(vectors: npt.NDArray[np.floating[Any]], components: int = 2) -> Axes:
    """The axes on which vectors vary most; the same for the same vectors on every call.

    By orthogonal iteration (Golub and Van Loan, "Matrix Computations", 8.2), which costs a few
    products with the vectors where an eigendecomposition costs dim^3.

    Args:
        vectors: (rows, dim); with fewer rows or dimensions than components, further axes are 0.
        components: how many.
    """
    rows = np.asarray(vectors, np.float32)
    dim = rows.shape[1]
    mean = rows.mean(0) if len(rows) else np.zeros(dim, np.float32)
    centred = rows - mean
    total = float(np.einsum("ij,ij->", centred, centred, dtype=np.float64))
    axes = np.zeros((dim, components), np.float32)
    columns = min(components + _MORE_COLUMNS, dim, max(1, len(rows)))
    if total <= 0.0:
        return Axes(mean, axes, (0.0,) * components)
    basis = np.random.default_rng(0).standard_normal((dim, columns)).astype(np.float32)
    for _ in range(_ROUNDS):
        basis, _ = np.linalg.qr(centred.T @ (centred @ basis))
    inside = centred @ basis
    variances, rotation = np.linalg.eigh((inside.T @ inside).astype(np.float64))
    order = np.argsort(-variances)[:components]
    found = (basis @ rotation[:, order].astype(np.float32)).astype(np.float32)
    # The sign of an axis is arbitrary: its largest coordinate is made positive.
    signs = np.sign(found[np.abs(found).argmax(0), np.arange(len(order))])
    axes[:, : len(order)] = found * np.where(signs == 0, 1, signs)
    shares = [float(max(0.0, v)) / total for v in variances[order]]
    return Axes(mean, axes, (*shares, *(0.0,) * (components - len(shares))))
