"""Searches of a collection's graph among rows in memory, whose labels are from 1."""

from __future__ import annotations

import numpy as np

from flowvec.collection.index.hnsw import EF_SEARCH, Graph
from flowvec.hnsw import Places


def search(
    graph: Graph, rows: np.ndarray, queries: np.ndarray, k: int, ef: int = EF_SEARCH
) -> tuple[np.ndarray, np.ndarray] | None:
    """The k best of these rows."""
    return graph.search(queries, k, ef, np.arange(1, len(rows) + 1), Places(None, 0, rows))
