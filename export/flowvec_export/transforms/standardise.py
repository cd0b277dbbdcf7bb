"""Standardise: every dimension with mean 0 and deviation 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flowvec.compat import override
from flowvec_export.transforms.base import Transform, register
from flowvec_export.transforms.moments import NULL, Moments

__all__ = ["Standardise"]


@register
class Standardise(Transform):
    """(u - mean) / deviation, dimension by dimension.

    Nearly constant dimensions, with a deviation below sqrt(NULL) (.3 %) of the largest one, are
    divided by the largest one: they stay nearly constant and do not become noise.

        >>> vectors = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
        >>> Standardise.fit(Moments.of(vectors))(torch.tensor([[3.0, 10.0]])).tolist()
        [[1.0, -1.0]]
    """

    kind = "standardise"
    mean: Tensor
    scale: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    @classmethod
    def fit(cls, moments: Moments) -> Standardise:
        """Fit.

        Raises:
            InputValueError: fewer than two vectors, or all are equal.
        """
        moments.spectrum()  # raises if there is nothing to fit
        deviation = np.sqrt(moments.variance)
        largest = deviation.max()
        deviation[deviation < np.sqrt(NULL) * largest] = largest
        fitted = cls(moments.dim)
        fitted.mean.copy_(torch.from_numpy(moments.mean))
        fitted.scale.copy_(torch.from_numpy(1.0 / deviation))
        return fitted

    @property
    @override
    def invertible(self) -> bool:
        return True

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return (u - self.mean) * self.scale, self.scale.log().sum().expand(u.shape[0])

    @override
    def to_observed(self, z: Tensor) -> Tensor:
        return z / self.scale + self.mean

    @override
    def forward(self, u: Tensor) -> Tensor:
        return (u - self.mean) * self.scale

    @override
    def describe(self) -> str:
        return f"standardise({self.in_dim})"

    @override
    def config(self) -> dict[str, Any]:
        return {"dim": self.in_dim}
