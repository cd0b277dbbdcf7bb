"""Rotation to principal directions, optionally with a learned rotation, before a flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flowvec.compat import override
from flowvec_export.transforms.base import Transform, no_density, register
from flowvec_export.transforms.linear import CentredLinear
from flowvec_export.transforms.moments import Moments

__all__ = ["Rotation"]


@register
class Rotation(Transform):
    """(u - mean) basis exp(S - S^T): keeps lengths and angles, and drops null directions.

    A flow of couplings mixes dimensions only a little. After a rotation to principal directions its
    input is uncorrelated from the start. S = 0 after `fit`; a flow that is fitted after it can
    learn S.

        >>> vectors = np.random.default_rng(0).normal(size=(1000, 4))
        >>> rotation = Rotation.fit(Moments.of(vectors), k=3)
        >>> rotation.in_dim, rotation.out_dim
        (4, 3)

    Args:
        in_dim: length of u.
        out_dim: directions kept.
        learned: whether S is a parameter to train.
    """

    kind = "rotation"
    mean: Tensor
    basis: Tensor

    def __init__(self, in_dim: int, out_dim: int, learned: bool = False) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.learned = in_dim, out_dim, learned
        self.register_buffer("mean", torch.zeros(in_dim))
        self.register_buffer("basis", torch.zeros(in_dim, out_dim))
        self.skew = nn.Parameter(torch.zeros(out_dim, out_dim)) if learned else None

    @classmethod
    def fit(cls, moments: Moments, k: int | None = None, learned: bool = False) -> Rotation:
        """Fit.

        Args:
            moments: of the vectors.
            k: directions to keep; None keeps all that are not null.
            learned: add a rotation that can be trained.

        Raises:
            InputValueError: k is more than the vectors have directions, or they are all equal.
        """
        spectrum = moments.spectrum()
        kept = spectrum.kept(k)
        fitted = cls(moments.dim, kept, learned)
        fitted.mean.copy_(torch.from_numpy(spectrum.mean))
        fitted.basis.copy_(torch.from_numpy(spectrum.basis[:, :kept].copy()))
        return fitted

    def _matrix(self) -> Tensor:
        if self.skew is None:
            return self.basis
        turn: Tensor = torch.linalg.matrix_exp(self.skew - self.skew.T)
        return self.basis @ turn

    @property
    def invertible(self) -> bool:
        """True if no direction was dropped."""
        return self.in_dim == self.out_dim

    @override
    def forward(self, u: Tensor) -> Tensor:
        return (u - self.mean) @ self._matrix()

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        if not self.invertible:
            # Volume within the kept directions does not change, so a flow after this rotation
            # still has a density there. The whole map has none.
            return self(u), no_density(u)
        # Zero except for the rounding of the basis; the learned rotation has determinant 1.
        log_det: Tensor = torch.linalg.slogdet(self.basis)[1]
        return self(u), log_det.expand(u.shape[0])

    @override
    def to_observed(self, z: Tensor) -> Tensor:
        if not self.invertible:
            return super().to_observed(z)
        # Solved instead of transposed: a basis rounded to float32 is not exactly orthogonal.
        u: Tensor = torch.linalg.solve(self._matrix().T, z.T)
        return u.T + self.mean

    def fold(self) -> CentredLinear:
        """One matrix."""
        with torch.no_grad():
            folded = _Folded(self.in_dim, self.out_dim, full_rank=self.invertible)
            folded.to(self.basis.dtype)
            folded.mean.copy_(self.mean)
            folded.matrix.copy_(self._matrix())
        return folded

    @override
    def describe(self) -> str:
        learned = ", learned" if self.learned else ""
        return f"rotation({self.in_dim}->{self.out_dim}{learned})"

    @override
    def config(self) -> dict[str, Any]:
        return {"in_dim": self.in_dim, "out_dim": self.out_dim, "learned": self.learned}


class _Folded(CentredLinear):
    kind = "rotation"
