"""Running an iterator ahead of its consumer, on a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

__all__ = ["run_ahead"]

T = TypeVar("T")
# Nobody waits for this: it is how soon a reader sees that nobody takes its items any more.
_PATIENCE = 0.1
# As is this: a read from a file takes less, and one from an idle pipe may take for ever.
_LONGEST_READ = 2.0


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def run_ahead(source: Iterator[T], depth: int, stop: threading.Event) -> Generator[T, None, None]:
    """The same items, of which up to `depth` wait ready; an error comes after what came before it.

    When the consumer leaves, the source is closed on its own thread. Nobody waits for a source that
    waits itself, as for a pipe into which nothing comes.

    Args:
        source: the items.
        depth: how many.
        stop: once it is set the items end, whether the source has more or not.
    """
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    left = threading.Event()

    def put(item: T | _End) -> bool:
        while not left.is_set():
            try:
                ready.put(item, timeout=_PATIENCE)
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
                item = ready.get(timeout=_PATIENCE)
            except queue.Empty:
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        left.set()
        thread.join(_LONGEST_READ)
