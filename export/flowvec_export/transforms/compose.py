"""Compose: one transform after another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec_export.transforms.base import Transform, build_transform, register
from flowvec_export.transforms.folded_flow import FoldedFlow
from flowvec_export.transforms.linear import CentredLinear

__all__ = ["Compose"]


@register
class Compose(Transform):
    """Transforms one after another, for example a flow and a whitening that keeps k directions.

        >>> vectors = np.random.default_rng(0).normal(size=(1000, 4))
        >>> rotation = Rotation.fit(Moments.of(vectors))
        >>> both = Compose([rotation, Standardise(4)])
        >>> both.in_dim, both.out_dim
        (4, 4)

    Args:
        parts: at least one; each takes the dimensions that the one before it returns.

    Raises:
        InputValueError: no parts, or their dimensions do not fit.
    """

    kind = "compose"

    def __init__(self, parts: Sequence[Transform]) -> None:
        super().__init__()
        if not parts:
            raise InputValueError("a composition needs at least one transform")
        for before, after in itertools.pairwise(parts):
            if before.out_dim != after.in_dim:
                raise InputValueError(
                    f"{after.describe()} cannot follow {before.describe()}: it takes "
                    f"{after.in_dim} dimensions, but gets {before.out_dim}"
                )
        self.parts = nn.ModuleList(parts)
        self.in_dim, self.out_dim = parts[0].in_dim, parts[-1].out_dim

    def transforms(self) -> list[Transform]:
        """The parts, in order."""
        return [part for part in self.parts if isinstance(part, Transform)]

    @property
    def invertible(self) -> bool:
        """True if every part is."""
        return all(part.invertible for part in self.transforms())

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        log_det = u.new_zeros(u.shape[0])
        for part in self.transforms():
            u, part_log_det = part.to_latent(u)
            log_det = log_det + part_log_det
        return u, log_det

    @override
    def forward(self, u: Tensor) -> Tensor:
        for part in self.parts:
            u = part(u)
        return u

    @override
    def to_observed(self, z: Tensor) -> Tensor:
        if not self.invertible:
            return super().to_observed(z)
        for part in reversed(self.transforms()):
            z = part.to_observed(z)
        return z

    def fold(self) -> nn.Module:
        """Fold each part, and merge neighbours where that is cheaper.

        A flow's last affine map goes into a linear map after it; two linear maps become one.
        """
        folded: list[nn.Module] = []
        for part in self._leaves():
            form = part.fold()
            if folded and isinstance(form, CentredLinear):
                before = folded[-1]
                if isinstance(before, FoldedFlow):
                    folded[-1] = _FlowThenLinear(before, form)
                    continue
                if isinstance(before, CentredLinear):  # the first never widens, so one is cheaper
                    folded[-1] = _TwoLinear(before, form)
                    continue
            folded.append(form)
        return folded[0] if len(folded) == 1 else nn.Sequential(*folded)

    def _leaves(self) -> Iterator[Transform]:
        """The parts, with nested compositions split up."""
        for part in self.transforms():
            if isinstance(part, Compose):
                yield from part._leaves()
            else:
                yield part

    @override
    def describe(self) -> str:
        return " -> ".join(part.describe() for part in self.transforms())

    @override
    def config(self) -> dict[str, Any]:
        return {
            "parts": [{"kind": part.kind, "config": part.config()} for part in self.transforms()]
        }

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> Compose:
        return cls([build_transform(part["kind"], part["config"]) for part in config["parts"]])


class _FlowThenLinear(nn.Module):
    """(a p + c - mean) matrix = (p - (mean - c) / a) (a matrix)."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, flow: FoldedFlow, linear: CentredLinear) -> None:
        super().__init__()
        self.flow = flow
        scale, shift = flow.scale.double(), flow.shift.double()
        mean = (linear.mean.double() - shift) / scale
        matrix = scale[:, None] * linear.matrix.double()
        self.register_buffer("mean", mean.to(linear.mean.dtype))
        self.register_buffer("matrix", matrix.to(linear.mean.dtype))

    def forward(self, u: Tensor) -> Tensor:
        return torch.matmul(self.flow.residuals(u) - self.mean, self.matrix)


class _TwoLinear(nn.Module):
    """((u - m) A - n) B = (u - m) A B - n B.

    n is the mean after A, which is only rounding if B was fitted after A.
    """

    mean: Tensor
    matrix: Tensor
    offset: Tensor

    def __init__(self, first: CentredLinear, second: CentredLinear) -> None:
        super().__init__()
        dtype = first.mean.dtype
        matrix = first.matrix.double() @ second.matrix.double()
        self.register_buffer("mean", first.mean.clone())
        self.register_buffer("matrix", matrix.to(dtype))
        self.register_buffer("offset", -(second.mean.double() @ second.matrix.double()).to(dtype))

    def forward(self, u: Tensor) -> Tensor:
        return torch.addmm(self.offset, u - self.mean, self.matrix)
