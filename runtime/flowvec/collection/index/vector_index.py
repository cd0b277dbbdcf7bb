"""The nearest rows of a store: an exact scan while it is small, an HNSW graph above that.

All threads share one cache of the store in memory. Every state of the store has a number. A search
compares the store's number with that of the cache, and updates the cache if they differ. So it sees
the same state in both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.changes import Change, StateChange, merged
from flowvec.collection.index.eligible import EligibleRows
from flowvec.collection.index.hnsw import Graph
from flowvec.collection.index.rebuild import Rebuilding
from flowvec.collection.index.recall import least_ef, queries_between
from flowvec.collection.index.search import few_eligible, search_blocks, search_graph, search_rows
from flowvec.collection.index.snapshots import GraphSnapshots, is_mostly_tombstones
from flowvec.collection.index.state import IndexState
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.locks import ReadersWriter
from flowvec.collection.store.rows import Id
from flowvec.collection.store.store import Store
from flowvec.vectors import scores as exact_scores

__all__ = ["EXACT_BELOW", "Nearest", "VectorIndex"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# Up to this many rows an exact search takes about a millisecond, and no graph is built.
EXACT_BELOW = 10_000
# Rows added to the graph before searches get a turn.
_ADD_ROWS = 512
# How often a search retries after a concurrent change before it blocks writers.
_ATTEMPTS = 3
# Recall is measured at this k.
_RECALL_K = 10


@dataclass(frozen=True, slots=True)
class Nearest:
    """The nearest rows of each query, best first.

    Attributes:
        labels: int64 (queries, k).
        scores: float32 (queries, k), higher is better.
        ids: (queries, k); None unless the search asked for ids.
    """

    labels: Labels
    scores: Floats
    ids: list[list[Id]] | None


class VectorIndex:
    """Searches a store's vectors, from any number of threads, while one thread changes the store.

    `Collection` changes it like this:

        index.begin()
        with store.transaction():
            ...
            index.stage(...)
            index.seal()   # the graph grows; searches go on and do not see the new rows
        index.publish()        # now they see all of them at once

    A search that meets the committed state before `publish` publishes it. What was staged and not
    committed is never published; its nodes stay hidden in the graph.
    """

    def __init__(self, store: Store, folder: Path, exact_below: int | None = None) -> None:
        """Search a store.

        Args:
            store: the rows.
            folder: where the graph's files are.
            exact_below: up to this many rows searches are exact; None is `EXACT_BELOW`.
        """
        self._store = store
        self._exact_below = exact_below
        self._snapshots = GraphSnapshots(store, folder)
        self._state = IndexState(store, self._snapshots)
        self._eligible = EligibleRows(store)
        self._lock = ReadersWriter()
        # The change that was staged last, and the graph that already holds its rows, hidden.
        self._staged: tuple[StateChange, Graph | None] | None = None
        # The changes of the transaction that is open, and the number of the state before it.
        self._changes: list[Change] = []
        self._before = 0
        self._rebuilding = Rebuilding(self._rebuild)
        with store.reading():
            store.count()  # raises if rows are missing
            self._state.catch_up()

    @property
    def is_exact(self) -> bool:
        """Whether searches are exact."""
        limit = EXACT_BELOW if self._exact_below is None else self._exact_below
        return self._state.count <= limit

    @property
    def state(self) -> int:
        """The number of the state in memory."""
        return self._state.number

    @property
    def ef_search(self) -> int:
        """Search depth in the graph."""
        return self._state.ef_search

    @property
    def is_unsaved(self) -> bool:
        """Whether the graph in memory differs from the newest file."""
        return self._state.loaded.graph is not None and not self._state.graph_is_saved

    @property
    def was_built(self) -> bool:
        """Whether the graph was built here, and would have to be built again if it is not saved."""
        return self._state.graph_was_built

    @property
    def graph_rows(self) -> int:
        """Rows in the graph in memory, tombstones included; without one, in its newest file.

        Inside the store's `reading`.
        """
        graph = self._state.loaded.graph
        if graph is not None:
            return graph.total
        return next((snapshot.count for snapshot in self._store.snapshots.all()), 0)

    # --- changes --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a transaction. Callers hold the turn to write, and have called `refresh`."""
        if self._staged is not None:  # its transaction has ended, committed or not
            self.refresh()
            with self._lock.writing():
                self._staged = None
        self._changes = []
        self._before = self._state.number

    def stage(
        self,
        deleted: Sequence[int] = (),
        labels: Sequence[int] = (),
        vectors: Floats | None = None,
        ids: Sequence[Id] = (),
        ef_search: int | None = None,
    ) -> None:
        """Note a change of this transaction; there may be several.

        Args:
            deleted: labels of rows that are deleted or replaced.
            labels: labels of new rows, ascending.
            vectors: their vectors, float32 (rows, dim).
            ids: their ids.
            ef_search: the new search depth; None keeps it.
        """
        rows = np.empty((0, self._state.dim), np.float32)
        if vectors is not None and len(labels):
            rows = self._state.comparable(vectors)
        new = np.asarray(labels, dtype=np.int64)
        self._changes.append(Change(deleted, new, rows, ids, ef_search))

    def mark(self) -> int:
        """How many changes are staged, for `rollback`."""
        return len(self._changes)

    def rollback(self, mark: int) -> None:
        """Forget the changes that were staged after a `mark`."""
        del self._changes[mark:]

    def seal(self) -> int:
        """Prepare the staged changes, and return the number of the state that they lead to.

        At the end of their transaction. Growing the graph takes longest: minutes for a million
        rows. It happens before the commit; the new nodes are hidden, and searches get a turn in
        between.
        """
        state = self._store.meta.state()
        if not self._changes:
            return state
        change = merged(self._changes, self._before, state)
        new, rows = change.labels, change.vectors
        graph = self._state.loaded.graph
        try:
            for first in range(0, len(new) if graph is not None else 0, _ADD_ROWS):
                part = slice(first, first + _ADD_ROWS)
                with self._lock.writing():
                    if graph is None or self._state.loaded.graph is not graph:
                        break  # a rebuilt graph has replaced it, and gets all rows in `publish`
                    self._state.graph_is_saved = False
                    # No graph during the add: a Ctrl-C must not leave rows that are not hidden.
                    self._state.loaded.graph = None
                    graph.add(new[part], rows[part], hidden=True)
                    self._state.loaded.graph = graph
        except BaseException as error:
            with self._lock.writing():
                self._state.loaded.graph = graph = None
            if not isinstance(error, Exception):
                raise
            # The graph is a cache: if it cannot grow, the change is still made.
            logger.exception("the graph in memory is dropped")
        with self._lock.writing():
            self._staged = change, graph
        return state

    def publish(self) -> None:
        """Let searches see the staged change, after its transaction was committed.

        It raises nothing except KeyboardInterrupt: the change is already on disk. If memory cannot
        follow, it is dropped, and the next search reads it again.
        """
        with self._lock.writing():
            try:
                if self._staged is not None:
                    self._publish(self._staged[0].state)
            except BaseException as error:
                self._state.drop()
                if not isinstance(error, Exception):
                    raise
                logger.exception("the graph in memory is dropped")
            finally:
                self._staged = None
        self._rebuild_if_due()

    def _publish(self, state: int) -> None:
        """Show the staged change if it leads from the state in memory to `state`.

        Callers hold the write lock.
        """
        if self._staged is None:
            return
        change, graph = self._staged
        if change.state == state and change.before == self._state.number:
            self._state.apply(change, graph)
            self._trim()

    def _follow(self) -> None:
        """Bring memory and this thread's view of the store to the newest state.

        Callers hold the write lock, inside the store's `reading`.
        """
        self._store.database.renew()
        state = self._store.meta.state()
        if state == self._state.number:
            return
        try:
            self._publish(state)
            if state != self._state.number:
                self._state.catch_up()
                self._trim()
        except BaseException:
            self._state.drop()
            raise

    def _trim(self) -> None:
        if not self.is_exact:
            self._state.loaded.rows = None

    def refresh(self) -> None:
        """Bring memory to the newest state of the store; every search does this by itself."""
        with self._store.reading():
            with self._lock.reading():
                if self._store.meta.state() == self._state.number:
                    return
            with self._lock.writing():
                self._follow()
        self._rebuild_if_due()

    @contextmanager
    def _one_state(
        self, *, with_ids: bool = False, stopped: Callable[[], bool] | None = None
    ) -> Iterator[int]:
        """The number of a state that the block finds both in memory and in the store.

        Inside the store's `reading`, which shows the same state after the block. Nobody changes
        memory during the block, so it should be short.
        """
        for _ in range(_ATTEMPTS):
            with self._lock.reading():
                state = self._store.meta.state()
                if state == self._state.number and self._is_loaded(with_ids):
                    yield state
                    return
            with self._lock.writing():
                self._follow()
                self._load(with_ids, stopped)
            self._rebuild_if_due()
        # The store keeps changing: take the write lock and search under it.
        with self._lock.writing():
            self._follow()
            self._load(with_ids, stopped)
            yield self._state.number

    def _is_loaded(self, with_ids: bool) -> bool:
        loaded = self._state.loaded
        rows = loaded.rows if self.is_exact else loaded.graph
        return rows is not None and (loaded.ids is not None or not with_ids)

    def _load(self, with_ids: bool, stopped: Callable[[], bool] | None = None) -> None:
        """Load what a search needs and is not in memory."""
        loaded = self._state.loaded
        if self.is_exact and loaded.rows is None:
            self._state.load_rows()
        elif not self.is_exact and loaded.graph is None:
            self._state.load_graph(stopped)
        if with_ids and loaded.ids is None:
            self._state.load_ids()

    # --- searches -------------------------------------------------------------------------------

    def search(
        self,
        queries: Floats,
        k: int,
        condition: Condition | None = None,
        *,
        with_ids: bool = False,
        exact: bool = False,
        ef: int | None = None,
    ) -> Nearest:
        """The min(k, eligible) nearest rows of each query, best first.

        Inside the store's `reading`: later reads in the same block see the state that was searched.

        Args:
            queries: float32 (queries, dim), finite.
            k: 0 or more.
            condition: which rows are eligible by their metadata; None is all.
            with_ids: whether to return ids.
            exact: compare every eligible row instead of asking the graph.
            ef: search depth in the graph; None is the collection's own.
        """
        compared = self._state.comparable(queries)
        for attempt in range(_ATTEMPTS):
            state_before, eligible = None, None
            if condition is not None:
                # Outside the lock: a filter can take long, and changes must not wait for it.
                state_before = self._store.meta.state()
                eligible = self._eligible.labels(condition, state_before)
            is_few = eligible is not None and len(eligible) <= few_eligible(k, self._state.count)
            if (exact or is_few) and not self.is_exact:
                break  # read from the store alone
            with self._one_state(with_ids=with_ids) as state:
                if condition is not None and state_before != state:
                    if attempt < _ATTEMPTS - 1:
                        continue
                    eligible = self._eligible.labels(condition, state)
                most = self._state.count if eligible is None else len(eligible)
                nearest = None
                if self.is_exact or not exact:  # rows may have been added since the check above
                    nearest = self._search_memory(compared, min(k, most), eligible, ef)
                if nearest is not None:
                    return self._with_ids(nearest, with_ids)
            break
        blocks = self._state.blocks(eligible) if k else ()
        labels, scores = search_blocks(blocks, compared, k, self._state.metric)
        ids = None
        if with_ids:
            ids_by_label = self._store.ids_of(np.unique(labels).tolist())
            ids = [[ids_by_label[label] for label in line] for line in labels.tolist()]
        return Nearest(labels, scores, ids)

    def scores(self, query: Floats, vectors: Floats) -> list[float]:
        """Scores of a query, float32 (dim,), with vectors, float32 (rows, dim)."""
        compared, rows = self._state.comparable(query[None]), self._state.comparable(vectors)
        scores: list[float] = exact_scores(compared, rows, self._state.metric)[0].tolist()
        return scores

    def search_in_memory(self, queries: Floats, k: int, ef: int | None = None) -> Nearest | None:
        """`search` with ids, without a filter, if memory shows the newest state; else None.

        Outside the store's `reading`: this reads no row, which makes a single query noticeably
        faster.
        """
        compared = self._state.comparable(queries)
        with self._lock.reading():
            if self._store.meta.newest_state() != self._state.number or not self._is_loaded(True):
                return None
            nearest = self._search_memory(compared, min(k, self._state.count), None, ef)
            return None if nearest is None else self._with_ids(nearest, with_ids=True)

    def _with_ids(self, nearest: tuple[Labels, Floats], with_ids: bool) -> Nearest:
        labels, scores = nearest
        ids_by_label = self._state.loaded.ids
        if not with_ids or ids_by_label is None:
            return Nearest(labels, scores, None)
        ids = [list(map(ids_by_label.__getitem__, line)) for line in labels.tolist()]
        return Nearest(labels, scores, ids)

    def _search_memory(
        self, queries: Floats, k: int, eligible: Labels | None, ef: int | None
    ) -> tuple[Labels, Floats] | None:
        """The k nearest of what is in memory; None if the graph cannot reach k rows."""
        if k == 0:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        loaded = self._state.loaded
        if loaded.rows is not None:
            return search_rows(loaded.rows, queries, k, eligible, self._state.metric)
        assert loaded.graph is not None
        depth = self._state.ef_search if ef is None else ef
        return search_graph(loaded.graph, queries, k, eligible, depth)

    def prepare(self, stopped: Callable[[], bool] | None = None) -> bool:
        """Load or build what a search needs; inside the store's `reading`.

        Args:
            stopped: called now and then; True makes this give up.

        Returns:
            Whether everything is in memory; False if it was stopped.
        """
        try:
            with self._one_state(with_ids=True, stopped=stopped):
                return True
        except InterruptedError:
            return False

    def measure_recall(self, target: float, queries: int | Floats, seed: int) -> tuple[int, float]:
        """The least `ef` whose recall of the ten nearest reaches a target, and that recall.

        Callers hold `Access.writing`, inside the store's `reading`.
        """
        with self._one_state():
            if self.is_exact:
                return self._state.ef_search, 1.0
        vectors = (
            queries_between(self._state, queries, seed) if isinstance(queries, int)
            else self._state.comparable(queries)
        )  # fmt: skip
        k = min(_RECALL_K, self._state.count)
        exact, _ = search_blocks(self._state.blocks(), vectors, k, self._state.metric)

        def search(ef: int) -> Labels | None:
            with self._lock.reading():
                graph = self._state.loaded.graph
                nearest = None if graph is None else graph.search(vectors, exact.shape[1], ef)
            return None if nearest is None else nearest[0]

        ef, recall = least_ef(search, exact, target)
        return ef or self._state.ef_search, recall

    # --- upkeep ---------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """What is wrong with the graph's files, one message each."""
        return self._snapshots.problems()

    def compact(self) -> None:
        """Rebuild the graph without tombstones; searches use the old one meanwhile.

        Callers hold `Access.writing`.
        """
        self._rebuilding.wait()
        if self.is_exact:
            with self._lock.writing():
                self._state.loaded.graph = None
            return
        with self._store.reading():
            self._replace_graph(self._state.build_graph())

    def _replace_graph(self, graph: Graph) -> None:
        """Use a graph that was built from the state that this thread reads."""
        with self._lock.writing():
            self._follow()
            self._state.update_graph(graph)
            self._state.use_built(graph)  # only now that it has all rows

    def save(self, *, anew: bool = False) -> None:
        """Write the graph to disk if no file holds its rows. Callers hold `Access.writing`.

        Args:
            anew: also if a file holds its rows; that one may have tombstones.

        Raises:
            CollectionError: it could not be written; the older file stays.
        """
        with self._store.reading(), self._lock.writing():
            self._follow()
            graph = self._state.loaded.graph
            if graph is not None and not anew and self._snapshots.is_current():
                self._state.graph_is_saved = True  # another process saved this state
        if graph is not None and not self._state.graph_is_saved:
            self._snapshots.save(graph)
            self._state.graph_is_saved = True

    def close(self) -> None:
        """Stop the rebuild in the background."""
        self._rebuilding.close()
        with self._lock.writing():
            # Do not save a graph that is due to be rebuilt: its file would not be used.
            graph = self._state.loaded.graph
            if graph is not None and is_mostly_tombstones(graph):
                self._state.loaded.graph = None

    def _rebuild_if_due(self) -> None:
        """Rebuild the graph in the background if it has too many tombstones."""
        graph = self._state.loaded.graph
        if graph is not None and not self.is_exact and is_mostly_tombstones(graph):
            self._rebuilding.start()

    def _rebuild(self, stopped: Callable[[], bool]) -> None:
        with self._store.reading():
            self._replace_graph(self._state.build_graph(stopped, may_show=False))
