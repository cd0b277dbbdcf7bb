"""Exact nearest neighbours, by blockwise matrix products in bounded memory."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError

__all__ = [
    "METRICS",
    "METRIC_OF_SIMILARITY",
    "Metric",
    "best_rows",
    "merge_best",
    "scores",
    "top_k",
]

Metric = Literal["cosine", "ip", "l2"]
METRICS: tuple[Metric, ...] = get_args(Metric)
# The metric of a bundle's similarity (`flowvec.bundle.manifest.Similarity`), if there is one.
METRIC_OF_SIMILARITY: dict[str, Metric] = {"cosine": "cosine", "dot": "ip", "euclidean": "l2"}

_BLOCK_ELEMENTS = 1 << 24  # scores held at once: 64 MiB of float32

Floats = npt.NDArray[np.float32]


def scores(queries: Floats, vectors: Floats, metric: Metric) -> Floats:
    """Similarity of every query with every vector, float32 (queries, rows); higher is better.

    `cosine` expects normalized vectors; `l2` is minus the Euclidean distance.
    """
    if metric != "l2":
        products: Floats = queries @ vectors.T
        return products
    # |q|^2 - 2 q v + |v|^2 cancels if distances are small compared with norms, so use float64.
    left, right = queries.astype(np.float64), vectors.astype(np.float64)
    squared = np.square(left).sum(1)[:, None] - 2.0 * (left @ right.T) + np.square(right).sum(1)
    distances: Floats = -np.sqrt(np.maximum(squared, 0.0)).astype(np.float32)
    return distances


def top_k(
    queries: Floats,
    vectors: Floats,
    k: int,
    metric: Metric,
    *,
    scores_at_once: int = _BLOCK_ELEMENTS,
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The k best rows of `vectors` for each query, best first; equal scores by row number.

    Args:
        queries: float32 (queries, dim).
        vectors: float32 (rows, dim).
        k: how many; if there are fewer rows, all of them.
        metric: `cosine` (for normalized vectors), `ip` or `l2`.
        scores_at_once: scores held at once.

    Returns:
        Row numbers, int64 (queries, min(k, rows)), and their scores, float32.

    Raises:
        InputValueError: k is negative.
    """
    if k < 0:
        raise InputValueError(f"k must not be negative, but is {k}")
    k = min(k, len(vectors))
    rows = np.empty((len(queries), k), dtype=np.int64)
    best = np.empty((len(queries), k), dtype=np.float32)
    if k == 0:
        return rows, best
    step = max(1, scores_at_once // len(vectors))
    for start in range(0, len(queries), step):
        block = scores(queries[start : start + step], vectors, metric)
        for i, line in enumerate(block, start):
            rows[i] = best_rows(line, k)
            best[i] = line[rows[i]]
    return rows, best


def best_rows(line: Floats, k: int) -> npt.NDArray[np.int64]:
    """Indices of the k largest scores, largest first; equal scores by index."""
    if k < len(line):
        threshold = np.partition(line, len(line) - k)[len(line) - k]
        # Every row above the threshold is included; rows equal to it fill up in order.
        above = np.flatnonzero(line > threshold)
        equal = np.flatnonzero(line == threshold)[: k - len(above)]
        chosen = np.sort(np.concatenate((above, equal)))
    else:
        chosen = np.arange(len(line))
    return chosen[np.argsort(-line[chosen], kind="stable")]


def merge_best(
    best: npt.NDArray[np.int64],
    best_scores: Floats,
    others: npt.NDArray[np.int64],
    other_scores: Floats,
    k: int,
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The k best of two lists for each query; among equal scores the first list comes first.

    Args:
        best: labels, int64 (queries, n), best first.
        best_scores: their scores, float32 (queries, n).
        others: more labels, int64 (queries, m), best first.
        other_scores: their scores.
        k: how many.
    """
    labels = np.concatenate((best, others), axis=1)
    joined = np.concatenate((best_scores, other_scores), axis=1)
    order = np.argsort(-joined, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(labels, order, 1), np.take_along_axis(joined, order, 1)
