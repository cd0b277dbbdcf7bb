"""Dense: sentence-transformers' linear layer with an activation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flowvec_export.transforms.base import Transform

__all__ = ["ACTIVATIONS", "Dense"]

# By the last part of the class name that sentence-transformers stores, lower-cased.
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "leakyrelu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
}


class Dense(Transform):
    """activation(u W^T + b), plus u (or a projection of it) where the layer is residual.

    Args:
        weight: float32 (out_dim, in_dim).
        bias: float32 (out_dim,), or None.
        activation: one of `ACTIVATIONS`.
        residual: None for none, or the projection (out_dim, in_dim); the identity matrix may be
            given as an empty tensor.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: str = "identity",
        residual: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.out_dim, self.in_dim = weight.shape
        self.activation_name = activation
        self.linear = nn.Linear(self.in_dim, self.out_dim, bias=bias is not None)
        self.projection: nn.Linear | None = None
        self.is_residual = residual is not None
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            if bias is not None:
                self.linear.bias.copy_(bias)
            if residual is not None and residual.numel():
                self.projection = nn.Linear(self.in_dim, self.out_dim, bias=False)
                self.projection.weight.copy_(residual)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, u: Tensor) -> Tensor:
        """Map (batch, in_dim) to (batch, out_dim)."""
        out: Tensor = self.activation(self.linear(u))
        if not self.is_residual:
            return out
        return out + (u if self.projection is None else self.projection(u))

    def describe(self) -> str:
        """See `Transform.describe`."""
        residual = ", residual" if self.is_residual else ""
        return f"dense({self.in_dim}->{self.out_dim}, {self.activation_name}{residual})"
