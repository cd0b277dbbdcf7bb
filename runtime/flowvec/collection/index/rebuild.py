"""Rebuilds a graph in the background, one at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

__all__ = ["Rebuilding"]

logger = logging.getLogger(__name__)


class Rebuilding:
    """At most one thread, which builds a graph while searches and changes go on."""

    def __init__(self, build: Callable[[Callable[[], bool]], None]) -> None:
        """Build by calling `build`.

        Its argument is a function that says whether to give up; it then raises InterruptedError.
        """
        self._build = build
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = False

    def start(self) -> None:
        """Start, unless a rebuild is running or `close` was called."""
        with self._lock:
            if self._closing or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._run, name="flowvec-rebuild", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no more threads, or Python is shutting down
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
        """Wait until a running rebuild is done."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop a running rebuild."""
        with self._lock:  # a rebuild that starts now is seen by `wait`
            self._closing = True
        self.wait()
