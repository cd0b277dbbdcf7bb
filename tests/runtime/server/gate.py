"""A gate in front of the model, so that tests of a busy server do not depend on its speed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flowvec.engine.onnxruntime_session import Session


class Gate:
    """Holds runs of the model while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.open.set()
        run = Session.run

        def held(session: Session, *feeds: Any) -> Any:
            self.entered.set()
            assert self.open.wait(60)
            return run(session, *feeds)

        monkeypatch.setattr(Session, "run", held)

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Hold runs in the block."""
        self.open.clear()
        self.entered.clear()
        try:
            yield
        finally:
            self.open.set()
