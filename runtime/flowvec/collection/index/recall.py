"""How much of the true neighbours a graph finds, and how far it must be searched for a share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.state import Cache, joined

__all__ = ["least_effort", "queries_between"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# Efforts that are tried in turn, in steps of two fifths.
_EFS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 448, 640, 896, 1280)


def least_effort(
    search: Callable[[int], Labels | None], exact: Labels, target: float
) -> tuple[int, float]:
    """The least `ef` whose recall reaches a target, and that recall; else the best there is.

    Args:
        search: gives labels that are found with an effort, int64 (queries, k); None where the
            graph cannot reach as many.
        exact: the true neighbours of the same queries, int64 (queries, k).
        target: share of them.

    Returns:
        0 and 0 where nothing is found.
    """
    best = (0, 0.0)
    for ef in _EFS:
        found = search(ef)
        if found is None:
            break
        pairs = zip(found.tolist(), exact.tolist(), strict=True)
        recall = float(np.mean([len({*a} & {*b}) / len(b) for a, b in pairs]))
        if recall > best[1]:
            best = (ef, recall)
        if recall >= target:
            break
    return best


def queries_between(cache: Cache, count: int, seed: int) -> Floats:
    """Queries that lie between three rows of the store each, float32 (count, dim).

    Rows themselves, and what is near one, are found far more easily than real queries are:
    `bench/NOTES.md` compares. Within the store's `reading`.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.choice(cache.store.labels(), size=(3, count))
    known, rows = joined(cache.blocks(np.unique(chosen)), cache.dim)
    between: Floats = rows[np.searchsorted(known, chosen)].mean(axis=0, dtype=np.float32)
    return cache.comparable(between)
