"""A graph that is built anew in the background, one at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["Rebuilding"]

logger = logging.getLogger(__name__)


class Rebuilding:
    """At most one thread that builds a graph while searches and changes go on."""

    def __init__(self, build: Callable[[Callable[[], bool]], None]) -> None:
        """Build by calling `build`, which asks now and then whether it is to give up.

        It raises InterruptedError where it does.
        """
        self._build = build
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = False

    def start(self) -> None:
        """Begin, unless it is going on already; after `close` nothing begins."""
        with self._lock:
            if self._closing or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._run, name="flowvec-rebuild", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more, or Python is about to end
                logger.warning("the graph is not rebuilt now: %s", error)
            else:
                self._thread = thread

    def _run(self) -> None:
        try:
            self._build(lambda: self._closing)
        except InterruptedError:
            pass
        except Exception:
            logger.exception("the graph could not be rebuilt; the old one is used")

    def wait(self) -> None:
        """Until what is being built is done."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Give up what is being built."""
        with self._lock:  # what begins at this moment is seen by `wait`
            self._closing = True
        self.wait()
