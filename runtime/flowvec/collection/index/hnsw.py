"""The HNSW graph over a collection's vectors, with growth and tombstones.

A graph is a cache. Its files are written atomically, and the caller verifies their hash before
`load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.rows import without
from flowvec.errors import CollectionError
from flowvec.hnsw import HnswError, HnswGraph, Places, Space
from flowvec.machine import available_cores
from flowvec.vectors import Metric

__all__ = [
    "EF_CONSTRUCTION",
    "EF_SEARCH",
    "LEAST_ROWS_PER_CORE",
    "Graph",
    "M",
]

M = 16
EF_CONSTRUCTION = 200
EF_SEARCH = 200
# With fewer rows for each thread, starting threads costs more than they save.
LEAST_ROWS_PER_CORE = 5

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Graph:
    """An HNSW graph of labelled vectors. Labels are whole numbers from 1.

    Any number of threads may search, but not while it grows or marks deletions. Deletions may be
    marked while it is written.
    """

    def __init__(
        self,
        dim: int,
        metric: Metric,
        m: int = M,
        ef_construction: int = EF_CONSTRUCTION,
        scale: float = 1.0,
        rows: int = 0,
    ) -> None:
        """An empty graph, with room for this many rows before it must be reallocated.

        With the metric `cosine`, vectors must be normalized.

        The graph's distances are float32, and those of tiny vectors would be 0. So vectors are
        multiplied by `scale`, which brings their norms to about 1.
        """
        self.metric = metric
        self.scale = np.float32(scale)
        self.m = m
        self.ef_construction = ef_construction
        self._dim = dim
        self._space: Space = "l2" if metric == "l2" else "ip"
        self._nodes: HnswGraph | None = None
        self._total = self._deleted = self._newest = self._capacity = 0
        self._rows = rows
        # Read once: the answer costs as much as a search.
        self._cores = available_cores()

    def __len__(self) -> int:
        """Vectors that a search can find."""
        return self._total - self._deleted

    def close(self) -> None:
        """Free its memory; nobody uses it any more."""
        self._nodes = None
        self._total = self._deleted = 0

    def labels(self) -> Labels:
        """Labels that a search can find, ascending, int64 (rows,)."""
        if self._nodes is None:
            return np.empty(0, np.int64)
        labels, deleted = self._nodes.labels()
        return np.sort(labels[~deleted])

    @property
    def total(self) -> int:
        """Vectors in the graph, tombstones included."""
        return self._total

    @property
    def memory_bytes(self) -> int:
        """About its memory beside what is mapped, in bytes."""
        return 0 if self._nodes is None else self._nodes.memory_bytes

    @property
    def mapped_bytes(self) -> int:
        """How much of its file is mapped, in bytes."""
        return 0 if self._nodes is None else self._nodes.mapped_bytes

    @property
    def newest(self) -> int:
        """The highest label in the graph, tombstones included; 0 if empty."""
        return self._newest

    def add(self, labels: Labels, vectors: Floats) -> None:
        """Add vectors, float32 (rows, dim), under new labels, int64 (rows,).

        Args:
            labels: ascending, and above all labels in the graph.
            vectors: one for each label.

        Raises:
            CollectionError: a label is in the graph, or may have been.
        """
        if not len(labels):
            return
        if labels[0] <= self._newest or (np.diff(labels) <= 0).any():
            raise CollectionError("a graph takes labels in ascending order, each once")
        self._newest = int(labels[-1])
        needed = self._total + len(labels)
        try:
            nodes = self._with_room(needed)
            threads = min(self._cores, max(1, len(labels) // LEAST_ROWS_PER_CORE))
            nodes.add(labels, vectors * self.scale, threads)
        except HnswError as error:
            raise CollectionError(f"the graph does not take these rows: {error}") from error
        self._total = needed

    def _with_room(self, needed: int) -> HnswGraph:
        """The native graph, with room for this many nodes."""
        nodes = self._nodes
        if nodes is None:
            self._capacity = max(1024, needed, self._rows)
            self._nodes = nodes = HnswGraph(
                self._space, self._dim, self._capacity, self.m, self.ef_construction
            )
        elif needed > self._capacity:
            self._capacity = max(needed, self._capacity + self._capacity // 2)
            nodes.resize(self._capacity)
        return nodes

    def delete(self, labels: Sequence[int]) -> None:
        """Mark labels as tombstones. Labels that are marked already or were never added are
        ignored."""
        if self._nodes is not None and len(labels):
            marked = self._nodes.delete(np.asarray(labels, np.int64))
            self._deleted += int(np.count_nonzero(marked))

    def search(
        self, queries: Floats, k: int, ef: int, labels: Labels, places: Places
    ) -> tuple[Labels, Floats] | None:
        """The k nearest of each query: labels int64 and scores float32, (queries, k).

        Args:
            queries: float32 (queries, dim), finite.
            k: how many.
            ef: search depth: the k nearest are taken from this many candidates.
            labels: of at least all rows that are not deleted, ascending, int64 (rows,).
            places: their vectors.

        Returns None if the graph cannot reach k live vectors; the caller then searches exactly.
        """
        nodes = self._nodes
        if nodes is None or not 1 <= k <= len(self):
            return None
        threads = min(self._cores, len(queries))
        found, scores = nodes.search(queries, k, ef, labels, places, threads)
        return None if (found[:, -1] < 0).any() else (found, scores)

    def write(self, path: Path) -> None:
        """Write the graph to a file, which is not flushed to disk; it must not grow meanwhile.

        Raises:
            CollectionError: it could not be written completely.
        """
        nodes = self._nodes
        try:
            if nodes is None:
                nodes = HnswGraph(self._space, self._dim, 1, self.m, self.ef_construction)
            nodes.save(path)
        except (OSError, HnswError) as error:
            raise CollectionError(f"cannot write {path}: {error}") from error

    def load(self, path: Path, live: Labels) -> None:
        """Read a verified file, and mark all its labels that are not in `live` as tombstones.

        Processes share what they do not change. There is room for all live rows, so that those that
        the file lacks can be added, and for some more: a graph that outgrows its room is copied.

        Raises:
            CollectionError: it is not a valid graph of vectors of this length.
        """
        try:
            room = len(live) + len(live) // 4
            nodes = HnswGraph.load(path, self._space, self._dim, self.m, room)
            labels, _ = nodes.labels()
        except HnswError as error:
            raise CollectionError(str(error)) from error
        except (OSError, MemoryError) as error:
            raise CollectionError(f"cannot read {path}: {error}") from error
        self._nodes, self._capacity = nodes, nodes.capacity
        nodes.delete(without(labels, live))
        self._total, self._deleted = len(labels), nodes.deleted
        self._newest = int(labels.max()) if len(labels) else 0
