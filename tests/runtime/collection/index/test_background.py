"""Work in the background: one thread at a time, given up at closing, and none after it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from flowvec.collection.index.background import Background

_SECONDS = 600.0


class Builder:
    """Builds until it is released, or stops when requested."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun = 0
        self.gave_up = False
        self.is_building = threading.Event()
        self.may_end = threading.Event()
        self._error = error

    def __call__(self, stopped: Callable[[], bool]) -> None:
        self.begun += 1
        self.is_building.set()
        if self._error is not None:
            raise self._error
        while not self.may_end.wait(0.001):
            if stopped():
                self.gave_up = True
                raise InterruptedError


def test_one_is_built_at_a_time() -> None:
    builder = Builder()
    background = Background(builder, "it")
    background.start()
    assert builder.is_building.wait(_SECONDS)
    background.start()
    builder.may_end.set()
    background.wait()
    assert builder.begun == 1
    background.start()
    background.wait()
    assert builder.begun == 2


def test_nothing_starts_after_closing(caplog: pytest.LogCaptureFixture) -> None:
    builder = Builder()
    background = Background(builder, "it")
    background.start()
    assert builder.is_building.wait(_SECONDS)
    background.close()
    assert builder.gave_up
    background.start()
    background.wait()
    assert builder.begun == 1
    assert not caplog.records


def test_a_failure_is_logged_and_the_next_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    builder = Builder(ValueError("no room"))
    background = Background(builder, "it")
    for _ in range(2):
        background.start()
        background.wait()
    assert builder.begun == 2
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        "no room",
        "no room",
    ]
