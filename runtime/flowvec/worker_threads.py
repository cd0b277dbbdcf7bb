"""Threads that take work from a queue until it is closed or no longer used."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Self

from flowvec.errors import ClosedError
from flowvec.unpicklable import OfOneProcess

__all__ = ["WorkerThreads"]


class WorkerThreads(OfOneProcess, ABC):
    """A queue with threads of its own; the base of queues that say what the work is.

    `_changed` guards the queue: a subclass notifies it for each piece of work that it adds.

    Attributes:
        owner: class that the caller sees, for messages.
    """

    def __init__(self, threads: int, name: str) -> None:
        """Start the threads; a subclass calls it when everything else is set.

        Args:
            threads: how many.
            name: of the threads, before their number.
        """
        self.owner = type(self).__name__
        self._changed = threading.Condition()
        self._closing = False
        self._process = os.getpid()
        self._workers = [
            threading.Thread(
                target=_work, args=(weakref.ref(self), self._changed), name=f"{name}-{i}",
                daemon=True,
            )
            for i in range(threads)
        ]  # fmt: skip
        # The threads end if this is garbage-collected without being closed.
        weakref.finalize(self, _wake, self._changed, self._process)
        _open.add(self)
        for worker in self._workers:
            worker.start()

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether work waits; the lock is held."""

    @property
    def is_closing(self) -> bool:
        """Whether new work is refused; the lock is held."""
        return self._closing

    @property
    def dead_threads(self) -> int:
        """Threads that have ended though this is open: its callers may wait for ever."""
        with self._changed:
            return 0 if self._closing else sum(not worker.is_alive() for worker in self._workers)

    @abstractmethod
    def work_once(self) -> None:
        """Do a piece of work. It must not raise: the thread would end."""

    @abstractmethod
    def _abandon(self) -> None:
        """Tell callers of work that has not started that it will not be done; the lock is held."""

    def _check_process(self) -> None:
        """Raise in a forked child, which has none of the threads.

        Raises:
            ClosedError: this is a forked child.
        """
        if self._process != os.getpid():
            raise ClosedError(
                f"the threads of this {self.owner} are in the parent process, not in "
                "this fork; create one in each process"
            )

    def require_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._closing:
            raise ClosedError(f"this {self.owner} is closed")

    def refuse(self, *, drain: bool = True) -> None:
        """`close` without waiting for the threads."""
        with self._changed:
            self._closing = True
            if not drain:
                self._abandon()
            self._changed.notify_all()

    def close(self, *, drain: bool = True) -> None:
        """Refuse new calls, and stop the threads; calling it twice is harmless.

        Args:
            drain: do the work that waits first; otherwise its callers get a `ClosedError`.
        """
        self.refuse(drain=drain)
        for worker in self._workers:
            worker.join()

    def __enter__(self) -> Self:
        self.require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _work(queue: weakref.ref[WorkerThreads], changed: threading.Condition) -> None:
    """One thread, until the queue is closed or dropped; a waiting thread keeps no reference to
    it."""
    while True:
        with changed:
            while True:
                threads = queue()
                if threads is None or (threads.is_closing and not threads.has_work):
                    return
                if threads.has_work:
                    break
                del threads
                changed.wait()
        threads.work_once()
        del threads


_open: weakref.WeakSet[WorkerThreads] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Let running work end: a thread that is killed inside an engine aborts the process."""
    for threads in list(_open):
        if threads._process == os.getpid():
            threads.close(drain=False)


def _wake(changed: threading.Condition, process: int) -> None:
    if process == os.getpid():  # in a forked child, a thread of the parent may hold the lock
        with changed:
            changed.notify_all()
