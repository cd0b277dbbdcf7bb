"""BERT-flow: Glow in one dimension, an invertible map of pooled vectors to a standard normal.

Li et al. 2020, "On the Sentence Embeddings from Pre-trained Language Models". A level is `depth`
times [ActNorm, permutation, coupling]; after it half of the dimensions leave, and the others go
through the next level. What leaves and what remains at the end is the latent vector: all of the
dimensions, scored under N(0, I).

The latent vector is given in the order of the input: dimension i of z is what became of dimension i
of u. Cosine does not depend on that order, and it lets `fold` do without a single permutation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flowvec.errors import InputValueError
from flowvec_export.transforms.base import Transform
from flowvec_export.transforms.folded_flow import AFFINE_LIMIT, FoldedFlow, fold_flow
from flowvec_export.transforms.moments import NULL

__all__ = ["MIN_ROWS", "PRESETS", "ActNorm", "Coupling", "Flow", "FlowShape", "Step"]

# The fewest rows to initialise from: on a batch of 32 some deviation is near zero by chance, and
# its inverse explodes.
MIN_ROWS = 1000
_LOGS_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class FlowShape:
    """The sizes of a flow.

    Attributes:
        levels: multi-scale levels; half of the dimensions leave after each.
        depth: steps a level.
        width: hidden units of a coupling's network.
        coupling: `additive` (as BERT-flow) or `affine`.
        permutation: between couplings: `reversal` (as the released code) or `random`, fixed by the
            seed (as the paper).
        seed: of random permutations.
    """

    levels: int = 3
    depth: int = 3
    width: int = 256
    coupling: Literal["additive", "affine"] = "additive"
    permutation: Literal["reversal", "random"] = "reversal"
    seed: int = 0

    def check(self, dim: int | None = None) -> None:
        """Raise InputValueError where there is no such flow, or none of `dim` dimensions."""
        if min(self.levels, self.depth, self.width) < 1:
            raise InputValueError("levels, depth and width of a flow must be at least 1")
        if self.coupling not in ("additive", "affine"):
            raise InputValueError(f"coupling must be additive or affine, not {self.coupling!r}")
        if self.permutation not in ("reversal", "random"):
            raise InputValueError(
                f"permutation must be reversal or random, not {self.permutation!r}"
            )
        if self.seed < 0:
            raise InputValueError(f"a seed must not be negative, but is {self.seed}")
        if dim is not None and dim >> (self.levels - 1) < 2:
            raise InputValueError(f"{dim} dimensions are too few for {self.levels} levels")


# `released`: the configuration in the authors' repository. `paper`: what the paper says, two levels
# and random permutations; the paper's residual network is not described closely enough to rebuild,
# so its couplings are the released ones. `wide`: ours; README.md says what it was chosen on.
PRESETS: dict[str, FlowShape] = {
    "released": FlowShape(levels=3, depth=3, width=32),
    "paper": FlowShape(levels=2, depth=3, width=32, permutation="random"),
    "wide": FlowShape(levels=3, depth=3, width=256),
}


class ActNorm(nn.Module):
    """(x + bias) exp(3 logs), dimension by dimension; initialised from data."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.logs = nn.Parameter(torch.zeros(dim))

    @property
    def scale(self) -> Tensor:
        """exp(3 logs), (dim,)."""
        return torch.exp(_LOGS_FACTOR * self.logs)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Mean 0 and deviation 1 over x, float (rows, dim).

        Dimensions that are all but constant, with a deviation below sqrt(NULL), .3 %, of the
        largest one, are scaled as that one is, so that their rounding does not become noise.
        """
        deviation = x.std(dim=0)
        largest = deviation.max()
        deviation = torch.where(deviation < math.sqrt(NULL) * largest, largest, deviation)
        self.bias.copy_(-x.mean(dim=0))
        self.logs.copy_(-torch.log(deviation + 1e-6) / _LOGS_FACTOR)

    def forward(self, x: Tensor) -> Tensor:
        """Scale x, (batch, dim)."""
        return (x + self.bias) * self.scale

    def inverse(self, y: Tensor) -> Tensor:
        """Undo `forward`."""
        return y / self.scale - self.bias

    def log_det(self) -> Tensor:
        """The sum of 3 logs, a scalar."""
        return _LOGS_FACTOR * self.logs.sum()


class Network(nn.Module):
    """What a coupling computes from its first half: three linear layers with ActNorm and ReLU.

    The last layer begins at zero, so that a coupling begins as the identity.
    """

    def __init__(self, in_dim: int, width: int, out_dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(in_dim, width, bias=False)
        self.up_norm = ActNorm(width)
        self.across = nn.Linear(width, width, bias=False)
        self.across_norm = ActNorm(width)
        self.down = nn.Linear(width, out_dim, bias=False)
        self.down_norm = ActNorm(out_dim)
        nn.init.normal_(self.up.weight, std=0.05)
        nn.init.normal_(self.across.weight, std=0.05)
        nn.init.zeros_(self.down.weight)

    @torch.no_grad()
    def initialise(self, x: Tensor) -> None:
        """Initialise the two hidden ActNorms from x, float (rows, in_dim)."""
        hidden = self.up(x)
        self.up_norm.initialise(hidden)
        self.across_norm.initialise(self.across(torch.relu(self.up_norm(hidden))))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_dim) to (batch, out_dim)."""
        hidden = torch.relu(self.up_norm(self.up(x)))
        hidden = torch.relu(self.across_norm(self.across(hidden)))
        out: Tensor = self.down_norm(self.down(hidden))
        return out


class Coupling(nn.Module):
    """z1 = x1, z2 = (x2 + shift(x1)) scale(x1); scale is 1 where the coupling is additive.

    Args:
        dim: dimensions in all.
        first: how many of them are x1.
        shape: of the flow.
    """

    def __init__(self, dim: int, first: int, shape: FlowShape) -> None:
        super().__init__()
        self.first, self.affine = first, shape.coupling == "affine"
        outputs = (dim - first) * (2 if self.affine else 1)
        self.network = Network(first, shape.width, outputs)

    def _terms(self, first: Tensor) -> tuple[Tensor, Tensor | None]:
        out = self.network(first)
        if not self.affine:
            return out, None
        shift, raw = out.chunk(2, dim=1)
        return shift, AFFINE_LIMIT * torch.tanh(raw / AFFINE_LIMIT)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """z, (batch, dim), and the log-determinant, (batch,), or None for zero."""
        first, second = x[:, : self.first], x[:, self.first :]
        shift, log_scale = self._terms(first)
        second = second + shift
        if log_scale is None:
            return torch.cat((first, second), dim=1), None
        return torch.cat((first, second * log_scale.exp()), dim=1), log_scale.sum(dim=1)

    def inverse(self, z: Tensor) -> Tensor:
        """Undo `forward`."""
        first, second = z[:, : self.first], z[:, self.first :]
        shift, log_scale = self._terms(first)
        if log_scale is not None:
            second = second * (-log_scale).exp()
        return torch.cat((first, second - shift), dim=1)


class Step(nn.Module):
    """ActNorm, permutation, coupling.

    Args:
        dim: dimensions of this level.
        first: how many condition the coupling.
        order: the permutation, y[i] = x[order[i]].
        shape: of the flow.
    """

    def __init__(self, dim: int, first: int, order: list[int], shape: FlowShape) -> None:
        super().__init__()
        self.order = order
        self.reversal = order == list(range(dim))[::-1]
        self.norm = ActNorm(dim)
        self.coupling = Coupling(dim, first, shape)

    def permute(self, x: Tensor) -> Tensor:
        """Permute the columns of x, (batch, dim)."""
        return x.flip(1) if self.reversal else x[:, self.order]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, (batch, dim), and the log-determinant, a scalar or (batch,)."""
        y, log_det = self.coupling(self.permute(self.norm(x)))
        norm = self.norm.log_det()
        return y, norm if log_det is None else norm + log_det

    def inverse(self, y: Tensor) -> Tensor:
        """Undo `forward`."""
        x: Tensor = self.coupling.inverse(y)
        return self.norm.inverse(x[:, np.argsort(self.order).tolist()])


class Flow(Transform):
    """BERT-flow's invertible map.

    Args:
        dim: length of u and z.
        shape: of the flow; `PRESETS` holds three by name.

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
        left: list[int] = []
        for _ in range(shape.levels):
            steps = nn.ModuleList()
            size = len(active)
            for number in range(shape.depth):
                # Every coupling of a level cuts the input's order at one place, so that an odd
                # number of dimensions needs no gather either: after an odd number of reversals the
                # first half is the upper one.
                first = size // 2
                order = list(range(size))[::-1]
                if shape.permutation == "random":
                    order = [int(i) for i in rng.permutation(size)]
                elif number % 2 == 0:
                    first = size - size // 2
                steps.append(Step(size, first, order, shape))
                active = [active[i] for i in order]
            self.levels.append(steps)
            left = active[first:] + left
            active = active[:first]
        # Where each input dimension ends up in the concatenation of what is left and what remains.
        self.restore = [int(i) for i in np.argsort(active + left)]

    def steps(self) -> Iterator[tuple[int, Step]]:
        """Every step with the number of its level."""
        for number, level in enumerate(self.levels):
            assert isinstance(level, nn.ModuleList)
            for step in level:
                assert isinstance(step, Step)
                yield number, step

    @property
    def invertible(self) -> bool:
        """Always."""
        return True

    def to_latent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """See `Transform.to_latent`."""
        log_det = u.new_zeros(u.shape[0])
        left: list[Tensor] = []
        for level in self.levels:
            first = 0
            for step in level:  # type: ignore[attr-defined]
                u, step_log_det = step(u)
                log_det = log_det + step_log_det
                first = step.coupling.first
            left.insert(0, u[:, first:])
            u = u[:, :first]
        return torch.cat((u, *left), dim=1)[:, self.restore], log_det

    def to_observed(self, z: Tensor) -> Tensor:
        """See `Transform.to_observed`."""
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
    def initialise(self, u: Tensor) -> None:
        """Set every ActNorm from data, so that what follows it begins with mean 0, deviation 1.

        Args:
            u: float (rows, dim), at least `MIN_ROWS` rows, shuffled.

        Raises:
            InputValueError: too few rows, NaN or infinity in them, or all are equal.
        """
        if len(u) < MIN_ROWS:
            raise InputValueError(
                f"a flow is initialised from at least {MIN_ROWS} vectors, but there are {len(u)}"
            )
        if not bool(torch.isfinite(u).all()):
            raise InputValueError("NaN or infinity in the vectors")
        if u.std(dim=0).max() <= u.abs().max() * torch.finfo(torch.float32).eps:
            raise InputValueError("all vectors are equal, so there is nothing to fit")
        for level in self.levels:
            first = 0
            for step in level:  # type: ignore[attr-defined]
                step.norm.initialise(u)
                first = step.coupling.first
                step.coupling.network.initialise(step.permute(step.norm(u))[:, :first])
                u, _ = step(u)
            u = u[:, :first]

    def bits_per_dim(self, u: Tensor) -> Tensor:
        """-log2 of the density of u, float (batch, dim), a dimension: (batch,).

        Raises nothing: a flow that has diverged gives infinities.
        """
        z, log_det = self.to_latent(u)
        log_normal = -0.5 * (z.square() + math.log(2 * math.pi)).sum(dim=1)
        return -(log_det + log_normal) / (math.log(2) * self.in_dim)

    def fold(self) -> FoldedFlow:
        """Residual networks on contiguous slices and one affine map: see `folded_flow`."""
        return fold_flow(self)

    def describe(self) -> str:
        """See `Transform.describe`."""
        shape = self.shape
        extra = "" if shape.permutation == "reversal" else ", random"
        return (
            f"flow({self.in_dim}, {shape.levels}x{shape.depth}, width {shape.width}, "
            f"{shape.coupling}{extra})"
        )

    def config(self) -> dict[str, Any]:
        """See `Transform.config`."""
        return {"dim": self.in_dim, **asdict(self.shape)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Flow:
        """See `Transform.from_config`."""
        sizes = dict(config)
        return cls(sizes.pop("dim"), FlowShape(**sizes))
