"""The nearest rows of a store: an exact scan while it is small, an HNSW graph above that.

All that is kept here is a cache of the store. A graph's file is verified by length and SHA-256
before hnswlib sees it; missing, damaged or stale ones are caught up or rebuilt from the store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.bundle import record_file
from flowvec.errors import CollectionError
from flowvec.exact import Metric, top_k
from flowvec.hnsw import Graph
from flowvec.postprocess import normalize
from flowvec.store import Item, Snapshot, Store

__all__ = ["EXACT_BELOW", "Neighbours"]

logger = logging.getLogger("flowvec.neighbours")

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# Up to this many rows an exact search costs about a millisecond, and no graph is kept.
EXACT_BELOW = 10_000
# A graph is rebuilt once this share of it is tombstones, which cost time and recall.
_MAX_TOMBSTONES = 0.5


class Neighbours:
    """Searches a store's vectors. Callers serialise access; `Collection` holds the lock."""

    def __init__(
        self, store: Store, folder: Path, dim: int, metric: Metric, m: int, ef_construction: int
    ) -> None:
        self._store = store
        self._folder = folder
        self._dim = dim
        self._metric = metric
        self._m = m
        self._ef_construction = ef_construction
        self._version = store.data_version()
        self._count = store.count()
        self._flat: tuple[Labels, Floats] | None = None
        self._graph: Graph | None = None
        self._graph_is_saved = False

    def __len__(self) -> int:
        """Rows that can be found."""
        return self._count

    @property
    def is_exact(self) -> bool:
        """Whether searches are exact."""
        return self._count <= EXACT_BELOW

    @property
    def graph_rows(self) -> int:
        """Rows in the graph held in memory, tombstones included."""
        return 0 if self._graph is None else self._graph.total

    # --- following the store --------------------------------------------------------------------

    def replace(
        self, gone: Sequence[int], labels: Sequence[int], vectors: Floats | None = None
    ) -> None:
        """Follow a committed change: labels that are gone, and new ones with their vectors.

        Never raises: the change is on disk already, so what cannot follow is dropped from memory
        and read again at the next search.
        """
        self._count += len(labels) - len(gone)
        try:
            if gone:
                self._forget(gone)
            if vectors is not None and len(labels):
                self._remember(np.asarray(labels, dtype=np.int64), self._comparable(vectors))
        except Exception:
            logger.exception("the graph in memory is dropped")
            self._flat = self._graph = None

    def _remember(self, labels: Labels, rows: Floats) -> None:
        if self._graph is not None:
            self._graph.add(labels, rows)
            self._graph_is_saved = False
        if self._flat is not None:
            old_labels, old_rows = self._flat
            self._flat = np.append(old_labels, labels), np.concatenate((old_rows, rows))
            if not self.is_exact:
                self._flat = None

    def _forget(self, labels: Sequence[int]) -> None:
        if self._flat is not None:
            old_labels, old_rows = self._flat
            keep = ~np.isin(old_labels, np.asarray(labels, dtype=np.int64))
            self._flat = old_labels[keep], old_rows[keep]
        if self._graph is not None:
            self._graph.delete(labels)
            self._graph_is_saved = False
            if _is_mostly_tombstones(self._graph):
                self._graph = None

    def follow(self) -> None:
        """Drop what is held in memory if another process has committed something."""
        version = self._store.data_version()
        if version != self._version:
            self._version = version
            self._count = self._store.count()
            self._flat = self._graph = None

    # --- searching ------------------------------------------------------------------------------

    def search(self, queries: Floats, k: int) -> tuple[Labels, Floats]:
        """The min(k, rows) nearest rows of each query, best first.

        Args:
            queries: float32 (queries, dim), finite.
            k: at least 0.

        Returns:
            Labels, int64, and scores, float32, both (queries, min(k, rows)).
        """
        k = min(k, self._count)
        compared = self._comparable(queries)
        if not self.is_exact:
            found = self._need_graph().search(compared, k)
            if found is not None:
                return found
        labels, rows = self._need_flat()
        best, scores = top_k(compared, rows, k, self._metric)
        return labels[best], scores

    def _comparable(self, vectors: Floats) -> Floats:
        """Vectors as the metric compares them: normalised for cosine."""
        return normalize(vectors) if self._metric == "cosine" else vectors

    def _comparable_rows(self, items: Sequence[Item]) -> tuple[Labels, Floats]:
        labels = np.asarray([item.label for item in items], dtype=np.int64)
        return labels, self._comparable(np.stack([item.vector for item in items]))

    def _need_flat(self) -> tuple[Labels, Floats]:
        """All labels and comparable vectors; kept in memory while the store is small."""
        if self._flat is not None:
            return self._flat
        parts = [self._comparable_rows(items) for items in self._store.scan()]
        labels = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
        empty = np.empty((0, self._dim), np.float32)
        rows = np.concatenate([empty, *(part[1] for part in parts)])
        if self.is_exact:
            self._flat = labels, rows
        return labels, rows

    # --- the graph ------------------------------------------------------------------------------

    def _need_graph(self) -> Graph:
        """The graph, loaded from its newest good file and caught up, or built."""
        if self._graph is None:
            found = self._load_graph()
            graph, after = (self._new_graph(), 0) if found is None else found
            self._graph_is_saved = found is not None
            for items in self._store.scan(after):
                graph.add(*self._comparable_rows(items))
                self._graph_is_saved = False
            self._graph = graph
        return self._graph

    def _new_graph(self) -> Graph:
        """An empty graph, scaled for inner products by the first rows' longest vector."""
        scale = 1.0
        if self._metric == "ip":
            first = next(self._store.scan(), [])
            norms = [float(np.linalg.norm(item.vector)) for item in first]
            scale = 1.0 / (max(norms, default=0.0) or 1.0)
        return Graph(self._dim, self._metric, self._m, self._ef_construction, scale)

    def _load_graph(self) -> tuple[Graph, int] | None:
        """The newest good graph and the highest label that it knows of; None if no file is good."""
        live = self._store.labels()
        for snapshot in self._store.snapshots():
            try:
                return self._load_snapshot(snapshot, live), snapshot.max_label
            except (CollectionError, TypeError, ValueError) as error:
                logger.warning("the graph is rebuilt from the store: %s", error)
        return None

    def _load_snapshot(self, snapshot: Snapshot, live: Labels) -> Graph:
        file = self._folder / snapshot.file
        if file.parent != self._folder or file.is_symlink() or not file.is_file():
            raise CollectionError(f"{file} is missing")
        if file.stat().st_size != snapshot.bytes or record_file(file).sha256 != snapshot.sha256:
            raise CollectionError(f"{file} is damaged")
        scale = float(self._store.read_meta().get(f"scale of {snapshot.file}", 1.0))
        graph = Graph(self._dim, self._metric, snapshot.m, snapshot.ef_construction, scale)
        graph.load(file, live)
        if _is_mostly_tombstones(graph):
            raise CollectionError(f"{file} is mostly tombstones")
        # A label that the file should hold and does not would never be found again.
        if len(graph) != int(np.count_nonzero(live <= snapshot.max_label)):
            raise CollectionError(f"{file} lacks rows")
        return graph

    def save(self) -> None:
        """Write the graph, if there is one and it has changed: the file first, then its record.

        Raises:
            CollectionError: it could not be written; the older file stays.
        """
        if self._graph is None or self._graph_is_saved:
            return
        old = self._store.snapshots()
        number = max((snapshot.n for snapshot in old), default=0) + 1
        file = self._folder / f"graph-{number}.hnsw"
        self._graph.save(file)
        record = record_file(file)
        labels = self._store.labels()
        snapshot = Snapshot(
            n=number,
            file=file.name,
            bytes=record.bytes,
            sha256=record.sha256,
            max_label=int(labels[-1]) if len(labels) else 0,
            count=len(labels),
            m=self._graph.m,
            ef_construction=self._graph.ef_construction,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with self._store.transaction():
            self._store.add_snapshot(snapshot)
            self._store.forget_snapshots(s.n for s in old)
            if self._graph.scale != 1.0:
                self._store.write_meta({f"scale of {file.name}": repr(float(self._graph.scale))})
        for stale in self._folder.glob("graph-*.hnsw*"):
            if stale != file:
                stale.unlink(missing_ok=True)
        self._graph_is_saved = True


def _is_mostly_tombstones(graph: Graph) -> bool:
    return len(graph) < (1 - _MAX_TOMBSTONES) * graph.total
