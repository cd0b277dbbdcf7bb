"""All-but-the-top: removes the mean and the directions that all vectors share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec_export.transforms.base import Transform, no_density, register
from flowvec_export.transforms.moments import Moments

__all__ = ["AllButTheTop"]


@register
class AllButTheTop(Transform):
    """(u - mean) without its components along the top k principal directions.

    Mu and Viswanath (2018) take k = dim / 100. It is computed as two thin products, with 2 k dim
    multiplications instead of dim^2.

        >>> vectors = np.random.default_rng(0).normal(size=(1000, 300))
        >>> transform = AllButTheTop.fit(Moments.of(vectors))
        >>> transform.describe()
        'all_but_the_top(300, k=3)'
    """

    kind = "all_but_the_top"
    mean: Tensor
    top: Tensor

    def __init__(self, dim: int, k: int) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.k = k
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("top", torch.zeros(dim, k))

    @classmethod
    def fit(cls, moments: Moments, k: int | None = None) -> AllButTheTop:
        """Fit.

        Args:
            moments: of the vectors.
            k: directions to remove; None takes dim / 100, at least one.

        Raises:
            InputValueError: k would leave nothing, or all vectors are equal.
        """
        spectrum = moments.spectrum()
        k = max(1, round(moments.dim / 100)) if k is None else k
        if not 1 <= k < spectrum.rank:
            raise InputValueError(
                f"k must be from 1 to {spectrum.rank - 1}, but is {k}: the vectors have "
                f"{spectrum.rank} directions that are not null"
            )
        fitted = cls(moments.dim, k)
        fitted.mean.copy_(torch.from_numpy(spectrum.mean))
        fitted.top.copy_(torch.from_numpy(spectrum.basis[:, :k].copy()))
        return fitted

    @override
    def forward(self, u: Tensor) -> Tensor:
        centred = u - self.mean
        # A linear layer, not the transpose: torch's exporter would store the transpose as a second
        # matrix with a new name, which float16 weights would round.
        return centred - functional.linear(centred @ self.top, self.top)

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return self(u), no_density(u)

    @override
    def describe(self) -> str:
        return f"all_but_the_top({self.in_dim}, k={self.k})"

    @override
    def config(self) -> dict[str, Any]:
        return {"dim": self.in_dim, "k": self.k}
