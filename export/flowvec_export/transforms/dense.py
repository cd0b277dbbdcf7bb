"""Dense: sentence-transformers' linear layer with an activation."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from flowvec.compat import override
from flowvec_export.transforms.base import Transform, no_density, register

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


@register
class Dense(Transform):
    """activation(u W^T + b), plus u (or a projection of it) if the layer is residual.

        >>> dense = Dense(torch.tensor([[1.0, 1.0]]), torch.tensor([0.5]), activation="tanh")
        >>> round(dense(torch.tensor([[0.25, 0.25]])).item(), 3)
        0.762

    Args:
        weight: float32 (out_dim, in_dim).
        bias: float32 (out_dim,), or None.
        activation: one of `ACTIVATIONS`.
        residual: None for none, or the projection (out_dim, in_dim); the identity matrix may be
            given as an empty tensor.
    """

    kind = "dense"

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

    def _matrix(self) -> Tensor:
        """The matrix (out_dim, in_dim) of a layer without activation."""
        matrix = self.linear.weight
        if self.projection is not None:
            return matrix + self.projection.weight
        if self.is_residual:
            return matrix + torch.eye(self.in_dim, dtype=matrix.dtype)
        return matrix

    @property
    def invertible(self) -> bool:
        """Square, without activation, and of full rank."""
        if self.in_dim != self.out_dim or self.activation_name != "identity":
            return False
        return int(torch.linalg.matrix_rank(self._matrix().double())) == self.in_dim

    @override
    def forward(self, u: Tensor) -> Tensor:
        out: Tensor = self.activation(self.linear(u))
        if not self.is_residual:
            return out
        return out + (u if self.projection is None else self.projection(u))

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        if not self.invertible:
            return self(u), no_density(u)
        log_det: Tensor = torch.linalg.slogdet(self._matrix())[1]
        return self(u), log_det.expand(u.shape[0])

    @override
    def to_observed(self, z: Tensor) -> Tensor:
        if not self.invertible:
            return super().to_observed(z)
        centred = z if self.linear.bias is None else z - self.linear.bias
        u: Tensor = torch.linalg.solve(self._matrix(), centred.T)
        return u.T

    @override
    def describe(self) -> str:
        residual = ", residual" if self.is_residual else ""
        return f"dense({self.in_dim}->{self.out_dim}, {self.activation_name}{residual})"

    @override
    def config(self) -> dict[str, Any]:
        residual: Literal["identity", "projection"] | None = None
        if self.is_residual:
            residual = "identity" if self.projection is None else "projection"
        return {
            "in_dim": self.in_dim,
            "out_dim": self.out_dim,
            "bias": self.linear.bias is not None,
            "activation": self.activation_name,
            "residual": residual,
        }

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> Dense:
        shape = (int(config["out_dim"]), int(config["in_dim"]))
        residuals = {None: None, "identity": torch.empty(0), "projection": torch.zeros(shape)}
        return cls(
            torch.zeros(shape),
            torch.zeros(shape[0]) if config["bias"] else None,
            config["activation"],
            residuals[config["residual"]],
        )
