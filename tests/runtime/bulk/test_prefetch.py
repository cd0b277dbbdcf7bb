"""Reading ahead of the model, in a thread of its own."""

from __future__ import annotations

import threading

import pytest

from flowvec.bulk import prefetch
from flowvec.bulk.prefetch import run_ahead


def test_an_error_of_the_reader_comes_after_the_items_before_it() -> None:
    def source():
        yield from range(5)
        raise ValueError("broken")

    items: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        items.extend(run_ahead(source(), 2, threading.Event()))
    assert items == list(range(5))


def test_closing_the_consumer_ends_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_JOIN_SECONDS", 600.0)  # not two, in which it may not run
    closed, before = threading.Event(), set(threading.enumerate())

    def source():
        try:
            yield from range(1000)
        finally:
            closed.set()

    running = run_ahead(source(), 2, threading.Event())
    assert next(running) == 0
    running.close()
    assert closed.is_set()
    assert not [t for t in set(threading.enumerate()) - before if t.name == "flowvec-read"]
