"""The HNSW graph over a collection's vectors: hnswlib, with growth, tombstones and safe files.

A graph is a cache. Its files are written atomically, and the caller verifies their hash before
`load`, because hnswlib does not check what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hnswlib
import numpy as np
import numpy.typing as npt

from flowvec.collection.index import huge_pages
from flowvec.collection.index.hnsw_file import check_graph_file, remove_room
from flowvec.collection.store.rows import without
from flowvec.errors import CollectionError
from flowvec.machine import available_cores
from flowvec.vectors import Metric

__all__ = ["EF_CONSTRUCTION", "EF_SEARCH", "LEAST_ROWS_PER_CORE", "Graph", "M"]

M = 16
EF_CONSTRUCTION = 200
EF_SEARCH = 100
# hnswlib uses one thread unless there are more than four vectors for each.
LEAST_ROWS_PER_CORE = 5

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Graph:
    """An HNSW graph of labelled vectors. Labels are whole numbers from 1.

    Any number of threads may search, but not while it grows or marks deletions.
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

        hnswlib's distance for inner products is 1 - dot in float32, which is 1 for all tiny
        vectors. So vectors are multiplied by `scale`, which brings their norms to about 1.
        """
        self.metric = metric
        self.scale = np.float32(scale)
        self.m = m
        self.ef_construction = ef_construction
        self._index = hnswlib.Index(space="l2" if metric == "l2" else "ip", dim=dim)
        self._deleted: set[int] = set()
        self._newest = 0
        self._rows = rows
        self._capacity = 0
        self._threads: ThreadPoolExecutor | None = None
        # Read once: hnswlib's answer costs as much as a search.
        self._cores = available_cores()

    def __len__(self) -> int:
        """Vectors that a search can find."""
        return self.total - len(self._deleted)

    def labels(self) -> Labels:
        """Labels that a search can find, ascending, int64 (rows,)."""
        labels = np.asarray(self._index.get_ids_list() if self._capacity else [], dtype=np.int64)
        gone = np.fromiter(self._deleted, dtype=np.int64, count=len(self._deleted))
        return np.sort(without(labels, gone))

    @property
    def total(self) -> int:
        """Vectors in the graph, tombstones included."""
        return int(self._index.get_current_count()) if self._capacity else 0

    @property
    def memory_bytes(self) -> int:
        """Memory of its vectors and links, in bytes."""
        return int(self._index.index_file_size()) if self._capacity else 0

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
        needed = self.total + len(labels)
        if self._capacity == 0:
            self._capacity = max(1024, needed, self._rows)
            self._index.init_index(
                max_elements=self._capacity,
                ef_construction=self.ef_construction,
                M=self.m,
                random_seed=0,
            )
            huge_pages.advise(self._block_bytes())
        elif needed > self._capacity:
            self._capacity = max(needed, self._capacity + self._capacity // 2)
            self._index.resize_index(self._capacity)
            huge_pages.collapse(self._block_bytes())  # a block that moves loses them
        threads = min(self._cores, max(1, len(labels) // LEAST_ROWS_PER_CORE))
        self._index.add_items(vectors * self.scale, labels, num_threads=threads)

    def delete(self, labels: Sequence[int]) -> None:
        """Mark labels as tombstones. Labels that are marked already or were never added are
        ignored."""
        if not self._capacity:  # hnswlib would follow a null pointer
            return
        for label in labels:
            try:
                self._index.mark_deleted(int(label))
            except RuntimeError:
                continue
            self._deleted.add(int(label))

    def search(self, queries: Floats, k: int, ef: int = EF_SEARCH) -> tuple[Labels, Floats] | None:
        """The k nearest of each query: labels int64 and scores float32, (queries, k).

        Args:
            queries: float32 (queries, dim), finite.
            k: how many.
            ef: search depth: the k nearest are taken from this many candidates.

        Returns None if the graph cannot reach k live vectors; the caller then searches exactly.
        """
        if k > len(self):
            return None
        # hnswlib has one `ef` for all threads, but uses k instead if k is larger. So each search
        # asks for as many rows as it wants candidates. (A new graph has an `ef` of 10.)
        self._index.set_ef(1)
        wanted = min(max(k, ef), len(self))
        # The order of inner products does not depend on the query's length.
        lengths = self._query_lengths(queries)
        scaled = queries * self.scale if self.metric == "l2" else queries / lengths
        nearest = self._query(scaled, wanted)
        if nearest is None and wanted > k:
            nearest = self._query(scaled, k)
        if nearest is None:
            return None
        labels, distances = (part[:, :k] for part in nearest)
        if self.metric == "l2":
            scores = -np.sqrt(np.maximum(distances, 0.0)) / self.scale
        else:
            scores = (1.0 - distances) * (lengths / self.scale)
        return labels.view(np.int64), scores.astype(np.float32, copy=False)

    def _query(self, queries: Floats, k: int) -> tuple[npt.NDArray[np.uint64], Floats] | None:
        """The k nearest, or None if fewer can be reached.

        hnswlib uses one core for a few queries, so they are split here.
        """
        cores = self._cores
        try:
            if not 1 < len(queries) <= 4 * cores:
                nearest: tuple[npt.NDArray[np.uint64], Floats] = self._index.knn_query(
                    queries, k=k, num_threads=cores
                )
                return nearest
            if self._threads is None:
                self._threads = ThreadPoolExecutor(cores, thread_name_prefix="flowvec-search")
            parts = np.array_split(queries, min(cores, len(queries)))
            done = self._threads.map(
                lambda part: self._index.knn_query(part, k=k, num_threads=1), parts
            )
            labels, distances = zip(*done, strict=True)
        except RuntimeError:  # hnswlib's: fewer than k could be reached
            return None
        return np.concatenate(labels), np.concatenate(distances)

    def _query_lengths(self, queries: Floats) -> Floats | float:
        """Norms of the queries, (queries, 1); 1 for cosine, whose queries are normalized."""
        if self.metric != "ip":
            return 1.0
        if len(queries) == 1:  # a twentieth of the time of a single search
            return math.sqrt(np.vdot(queries, queries)) or 1.0
        norms: Floats = np.sqrt(np.einsum("ij,ij->i", queries, queries))[:, None]
        norms[norms == 0] = 1.0
        return norms

    def _block_bytes(self) -> int:
        """The least size of hnswlib's block of vectors and links, in bytes."""
        return self._capacity * int(self._index.dim) * 4

    def write(self, path: Path) -> None:
        """Write the graph to a file, which is not flushed to disk.

        Raises:
            CollectionError: it could not be written completely.
        """
        try:
            self._index.save_index(str(path))
            # hnswlib does not notice a full disk, so compare the size.
            if path.stat().st_size != self._index.index_file_size():
                raise CollectionError(f"{path} was not written whole; is the disk full?")
            # A graph that grows has room for far more rows than it holds; its file needs none.
            remove_room(path)
        except (OSError, RuntimeError) as error:
            if isinstance(error, CollectionError):
                raise
            raise CollectionError(f"cannot write {path}: {error}") from error

    def load(self, path: Path, live: Labels) -> None:
        """Read a verified file, and mark all its labels that are not in `live` as tombstones.

        There is room for all live rows, so that those that the file lacks can be added.

        Raises:
            CollectionError: it is not a valid graph of vectors of this length.
        """
        count = check_graph_file(path, self._index.dim, self.m)
        try:
            self._index.load_index(str(path), max_elements=max(count, len(live)))
        except RuntimeError as error:
            raise CollectionError(f"{path} is not a graph: {error}") from error
        self._capacity = int(self._index.get_max_elements())
        huge_pages.collapse(self._block_bytes())
        labels = np.asarray(self._index.get_ids_list(), dtype=np.int64)
        gone = without(labels, live)
        self.delete(gone.tolist())
        # hnswlib refuses to mark labels that were marked before the file was written.
        self._deleted = set(gone.tolist())
        self._newest = int(labels.max()) if len(labels) else 0
