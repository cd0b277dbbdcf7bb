"""Computes mean and covariance of batches, and the directions that are more than rounding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError

__all__ = ["NULL", "Moments", "Spectrum"]

Floats = npt.NDArray[np.float64]

# A direction whose variance is below this share of the largest one is null: it holds the rounding
# of float32 and bfloat16 encoders only. The outputs of a post-LayerNorm encoder lie on
# a hyperplane, so every such model has one; dividing by its deviation would fill the vectors with
# noise.
NULL = 1e-5


class Moments:
    """Mean and covariance of rows that come in batches, in float64.

    Batches are merged by the pairwise update of Chan, Golub and LeVeque (1979), which does not lose
    precision if the mean is large compared with the deviation.

        >>> moments = Moments(dim=2)
        >>> moments.update(np.array([[1.0, 0.0], [3.0, 0.0]]))
        >>> moments.update(np.array([[5.0, 0.0]]))
        >>> moments.count, moments.mean.tolist()
        (3, [3.0, 0.0])

    Args:
        dim: length of a row.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.count = 0
        self.mean: Floats = np.zeros(dim)
        self._scatter: Floats = np.zeros((dim, dim))

    @classmethod
    def of(cls, batches: Iterable[npt.NDArray[np.floating]] | npt.NDArray[np.floating]) -> Moments:
        """Moments of one array (rows, dim), or of several in turn.

        Raises:
            InputValueError: no rows; or see `update`.
        """
        # One array is read in slices, so that no float64 copy of all of it is made.
        if isinstance(batches, np.ndarray):
            whole = batches
            batches = (whole[i : i + 8192] for i in range(0, len(whole), 8192))
        moments: Moments | None = None
        for batch in batches:
            moments = moments or cls(batch.shape[1])
            moments.update(batch)
        if moments is None or not moments.count:
            raise InputValueError("there are no vectors to fit on")
        return moments

    def update(self, rows: npt.NDArray[np.floating]) -> None:
        """Add rows, float (n, dim).

        Raises:
            InputValueError: another shape, or NaN or infinity in a row.
        """
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise InputValueError(f"vectors must be (rows, {self.dim}), not {rows.shape}")
        if not len(rows):
            return
        exact = rows.astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(exact).all(axis=1))
        if len(bad):
            raise InputValueError(
                f"NaN or infinity in vector {self.count + int(bad[0])}, and {len(bad) - 1} more"
            )
        mean = exact.mean(axis=0)
        exact -= mean
        shift = mean - self.mean
        total = self.count + len(rows)
        self._scatter += exact.T @ exact
        self._scatter += np.outer(shift, shift) * (self.count * len(rows) / total)
        self.mean = self.mean + shift * (len(rows) / total)
        self.count = total

    @property
    def covariance(self) -> Floats:
        """The unbiased covariance (dividing by count - 1), float64 (dim, dim).

        Raises:
            InputValueError: fewer than two rows.
        """
        if self.count < 2:
            raise InputValueError(f"a covariance needs two vectors, but there is {self.count}")
        return self._scatter / (self.count - 1)

    @property
    def variance(self) -> Floats:
        """The covariance's diagonal, (dim,)."""
        return np.diag(self.covariance).copy()

    def spectrum(self, null: float = NULL) -> Spectrum:
        """Principal directions, those of the largest variance first.

        Args:
            null: the share of the largest variance below which a direction counts as null.

        Raises:
            InputValueError: fewer than two rows, or all rows are equal.
        """
        values, basis = np.linalg.eigh(self.covariance)
        values, basis = np.maximum(values[::-1], 0.0), basis[:, ::-1]
        # Equal rows of float32 have a variance of this order, from the rounding of the mean.
        noise = float(np.square(np.abs(self.mean).max() * np.finfo(np.float32).eps))
        if values[0] <= noise:
            raise InputValueError("all vectors are equal, so there is nothing to fit")
        # An eigenvector's sign is arbitrary; a fixed one gives equal files for equal data.
        signs = np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(self.dim)])
        rank = int((values > null * values[0]).sum())
        return Spectrum(self.mean, values, basis * signs, rank, self.count)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Principal directions of a set of vectors.

    Attributes:
        mean: (dim,).
        values: variances, descending, (dim,).
        basis: orthonormal directions as columns, in that order, (dim, dim).
        rank: number of directions that are not null.
        count: rows that it was measured on.
    """

    mean: Floats
    values: Floats
    basis: Floats
    rank: int
    count: int

    def kept(self, k: int | None) -> int:
        """Number of directions to keep: k, or all that are not null if k is None.

        Raises:
            InputValueError: k is below 1 or above the number of directions that are not null.
        """
        if k is None:
            return self.rank
        if not 1 <= k <= self.rank:
            raise InputValueError(
                f"k must be from 1 to {self.rank}, but is {k}: {self.count} vectors of "
                f"{len(self.values)} dimensions have {self.rank} directions that are not null"
            )
        return k
