"""A progress bar for work in another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowvec.progress import bar

__all__ = ["showing_progress"]

_SECONDS = 0.2


@contextmanager
def showing_progress(total: int, done: Callable[[], int], is_shown: bool) -> Iterator[None]:
    """Show on standard error how many rows of a graph are done, while the block waits for them.

    Args:
        total: how many rows there will be.
        done: how many there are.
        is_shown: False shows nothing.
    """
    if not is_shown:
        yield
        return
    ended = threading.Event()
    with bar("graph", total, "rows", shown=True) as drawn:

        def update() -> None:
            while not ended.wait(_SECONDS):
                drawn.update(done() - drawn.n)

        thread = threading.Thread(target=update, name="flowvec-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            drawn.update(done() - drawn.n)
