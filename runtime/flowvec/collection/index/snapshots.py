"""A graph's files beside its store: written atomically, and verified before they are loaded.

The store records each file's size, SHA-256 and newest row. The newest two files are kept, in case
one is damaged, or another process reads it while a newer one is written.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import record_file
from flowvec.bundle.manifest import FileRecord
from flowvec.collection.index.hnsw import Graph
from flowvec.collection.store.snapshot_table import Snapshot
from flowvec.collection.store.store import FILE, Store
from flowvec.collection.store.writer_locks import LOCK_FILES
from flowvec.errors import CollectionError

__all__ = ["GraphSnapshots", "is_mostly_tombstones"]

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.int64]

# A graph with a larger share of tombstones is rebuilt: they cost time and recall.
_MAX_TOMBSTONES = 0.5
_KEPT = 2
# Graphs, vectors files and codes. What a kill left is removed by the next that is written.
_CACHES = re.compile(r"(graph-\d+\.hnsw|vectors-\d+\.f32|codes-\d+\.q4)(\.\d+\.partial)?")


class GraphSnapshots:
    """Makes, saves and loads the graphs of one collection; callers hold the locks."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        settings = store.settings
        self._dim, self._metric = settings.dim, settings.metric
        self._m, self._ef_construction = settings.m, settings.ef_construction
        self._bad: set[Snapshot] = set()  # those that are not worth keeping

    def new(self, rows: int) -> Graph:
        """An empty graph with room for this many rows.

        For inner products the graph is scaled by a typical vector of the first rows, since its
        distances are float32, and those of tiny vectors would be 0.
        """
        scale = 1.0
        if self._metric == "ip":
            norms = [float(np.linalg.norm(item.vector)) for item in self._store.page()]
            typical = float(np.median([n for n in norms if n > 0.0] or [1.0]))
            scale = 2.0 ** -round(math.log2(typical))  # a power of two rounds nothing
        return Graph(self._dim, self._metric, self._m, self._ef_construction, scale, rows)

    def load(self) -> tuple[Graph, Labels] | None:
        """The newest good graph, and the labels of all rows; None if no file is good."""
        live = self._store.labels()
        for snapshot in self._store.snapshots.all():
            try:
                graph = self._load(snapshot, live)
            except (CollectionError, OSError, TypeError, ValueError) as error:
                self._bad.add(snapshot)
                logger.warning("the graph is rebuilt from the store: %s", error)
            else:
                if not is_mostly_tombstones(graph):
                    return graph, live
        return None

    def _checked_file(self, snapshot: Snapshot) -> Path:
        file = self._folder / snapshot.file
        if file.parent != self._folder or file.is_symlink() or not file.is_file():
            raise CollectionError(f"{file} is missing")
        if file.stat().st_size != snapshot.bytes or record_file(file).sha256 != snapshot.sha256:
            raise CollectionError(f"{file} is damaged")
        return file

    def _load(self, snapshot: Snapshot, live: Labels) -> Graph:
        file = self._checked_file(snapshot)
        scale = float(self._store.meta.read().get(_scale_key(snapshot.file), 1.0))
        graph = Graph(self._dim, self._metric, snapshot.m, snapshot.ef_construction, scale)
        graph.load(file, live)
        # A row that is missing from the graph would never be found again.
        if len(graph) != int(np.count_nonzero(live <= snapshot.max_label)):
            raise CollectionError(f"{file} has rows missing")
        return graph

    def newest_label(self) -> int:
        """The highest label that the newest file holds; 0 without a file."""
        newest = next(iter(self._store.snapshots.all()), None)
        if newest is None or newest in self._bad or not (self._folder / newest.file).is_file():
            return 0
        return newest.max_label

    def next_file(self) -> Path:
        """Where the next graph is written."""
        number = max((snapshot.n for snapshot in self._store.snapshots.all()), default=0) + 1
        return self._folder / f"graph-{number}.hnsw"

    def record(self, file: Path, content: FileRecord, graph: Graph, newest: int) -> None:
        """Record a graph's file; forget older, missing and bad ones. Nobody else writes now.

        Args:
            file: a file of `next_file`, flushed to disk.
            content: its size and hash, which take a second for each gigabyte.
            graph: the graph.
            newest: the highest label that the file holds.

        Raises:
            CollectionError: it could not be recorded; the older files stay.
        """
        old = self._store.snapshots.all()
        good = [s for s in old if s not in self._bad and (self._folder / str(s.file)).is_file()]
        kept = good[: _KEPT - 1]
        forgotten = [s for s in old if s not in kept]
        with self._store.transaction():
            self._store.snapshots.add(
                Snapshot(
                    n=int(file.stem.partition("-")[2]),
                    file=file.name,
                    bytes=content.bytes,
                    sha256=content.sha256,
                    max_label=newest,
                    count=len(graph),  # counting rows in the store would read all of them
                    m=graph.m,
                    ef_construction=graph.ef_construction,
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                )
            )
            self._store.snapshots.remove(s.n for s in forgotten)
            self._store.meta.remove(_scale_key(s.file) for s in forgotten)
            if graph.scale != 1.0:
                self._store.meta.write({_scale_key(file.name): repr(float(graph.scale))})

    def useless(self) -> list[Snapshot]:
        """Graphs whose file is damaged or missing, or most of whose rows were deleted."""
        live, found = self._store.labels(), []
        for snapshot in self._store.snapshots.all():
            try:
                self._checked_file(snapshot)
                rows = int(np.count_nonzero(live <= snapshot.max_label))
                is_good = rows >= (1 - _MAX_TOMBSTONES) * snapshot.count
            except (CollectionError, OSError, TypeError, ValueError):
                is_good = False
            if not is_good:
                found.append(snapshot)
        self._bad.update(found)
        return found

    def forget(self, snapshots: Sequence[Snapshot]) -> None:
        """Forget graphs; in the turn to write. `remove_forgotten` removes their files."""
        with self._store.transaction():
            self._store.snapshots.remove(s.n for s in snapshots)
            self._store.meta.remove(_scale_key(s.file) for s in snapshots)

    def remove_forgotten(self) -> None:
        """Remove files of graphs that are not recorded; no other process saves a graph now.

        That takes a tenth of a second for each gigabyte, so changes should not wait for it.
        """
        with self._store.reading():
            names = {str(snapshot.file) for snapshot in self._store.snapshots.all()}
        for stale in self._folder.glob("graph-*.hnsw*"):
            if stale.name not in names:
                with suppress(OSError):  # the next save tries again
                    stale.unlink()

    def problems(self) -> Iterator[str]:
        """What is wrong with the files, one message each. The last to read in a `reading` block."""
        live = self._store.labels()
        expected = {*LOCK_FILES, FILE, f"{FILE}-wal", f"{FILE}-shm"}
        for snapshot in self._store.snapshots.all():
            expected.add(snapshot.file)
            if not os.path.lexists(self._folder / str(snapshot.file)):
                continue  # the graph may be deleted
            try:
                self._load(snapshot, live)
            except (CollectionError, OSError, TypeError, ValueError) as error:
                self._store.database.renew()
                if snapshot in self._store.snapshots.all():  # no writer removed it
                    yield f"{error}; no row is lost: the graph is built again from the rows"
        for file in sorted(self._folder.iterdir()):
            if file.name not in expected and not _CACHES.fullmatch(file.name):
                yield f"{file} is not part of a collection"


def is_mostly_tombstones(graph: Graph) -> bool:
    """Whether a graph is due to be rebuilt."""
    return len(graph) < (1 - _MAX_TOMBSTONES) * graph.total


def _scale_key(file: str) -> str:
    return f"scale of {file}"
