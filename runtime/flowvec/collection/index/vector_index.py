"""The nearest rows of a store: exactly, by a scan of codes, or by a graph that follows the rows.

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
from flowvec.collection.index.choice import DEFAULT, IndexChoice
from flowvec.collection.index.codes.growing_codes import GrowingCodes
from flowvec.collection.index.eligible import EligibleMasks
from flowvec.collection.index.growing_graph import GrowingGraph
from flowvec.collection.index.progress import showing_progress
from flowvec.collection.index.recall import least_ef, queries_between, recall_of
from flowvec.collection.index.search import eligible_slots, search_graph, search_rest
from flowvec.collection.index.snapshots import GraphSnapshots
from flowvec.collection.index.state import IndexState
from flowvec.collection.index.vector_file import VectorFileError
from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.results import SearchKind
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.locks import ReadersWriter
from flowvec.collection.store.rows import Id
from flowvec.collection.store.store import Store
from flowvec.progress import shows_bars
from flowvec.vectors import scores as exact_scores

__all__ = ["Nearest", "VectorIndex"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# How often a search retries after a concurrent change before it blocks writers.
_ATTEMPTS = 3
# Recall is measured at this k.
_RECALL_K = 10
# Above this many rows, an exact search or a scan does not hold the lock.
_MOST_LOCKED = {"exact": 20_000, "scan": 200_000, "graph": 20_000}


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

    `Access` changes it like this:

        index.begin()
        with store.transaction():
            ...
            index.stage(...)
            index.seal()   # new vectors are written to the vectors file
        index.publish()    # now searches see all of the change at once

    A search that meets the committed state before `publish` publishes it. What was staged and not
    committed is never published.

    Attributes:
        growing: the graph, which follows in the background.
    """

    def __init__(self, store: Store, folder: Path, choice: IndexChoice = DEFAULT) -> None:
        """Search a store.

        Args:
            store: the rows.
            folder: where the index's files are.
            choice: what answers searches.
        """
        self._store = store
        self._choice = choice
        self._snapshots = GraphSnapshots(store, folder)
        self._state = IndexState(store, folder)
        self._masks = EligibleMasks(store)
        self._lock = ReadersWriter()
        self.growing = GrowingGraph(self._state, self._snapshots, self._lock, self._settle)
        self._codes = GrowingCodes(self._state, self._lock, self._settle)
        # A search or `prepare` has asked for these; a process that only adds does not need them.
        self._wants_graph = self._wants_codes = False
        # The change whose transaction was sealed last.
        self._staged: StateChange | None = None
        # The changes of the transaction that is open, and the number of the state before it.
        self._changes: list[Change] = []
        self._before = 0
        with store.reading():
            store.count()  # raises if rows are missing
            self._state.catch_up()

    @property
    def kind(self) -> SearchKind:
        """What answers searches of the rows that there are now."""
        return self._choice.of(self._state.count)

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` would find nothing to do."""
        table, kind = self._state.loaded.table, self.kind
        if table is None or kind == "exact":
            return table is not None
        if kind == "scan":
            return not table.lacks_codes
        return self.growing.is_complete(table) or self.growing.has_failed

    @property
    def state(self) -> int:
        """The number of the state in memory."""
        return self._state.number

    @property
    def ef_search(self) -> int:
        """Search depth in the graph."""
        return self._state.ef_search

    @property
    def graph_rows(self) -> int:
        """Rows in the graph in memory, tombstones included; without one, in its newest file.

        Inside the store's `reading`.
        """
        graph = self.growing.graph
        if graph is not None or self.kind != "graph":
            return 0 if graph is None else graph.total
        return next((snapshot.count for snapshot in self._store.snapshots.all()), 0)

    @property
    def memory_bytes(self) -> int:
        """Memory of this process alone for vectors, codes, filters and the graph."""
        table = self._state.loaded.table
        held = 0 if table is None else table.memory_bytes
        return held + self._masks.nbytes + self.growing.memory_bytes

    @property
    def mapped_bytes(self) -> int:
        """Size of the files of vectors, codes and the graph, as far as they are mapped."""
        table = self._state.loaded.table
        return self.growing.mapped_bytes + (0 if table is None else table.mapped_bytes)

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
        """Write new vectors to the vectors file, at the end of the transaction.

        Returns:
            The number of the state that the transaction leads to.
        """
        state, cache = self._store.meta.state(), self._state.cache
        if not self._changes:
            cache.keep(self._before, state)
            return state
        change = merged(self._changes, self._before, state)
        if len(change.labels):
            cache.append(change.labels, change.vectors, self._before, state)
        else:
            cache.keep(self._before, state)
        with self._lock.writing():
            self._staged = change
        return state

    def publish(self) -> None:
        """Let searches see the staged change, after its transaction was committed.

        It raises nothing except KeyboardInterrupt: the change is already on disk. If memory cannot
        follow, it is dropped, and the next search reads it again.
        """
        self._state.cache.committed()
        with self._lock.writing():
            try:
                if self._staged is not None:
                    self._publish(self._staged.state)
            except BaseException as error:
                self._drop()
                if not isinstance(error, Exception):
                    raise
                logger.exception("what is in memory is dropped")
            finally:
                self._staged = None
        self._grow_if_due()

    def _publish(self, state: int) -> None:
        """Show the staged change if it leads from the state in memory to `state`.

        Callers hold the write lock.
        """
        change = self._staged
        if change is not None and change.state == state and change.before == self._state.number:
            self._state.apply(change)
            self.growing.delete(np.asarray(change.deleted, np.int64))

    def _drop(self) -> None:
        self._state.drop()

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
                gone = self._state.catch_up()
                if gone is not None:
                    self.growing.delete(gone)
        except BaseException:
            self._drop()
            raise

    def refresh(self) -> None:
        """Bring memory to the newest state of the store; every search does this by itself."""
        with self._store.reading():
            with self._lock.reading():
                if self._store.meta.state() == self._state.number:
                    return
            with self._lock.writing():
                self._follow()
        self._grow_if_due()

    @contextmanager
    def _one_state(self, *, with_ids: bool = False) -> Iterator[int]:
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
                self._load(with_ids)
        # The store keeps changing: take the write lock and search under it.
        with self._lock.writing():
            self._follow()
            self._load(with_ids)
            yield self._state.number

    def _settle(self) -> None:
        """Bring the rows in memory to the newest state; inside the store's `reading`."""
        with self._one_state():
            pass

    def _is_loaded(self, with_ids: bool) -> bool:
        loaded = self._state.loaded
        return loaded.table is not None and (loaded.ids is not None or not with_ids)

    def _load(self, with_ids: bool) -> None:
        """Load what a search needs and is not in memory; under the write lock."""
        loaded = self._state.loaded
        if loaded.table is None:
            self.growing.match(self._state.load_table())
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
        self.growing.note_search()
        if condition is not None:
            # Outside the lock: a new filter can take long, and changes must not wait for it.
            self._masks.prepare(condition, self._store.meta.state())
        hits, mask = None, None
        with self._one_state(with_ids=with_ids) as state:
            table = self._table
            if condition is not None:
                mask = self._masks.mask(condition, table, state)
            graph, ids = self.growing.graph, self._state.loaded.ids
            # Deleted rows are marked in the table; a change may mark more after this block.
            table = table.snapshot()
            kind = "exact" if exact else self.kind
            is_scarce = mask is not None and self._choice.scans(mask)
            if graph is not None and k and kind == "graph" and not (is_scarce and table.can_scan):
                ef = ef or self._state.ef_search
                held = self.growing.held_slots(table)
                hits = search_graph(table, graph, held, compared, k, mask, ef)
        self._wants_graph |= kind == "graph"
        self._wants_codes |= kind == "scan" or (kind == "graph" and is_scarce)
        labels, scores = search_rest(table, compared, k, mask, hits, exact=kind == "exact")
        self._grow_if_due()
        return Nearest(labels, scores, self._ids_of(labels, ids) if with_ids else None)

    @property
    def _table(self) -> VectorTable:
        table = self._state.loaded.table
        assert table is not None
        return table

    def _ids_of(self, labels: Labels, ids: dict[int, Id] | None) -> list[list[Id]]:
        """Ids of rows; those that another change removes meanwhile are read from the store."""
        lines = labels.tolist()
        held = {} if ids is None else ids
        try:
            return [list(map(held.__getitem__, line)) for line in lines]
        except KeyError:
            by_label = self._store.ids_of(np.unique(labels).tolist())
            return [[by_label[label] for label in line] for line in lines]

    def vectors_of(self, labels: Labels) -> tuple[Labels, Floats]:
        """Those of some labels that have rows, and their vectors as the metric compares them.

        Inside the store's `reading`. Vectors are float32 (rows, dim); no text is read for them.
        """
        with self._one_state():
            table = self._table.snapshot()
        slots = table.slots_of(labels)
        is_live = slots >= 0
        is_live[is_live] = table.live[slots[is_live]]
        return labels[is_live], table.vectors_of(slots[is_live])

    def eligible(self, condition: Condition) -> Labels:
        """Labels of the rows that meet a condition, ascending; inside the store's `reading`."""
        self._masks.prepare(condition, self._store.meta.state())
        with self._one_state() as state:
            mask = self._masks.mask(condition, self._table, state)
            table = self._table.snapshot()
        labels: Labels = table.labels[eligible_slots(table, mask)]
        return labels

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
        self.growing.note_search()
        with self._lock.reading():
            if self._store.meta.newest_state() != self._state.number or not self._is_loaded(True):
                return None
            table, graph, hits = self._table, self.growing.graph, None
            kind, held = self.kind, self.growing.held_slots(table)
            if kind == "graph" and (graph is None or table.slots - held > _MOST_LOCKED[kind]):
                return None
            if kind == "scan" and not (table.can_scan and len(queries) == 1):
                return None
            try:
                if kind == "graph" and graph is not None:
                    ef = ef or self._state.ef_search
                    hits = search_graph(table, graph, held, compared, k, None, ef)
                if hits is None and table.slots > _MOST_LOCKED[kind]:
                    return None
                labels, scores = search_rest(table, compared, k, None, hits, exact=kind == "exact")
            except VectorFileError:  # it cannot be repaired without the store
                return None
            return Nearest(labels, scores, self._ids_of(labels, self._state.loaded.ids))

    def prepare(self, stopped: Callable[[], bool] | None = None) -> bool:
        """Load what a search needs, and let codes or the graph hold all rows; not in `reading`.

        Args:
            stopped: called now and then; True makes this give up.

        Returns:
            Whether everything is in memory; False if it was stopped.
        """
        while True:
            with self._store.reading():
                with self._one_state(with_ids=True):
                    kind, table = self.kind, self._table.snapshot()
                    is_complete = self.growing.is_complete(table)
                if kind == "scan" and not table.make_codes(stopped) and stopped and stopped():
                    return False
                if kind != "graph" or is_complete:
                    return True
            if stopped is not None and stopped():
                return False
            self._wants_graph = True
            self.growing.start_if_due()
            with showing_progress(table.count, lambda: self.graph_size, shows_bars()):
                if not self.growing.wait(stopped):
                    return False
            if self.growing.has_failed:
                return True  # rows are compared exactly

    @property
    def graph_size(self) -> int:
        """Rows in the graph in memory."""
        graph = self.growing.graph
        return 0 if graph is None else graph.total

    def measure_recall(self, target: float, queries: int | Floats, seed: int) -> tuple[int, float]:
        """The least `ef` whose recall of the ten nearest reaches a target, and that recall.

        Without a graph, the present `ef` and the recall of searches. The graph must hold all rows:
        call `prepare` before. Inside the store's `reading`.
        """
        with self._one_state():
            kind, table = self.kind, self._table.snapshot()
            if kind == "exact" or (kind == "graph" and self.growing.graph is None):
                return self._state.ef_search, 1.0
        vectors = (
            queries_between(table, queries, seed) if isinstance(queries, int)
            else self._state.comparable(queries)
        )  # fmt: skip
        k = min(_RECALL_K, table.count)
        exact = table.search(vectors, k)
        if kind == "scan":
            return self._state.ef_search, recall_of(table.scan(vectors, k), exact)

        def search(ef: int) -> tuple[Labels, Floats] | None:
            with self._lock.reading():
                graph, table = self.growing.graph, self._state.loaded.table
                if graph is None or table is None:
                    return None
                return graph.search(vectors, k, ef, table.labels, table.places())

        ef, recall = least_ef(search, exact, target)
        return ef or self._state.ef_search, recall

    # --- upkeep ---------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """What is wrong with the index's files, one message each."""
        problem = self._state.cache.problem()
        if problem is not None:
            yield problem
        yield from self._snapshots.problems()

    def compact_vectors(self) -> None:
        """Write the vectors file anew, without deleted rows. Callers hold the turn to write."""
        try:
            with self._store.transaction():
                self._state.cache.replace()
                self._store.meta.touch()
            self._state.cache.remove_others()
        except VectorFileError as error:
            logger.warning("the vectors file stays as it is: %s", error)
        self.refresh()

    def compact_graph(self) -> None:
        """Build the graph anew without tombstones, and save it; make codes that searches use."""
        self.growing.wait()
        if self.kind == "graph":
            self.growing.forget_useless()
            self.growing.rebuild()
            self.growing.save(anew=True)
            if self._choice.kind == "auto":  # for filters, and until the graph is loaded
                with self._store.reading():
                    with self._one_state():
                        table = self._table.snapshot()
                    table.make_codes()
        else:
            self.growing.forget()
            self.prepare()

    def close(self) -> None:
        """Stop the growth of codes and the graph."""
        self._codes.close()
        self.growing.close()

    def release(self) -> None:
        """Free all that the index has: files, mappings, threads, memory. Twice is harmless.

        After `close` and the store's `close`, so that no thread loads anything again.
        """
        with self._lock.writing():
            self.growing.release()
            self._state.close()
            self._masks.clear()

    def _grow_if_due(self) -> None:
        """Let codes or the graph grow in the background, if somebody searches many rows."""
        kind, table = self.kind, self._state.loaded.table
        wants_codes = self._wants_codes and kind != "exact"
        if self._wants_graph and kind == "graph":
            self.growing.start_if_due()
            # Rows that a graph lacks are scanned, if they are many.
            if table is not None and not wants_codes:
                wants_codes = table.slots - self.growing.held_slots(table) > _MOST_LOCKED[kind]
        if wants_codes:
            self._codes.start_if_due()
