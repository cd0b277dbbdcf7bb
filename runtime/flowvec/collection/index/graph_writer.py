"""Writes a graph's file, beside searches and changes where the system allows it.

hnswlib holds Python's lock while it writes: seconds for a million rows, in which no thread of the
process would run. So on Linux a forked child writes the file from its copy of the memory.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from flowvec.collection.index.hnsw import Graph
from flowvec.errors import CollectionError

__all__ = ["GraphWriter", "can_write_aside"]

# A child that writes less than this in `_PATIENCE_SECONDS` is ended.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.05
_DONE = b"1"


def can_write_aside() -> bool:
    """Whether this system can write a graph in a child."""
    # macOS has fork too, but its libraries may crash in the child.
    return sys.platform == "linux"


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
            self._pid = os.fork()
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
