"""A gate in front of the model, so that tests of a busy model do not depend on its speed."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from flowvec.engine.onnxruntime_session import Session
from tests.inside import finish_what_is_left


class Gate:
    """Holds runs of all models while it is shut, and notes them.

    Runs that earlier tests have left end before it is made.

    Attributes:
        open: set while runs go on.
        entered: set when a run has come since the gate was shut.
        shapes: shape of each run's ids since then.
        threads: names of the threads that ran.
        running: runs that have come and not ended.
        most_running: most of them at once.
        run: what a session runs; another function may be set.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        finish_what_is_left()
        self.open, self.entered = threading.Event(), threading.Event()
        self.open.set()
        self.shapes: list[tuple[int, ...]] = []
        self.threads: set[str] = set()
        self.running = self.most_running = 0
        self.run: Any = Session.run
        self._lock = threading.Lock()

        def held(session: Session, *feeds: Any) -> Any:
            self._come(feeds[0].shape)
            try:
                assert self.open.wait(600)
                return self.run(session, *feeds)
            finally:
                with self._lock:
                    self.running -= 1

        monkeypatch.setattr(Session, "run", held)

    def _come(self, shape: tuple[int, ...]) -> None:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.shapes.append(shape)
            self.threads.add(threading.current_thread().name)
        self.entered.set()

    def shut(self) -> ExitStack:
        """Hold runs until `open` is set, or to the end of a `with` block."""
        self.open.clear()
        self.entered.clear()
        self.shapes.clear()
        block = ExitStack()
        block.callback(self.open.set)
        return block
