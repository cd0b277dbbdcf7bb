"""What every transform is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

__all__ = ["Identity", "Transform"]


class Transform(nn.Module, ABC):
    """A map of pooled vectors, a plain module over tensors.

    Attributes:
        in_dim: length of the vectors that it takes.
        out_dim: length of the vectors that it gives.
    """

    in_dim: int
    out_dim: int

    @abstractmethod
    def forward(self, u: Tensor) -> Tensor:
        """Map u, float (batch, in_dim), to (batch, out_dim): what serving computes."""

    @abstractmethod
    def describe(self) -> str:
        """A short name with its sizes, for the manifest."""


class Identity(Transform):
    """No transform."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim

    def forward(self, u: Tensor) -> Tensor:
        """Give u back."""
        return u

    def describe(self) -> str:
        """See `Transform.describe`."""
        return f"identity({self.in_dim})"
