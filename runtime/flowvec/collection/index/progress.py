"""A progress bar for work in another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

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
    # Even a bar that is not shown takes a lock that forked processes share: a process that is
    # killed while it holds it would block all others.
    if not is_shown:
        yield
        return
    ended = threading.Event()
    with tqdm(total=total, desc="graph", unit=" rows") as bar:

        def update() -> None:
            while not ended.wait(_SECONDS):
                bar.update(done() - bar.n)

        thread = threading.Thread(target=update, name="flowvec-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            bar.update(done() - bar.n)
