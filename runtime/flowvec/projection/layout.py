"""A layout in two dimensions that keeps neighbours together.

The objective is that of UMAP (McInnes, Healy and Melville 2018): edges between neighbours pull, and
all other pairs push. Here all edges move their points at once, with a few random points for each
point to push against, so that numpy does the work and a seed decides everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Edges", "edges_of", "layouts"]

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

# UMAP's curve 1 / (1 + a d^(2 b)) for a least distance of .1.
_A, _B = 1.577, 0.895
# Pushing pairs of each point and round, and how strongly they push, as UMAP's rate of 5.
_PUSHES = 4
_PUSH = 5.0
# No point moves further in a round, in units of a map that is 20 wide.
_LONGEST_STEP = 2.0
_WIDTH = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Pairs of neighbours, each once.

    Attributes:
        left: int64 (edges,), rows.
        right: int64 (edges,), rows.
        weights: float32 (edges,), 0 to 1.
    """

    left: Rows
    right: Rows
    weights: Floats


def edges_of(rows: int, neighbours: Rows, distances: Floats) -> Edges:
    """Weighted edges from the neighbours of each row.

    A row's nearest neighbour has the weight 1, others less, by how much farther they are. Of two
    weights of a pair, a + b - a b is taken, as UMAP does.

    Args:
        rows: how many there are.
        neighbours: int64 (rows, k), -1 for none.
        distances: float32 (rows, k), ascending; where there is no neighbour they do not matter.
    """
    known = neighbours >= 0
    near = np.where(known, distances, np.inf)
    # Of rows without neighbours, infinity minus infinity is never looked at.
    nearest = np.where(known.any(1), near.min(1, initial=np.inf), 0.0)
    further = np.where(known, np.maximum(distances - nearest[:, None], 0.0), 0.0)
    scale = further.sum(1) / np.maximum(known.sum(1), 1)
    weights = np.exp(-further / np.maximum(scale, 1e-9)[:, None]).astype(np.float32)
    heads = np.broadcast_to(np.arange(rows)[:, None], neighbours.shape)[known]
    tails, given = neighbours[known], weights[known]
    keys = np.minimum(heads, tails) * rows + np.maximum(heads, tails)
    keys, given = keys[heads != tails], given[heads != tails]
    order = np.argsort(keys, kind="stable")
    keys, given = keys[order], given[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    # A pair occurs once or twice.
    both = 1.0 - np.multiply.reduceat(1.0 - given, first) if len(first) else given
    return Edges(keys[first] // rows, keys[first] % rows, both.astype(np.float32))


def layouts(start: Floats, edges: Edges, *, rounds: int, seed: int) -> Iterator[Floats]:
    """Positions after each round, float32 (rows, 2); the last one is the layout.

    Args:
        start: positions to begin with, float32 (rows, 2), for example on principal axes.
        edges: which rows pull each other.
        rounds: how many.
        seed: of the pairs that push.
    """
    rng = np.random.default_rng(seed)
    positions = _scaled(start, rng)
    rows = len(positions)
    pulls = np.bincount(edges.left, edges.weights, rows) + np.bincount(
        edges.right, edges.weights, rows
    )
    push = (_PUSH / 2 * pulls / _PUSHES).astype(np.float32)
    for number in range(rounds):
        rate = 1.0 - number / rounds
        moves = _pulled(positions, edges)
        for _ in range(_PUSHES):
            others = rng.integers(0, rows, rows)
            moves += _pushed(positions, others) * push[:, None]
        lengths = np.linalg.norm(moves, axis=1, keepdims=True)
        moves *= np.minimum(1.0, _LONGEST_STEP / np.maximum(lengths, 1e-9))
        positions = positions + (rate * moves).astype(np.float32)
        yield positions


def _scaled(start: Floats, rng: np.random.Generator) -> Floats:
    """Positions around 0 in a map of the usual width; equal ones are moved apart a little."""
    centred = start - start.mean(0) if len(start) else start
    spread = float(np.abs(centred).max(initial=0.0)) or 1.0
    noise = rng.normal(0.0, 1e-2, start.shape)
    return (centred * (_WIDTH / 2 / spread) + noise).astype(np.float32)


def _pulled(positions: Floats, edges: Edges) -> npt.NDArray[np.float64]:
    away = positions[edges.left] - positions[edges.right]
    squares = np.maximum(np.einsum("ij,ij->i", away, away), np.float32(1e-6))
    powers = squares**_B
    strength = (-2 * _A * _B) * powers / squares / (1 + _A * powers) * edges.weights
    pull = np.clip(away * strength[:, None], -4.0, 4.0)
    rows = len(positions)
    sums = [
        np.bincount(edges.left, pull[:, axis], rows) - np.bincount(edges.right, pull[:, axis], rows)
        for axis in (0, 1)
    ]
    return np.stack(sums, 1).astype(np.float64)  # without any edge they are whole numbers


def _pushed(positions: Floats, others: Rows) -> npt.NDArray[Any]:
    away = positions - positions[others]
    squares = np.einsum("ij,ij->i", away, away)
    strength = 2 * _B / ((1e-3 + squares) * (1 + _A * squares**_B))
    pushed: npt.NDArray[Any] = np.clip(away * strength[:, None], -4.0, 4.0)
    return pushed
