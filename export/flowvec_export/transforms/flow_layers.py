"""The parts of a flow: its shape, ActNorm, couplings with their networks, and steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from flowvec.arguments import choice, whole_number
from flowvec.errors import InputValueError
from flowvec_export.transforms.moments import NULL

__all__ = ["AFFINE_LIMIT", "ActNorm", "Coupling", "FlowShape", "Network", "Step"]

# An affine coupling scales by at most e^2 either way.
AFFINE_LIMIT = 2.0

_LOGS_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class FlowShape:
    """The sizes of a flow.

        >>> FlowShape(levels=2, depth=3).coupling
        'additive'

    Attributes:
        levels: multi-scale levels; half of the dimensions are finished after each.
        depth: steps per level.
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
        """Check the sizes, for vectors of `dim` dimensions.

        Raises:
            InputValueError: a size or a name is not valid, or the levels are too many.
            InputTypeError: a size is not a whole number.
        """
        for name in ("levels", "depth", "width"):
            whole_number(name, getattr(self, name))
        choice("coupling", self.coupling, ("additive", "affine"))
        choice("permutation", self.permutation, ("reversal", "random"))
        whole_number("seed", self.seed, 0)
        if dim is not None and dim >> (self.levels - 1) < 2:
            raise InputValueError(f"{dim} dimensions are too few for {self.levels} levels")


class ActNorm(nn.Module):
    """(x + bias) exp(3 logs), dimension by dimension; initialized from data."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.logs = nn.Parameter(torch.zeros(dim))

    @property
    def scale(self) -> Tensor:
        """exp(3 logs), (dim,)."""
        return torch.exp(_LOGS_FACTOR * self.logs)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Set mean 0 and deviation 1 over x, float (rows, dim).

        Nearly constant dimensions, with a deviation below sqrt(NULL) (.3 %) of the largest one, are
        scaled like the largest one, so that their rounding does not become noise.
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
    """The network of a coupling: three linear layers with ActNorm and ReLU.

    The last layer starts at zero, so a coupling starts as the identity.
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
    def initialize(self, x: Tensor) -> None:
        """Initialize the two hidden ActNorms from x, float (rows, in_dim)."""
        hidden = self.up(x)
        self.up_norm.initialize(hidden)
        self.across_norm.initialize(self.across(torch.relu(self.up_norm(hidden))))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, in_dim) to (batch, out_dim)."""
        hidden = torch.relu(self.up_norm(self.up(x)))
        hidden = torch.relu(self.across_norm(self.across(hidden)))
        out: Tensor = self.down_norm(self.down(hidden))
        return out


class Coupling(nn.Module):
    """z1 = x1, z2 = (x2 + shift(x1)) scale(x1); scale is 1 if the coupling is additive.

    Args:
        dim: number of dimensions.
        first: number of dimensions of x1.
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
        first: number of dimensions that condition the coupling.
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
