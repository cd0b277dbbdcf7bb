"""BERT-flow: Glow in one dimension, an invertible map of pooled vectors to a standard normal.

Li et al. 2020, "On the Sentence Embeddings from Pre-trained Language Models". A level is `depth`
times [ActNorm, permutation, coupling]. After each level, half of the dimensions are finished, and
the others go through the next level. Together they are the latent vector, which is scored under
N(0, I).

The latent vector has the order of the input: dimension i of z comes from dimension i of u. Cosine
does not depend on the order, and with this one `fold` needs no permutation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec_export.transforms.base import Transform, register
from flowvec_export.transforms.flow_layers import FlowShape, Step
from flowvec_export.transforms.folded_flow import FoldedFlow, fold_flow

__all__ = ["MIN_ROWS", "PRESETS", "Flow"]

# The fewest rows to initialize from. In a batch of 32, some deviation is near zero by chance, and
# its inverse explodes.
MIN_ROWS = 1000


# `released`: the configuration in the authors' repository. `paper`: the paper's, with two levels
# and random permutations; it does not describe its residual network in enough detail, so the
# couplings are the released ones. `wide`: flowvec's own; docs/transforms.md says how it was chosen.
PRESETS: dict[str, FlowShape] = {
    "released": FlowShape(levels=3, depth=3, width=32),
    "paper": FlowShape(levels=2, depth=3, width=32, permutation="random"),
    "wide": FlowShape(levels=3, depth=3, width=256),
}


@register
class Flow(Transform):
    """BERT-flow's invertible map, from pooled vectors u to Gaussian vectors z.

        >>> flow = Flow(8, FlowShape(width=16))
        >>> u = torch.randn(5, 8, generator=torch.manual_seed(0))
        >>> z, log_det = flow.to_latent(u)
        >>> torch.allclose(flow.to_observed(z), u, atol=1e-4)
        True

    Args:
        dim: length of u and z.
        shape: sizes of the flow; `PRESETS` has three by name.

    Raises:
        InputValueError: the shape does not fit the dimensions.
    """

    kind = "flow"

    def __init__(self, dim: int, shape: FlowShape) -> None:
        super().__init__()
        shape.check(dim)
        self.in_dim = self.out_dim = dim
        self.shape = shape
        self.levels = nn.ModuleList()
        rng = np.random.default_rng(shape.seed)
        active = list(range(dim))
        finished: list[int] = []
        for _ in range(shape.levels):
            steps = nn.ModuleList()
            size = len(active)
            for number in range(shape.depth):
                # All couplings of a level cut the input's order at the same place, so that an odd
                # number of dimensions needs no gather: after an odd number of reversals, the first
                # half is the upper one.
                first = size // 2
                order = list(range(size))[::-1]
                if shape.permutation == "random":
                    order = [int(i) for i in rng.permutation(size)]
                elif number % 2 == 0:
                    first = size - size // 2
                steps.append(Step(size, first, order, shape))
                active = [active[i] for i in order]
            self.levels.append(steps)
            finished = active[first:] + finished
            active = active[:first]
        # Place of each input dimension in the concatenation of all finished dimensions.
        self.restore = [int(i) for i in np.argsort(active + finished)]

    def steps(self) -> Iterator[tuple[int, Step]]:
        """All steps, each with the number of its level."""
        for number, level in enumerate(self.levels):
            assert isinstance(level, nn.ModuleList)
            for step in level:
                assert isinstance(step, Step)
                yield number, step

    @property
    @override
    def invertible(self) -> bool:
        return True

    @override
    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        log_det = u.new_zeros(u.shape[0])
        finished: list[Tensor] = []
        for level in self.levels:
            first = 0
            for step in level:  # type: ignore[attr-defined]
                u, step_log_det = step(u)
                log_det = log_det + step_log_det
                first = step.coupling.first
            finished.insert(0, u[:, first:])
            u = u[:, :first]
        return torch.cat((u, *finished), dim=1)[:, self.restore], log_det

    @override
    def to_observed(self, z: Tensor) -> Tensor:
        rest = z[:, np.argsort(self.restore).tolist()]
        sizes = [level[-1].coupling for level in self.levels]  # type: ignore[index]
        widths = [int(c.network.down_norm.bias.numel()) // (2 if c.affine else 1) for c in sizes]
        u, start = rest[:, : self.in_dim - sum(widths)], self.in_dim - sum(widths)
        for level, width in zip(reversed(self.levels), reversed(widths), strict=True):
            u = torch.cat((u, rest[:, start : start + width]), dim=1)
            start += width
            for step in reversed(level):  # type: ignore[call-overload]
                u = step.inverse(u)
        return u

    @torch.no_grad()
    def initialize(self, u: Tensor) -> None:
        """Set every ActNorm from data, so that its output starts with mean 0 and deviation 1.

        Args:
            u: float (rows, dim), at least `MIN_ROWS` rows, shuffled.

        Raises:
            InputValueError: too few rows, NaN or infinity in them, or all are equal.
        """
        if len(u) < MIN_ROWS:
            raise InputValueError(
                f"a flow is initialized from at least {MIN_ROWS} vectors, but there are {len(u)}"
            )
        if not bool(torch.isfinite(u).all()):
            raise InputValueError("NaN or infinity in the vectors")
        if u.std(dim=0).max() <= u.abs().max() * torch.finfo(torch.float32).eps:
            raise InputValueError("all vectors are equal, so there is nothing to fit")
        for level in self.levels:
            first = 0
            for step in level:  # type: ignore[attr-defined]
                step.norm.initialize(u)
                first = step.coupling.first
                step.coupling.network.initialize(step.permute(step.norm(u))[:, :first])
                u, _ = step(u)
            u = u[:, :first]

    # The earlier spelling, for programs that use it.
    initialise = initialize

    def bits_per_dim(self, u: Tensor) -> Tensor:
        """-log2 of the density of u, float (batch, dim), per dimension: (batch,).

        A flow that has diverged gives infinities.
        """
        z, log_det = self.to_latent(u)
        log_normal = -0.5 * (z.square() + math.log(2 * math.pi)).sum(dim=1)
        return -(log_det + log_normal) / (math.log(2) * self.in_dim)

    def fold(self) -> FoldedFlow:
        """Residual networks on contiguous slices, and one affine map; see `folded_flow`."""
        dtype = next(self.parameters()).dtype
        return fold_flow(self.steps(), self.in_dim, self.shape.permutation, dtype)

    @override
    def describe(self) -> str:
        shape = self.shape
        extra = "" if shape.permutation == "reversal" else ", random"
        return (
            f"flow({self.in_dim}, {shape.levels}x{shape.depth}, width {shape.width}, "
            f"{shape.coupling}{extra})"
        )

    @override
    def config(self) -> dict[str, Any]:
        return {"dim": self.in_dim, **asdict(self.shape)}

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> Flow:
        sizes = dict(config)
        return cls(sizes.pop("dim"), FlowShape(**sizes))
