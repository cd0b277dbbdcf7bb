"""A graph that follows the rows in the background.

Searches compare rows that it does not hold exactly, so nothing waits for it: not the first search
after a start or a kill, and not the change that makes a collection too large for exact searches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import record_file
from flowvec.collection.index.background import Background
from flowvec.collection.index.hnsw import LEAST_ROWS_PER_CORE, Graph
from flowvec.collection.index.snapshots import GraphSnapshots, is_mostly_tombstones
from flowvec.collection.index.state import IndexState
from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.store.locks import ReadersWriter
from flowvec.collection.store.rows import without
from flowvec.collection.store.writer_locks import GRAPH_LOCK_FILE, FolderLock
from flowvec.errors import CollectionError
from flowvec.files import staged_file
from flowvec.machine import available_cores

__all__ = ["GrowingGraph", "GrowthLimits", "Turn"]

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
# Waits up to some seconds for the turn to write the collection.
Turn = Callable[[float], AbstractContextManager[None]]

# The longest that a search should wait while rows are added; the first after a pause waits longer.
_STEP_SECONDS, _IDLE_STEP_SECONDS, _PAUSE_SECONDS = 0.006, 0.03, 1.0
# Fewer rows than all cores need are worth a step of this length.
_LONGEST_STEP_SECONDS = 0.02
_FIRST_ROWS = 8
# Those that come first are not waited for, and the centre of all is theirs.
_ROWS_OF_CENTRE = 256
# Slots that are looked at for rows to add.
_WINDOW = 1 << 16
# A graph is saved when its unsaved rows are this share of the rows in its file, and adding them
# again would take a while. So all files that are ever written are about five times the last one.
_UNSAVED_SHARE = 0.25
# A lower speed says that the system halted the thread: a few rows are not worth a file.
_LEAST_ROWS_PER_SECOND = 100.0
# At closing, a larger graph is saved only for a larger share.
_SMALL_ROWS, _CLOSING_SHARE = 100_000, 0.01
_TURN_SECONDS = 5.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class GrowthLimits:
    """How fast a graph grows, and when it is loaded and saved.

    Attributes:
        most_rows: most rows of a step.
        grace_seconds: a process that searches for a shorter time does without the graph, whose
            loading takes longer.
        unsaved_seconds: the graph is saved when adding its unsaved rows again would take this long.
        retry_seconds: how long a graph is left alone that could not be loaded or grow.
    """

    most_rows: int = 2048
    grace_seconds: float = 0.25
    unsaved_seconds: float = 2.0
    retry_seconds: float = 30.0


class GrowingGraph:
    """The graph of an index.

    `graph` changes only under the index's write lock. It holds all live rows up to its highest
    label, and perhaps rows that were deleted since. It grows only under `_growth` too, which
    whoever writes its file holds: searches and changes of the collection go on meanwhile.
    """

    def __init__(
        self,
        state: IndexState,
        snapshots: GraphSnapshots,
        lock: ReadersWriter,
        settle: Callable[[], None],
        limits: GrowthLimits = GrowthLimits(),
    ) -> None:
        """An index's graph, which is not loaded yet.

        Args:
            state: the rows.
            snapshots: the graph's files.
            lock: the index's lock.
            settle: brings the rows in memory to the newest state; inside the store's `reading`.
            limits: how fast it grows.
        """
        self.limits = limits
        self._state, self._store = state, state.store
        self._snapshots, self._lock, self._settle = snapshots, lock, settle
        self.graph: Graph | None = None
        # Set by `Access`, which knows how to wait for the turn.
        self.turn: Turn | None = None
        self._background = Background(self._work, "the graph")
        self._growth = threading.Lock()  # taken before the index's lock
        self._saved_rows = 0  # rows in the graph when it was loaded or saved
        self._has_no_good_file = False  # those that are recorded could not be loaded
        self._complete_to = -1  # up to this label nothing was missing
        self._step_rows = _FIRST_ROWS
        self._rows_on_all_cores = LEAST_ROWS_PER_CORE * available_cores()
        self._searched_at = 0.0
        self._is_awaited = False
        self._rows_per_second = 0.0
        self._retry_at = 0.0

    # --- for searches, under the index's lock ---------------------------------------------------

    def note_search(self) -> None:
        """Let the next steps be short, since searches wait for them."""
        self._searched_at = time.monotonic()

    def held_slots(self, table: VectorTable) -> int:
        """How many of a table's first slots the graph holds."""
        graph = self.graph
        if graph is None:
            return 0
        if graph.newest >= table.newest:
            return table.slots
        return int(np.searchsorted(table.labels, graph.newest, side="right"))

    @property
    def memory_bytes(self) -> int:
        """Memory of this process alone for the graph, in bytes."""
        graph = self.graph
        return 0 if graph is None else graph.memory_bytes

    @property
    def mapped_bytes(self) -> int:
        """How much of the graph's file is mapped, in bytes."""
        graph = self.graph
        return 0 if graph is None else graph.mapped_bytes

    def delete(self, labels: Labels) -> None:
        """Mark rows as deleted; under the write lock."""
        if self.graph is not None:
            self.graph.delete(labels.tolist())

    def match(self, table: VectorTable) -> None:
        """Mark all rows as deleted that a new table does not have; under the write lock."""
        if self.graph is not None:
            live = table.labels[table.live]
            self.graph.delete(without(self.graph.labels(), live).tolist())

    def drop(self) -> None:
        """Forget the graph; under the write lock."""
        self.graph, self._complete_to = None, -1

    def release(self) -> None:
        """Free the graph at the end; under the write lock."""
        if self.graph is not None:
            self.graph.close()
        self.drop()

    # --- in the background ----------------------------------------------------------------------

    def start_if_due(self) -> None:
        """Let the graph grow, if it lacks rows or has too many tombstones."""
        table, graph = self._state.loaded.table, self.graph
        if table is None or self._background.is_working or time.monotonic() < self._retry_at:
            return
        if graph is None or self._complete_to < table.newest or is_mostly_tombstones(graph):
            self._background.start()

    def wait(self, stopped: Callable[[], bool] | None = None) -> bool:
        """Wait for the thread; False if `stopped` returned True before that."""
        self._is_awaited = True
        return self._background.wait(stopped)

    def is_complete(self, table: VectorTable) -> bool:
        """Whether the graph holds all rows of a table."""
        return self.graph is not None and self._complete_to >= table.newest

    @property
    def has_failed(self) -> bool:
        """Whether the graph could not be loaded or grow, some seconds ago."""
        return time.monotonic() < self._retry_at

    def close(self) -> None:
        """Stop growing."""
        self._background.close()

    def _work(self, stopped: Callable[[], bool]) -> None:
        try:
            self._grow(stopped)
            graph = self.graph
            if graph is not None and is_mostly_tombstones(graph) and not stopped():
                self.rebuild(stopped)
        except Exception as error:
            # The graph is a cache: rows are compared exactly.
            with self._lock.writing():
                self.drop()
            self._retry_at = time.monotonic() + self.limits.retry_seconds
            if not isinstance(error, CollectionError):
                raise
            if not stopped():
                logger.warning("the graph does not grow: %s", error)

    def _grow(self, stopped: Callable[[], bool]) -> None:
        if self.graph is None:
            until = time.monotonic() + self.limits.grace_seconds
            while not self._is_awaited and time.monotonic() < until:
                if stopped():
                    return
                time.sleep(_POLL_SECONDS)
            self._load()
        while not stopped():
            if not self._step():
                break
            if self._unsaved_rows >= max(
                self._rows_worth_saving, _UNSAVED_SHARE * self._saved_rows
            ):
                try:
                    self.save()
                except CollectionError as error:
                    logger.warning("the graph is saved later: %s", error)
                    self._saved_rows = 0 if self.graph is None else self.graph.total

    def _load(self) -> None:
        """Load the newest good file, or begin an empty graph."""
        with self._store.reading():
            self._settle()
            loaded = self._snapshots.load()
            graph = self._snapshots.new(self._state.count) if loaded is None else loaded[0]
        self._has_no_good_file = loaded is None
        if loaded is None:
            logger.info("building the graph of %d rows", self._state.count)
        with self._store.reading():
            self._settle()
            with self._lock.writing():
                table = self._state.loaded.table
                if table is None:
                    return
                if loaded is not None:  # rows that were deleted since it was loaded
                    graph.delete(table.dead(loaded[1]).tolist())
                self.graph, self._saved_rows, self._complete_to = graph, graph.total, -1

    def _step(self) -> int:
        """Add a few rows, and return how many; 0 if none is missing."""
        graph = self.graph
        if graph is None:
            return 0
        most = self._step_rows if graph.total else max(self._step_rows, _ROWS_OF_CENTRE)
        batch = self._missing_rows(graph, most)
        if batch is None:
            return 0
        labels, vectors = batch
        with self._growth, self._lock.writing():
            if self.graph is graph:
                begun = time.perf_counter()
                graph.add(labels, vectors)
                self._note_speed(len(labels), time.perf_counter() - begun)
                self._delete_dead(graph, labels)
        return len(labels)

    def _missing_rows(self, graph: Graph, most: int) -> tuple[Labels, Floats] | None:
        """The next rows that a graph lacks; None if there are none."""
        with self._store.reading():  # a damaged record is read from the store
            self._settle()
            with self._lock.reading():
                table = self._state.loaded.table
                if table is None:
                    return None
                start = int(np.searchsorted(table.labels, graph.newest, side="right"))
                while start < table.slots:
                    live = table.live[start : start + _WINDOW]
                    slots = start + np.flatnonzero(live)[:most]
                    if len(slots):
                        return table.labels[slots], table.vectors_of(slots)
                    start += _WINDOW
                if graph is self.graph:
                    self._complete_to = table.newest
        return None

    def _delete_dead(self, graph: Graph, labels: Labels) -> None:
        """Mark rows that were deleted while they were added; under the write lock."""
        table = self._state.loaded.table
        if table is not None:
            graph.delete(table.dead(labels).tolist())

    def _note_speed(self, rows: int, seconds: float) -> None:
        """Choose the size of the next step by the speed of this one, without its waiting."""
        rate = rows / max(seconds, 1e-6)
        old = self._rows_per_second
        self._rows_per_second = 0.9 * old + 0.1 * rate if old else rate
        is_idle = time.monotonic() - self._searched_at > _PAUSE_SECONDS
        seconds = _IDLE_STEP_SECONDS if is_idle else _STEP_SECONDS
        fitting = int(seconds * self._rows_per_second)
        if _LONGEST_STEP_SECONDS * self._rows_per_second >= self._rows_on_all_cores:
            fitting = max(fitting, self._rows_on_all_cores)
        self._step_rows = max(1, min(fitting, 2 * self._step_rows, self.limits.most_rows))

    def rebuild(self, stopped: Callable[[], bool] | None = None) -> None:
        """Build the graph anew without tombstones; searches use the old one meanwhile.

        Args:
            stopped: called now and then; True makes this give up.
        """
        with self._store.reading():
            graph = self._snapshots.new(self._state.count)
        while (batch := self._missing_rows(graph, self.limits.most_rows)) is not None:
            graph.add(*batch)
            if stopped is not None and stopped():
                return
        with self._lock.writing():
            if len(graph):
                self._delete_dead(graph, graph.labels())
            self.graph, self._saved_rows = graph, 0

    def forget(self) -> None:
        """Drop the graph, which searches do not need.

        Its files stay, for others who search by it, unless they are damaged or most of its rows
        were deleted.
        """
        with self._lock.writing():
            self.drop()
        self.forget_useless()

    def forget_useless(self) -> None:
        """Remove files that are damaged, or most of whose rows were deleted."""
        with self._store.reading():
            useless = self._snapshots.useless()
        if useless:
            assert self.turn is not None
            with self.turn(_TURN_SECONDS):
                self._snapshots.forget(useless)
            self._snapshots.remove_forgotten()

    # --- saving ---------------------------------------------------------------------------------

    @property
    def _unsaved_rows(self) -> int:
        graph = self.graph
        return 0 if graph is None else graph.total - self._saved_rows

    @property
    def _rows_worth_saving(self) -> float:
        """Rows that take `unsaved_seconds` to add."""
        return self.limits.unsaved_seconds * max(self._rows_per_second, _LEAST_ROWS_PER_SECOND)

    @property
    def should_save_at_closing(self) -> bool:
        """Whether the newest file lacks so much that it is worth writing the graph again."""
        least = _CLOSING_SHARE * self._saved_rows if self._saved_rows >= _SMALL_ROWS else 1
        table = self._state.loaded.table
        if table is None or not self.is_complete(table):
            # A short process, which has hardly begun: the next one does no worse without it.
            least = max(least, self._rows_worth_saving)
        return self._unsaved_rows >= least

    def save(self, *, anew: bool = False) -> None:
        """Write the graph to disk, unless a file holds its rows or another process writes one.

        Searches and changes of the collection go on; the graph does not grow.

        Args:
            anew: also if a file holds its rows; that one may have tombstones.

        Raises:
            CollectionError: it could not be written; the older files stay.
        """
        saving = FolderLock(self._state.folder / GRAPH_LOCK_FILE)
        try:
            if saving.acquire(time.monotonic() + (_TURN_SECONDS if anew else 0.0)):
                self._save(anew)
        finally:
            saving.close()

    def _save(self, anew: bool) -> None:
        graph = self.graph
        if graph is None or not graph.total:
            return
        with self._store.reading():
            is_saved = self._snapshots.newest_label() >= graph.newest
            file = self._snapshots.next_file()
        if is_saved and not anew and not self._has_no_good_file:
            self._saved_rows = graph.total
            return
        try:
            with staged_file(file) as staged, self._growth:
                newest, rows = graph.newest, graph.total
                graph.write(staged)
            content = record_file(file)  # before the turn, for which changes wait
        except OSError as error:
            raise CollectionError(f"cannot write {file}: {error}") from error
        assert self.turn is not None
        with self.turn(_TURN_SECONDS):
            self._snapshots.record(file, content, graph, newest)
        self._saved_rows, self._has_no_good_file = rows, False
        self._snapshots.remove_forgotten()
