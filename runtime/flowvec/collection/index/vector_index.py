"""The nearest rows of a store: an exact scan while it is small, an HNSW graph above that.

All that is kept in memory is a cache of the store, for any number of threads. A search sees one
numbered state of both: it compares the number that the store shows its thread with the cache's, and
lets the cache follow where they differ.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.hnsw import Graph
from flowvec.collection.index.rebuild import Rebuilding
from flowvec.collection.index.recall import least_effort, queries_between
from flowvec.collection.index.snapshots import GraphSnapshots, is_mostly_tombstones
from flowvec.collection.index.state import Cache, Change
from flowvec.collection.store.locks import ReadersWriter
from flowvec.collection.store.rows import Id
from flowvec.collection.store.store import Store
from flowvec.vectors import Metric, top_k
from flowvec.vectors import scores as exact_scores

__all__ = ["EXACT_BELOW", "Found", "Neighbours"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# Up to this many rows an exact search costs about a millisecond, and no graph is kept.
EXACT_BELOW = 10_000
# A filter's share of the rows says how many more to fetch; above a tenth of all, reading the
# eligible ones is no slower.
_OVER_FETCH = 1.5
_OVER_FETCH_LEAST = 16
_MAX_FETCHED_SHARE = 0.1
# Hits that are fetched at once among which eligible ones are looked for: 64 MiB.
_MOST_FETCHED = 1 << 22
# Rows that a graph grows by before searches may go in between.
_ADD_ROWS = 512
# Searches that a change came in between of begin again so often, before others must wait.
_ATTEMPTS = 3
# Of so many neighbours recall is measured.
_RECALL_OF = 10


@dataclass(frozen=True, slots=True)
class Found:
    """What is nearest to each query, best first.

    Attributes:
        labels: int64 (queries, k).
        scores: float32 (queries, k), higher is better.
        ids: (queries, k), where they were asked for.
    """

    labels: Labels
    scores: Floats
    ids: list[list[Id]] | None


class Neighbours:
    """Searches a store's vectors.

    Any number of threads may search while one changes the store, as `Collection` sees to:

        neighbours.begin()
        with store.transaction():
            ...
            neighbours.stage(...)   # the graph grows, searches go in between and see nothing of it
        neighbours.publish()        # all of the change at once

    In between, the first search that meets the new state publishes it. What was staged and then
    not committed is never published, and what the graph has of it stays hidden for ever.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        dim: int,
        metric: Metric,
        m: int,
        ef_construction: int,
        exact_below: int | None = None,
    ) -> None:
        self._store = store
        self._exact_below = exact_below
        snapshots = GraphSnapshots(store, folder, dim, metric, m, ef_construction)
        self._snapshots = snapshots
        self._cache = Cache(store, snapshots, dim, metric)
        self._memory = ReadersWriter()
        # The change that was staged last, and the graph that holds its rows already.
        self._pending: tuple[Change, Graph | None] | None = None
        self._rebuilding = Rebuilding(self._rebuild)
        with store.reading():
            store.count()  # a store that lacks rows is no store to search
            self._cache.take_in()

    @property
    def is_exact(self) -> bool:
        """Whether searches are exact."""
        least = EXACT_BELOW if self._exact_below is None else self._exact_below
        return self._cache.count <= least

    @property
    def ef_search(self) -> int:
        """How far the graph is searched."""
        return self._cache.ef_search

    @property
    def is_unsaved(self) -> bool:
        """Whether there is a graph that is not on disk as it is."""
        return self._cache.held.graph is not None and not self._cache.graph_is_saved

    @property
    def was_built(self) -> bool:
        """Whether the graph was built here: it would be again if it were not saved."""
        return self._cache.graph_was_built

    @property
    def graph_rows(self) -> int:
        """Rows in the graph that is held in memory, tombstones included; else in its newest file.

        Within the store's `reading`.
        """
        graph = self._cache.held.graph
        if graph is not None:
            return graph.total
        return next((snapshot.count for snapshot in self._store.snapshots()), 0)

    # --- following the store --------------------------------------------------------------------

    def begin(self) -> None:
        """Before a transaction: what was staged before it is in the store by now, or never will."""
        if self._pending is not None:
            self.refresh()
            with self._memory.writing():
                self._pending = None

    def stage(
        self,
        gone: Sequence[int] = (),
        labels: Sequence[int] = (),
        vectors: Floats | None = None,
        ids: Sequence[Id] = (),
        ef_search: int | None = None,
    ) -> None:
        """Prepare for a change, at the end of its transaction.

        The graph's part is the long one. It is done before the commit, hidden from searches, which
        go in between: a graph of a million rows takes minutes to grow by as many.

        Args:
            gone: labels of rows that are deleted or replaced.
            labels: of new rows, ascending.
            vectors: of new rows, float32 (rows, dim).
            ids: of new rows.
            ef_search: how far the graph is searched from then on; None is as before.
        """
        rows = np.empty((0, self._cache.dim), np.float32)
        if vectors is not None and len(labels):
            rows = self._cache.comparable(vectors)
        new = np.asarray(labels, dtype=np.int64)
        change = Change(self._store.state(), gone, new, rows, ids, ef_search)
        graph = self._cache.held.graph
        try:
            for first in range(0, len(new) if graph is not None else 0, _ADD_ROWS):
                part = slice(first, first + _ADD_ROWS)
                with self._memory.writing():
                    if graph is None or self._cache.held.graph is not graph:
                        break  # another is in its place, and takes all of them in the end
                    self._cache.graph_is_saved = False
                    # It is hidden only once it is added: a Ctrl-C in between leaves no graph.
                    self._cache.held.graph = None
                    graph.add(new[part], rows[part], hidden=True)
                    self._cache.held.graph = graph
        except BaseException as error:
            with self._memory.writing():
                self._cache.held.graph = graph = None
            if not isinstance(error, Exception):
                raise
            # It is a cache: that it cannot follow is no reason to refuse the change.
            logger.exception("the graph in memory is dropped")
        with self._memory.writing():
            self._pending = change, graph

    def publish(self) -> None:
        """Let searches see the staged change, which has been committed.

        Never raises but for a Ctrl-C: the change is on disk already, so where memory cannot follow
        it is dropped and read again at the next search.
        """
        with self._memory.writing():
            try:
                if self._pending is not None:
                    self._publish(self._pending[0].state)
            except BaseException as error:
                self._cache.drop()
                if not isinstance(error, Exception):
                    raise
                logger.exception("the graph in memory is dropped")
            finally:
                self._pending = None
        self._rebuild_where_due()

    def _publish(self, state: int) -> None:
        """Show the pending change, if that is what leads from the state that is shown to `state`.

        Callers hold memory for writing.
        """
        if self._pending is None:
            return
        change, staged = self._pending
        if change.state == state == self._cache.state + 1:
            self._cache.publish(change, staged)
            self._trim()

    def _follow(self) -> None:
        """Show the newest state of the store, and let this thread read that state.

        Callers hold memory for writing, within the store's `reading`.
        """
        self._store.renew()
        state = self._store.state()
        if state == self._cache.state:
            return
        try:
            self._publish(state)
            if state != self._cache.state:
                self._cache.take_in()
                self._trim()
        except BaseException:
            self._cache.drop()
            raise

    def _trim(self) -> None:
        if not self.is_exact:
            self._cache.held.flat = None

    def refresh(self) -> None:
        """Show the newest state of the store; every search does so by itself."""
        with self._store.reading():
            with self._memory.reading():
                if self._store.state() == self._cache.state:
                    return
            with self._memory.writing():
                self._follow()
        self._rebuild_where_due()

    @contextmanager
    def _showing(
        self, *, with_ids: bool = False, stopped: Callable[[], bool] | None = None
    ) -> Iterator[int]:
        """The number of one state, which the block finds both in memory and in the store.

        Within the store's `reading`, which goes on showing that state after the block. Nobody
        changes memory meanwhile, so a block should be short.
        """
        for _ in range(_ATTEMPTS):
            with self._memory.reading():
                state = self._store.state()
                if state == self._cache.state and self._is_loaded(with_ids):
                    yield state
                    return
            with self._memory.writing():
                self._follow()
                self._load(with_ids, stopped)
            self._rebuild_where_due()
        # The store changes faster than this thread gets its turn: others must wait for once.
        with self._memory.writing():
            self._follow()
            self._load(with_ids, stopped)
            yield self._cache.state

    def _is_loaded(self, with_ids: bool) -> bool:
        held = self._cache.held
        rows = held.flat if self.is_exact else held.graph
        return rows is not None and (held.ids is not None or not with_ids)

    def _load(self, with_ids: bool, stopped: Callable[[], bool] | None = None) -> None:
        """Read into memory what a search lacks."""
        held = self._cache.held
        if self.is_exact and held.flat is None:
            self._cache.load_flat()
        elif not self.is_exact and held.graph is None:
            self._cache.load_graph(stopped)
        if with_ids and held.ids is None:
            self._cache.load_ids()

    # --- searching ------------------------------------------------------------------------------

    def search(
        self,
        queries: Floats,
        k: int,
        eligible: Callable[[int], Labels] | None = None,
        *,
        with_ids: bool = False,
        exact: bool = False,
        ef: int | None = None,
    ) -> Found:
        """The min(k, eligible) nearest rows of each query, best first.

        Within the store's `reading`: what is read in the same block afterwards is of the state that
        was searched.

        Args:
            queries: float32 (queries, dim), finite.
            k: from 0 on.
            eligible: gives the labels that may be found, ascending, int64 (rows,), of the state of
                a number, which is the one that the store shows; None is all.
            with_ids: whether ids are given.
            exact: whether to compare every eligible row, and not ask the graph.
            ef: how far the graph is searched; None is as far as the collection's own.
        """
        compared = self._cache.comparable(queries)
        for attempt in range(_ATTEMPTS):
            before, able = None, None
            if eligible is not None:
                # How long a filter takes is nothing that changes should have to wait for.
                before = self._store.state()
                able = eligible(before)
            is_few = able is not None and len(able) <= self._few_eligible(k)
            if (exact or is_few) and not self.is_exact:
                break  # all that it takes is in the store
            with self._showing(with_ids=with_ids) as state:
                if eligible is not None and before != state:
                    if attempt < _ATTEMPTS - 1:
                        continue
                    able = eligible(state)
                most = self._cache.count if able is None else len(able)
                if self.is_exact or not exact:  # it may have grown since it was looked at above
                    found = self._search_memory(compared, min(k, most), able, ef)
                else:
                    found = None
                if found is not None:
                    return self._with_ids(found, with_ids)
            break
        labels, scores = self._search_all(compared, k, able)
        ids = None
        if with_ids:
            known = self._store.ids_of(np.unique(labels).tolist())
            ids = [[known[label] for label in line] for line in labels.tolist()]
        return Found(labels, scores, ids)

    def scores(self, query: Floats, vectors: Floats) -> list[float]:
        """Scores of a query, float32 (dim,), with each of some vectors, float32 (rows, dim)."""
        compared, rows = self._cache.comparable(query[None]), self._cache.comparable(vectors)
        found: list[float] = exact_scores(compared, rows, self._cache.metric)[0].tolist()
        return found

    def search_held(self, queries: Floats, k: int, ef: int | None = None) -> Found | None:
        """`search` with ids, of all that is in memory already and shows the newest state.

        Not within the store's `reading`: this reads no row, and costs a single query so much less
        that it is noticed. Returns None where `search` must be asked.
        """
        compared = self._cache.comparable(queries)
        with self._memory.reading():
            if self._store.newest_state() != self._cache.state or not self._is_loaded(True):
                return None
            found = self._search_memory(compared, min(k, self._cache.count), None, ef)
            return None if found is None else self._with_ids(found, with_ids=True)

    def _with_ids(self, found: tuple[Labels, Floats], with_ids: bool) -> Found:
        labels, scores = found
        known = self._cache.held.ids
        if not with_ids or known is None:
            return Found(labels, scores, None)
        return Found(labels, scores, [list(map(known.__getitem__, i)) for i in labels.tolist()])

    def _search_memory(
        self, queries: Floats, k: int, eligible: Labels | None, ef: int | None
    ) -> tuple[Labels, Floats] | None:
        """Among what is in memory; None where that cannot reach so many."""
        if k == 0:
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
        held = self._cache.held
        if held.flat is not None:
            labels, vectors = held.flat if eligible is None else _among(held.flat, eligible)
            best, scores = top_k(queries, vectors, k, self._cache.metric)
            return labels[best], scores
        assert held.graph is not None
        effort = self._cache.ef_search if ef is None else ef
        return self._search_graph(held.graph, queries, k, eligible, effort)

    def _few_eligible(self, k: int) -> float:
        """So few that reading them all is as fast as to fetch k from among many with the graph.

        The former costs time for each that is eligible, the latter for each that is fetched, of
        which there are k * rows / eligible.
        """
        return math.sqrt(k * self._cache.count)

    def _search_graph(
        self, graph: Graph, queries: Floats, k: int, eligible: Labels | None, ef: int
    ) -> tuple[Labels, Floats] | None:
        """By the graph; None where it cannot reach so many."""
        if eligible is None:
            return graph.search(queries, k, ef)
        # More than were asked for, so that enough of them are eligible.
        fetched = int(k * len(graph) / len(eligible) * _OVER_FETCH) + _OVER_FETCH_LEAST
        while fetched <= _MAX_FETCHED_SHARE * len(graph):
            if len(queries) > 1 and len(queries) * fetched > _MOST_FETCHED:
                return self._search_graph_in_parts(graph, queries, k, eligible, ef, fetched)
            found = graph.search(queries, fetched, ef)
            if found is None:
                return None
            labels, scores = found
            able = np.isin(labels, eligible)
            if (able.sum(axis=1) >= k).all():
                # A stable sort puts the eligible first, best first as before.
                first = np.argsort(~able, axis=1, kind="stable")[:, :k]
                return np.take_along_axis(labels, first, 1), np.take_along_axis(scores, first, 1)
            fetched *= 4
        return None

    def _search_graph_in_parts(
        self, graph: Graph, queries: Floats, k: int, eligible: Labels, ef: int, fetched: int
    ) -> tuple[Labels, Floats] | None:
        """A part of the queries at a time, for the sake of memory."""
        step = max(1, _MOST_FETCHED // fetched)
        parts: list[tuple[Labels, Floats]] = []
        for first in range(0, len(queries), step):
            part = self._search_graph(graph, queries[first : first + step], k, eligible, ef)
            if part is None:
                return None
            parts.append(part)
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def _search_all(
        self, queries: Floats, k: int, eligible: Labels | None
    ) -> tuple[Labels, Floats]:
        """Exactly, over rows that do not stay in memory: a block of them at a time."""
        best = np.empty((len(queries), 0), np.int64)
        scores = np.empty((len(queries), 0), np.float32)
        if k == 0:
            return best, scores
        for labels, rows in self._cache.blocks(eligible):
            here, found = top_k(queries, rows, min(k, len(rows)), self._cache.metric)
            best = np.concatenate((best, labels[here]), axis=1)
            scores = np.concatenate((scores, found), axis=1)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            best = np.take_along_axis(best, order, 1)
            scores = np.take_along_axis(scores, order, 1)
        return best, scores

    def prepare(self, stopped: Callable[[], bool] | None = None) -> bool:
        """Hold what a search needs; within the store's `reading`.

        Args:
            stopped: asked now and then whether to give up.

        Returns:
            Whether all of it is held; False where it was stopped.
        """
        try:
            with self._showing(with_ids=True, stopped=stopped):
                return True
        except InterruptedError:
            return False

    def measure_recall(self, target: float, queries: int | Floats, seed: int) -> tuple[int, float]:
        """The least `ef` whose recall of the ten nearest reaches a target, and that recall.

        Callers hold the writers' turn, within the store's `reading`.
        """
        with self._showing():
            if self.is_exact:
                return self._cache.ef_search, 1.0
        asked = (
            queries_between(self._cache, queries, seed) if isinstance(queries, int)
            else self._cache.comparable(queries)
        )  # fmt: skip
        exact, _ = self._search_all(asked, min(_RECALL_OF, self._cache.count), None)

        def search(ef: int) -> Labels | None:
            with self._memory.reading():
                graph = self._cache.held.graph
                found = None if graph is None else graph.search(asked, exact.shape[1], ef)
            return None if found is None else found[0]

        ef, recall = least_effort(search, exact, target)
        return ef or self._cache.ef_search, recall

    # --- upkeep ---------------------------------------------------------------------------------

    def problems(self) -> Iterator[str]:
        """What is wrong with the graph's files, in words."""
        return self._snapshots.problems()

    def compact(self) -> None:
        """Build the graph anew, without tombstones; searches go on with the old one meanwhile.

        Callers hold the writers' turn.
        """
        self._rebuilding.wait()
        if self.is_exact:
            with self._memory.writing():
                self._cache.held.graph = None
            return
        with self._store.reading():
            self._swap(self._cache.built())

    def _swap(self, graph: Graph) -> None:
        """Put a graph that was built from this thread's state in the place of the one there is."""
        with self._memory.writing():
            self._follow()
            self._cache.bring_up(graph)
            self._cache.hold_built(graph)  # only now that it holds all

    def save(self) -> None:
        """Write the graph, if there is one and it has changed. Callers hold the writers' turn.

        Raises:
            CollectionError: it could not be written; the older file stays.
        """
        with self._store.reading(), self._memory.writing():
            self._follow()
            graph = self._cache.held.graph
        if graph is not None and not self._cache.graph_is_saved:
            self._snapshots.save(graph)
            self._cache.graph_is_saved = True

    def close(self) -> None:
        """End what runs in the background."""
        self._rebuilding.close()
        with self._memory.writing():
            # A file of one that is due to be built anew would not be read.
            graph = self._cache.held.graph
            if graph is not None and is_mostly_tombstones(graph):
                self._cache.held.graph = None

    def _rebuild_where_due(self) -> None:
        """Build a graph without tombstones in the background, where they have become too many."""
        graph = self._cache.held.graph
        if graph is not None and not self.is_exact and is_mostly_tombstones(graph):
            self._rebuilding.start()

    def _rebuild(self, stopped: Callable[[], bool]) -> None:
        with self._store.reading():
            self._swap(self._cache.built(stopped, may_show=False))


def _among(rows: tuple[Labels, Floats], eligible: Labels) -> tuple[Labels, Floats]:
    labels, vectors = rows
    kept = np.isin(labels, eligible)
    return labels[kept], vectors[kept]
