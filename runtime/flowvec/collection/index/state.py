"""The part of a store that is in memory: vectors or a graph, ids, and the state they show.

Nothing here is locked: `VectorIndex` lets one thread change it while no other thread reads it. All
reads of the store must be inside its `reading`, so that they see one state.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from flowvec.collection.index.changes import StateChange
from flowvec.collection.index.hnsw import EF_SEARCH, Graph
from flowvec.collection.index.snapshots import GraphSnapshots
from flowvec.collection.store.rows import Id, Item, without
from flowvec.collection.store.store import Store
from flowvec.encoder.postprocess import normalize
from flowvec.errors import CollectionError, CorruptCollectionError
from flowvec.vectors import Metric

__all__ = ["IndexState", "grow", "joined"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_READ_ROWS = 4096
# With a larger share of new rows, loading the file that the writer saved is as fast.
_MAX_CAUGHT_UP = 0.5
_UNKNOWN = -1


@dataclass(slots=True)
class Loaded:
    """What is in memory. A part that is None is loaded when it is needed.

    Attributes:
        rows: labels (ascending) and vectors of all rows, for exact searches.
        graph: a graph of all rows.
        ids: ids of all rows, by label.
    """

    rows: tuple[Labels, Floats] | None = None
    graph: Graph | None = None
    ids: dict[int, Id] | None = None


@dataclass(slots=True)
class IndexState:
    """Vectors, graph and ids of one state of a store.

    Attributes:
        store: what is on disk.
        snapshots: the graph's files.
        dim: length of the vectors.
        metric: what compares them.
        number: the number of the state that is in memory.
        count: rows of that state.
        ef_search: search depth in the graph.
        loaded: what is in memory.
        graph_is_saved: whether the newest file holds the graph as it is in memory.
        graph_was_built: whether the graph was built here rather than loaded.
    """

    store: Store
    snapshots: GraphSnapshots
    dim: int = field(init=False)
    metric: Metric = field(init=False)
    number: int = field(init=False, default=_UNKNOWN)
    count: int = field(init=False, default=0)
    ef_search: int = field(init=False, default=EF_SEARCH)
    loaded: Loaded = field(init=False, default_factory=Loaded)
    graph_is_saved: bool = field(init=False, default=False)
    graph_was_built: bool = field(init=False, default=False)
    _deletions: int = field(init=False, default=0)
    _newest: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        settings = self.store.settings
        self.dim, self.metric = settings.dim, settings.metric

    def comparable(self, vectors: Floats) -> Floats:
        """Vectors as the metric compares them: normalized for cosine."""
        return normalize(vectors) if self.metric == "cosine" else vectors

    # --- changes of the store --------------------------------------------------------------------

    def apply(self, change: StateChange, staged: Graph | None) -> None:
        """Apply a change to the state in memory. If it raises, the caller must `drop`.

        Args:
            change: a change of the state that is in memory.
            staged: the graph that already holds the new rows, hidden.
        """
        loaded = self._detached()
        if loaded.ids is not None:
            for label in change.deleted:
                loaded.ids.pop(label, None)
            loaded.ids.update(zip(change.labels.tolist(), change.ids, strict=True))
        if loaded.rows is not None:
            labels, vectors = loaded.rows
            kept = ~np.isin(labels, np.asarray(change.deleted, dtype=np.int64))
            loaded.rows = (
                np.concatenate((labels[kept], change.labels)),
                np.concatenate((vectors[kept], change.vectors)),
            )
        if loaded.graph is not None:
            if loaded.graph is staged:
                loaded.graph.reveal(change.labels.tolist())
            else:
                loaded.graph.add(change.labels, change.vectors)
            loaded.graph.delete(change.deleted)
            self.graph_is_saved = self.graph_is_saved and not (len(change.labels) or change.deleted)
        self.count += len(change.labels) - len(change.deleted)
        self._deletions += len(change.deleted)
        if change.ef_search is not None:
            self.ef_search = change.ef_search
        if len(change.labels):
            self._newest = int(change.labels[-1])
        self.loaded, self.number = loaded, change.state

    def _detached(self) -> Loaded:
        """What is in memory, detached for a change: if that is interrupted, memory is empty."""
        loaded, self.number = self.loaded, _UNKNOWN
        self.loaded = Loaded()
        return loaded

    def catch_up(self) -> None:
        """Bring memory to the state that this thread reads. If it raises, the caller must `drop`.

        Only new rows are read, if none was deleted.
        """
        counts = self.store.meta.counts()
        self.ef_search = _ef_of(self.store)
        before = self.number
        loaded = self._detached()
        if counts.deletions == self._deletions and before != _UNKNOWN:
            new = self.store.labels(after=self._newest)
            gone: Labels = np.empty(0, np.int64)
            if loaded.rows is not None:
                loaded.rows = joined([loaded.rows, *self.blocks(new, loaded.ids)], self.dim)
            elif loaded.graph is None:
                loaded.ids = None
        elif loaded.graph is None:
            loaded.rows = loaded.ids = None
            gone = new = np.empty(0, np.int64)
        else:
            loaded.rows = loaded.ids = None
            live, in_graph = self.store.labels(), loaded.graph.labels()
            gone, new = without(in_graph, live), without(live, in_graph)
        self.count, self._deletions = counts.rows, counts.deletions
        self._newest = self.store.newest_label()
        if loaded.graph is not None:
            self._catch_up(loaded, loaded.graph, gone, new)
        self.loaded, self.number = loaded, counts.state

    def _catch_up(self, loaded: Loaded, graph: Graph, gone: Labels, new: Labels) -> None:
        """Add rows that the graph lacks, and remove deleted ones."""
        if not (len(gone) or len(new)):
            return
        # Many new rows: the writer may have saved a file with them. A new row whose label is not
        # above all labels of the graph was hidden in it by a change that may not be committed.
        if len(new) > _MAX_CAUGHT_UP * max(len(graph), 1) or (len(new) and new[0] <= graph.newest):
            loaded.graph = loaded.ids = None
            return
        self.graph_is_saved = False
        graph.delete(gone.tolist())
        grow(graph, self.blocks(new, loaded.ids))

    def drop(self) -> None:
        """Forget everything; the next search loads it again."""
        self.loaded = Loaded()
        self.number = _UNKNOWN

    # --- reading the store ----------------------------------------------------------------------

    def load_rows(self) -> None:
        """Load the vectors of all rows."""
        self.loaded.rows = joined(self.blocks(), self.dim)

    def load_ids(self) -> None:
        """Load the ids of all rows."""
        self.loaded.ids = self.store.ids()

    def load_graph(self, stopped: Callable[[], bool] | None = None) -> None:
        """Load a graph: the newest good file, brought up to date, or a new one.

        Args:
            stopped: called now and then; True makes this give up.

        Raises:
            InterruptedError: it was stopped; no graph is loaded then.
        """
        newest = self.snapshots.load()
        if newest is not None:
            graph, after = newest
            self.graph_is_saved, self.graph_was_built = True, False
            try:
                if grow(
                    graph, map(self._compared, _unless_stopped(stopped, self.store.scan(after)))
                ):
                    self.graph_is_saved = False
            except CorruptCollectionError:
                raise
            except CollectionError as error:
                logger.warning("the graph is rebuilt from the store: %s", error)
            else:
                self.loaded.graph = graph
                return
        self.use_built(self.build_graph(stopped))

    def use_built(self, graph: Graph) -> None:
        """Use a graph of all rows that was built here."""
        self.loaded.graph, self.graph_is_saved, self.graph_was_built = graph, False, True

    def build_graph(
        self, stopped: Callable[[], bool] | None = None, *, may_show: bool = True
    ) -> Graph:
        """Build a graph of all rows; what is in memory stays as it is.

        Args:
            stopped: called now and then; True makes this give up.
            may_show: whether to show progress on a terminal.

        Raises:
            InterruptedError: it was stopped.
        """
        logger.info("building the graph of %d rows", self.count)
        graph = self.snapshots.new(self.count)
        shown = may_show and sys.stderr.isatty()
        # Even a bar that is not shown takes a lock that forked processes share: a process that is
        # killed while it holds it would block all others.
        bar = tqdm(total=self.count, desc="graph", unit=" rows") if shown else None

        def blocks() -> Iterator[tuple[Labels, Floats]]:
            for items in _unless_stopped(stopped, self.store.scan()):
                yield self._compared(items)
                if bar is not None:
                    bar.update(len(items))

        with bar or nullcontext():
            grow(graph, blocks())
        return graph

    def update_graph(self, graph: Graph) -> None:
        """Bring a graph of an older state to the state that this thread reads."""
        live, in_graph = self.store.labels(), graph.labels()
        graph.delete(without(in_graph, live).tolist())
        grow(graph, self.blocks(without(live, in_graph)))

    def blocks(
        self, wanted: Labels | None = None, ids: dict[int, Id] | None = None
    ) -> Iterator[tuple[Labels, Floats]]:
        """Labels and vectors of rows, ascending, a few thousand at a time.

        Args:
            wanted: labels of the rows; None is all.
            ids: gets the ids of the wanted rows, by label.
        """
        if wanted is None:
            for items in self.store.scan():
                yield self._compared(items)
            return
        for first in range(0, len(wanted), _READ_ROWS):
            by_label = self.store.read(wanted[first : first + _READ_ROWS].tolist())
            if ids is not None:
                ids.update((label, item.id) for label, item in by_label.items())
            if by_label:
                yield self._compared([by_label[label] for label in sorted(by_label)])

    def _compared(self, items: Sequence[Item]) -> tuple[Labels, Floats]:
        labels = np.asarray([item.label for item in items], dtype=np.int64)
        return labels, self.comparable(np.stack([item.vector for item in items]))


def grow(graph: Graph, blocks: Iterable[tuple[Labels, Floats]]) -> int:
    """Add blocks of labels and vectors, and return how many rows. The next block is read meanwhile.

    No addition is running when it returns or raises.
    """
    rows, adding = 0, None
    with ThreadPoolExecutor(1, thread_name_prefix="flowvec-graph") as thread:
        for labels, vectors in blocks:
            if adding is not None:
                adding.result()
            adding = thread.submit(graph.add, labels, vectors)
            rows += len(labels)
        if adding is not None:
            adding.result()
    return rows


def joined(blocks: Iterable[tuple[Labels, Floats]], dim: int) -> tuple[Labels, Floats]:
    """Blocks of labels and vectors as one."""
    parts = list(blocks)
    labels = np.concatenate([np.empty(0, np.int64), *(part[0] for part in parts)])
    empty = np.empty((0, dim), np.float32)
    return labels, np.concatenate([empty, *(part[1] for part in parts)])


def _ef_of(store: Store) -> int:
    ef = store.meta.read().get("ef_search", str(EF_SEARCH))
    if not (ef.isdecimal() and 0 < int(ef) < 1 << 20):
        raise CorruptCollectionError(f"its table meta is damaged: ef_search is {ef!r}")
    return int(ef)


def _unless_stopped(stopped: Callable[[], bool] | None, parts: Iterator[T]) -> Iterator[T]:
    """The parts, until `stopped` returns True.

    Raises:
        InterruptedError: it did.
    """
    for part in parts:
        if stopped is not None and stopped():
            raise InterruptedError
        yield part
