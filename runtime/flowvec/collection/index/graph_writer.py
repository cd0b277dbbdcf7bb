"""Writes a graph's file, beside searches and changes where the system allows it.

A graph must not grow while it is written, which takes seconds for a million rows. So on Linux a
forked child writes the file from its copy of the memory.

The fork must not disturb the process. `os.fork` calls handlers of libraries; OpenBLAS's ends the
threads that numpy multiplies with, and a multiplication that is under way in another thread then
waits for them for ever. `_Fork` (glibc 2.34, musl 1.2.2) calls no handlers. The price is paid by
the child: if another thread was just allocating memory, it may wait for a lock that nobody
releases. It is ended then, and another one tries.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from flowvec.collection.index.hnsw import Graph
from flowvec.errors import CollectionError

__all__ = ["GraphWriter", "can_write_aside"]

# A child that writes less than this in `_PATIENCE_SECONDS` is ended.
_PATIENCE_SECONDS = 20.0
_POLL_SECONDS = 0.05
_DONE = b"1"


def can_write_aside() -> bool:
    """Whether this system can write a graph in a child."""
    # macOS has fork too, but its libraries may crash in the child.
    return sys.platform == "linux" and _fork() is not None


@cache
def _fork() -> Callable[[], int] | None:
    """Forks this process without calling the handlers of libraries; None if it is missing."""
    try:
        # Both keep Python's lock: no other thread may change what the child gets.
        fork = ctypes.PyDLL(None, use_errno=True)._Fork
        after = ctypes.pythonapi.PyOS_AfterFork_Child
    except (AttributeError, OSError):
        return None

    def forked() -> int:
        pid = int(fork())
        if pid == 0:
            after()
        elif pid < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return pid

    return forked


class GraphWriter:
    """A child that writes a graph as it was when this was made; nobody changed it meanwhile."""

    def __init__(self, graph: Graph, path: Path) -> None:
        """Start it.

        Raises:
            CollectionError: there is no memory for another process.
        """
        self._path = path
        self._result, writing = os.pipe()
        try:
            fork = _fork()
            assert fork is not None
            time.sleep(0)  # nobody waits for Python's lock, which the child could not hand over
            self._pid = fork()
        except OSError as error:
            os.close(self._result)
            os.close(writing)
            raise CollectionError(f"cannot write {path}: {error.strerror or error}") from None
        if self._pid == 0:
            # Only this thread runs here, and it must not return.
            with suppress(BaseException):
                graph.write(path)
                os.write(writing, _DONE)
            os._exit(0)
        os.close(writing)

    def wait(self) -> None:
        """Wait until the file is written.

        Raises:
            CollectionError: it could not be written.
        """
        size, changed = -1, time.monotonic()
        try:
            while not select.select([self._result], [], [], _POLL_SECONDS)[0]:
                with suppress(OSError):
                    if (now := self._path.stat().st_size) != size:
                        size, changed = now, time.monotonic()
                if time.monotonic() - changed > _PATIENCE_SECONDS:
                    with suppress(OSError):
                        os.kill(self._pid, signal.SIGKILL)
            if os.read(self._result, 1) != _DONE:
                raise CollectionError(f"{self._path} was not written whole; is the disk full?")
        finally:
            os.close(self._result)
            with suppress(OSError):  # the program may have waited for all its children
                os.waitpid(self._pid, 0)
