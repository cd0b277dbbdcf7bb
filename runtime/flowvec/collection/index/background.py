"""Work in the background, in one thread at a time."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable

__all__ = ["Background"]

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.02


class Background:
    """At most one thread, which calls a function while searches and changes go on."""

    def __init__(self, work: Callable[[Callable[[], bool]], None], what: str) -> None:
        """Call `work` in a thread at each `start`.

        Args:
            work: its argument is a function that says whether to give up.
            what: what grows by the work, for messages.
        """
        self._work, self._what = work, what
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = False
        _all.add(self)

    @property
    def is_working(self) -> bool:
        """Whether the thread is at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start, unless the thread is at work or `close` was called."""
        with self._lock:
            if self._closing or self.is_working:
                return
            thread = threading.Thread(target=self._run, name="flowvec-graph", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or Python is shutting down
                logger.warning("%s does not grow now: %s", self._what, error)
            else:
                self._thread = thread

    def _run(self) -> None:
        try:
            self._work(lambda: self._closing)
        except Exception:
            if not self._closing:
                logger.exception("%s does not grow; rows are compared exactly", self._what)

    def wait(self, stopped: Callable[[], bool] | None = None) -> bool:
        """Wait until the thread has ended; False if `stopped` returned True before that."""
        while (thread := self._thread) is not None and thread.is_alive():
            if stopped is not None and stopped():
                return False
            thread.join(None if stopped is None else _POLL_SECONDS)
        return True

    def close(self) -> None:
        """Stop the thread, and start no other."""
        with self._lock:  # a thread that starts now is seen by `wait`
            self._closing = True
        self.wait()

    def leave(self) -> None:
        """Stop the thread before Python exits; a fork may have left the lock locked for ever."""
        self._closing = True
        self.wait()


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _leave_all() -> None:
    """Stop the threads of collections that were not closed.

    Python ends threads that go on after its exit, in the middle of a change of the graph.
    """
    for background in list(_all):
        background.leave()


atexit.register(_leave_all)
