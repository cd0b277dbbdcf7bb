"""The whitening family: gives all directions the same variance, fully or partly."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec_export.transforms.base import register
from flowvec_export.transforms.linear import CentredLinear
from flowvec_export.transforms.moments import Moments

__all__ = ["BetaGammaWhitening", "SoftZCA", "Whitening"]


@register
class Whitening(CentredLinear):
    """BERT-whitening (Su et al. 2021): (u - mean) U L^(-1/2), the first k columns.

    U and L are the principal directions and their variances. The covariance of the output, over the
    rows that it was fitted on, is the identity. Null directions are dropped: see `NULL`.

        >>> vectors = np.random.default_rng(0).normal(3.0, size=(1000, 4))
        >>> whitening = Whitening.fit(Moments.of(vectors), k=2)
        >>> white = whitening(torch.tensor(vectors, dtype=torch.float32)).numpy()
        >>> np.cov(white.T).round(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    kind = "whitening"

    @classmethod
    def fit(cls, moments: Moments, k: int | None = None) -> Self:
        """Fit.

        Args:
            moments: of the vectors.
            k: directions to keep, those of the largest variance; None keeps all that are not null.

        Raises:
            InputValueError: k is more than the vectors have directions, or they are all equal.
        """
        spectrum = moments.spectrum()
        kept = spectrum.kept(k)
        fitted = cls(moments.dim, kept, full_rank=kept == moments.dim)
        fitted._set(spectrum.mean, spectrum.basis[:, :kept] * spectrum.values[:kept] ** -0.5)
        return fitted


@register
class BetaGammaWhitening(CentredLinear):
    """(u - beta mean) U L^(-gamma/2), the first k columns.

    beta = gamma = 1 is `Whitening`; beta = 1 and gamma = 0 is a principal component analysis. Null
    directions are dropped.

        >>> vectors = np.random.default_rng(0).normal(3.0, size=(1000, 4))
        >>> half = BetaGammaWhitening.fit(Moments.of(vectors), beta=1.0, gamma=0.5)
        >>> half.in_dim, half.out_dim
        (4, 4)
    """

    kind = "beta_gamma_whitening"

    def __init__(
        self, in_dim: int, out_dim: int, full_rank: bool, beta: float, gamma: float
    ) -> None:
        super().__init__(in_dim, out_dim, full_rank)
        # A file's configuration may hold anything.
        self.beta, self.gamma = float(beta), float(gamma)

    @classmethod
    def fit(
        cls, moments: Moments, beta: float = 1.0, gamma: float = 0.5, k: int | None = None
    ) -> Self:
        """Fit.

        Args:
            moments: of the vectors.
            beta: share of the mean that is subtracted.
            gamma: 0 keeps the variances as they are, 1 makes them equal.
            k: directions to keep; None keeps all that are not null.

        Raises:
            InputValueError: beta or gamma is outside 0 to 1, k is more than the vectors have
                directions, or they are all equal.
        """
        if not (0.0 <= beta <= 1.0 and 0.0 <= gamma <= 1.0):
            raise InputValueError(f"beta and gamma must be from 0 to 1, but are {beta} and {gamma}")
        spectrum = moments.spectrum()
        kept = spectrum.kept(k)
        fitted = cls(moments.dim, kept, kept == moments.dim, beta, gamma)
        scales = spectrum.values[:kept] ** (-gamma / 2)
        fitted._set(beta * spectrum.mean, spectrum.basis[:, :kept] * scales)
        return fitted

    @override
    def describe(self) -> str:
        sizes = f"{self.in_dim}->{self.out_dim}"
        return f"{self.kind}({sizes}, beta={self.beta:g}, gamma={self.gamma:g})"

    @override
    def config(self) -> dict[str, Any]:
        return {**super().config(), "beta": self.beta, "gamma": self.gamma}


@register
class SoftZCA(CentredLinear):
    """Soft-ZCA: (u - mean) U (L + eps I)^(-1/2) U^T (Diera et al. 2024).

    ZCA whitening turns the vectors back to their original directions; eps keeps small directions
    small. Here eps is relative to the mean variance, so that it means the same for every model.
    With an eps below 1e-3, null directions become zero.

        >>> vectors = np.random.default_rng(0).normal(3.0, size=(1000, 4))
        >>> soft = SoftZCA.fit(Moments.of(vectors), eps=0.05)
        >>> soft(torch.ones(1, 4)).shape
        torch.Size([1, 4])
    """

    kind = "soft_zca"

    def __init__(self, in_dim: int, out_dim: int, full_rank: bool, eps: float) -> None:
        super().__init__(in_dim, out_dim, full_rank)
        self.eps = float(eps)

    @classmethod
    def fit(cls, moments: Moments, eps: float = 0.05) -> Self:
        """Fit.

        Args:
            moments: of the vectors.
            eps: added to every variance, in units of the mean variance.

        Raises:
            InputValueError: eps is negative, or all vectors are equal.
        """
        if not 0.0 <= eps < np.inf:
            raise InputValueError(f"eps must not be negative, but is {eps}")
        spectrum = moments.spectrum()
        softened = spectrum.values + eps * spectrum.values.mean()
        scales = np.zeros_like(softened)
        # Below a thousandth of the mean variance eps does not hide the rounding of a bfloat16
        # encoder in a null direction (cosine .78 at 1e-5, .997 at 1e-3, on a made-up example).
        cleared = np.arange(moments.dim) < (moments.dim if eps >= 1e-3 else spectrum.rank)
        scales[cleared] = softened[cleared] ** -0.5
        fitted = cls(moments.dim, moments.dim, bool(cleared.all()), eps)
        fitted._set(spectrum.mean, (spectrum.basis * scales) @ spectrum.basis.T)
        return fitted

    @override
    def describe(self) -> str:
        return f"{self.kind}({self.in_dim}, eps={self.eps:g})"

    @override
    def config(self) -> dict[str, Any]:
        return {**super().config(), "eps": self.eps}
