"""What is kept in memory of a store's rows: vectors or a graph, ids, and the state that they show.

Nothing here is locked: `Neighbours` sees to it that one thread changes a cache and no other reads
it meanwhile. All reads of the store must be within its `reading`, so that they are of one state.
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

from flowvec.collection.index.hnsw import EF_SEARCH, Graph
from flowvec.collection.index.snapshots import GraphSnapshots
from flowvec.collection.store.rows import Id, Item, without
from flowvec.collection.store.store import Store
from flowvec.encoder.postprocess import normalize
from flowvec.errors import CollectionError, CorruptCollectionError
from flowvec.vectors import Metric

__all__ = ["Cache", "Change", "grow", "joined"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

_READ_ROWS = 4096
# Above this share of new rows, loading the file that their writer saved is no slower.
_MAX_CAUGHT_UP = 0.5
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Change:
    """How a change of the store leads from the state before to a state.

    Attributes:
        state: the number of the state that it leads to.
        gone: labels of rows that are deleted or replaced.
        labels: of new rows, ascending, int64 (rows,).
        vectors: of new rows, float32 (rows, dim), as the metric compares them.
        ids: of new rows.
        ef_search: how far the graph is searched from now on; None is as before.
    """

    state: int
    gone: Sequence[int]
    labels: Labels
    vectors: Floats
    ids: Sequence[Id]
    ef_search: int | None = None


@dataclass(slots=True)
class Held:
    """What is in memory; each part may be missing and is then read when it is needed.

    Attributes:
        flat: labels, ascending, and vectors of all rows, for exact searches.
        graph: of all rows.
        ids: of all rows, by label.
    """

    flat: tuple[Labels, Floats] | None = None
    graph: Graph | None = None
    ids: dict[int, Id] | None = None


@dataclass(slots=True)
class Cache:
    """Vectors, graph and ids of one state of a store.

    Attributes:
        store: the truth.
        snapshots: the graph's files.
        dim: length of the vectors.
        metric: what compares them.
        state: the number of the state that all of it shows.
        count: rows of that state.
        ef_search: how far the graph is searched.
        held: what is in memory.
        graph_is_saved: whether the newest file holds the graph as it is.
        graph_was_built: whether the graph was built here, and not loaded.
    """

    store: Store
    snapshots: GraphSnapshots
    dim: int
    metric: Metric
    state: int = field(init=False, default=_UNKNOWN)
    count: int = field(init=False, default=0)
    ef_search: int = field(init=False, default=EF_SEARCH)
    held: Held = field(init=False, default_factory=Held)
    graph_is_saved: bool = field(init=False, default=False)
    graph_was_built: bool = field(init=False, default=False)
    _deletions: int = field(init=False, default=0)
    _newest: int = field(init=False, default=0)

    def comparable(self, vectors: Floats) -> Floats:
        """Vectors as the metric compares them: normalised for cosine."""
        return normalize(vectors) if self.metric == "cosine" else vectors

    # --- following the store --------------------------------------------------------------------

    def publish(self, change: Change, staged: Graph | None) -> None:
        """Show the state that a change leads to. Where it fails, all must be dropped.

        Args:
            change: from the state that is shown now.
            staged: the graph that holds its new rows already, hidden.
        """
        held = self._taken()
        if held.ids is not None:
            for label in change.gone:
                held.ids.pop(label, None)
            held.ids.update(zip(change.labels.tolist(), change.ids, strict=True))
        if held.flat is not None:
            labels, vectors = held.flat
            kept = ~np.isin(labels, np.asarray(change.gone, dtype=np.int64))
            held.flat = (
                np.concatenate((labels[kept], change.labels)),
                np.concatenate((vectors[kept], change.vectors)),
            )
        if held.graph is not None:
            if held.graph is staged:
                held.graph.reveal(change.labels.tolist())
            else:
                held.graph.add(change.labels, change.vectors)
            held.graph.delete(change.gone)
            self.graph_is_saved = self.graph_is_saved and not (len(change.labels) or change.gone)
        self.count += len(change.labels) - len(change.gone)
        self._deletions += len(change.gone)
        if change.ef_search is not None:
            self.ef_search = change.ef_search
        if len(change.labels):
            self._newest = int(change.labels[-1])
        self.held, self.state = held, change.state

    def _taken(self) -> Held:
        """What is held, for a change of it: what ends in the midst leaves nothing, and not half."""
        held, self.state = self.held, _UNKNOWN
        self.held = Held()
        return held

    def take_in(self) -> None:
        """Show the state that the store shows. Where it fails, all must be dropped.

        Where nothing was deleted, only new rows are read.
        """
        counts = self.store.counts()
        self.ef_search = _ef_of(self.store)
        before = self.state
        held = self._taken()
        if counts.deletions == self._deletions and before != _UNKNOWN:
            new = self.store.labels(after=self._newest)
            gone: Labels = np.empty(0, np.int64)
            if held.flat is not None:
                held.flat = joined([held.flat, *self.blocks(new, held.ids)], self.dim)
            elif held.graph is None:
                held.ids = None
        elif held.graph is None:
            held.flat = held.ids = None
            gone = new = np.empty(0, np.int64)
        else:
            held.flat = held.ids = None
            live, known = self.store.labels(), held.graph.labels()
            gone, new = without(known, live), without(live, known)
        self.count, self._deletions = counts.rows, counts.deletions
        self._newest = self.store.newest_label()
        if held.graph is not None:
            self._catch_up(held, held.graph, gone, new)
        self.held, self.state = held, counts.state

    def _catch_up(self, held: Held, graph: Graph, gone: Labels, new: Labels) -> None:
        """Give the graph the rows that it lacks, and take those that are gone."""
        if not (len(gone) or len(new)):
            return
        # A file that the writer has saved may hold so many. A new row that is not above all that
        # the graph knows was hidden in it for a change whose end is not known.
        if len(new) > _MAX_CAUGHT_UP * max(len(graph), 1) or (len(new) and new[0] <= graph.newest):
            held.graph = held.ids = None
            return
        self.graph_is_saved = False
        graph.delete(gone.tolist())
        grow(graph, self.blocks(new, held.ids))

    def drop(self) -> None:
        """Forget all of it: the next search reads it again."""
        self.held = Held()
        self.state = _UNKNOWN

    # --- reading the store ----------------------------------------------------------------------

    def load_flat(self) -> None:
        """Hold all rows' vectors."""
        self.held.flat = joined(self.blocks(), self.dim)

    def load_ids(self) -> None:
        """Hold all rows' ids."""
        self.held.ids = self.store.ids()

    def load_graph(self, stopped: Callable[[], bool] | None = None) -> None:
        """Hold a graph: the newest good file's, caught up, or one that is built.

        Args:
            stopped: asked now and then whether to give up.

        Raises:
            InterruptedError: it was stopped; no graph is held then.
        """
        found = self.snapshots.load()
        if found is not None:
            graph, after = found
            self.graph_is_saved, self.graph_was_built = True, False
            try:
                if grow(graph, map(self._compared, _until(stopped, self.store.scan(after)))):
                    self.graph_is_saved = False
            except CorruptCollectionError:
                raise
            except CollectionError as error:
                logger.warning("the graph is rebuilt from the store: %s", error)
            else:
                self.held.graph = graph
                return
        self.hold_built(self.built(stopped))

    def hold_built(self, graph: Graph) -> None:
        """Hold a graph of all rows that was built here."""
        self.held.graph, self.graph_is_saved, self.graph_was_built = graph, False, True

    def built(self, stopped: Callable[[], bool] | None = None, *, may_show: bool = True) -> Graph:
        """A graph of all rows; whatever is held stays as it is.

        Args:
            stopped: asked now and then whether to give up.
            may_show: whether to show progress on a terminal.

        Raises:
            InterruptedError: it was stopped.
        """
        logger.info("building the graph of %d rows", self.count)
        graph = self.snapshots.new(self.count)
        shown = may_show and sys.stderr.isatty()
        # Even a bar that is not shown takes a lock that forked processes share: one that is killed
        # with it would stop all others.
        bar = tqdm(total=self.count, desc="graph", unit=" rows") if shown else None

        def blocks() -> Iterator[tuple[Labels, Floats]]:
            for items in _until(stopped, self.store.scan()):
                yield self._compared(items)
                if bar is not None:
                    bar.update(len(items))

        with bar or nullcontext():
            grow(graph, blocks())
        return graph

    def bring_up(self, graph: Graph) -> None:
        """Bring a graph of an older state to the one that the store shows."""
        live, known = self.store.labels(), graph.labels()
        graph.delete(without(known, live).tolist())
        grow(graph, self.blocks(without(live, known)))

    def blocks(
        self, wanted: Labels | None = None, ids: dict[int, Id] | None = None
    ) -> Iterator[tuple[Labels, Floats]]:
        """Labels and vectors of rows, ascending, a few thousand at a time.

        Args:
            wanted: labels of the rows; None is all.
            ids: where their ids go, by label, of wanted rows.
        """
        if wanted is None:
            for items in self.store.scan():
                yield self._compared(items)
            return
        for first in range(0, len(wanted), _READ_ROWS):
            found = self.store.read(wanted[first : first + _READ_ROWS].tolist())
            if ids is not None:
                ids.update((label, item.id) for label, item in found.items())
            if found:
                yield self._compared([found[label] for label in sorted(found)])

    def _compared(self, items: Sequence[Item]) -> tuple[Labels, Floats]:
        labels = np.asarray([item.label for item in items], dtype=np.int64)
        return labels, self.comparable(np.stack([item.vector for item in items]))


def grow(graph: Graph, blocks: Iterable[tuple[Labels, Floats]]) -> int:
    """Add blocks of labels and vectors, each while the next is read; returns how many rows.

    Whatever happens, nothing is being added any more when it has returned.
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
    found = store.read_meta().get("ef_search", str(EF_SEARCH))
    if not (found.isdecimal() and 0 < int(found) < 1 << 20):
        raise CorruptCollectionError(f"its table meta is damaged: ef_search is {found!r}")
    return int(found)


def _until(stopped: Callable[[], bool] | None, parts: Iterator[T]) -> Iterator[T]:
    """The parts, as long as nobody stops.

    Raises:
        InterruptedError: somebody did.
    """
    for part in parts:
        if stopped is not None and stopped():
            raise InterruptedError
        yield part
