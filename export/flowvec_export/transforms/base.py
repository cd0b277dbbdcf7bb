"""The base class of transforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from flowvec.compat import override
from flowvec.errors import ExportError

__all__ = ["Identity", "Transform", "build_transform", "no_density", "register"]

_Kind = TypeVar("_Kind", bound="type[Transform]")


class Transform(nn.Module, ABC):
    """A map of pooled vectors: a torch module over float32 (batch, in_dim).

        >>> transform, recipe = load_transform("whitening.safetensors")
        >>> isinstance(transform, Transform), transform.kind, transform.in_dim
        (True, 'whitening', 256)

    Attributes:
        kind: its name in files.
        in_dim: length of the input vectors.
        out_dim: length of the output vectors.
    """

    kind: ClassVar[str]
    in_dim: int
    out_dim: int

    @property
    def invertible(self) -> bool:
        """Whether `to_observed` undoes `to_latent`."""
        return False

    @abstractmethod
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Map u, float (batch, in_dim), to z, as serving does.

        Returns:
            z, (batch, out_dim), and log |det dz/du|, (batch,): NaN if the map is not invertible,
            since it then has no density.
        """

    def to_observed(self, z: Tensor) -> Tensor:
        """Map z, float (batch, out_dim), back to u, (batch, in_dim).

        Raises:
            ExportError: the map is not invertible.
        """
        raise ExportError(f"{self.describe()} cannot be inverted")

    def forward(self, u: Tensor) -> Tensor:
        """The z of `to_latent`, (batch, out_dim)."""
        return self.to_latent(u)[0]

    def fold(self) -> nn.Module:
        """The cheapest module that computes `forward` exactly, for the graph."""
        return self

    @abstractmethod
    def describe(self) -> str:
        """A short name with its sizes, for the manifest."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments of `from_config` for an empty transform of this size; JSON types only."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build a transform whose `state_dict` is loaded later."""
        return cls(**config)


_KINDS: dict[str, type[Transform]] = {}


def register(transform: _Kind) -> _Kind:
    """Let files name this class by its `kind`; a class decorator."""
    _KINDS[transform.kind] = transform
    return transform


def build_transform(kind: str, config: dict[str, Any]) -> Transform:
    """Build a transform whose weights are loaded later.

    Args:
        kind: the `kind` of a registered class. Importing `flowvec_export.transforms` registers all.
        config: what the transform's `config` returned.

    Raises:
        ExportError: the kind is unknown, or the config does not fit it.
    """
    if kind not in _KINDS:
        raise ExportError(f"there is no transform {kind!r}; known are {', '.join(sorted(_KINDS))}")
    try:
        return _KINDS[kind].from_config(config)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ExportError(f"the configuration of a {kind} cannot be used: {error}") from None


def no_density(u: Tensor) -> Tensor:
    """The log-determinant, (batch,), of a map that is not invertible."""
    return u.new_full((u.shape[0],), torch.nan)


@register
class Identity(Transform):
    """Returns the vectors unchanged.

    >>> Identity(2)(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0, 2.0]]
    """

    kind = "identity"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_dim = self.out_dim = dim

    @property
    @override
    def invertible(self) -> bool:
        return True

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return u, u.new_zeros(u.shape[0])

    @override
    def forward(self, u: Tensor) -> Tensor:
        return u

    @override
    def to_observed(self, z: Tensor) -> Tensor:
        return z

    @override
    def describe(self) -> str:
        return f"identity({self.in_dim})"

    @override
    def config(self) -> dict[str, Any]:
        return {"dim": self.in_dim}
