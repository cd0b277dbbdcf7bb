"""The recall of a graph search, and the search depth that a recall takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.vector_table import VectorTable
from flowvec.encoder.postprocess import normalize

__all__ = ["least_ef", "queries_between", "recall_of"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

Found = tuple[Labels, Floats]

# Of a score, which is computed in float32.
_ROUNDING = 1e-6
# Tried in this order; each is about 1.4 times the one before.
_EFS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448, 640, 896, 1280)


def least_ef(
    search: Callable[[int], Found | None], exact: Found, target: float
) -> tuple[int, float]:
    """The least `ef` whose recall reaches a target, and that recall; else the best one.

    Args:
        search: returns the labels that a search with this `ef` finds, int64 (queries, k), and
            their scores, float32; or None if the graph cannot reach k rows.
        exact: labels and scores of the true neighbours of the same queries.
        target: the share of them to find.

    Returns:
        (0, 0.0) if no search finds k rows.
    """
    best = (0, 0.0)
    for ef in _EFS:
        nearest = search(ef)
        if nearest is None:
            break
        recall = recall_of(nearest, exact)
        if recall > best[1]:
            best = (ef, recall)
        if recall >= target:
            break
    return best


def recall_of(found: Found, exact: Found) -> float:
    """The share of the true neighbours that were found.

    A row as near as the last of them is one of them too: which of nearly equal rows an exact search
    returns is decided by rounding.
    """
    labels, scores = exact
    last = scores[:, -1:] - _ROUNDING * np.abs(scores).max(axis=1, keepdims=True)
    is_near = found[1] >= last
    hits = [
        np.isin(line, true) | near
        for line, true, near in zip(found[0], labels, is_near, strict=True)
    ]
    return float(np.mean(hits))


def queries_between(table: VectorTable, count: int, seed: int) -> Floats:
    """Queries that each lie between three rows of a table, float32 (count, dim).

    A graph finds rows themselves, and points close to one, far more easily than real queries:
    `bench/log/2026-11-22.md` compares them.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.choice(np.flatnonzero(table.live), size=(3, count))
    slots = np.unique(chosen)
    rows = table.vectors_of(slots)
    between: Floats = rows[np.searchsorted(slots, chosen)].mean(axis=0, dtype=np.float32)
    return normalize(between) if table.metric == "cosine" else between
