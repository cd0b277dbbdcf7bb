"""Controls access to an open collection: threads, handles and processes write in turn.

A change holds the turn for its transaction alone, so any number of processes can write. Changes of
one handle that wait at the same time share a transaction, and so its flush to disk, which takes
longest (group commit).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from flowvec.collection.index.vector_index import VectorIndex
from flowvec.collection.store.store import Store
from flowvec.collection.store.writer_locks import WRITE_TIMEOUT, WriterTurn
from flowvec.errors import ClosedError, CollectionBusyError, CollectionError

__all__ = ["Access"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Most changes in one transaction.
_MOST_JOBS = 64
# How often a waiting change looks whether it may lead; it is woken earlier nearly always.
_CHECK_SECONDS = 0.05


class _Job(Generic[T]):
    """A change that waits for a transaction, or has been made in one.

    Attributes:
        is_done: whether its outcome is known.
        woken: set when it is done, or when its thread should try to lead.
    """

    def __init__(self, run: Callable[[], T]) -> None:
        self.run = run
        self.is_done = False
        self.woken = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        # A single step decides between the two: the leader that runs it, and its caller, whose
        # time is up.
        self._taken: dict[str, str] = {}

    def begin(self) -> bool:
        """Claim it for a transaction; False if its caller has withdrawn it."""
        return self._taken.setdefault("by", "leader") == "leader"

    def withdraw(self) -> bool:
        """Whether its caller could withdraw it: no transaction has it."""
        return self._taken.setdefault("by", "caller") == "caller"

    def keep(self, value: T | None, error: BaseException | None) -> None:
        """Keep its outcome, which is known to all only with `finish`."""
        self._value, self._error = value, error

    def finish(self) -> None:
        """Tell its caller that it is done."""
        self.is_done = True
        self.woken.set()

    def outcome(self) -> T:
        """What it returned; or raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class Access:
    """Access to one open collection, for any number of threads."""

    def __init__(
        self,
        path: Path,
        store: Store,
        index: VectorIndex,
        write_timeout: float = WRITE_TIMEOUT,
    ) -> None:
        """Control access to a collection's store and index.

        Args:
            path: the collection's directory.
            store: its rows.
            index: its index, which follows the changes.
            write_timeout: how long a change waits for its turn, in seconds; 0 tries once.
        """
        self._path = path
        self._store = store
        self._index = index
        self._timeout = write_timeout
        # Held by the thread that writes; searches do not wait for it.
        self._turn = threading.RLock()
        self._writer_turn = WriterTurn(path)
        self._jobs: deque[_Job[Any]] = deque()
        self._sealed_at = 0  # number of the state that the transaction leads to
        self._process = os.getpid()
        self._is_closed = False
        index.growing.turn = self._recording

    def check(self) -> None:
        """Raise if the collection is closed, or was opened before a fork."""
        if self._is_closed:
            raise ClosedError("this Collection is closed")
        if self._process != os.getpid():
            raise CollectionError("a Collection does not survive a fork; open it again")

    def reading(self) -> AbstractContextManager[None]:
        """All reads in the block see one state."""
        self.check()
        return self._store.reading()

    # --- the turn to write ----------------------------------------------------------------------

    @contextmanager
    def writing(self, timeout: float | None = None) -> Iterator[None]:
        """Nobody else writes during the block. A nested block is a part of the outer one.

        Args:
            timeout: how long to wait; None is the collection's `write_timeout`.

        Raises:
            CollectionBusyError: others were writing all the time.
        """
        self.check()
        if self._has_turn():
            yield
            return
        timeout = self._timeout if timeout is None else timeout
        until = time.monotonic() + timeout
        try:
            if not self._turn.acquire(timeout=timeout):
                raise self._busy(timeout)
            self._enter(until)
            yield
        finally:
            self._leave_surely()

    def _has_turn(self) -> bool:
        """Whether this thread has this handle's turn."""
        return self._turn._is_owned()  # type: ignore[attr-defined,no-any-return]

    def _enter(self, until: float) -> None:
        """Wait for the turn among processes; this thread has the one among threads."""
        self.check()
        self._writer_turn.acquire(max(0.0, until - time.monotonic()))
        self._store.database.patience = max(0.0, until - time.monotonic())
        if self._store.meta.state() != self._index.state:
            self._index.refresh()

    def _leave_surely(self) -> None:
        """Leave the turn, also if a Ctrl-C comes in between."""
        try:
            self._leave()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Let the next one write, if this thread has the turn."""
        if self._has_turn():
            self._writer_turn.release()
            self._turn.release()
            waiting = (job for job in self._jobs.copy() if not job.is_done)
            if (first := next(waiting, None)) is not None:
                first.woken.set()

    def _busy(self, timeout: float) -> CollectionBusyError:
        return CollectionBusyError(
            f"{self._path} is being written by another thread; this waited {timeout:g} s. Try "
            "again, or open the collection with a longer write_timeout"
        )

    # --- changes --------------------------------------------------------------------------------

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A transaction. Its block stages the change in the index; searches see it afterwards."""
        with self.writing():
            self._index.begin()
            with self._store.transaction():
                yield
                self._index.seal()
            self._index.publish()

    def change(self, run: Callable[[], T]) -> T:
        """Make a change, together with those of other threads that wait, and return its result.

        Args:
            run: makes the change in the store and stages it in the index. It may run in another
                thread, and again in a new transaction if the first one failed for another change.

        Raises:
            CollectionBusyError: others were writing all the time; the change was not made.
        """
        self.check()
        if self._has_turn():
            with self.changing():
                return run()
        job = _Job(run)
        until = time.monotonic() + self._timeout
        try:
            self._jobs.append(job)
            self._wait_for(job, until)
        except BaseException:
            job.withdraw()  # or it is being made, and may be committed
            raise
        finally:
            self._forget(job)
        return job.outcome()

    def _forget(self, job: _Job[Any]) -> None:
        with suppress(ValueError):
            self._jobs.remove(job)

    def _wait_for(self, job: _Job[Any], until: float) -> None:
        """Lead a transaction with this job and others, or wait until another thread has done so."""
        while True:
            self._lead_if_free(job, until)
            if job.is_done:
                return
            left = until - time.monotonic()
            if left <= 0 and job.withdraw():
                raise self._busy(self._timeout)
            job.woken.wait(_CHECK_SECONDS if left <= 0 else min(_CHECK_SECONDS, left))
            job.woken.clear()

    def _lead_if_free(self, job: _Job[Any], until: float) -> None:
        try:
            if self._turn.acquire(blocking=False) and not job.is_done:
                self._enter(until)
                self._make_jobs()
        finally:
            self._leave_surely()

    def _make_jobs(self) -> None:
        """Make all changes that wait: in one transaction, or if that fails, each in its own."""
        jobs = [job for job in islice(self._jobs.copy(), _MOST_JOBS) if not job.is_done]
        jobs = [job for job in jobs if job.begin()]
        if len(jobs) == 1:
            self._make_alone(jobs[0])
            return
        try:
            self._make_together(jobs)
        except Exception as error:  # for example a full disk: some of them may fit
            logger.debug("%d changes are made one by one: %s", len(jobs), error)
            for job in jobs:
                if not job.is_done:
                    self._make_alone(job)

    def _make_alone(self, job: _Job[Any]) -> None:
        try:
            with self._finishing([job]), self._store.transaction():
                job.keep(job.run(), None)
                self._sealed_at = self._index.seal()
        except Exception as error:
            job.keep(None, error)
            job.finish()

    def _make_together(self, jobs: list[_Job[Any]]) -> None:
        with self._finishing(jobs), self._store.transaction():
            for job in jobs:
                mark = self._index.mark()
                try:
                    with self._store.database.savepoint():
                        job.keep(job.run(), None)
                except Exception as error:
                    self._index.rollback(mark)
                    job.keep(None, error)
                    if not self._store.database.in_transaction:
                        raise
            self._sealed_at = self._index.seal()

    @contextmanager
    def _finishing(self, jobs: list[_Job[Any]]) -> Iterator[None]:
        """A block that ends a transaction of these jobs: if it was committed, they are done."""
        before = self._sealed_at = self._index.state
        self._index.begin()
        is_committed = False
        try:
            yield
            is_committed = True
            self._index.publish()
        finally:
            # Also after a Ctrl-C: a change that was committed must not be made again. This
            # thread has the turn, so the state is that of this transaction or the one before.
            if not is_committed and self._sealed_at != before:
                is_committed = self._store.meta.state() == self._sealed_at
            if is_committed:
                for job in jobs:
                    job.finish()

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Save the graph, wait for reads of other threads, and close all. Twice is harmless."""
        if self._process != os.getpid():
            # At the fork, a thread of the parent may have held the lock `_turn`.
            self._is_closed = True
            self._writer_turn.forget()
            return
        self._index.close()  # before the turn: its thread may need it to save the graph
        try:
            with self._turn:
                is_first, self._is_closed = not self._is_closed, True
                if is_first and self._index.growing.should_save_at_closing:
                    self._index.growing.save()
        except CollectionError as error:
            # The graph is a cache: without its file the next process builds it again.
            logger.warning("%s", error)
        finally:
            # Without the turn: a read that is waited for may wait for it.
            with ExitStack() as rest:
                rest.callback(self._writer_turn.close)
                rest.callback(self._index.release)
                rest.callback(self._store.close)

    @contextmanager
    def _recording(self, timeout: float) -> Iterator[None]:
        """The turn to write for the index, also while this is being closed."""
        if self._has_turn():
            had_turn = self._writer_turn.held
            try:
                self._writer_turn.acquire(timeout)
                if not had_turn:
                    self._store.database.patience = timeout
                yield
            finally:
                if not had_turn:
                    self._writer_turn.release()
            return
        try:
            if not self._turn.acquire(timeout=timeout):
                raise self._busy(timeout)
            self._writer_turn.acquire(timeout)
            self._store.database.patience = timeout
            yield
        finally:
            self._leave_surely()
