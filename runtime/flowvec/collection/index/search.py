"""The nearest rows: exactly among vectors in memory or from disk, or by an HNSW graph."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.hnsw import Graph
from flowvec.vectors import Metric, merge_best, top_k

__all__ = ["few_eligible", "search_blocks", "search_graph", "search_rows"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# With a filter the graph returns more rows than k: k / (share of eligible rows), times the first
# number, plus the second.
_OVER_FETCH = 1.5
_OVER_FETCH_LEAST = 16
# Above this share of all rows, reading the eligible rows from disk is as fast.
_MAX_FETCHED_SHARE = 0.1
# Most candidates fetched at once when filtering (64 MiB).
_MAX_FETCHED = 1 << 22


def search_rows(
    rows: tuple[Labels, Floats], queries: Floats, k: int, eligible: Labels | None, metric: Metric
) -> tuple[Labels, Floats]:
    """The k nearest of rows in memory: labels int64 and scores float32, (queries, k).

    Args:
        rows: labels, and vectors float32 (rows, dim).
        queries: float32 (queries, dim).
        k: at most the number of eligible rows.
        eligible: labels that may be found, ascending; None is all.
        metric: what compares them.
    """
    labels, vectors = rows
    if eligible is not None:
        chosen = np.isin(labels, eligible)
        labels, vectors = labels[chosen], vectors[chosen]
    best, scores = top_k(queries, vectors, k, metric)
    return labels[best], scores


def search_blocks(
    blocks: Iterable[tuple[Labels, Floats]], queries: Floats, k: int, metric: Metric
) -> tuple[Labels, Floats]:
    """The k nearest of rows that come block by block and do not stay in memory."""
    best = np.empty((len(queries), 0), np.int64)
    scores = np.empty((len(queries), 0), np.float32)
    if k == 0:
        return best, scores
    for labels, vectors in blocks:
        nearest, their_scores = top_k(queries, vectors, min(k, len(vectors)), metric)
        best, scores = merge_best(best, scores, labels[nearest], their_scores, k)
    return best, scores


def few_eligible(k: int, rows: int) -> float:
    """Up to this many eligible rows, reading them all is as fast as asking the graph.

    Reading costs time for each eligible row; the graph costs time for each row that it fetches,
    which is k * rows / eligible.
    """
    return math.sqrt(k * rows)


def search_graph(
    graph: Graph, queries: Floats, k: int, eligible: Labels | None, ef: int
) -> tuple[Labels, Floats] | None:
    """The k nearest by a graph; None if it cannot reach k eligible rows.

    Args:
        graph: holds the rows.
        queries: float32 (queries, dim).
        k: how many.
        eligible: labels that may be found, ascending; None is all.
        ef: search depth.
    """
    if eligible is None:
        return graph.search(queries, k, ef)
    fetched = int(k * len(graph) / len(eligible) * _OVER_FETCH) + _OVER_FETCH_LEAST
    while fetched <= _MAX_FETCHED_SHARE * len(graph):
        if len(queries) > 1 and len(queries) * fetched > _MAX_FETCHED:
            return _search_graph_in_parts(graph, queries, k, eligible, ef, fetched)
        nearest = graph.search(queries, fetched, ef)
        if nearest is None:
            return None
        labels, scores = nearest
        is_eligible = np.isin(labels, eligible)
        if (is_eligible.sum(axis=1) >= k).all():
            # A stable sort moves the eligible rows to the front and keeps their order.
            first = np.argsort(~is_eligible, axis=1, kind="stable")[:, :k]
            return np.take_along_axis(labels, first, 1), np.take_along_axis(scores, first, 1)
        fetched *= 4
    return None


def _search_graph_in_parts(
    graph: Graph, queries: Floats, k: int, eligible: Labels, ef: int, fetched: int
) -> tuple[Labels, Floats] | None:
    """`search_graph` for a few queries at a time, to limit memory."""
    step = max(1, _MAX_FETCHED // fetched)
    parts: list[tuple[Labels, Floats]] = []
    for first in range(0, len(queries), step):
        part = search_graph(graph, queries[first : first + step], k, eligible, ef)
        if part is None:
            return None
        parts.append(part)
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
