"""The base of the whitening family: affine maps of centred vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flowvec.compat import override
from flowvec_export.transforms.base import Transform, no_density

__all__ = ["CentredLinear"]


class CentredLinear(Transform):
    """(u - mean) matrix.

    The mean is subtracted first, in a separate operation: in an anisotropic encoder it is most of a
    vector's length, and in a bias it would be rounded together with the rest.

    Args:
        in_dim: length of u.
        out_dim: length of z.
        full_rank: whether no direction was dropped or zeroed; a square one is then invertible.
    """

    mean: Tensor
    matrix: Tensor

    def __init__(self, in_dim: int, out_dim: int, full_rank: bool = False) -> None:
        super().__init__()
        self.in_dim, self.out_dim, self.full_rank = in_dim, out_dim, full_rank
        self.register_buffer("mean", torch.zeros(in_dim))
        self.register_buffer("matrix", torch.zeros(in_dim, out_dim))

    def _set(self, mean: npt.NDArray[np.float64], matrix: npt.NDArray[np.float64]) -> None:
        self.mean.copy_(torch.from_numpy(mean))
        self.matrix.copy_(torch.from_numpy(np.ascontiguousarray(matrix)))

    @property
    def invertible(self) -> bool:
        """True if the matrix is square and of full rank."""
        return self.full_rank and self.in_dim == self.out_dim

    @override
    def forward(self, u: Tensor) -> Tensor:
        return (u - self.mean) @ self.matrix

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        if not self.invertible:
            return self(u), no_density(u)
        log_det: Tensor = torch.linalg.slogdet(self.matrix)[1]
        return self(u), log_det.expand(u.shape[0])

    @override
    def to_observed(self, z: Tensor) -> Tensor:
        if not self.invertible:
            return super().to_observed(z)
        u: Tensor = torch.linalg.solve(self.matrix.T, z.T)
        return u.T + self.mean

    @override
    def describe(self) -> str:
        return f"{self.kind}({self.in_dim}->{self.out_dim})"

    @override
    def config(self) -> dict[str, Any]:
        return {"in_dim": self.in_dim, "out_dim": self.out_dim, "full_rank": self.full_rank}
