"""Searches of a graph among rows in memory."""

from __future__ import annotations

import numpy as np

from flowvec.hnsw import HnswGraph, Places


def search(
    graph: HnswGraph,
    rows: np.ndarray,
    queries: np.ndarray,
    k: int,
    ef: int,
    threads: int = 1,
    labels: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The k best of these rows, whose labels are their places unless others are given."""
    labels = np.arange(len(rows)) if labels is None else labels
    return graph.search(queries, k, ef, labels, Places(None, 0, rows), threads)


def scores_of(queries: np.ndarray, rows: np.ndarray, space: str) -> np.ndarray:
    """Scores, float64 (queries, rows): dot products, or negative distances."""
    left, right = queries.astype(float), rows.astype(float)
    if space != "l2":
        return left @ right.T
    return -np.sqrt(((left[:, None] - right) ** 2).sum(-1))
