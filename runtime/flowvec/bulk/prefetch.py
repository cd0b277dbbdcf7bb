"""Runs an iterator ahead of its consumer, on a separate thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

__all__ = ["run_ahead"]

T = TypeVar("T")
# How soon the reader notices that its consumer is gone.
_POLL_SECONDS = 0.1
# Longest wait for the reader; a read from an idle pipe may never return.
_JOIN_SECONDS = 2.0


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def run_ahead(source: Iterator[T], depth: int, stop: threading.Event) -> Generator[T, None, None]:
    """Yield the items, reading up to `depth` ahead. An error is raised after the items before it.

    If the consumer stops early, the reading thread closes the source. A source that blocks, such as
    an idle pipe, is left to its thread after two seconds.

    Args:
        source: the items.
        depth: most items that are read ahead.
        stop: once it is set, no more items are yielded.
    """
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    is_gone = threading.Event()  # the consumer

    def put(item: T | _End) -> bool:
        while not is_gone.is_set():
            try:
                ready.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        end = _End()
        try:
            for item in source:
                if not put(item):
                    break
        except BaseException as error:
            end = _End(error)
        finally:
            if hasattr(source, "close"):
                source.close()
            put(end)

    thread = threading.Thread(target=work, name="flowvec-read", daemon=True)
    thread.start()
    try:
        while not stop.is_set():
            try:
                item = ready.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        is_gone.set()
        thread.join(_JOIN_SECONDS)
