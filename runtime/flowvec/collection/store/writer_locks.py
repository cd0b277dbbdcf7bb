"""The turn to write a collection, which processes and handles take one after another.

Two file locks, which end with their process at the latest. `collection.lock` is the turn.
`next.lock` is the place of the next writer: only its holder tries for the turn. Without it, a
process that writes in a loop would nearly always get the turn again before others look for it.
"""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from flowvec.errors import CollectionBusyError, CollectionError
from flowvec.file_lock import is_held_elsewhere, lock, unlock

__all__ = [
    "CODES_LOCK_FILE",
    "GRAPH_LOCK_FILE",
    "LOCK_FILE",
    "LOCK_FILES",
    "NEXT_FILE",
    "WRITE_TIMEOUT",
    "FolderLock",
    "WriterTurn",
]

LOCK_FILE = "collection.lock"
NEXT_FILE = "next.lock"
# Held by the process that writes a graph's file.
GRAPH_LOCK_FILE = "graph.lock"
# Held by the process that writes codes.
CODES_LOCK_FILE = "codes.lock"
LOCK_FILES = frozenset((LOCK_FILE, NEXT_FILE, GRAPH_LOCK_FILE, CODES_LOCK_FILE))

# Longest wait for a turn unless the caller sets another.
WRITE_TIMEOUT = 30.0
# Pauses between two looks at a lock. The next writer looks often: changes take a millisecond.
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.005
_WIDTH = 32
_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class FolderLock:
    """A lock on one file of a folder. The file stays open between two holdings, until `close`."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._file: IO[bytes] | None = None
        self._held = False
        _locks.add(self)

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._held

    def acquire(self, until: float) -> bool:
        """Acquire the lock, and return whether it was free before a time of `time.monotonic`.

        It is tried at least once; calling it twice is harmless.

        Raises:
            CollectionError: the file cannot be written, or its file system has no locks.
        """
        pause = _FIRST_PAUSE
        while not self._held:
            file = self._opened()
            try:
                lock(file)
                self._held = True
            except OSError as error:
                if not is_held_elsewhere(error):
                    raise CollectionError(
                        f"{self._path.parent} cannot be locked: {error.strerror or error}; its "
                        "file system must have file locks"
                    ) from None
                left = until - time.monotonic()
                if left <= 0:
                    return False
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
            except BaseException:  # a Ctrl-C, maybe right after the lock was acquired
                self._held = True
                self.release()
                raise
        return True

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            try:
                # Unbuffered: a full disk would refuse the buffer again at closing.
                self._file = os.fdopen(os.open(self._path, _OPEN, 0o666), "r+b", buffering=0)
            except OSError as error:
                raise CollectionError(
                    f"{self._path.parent} cannot be written: {error.strerror or error}"
                ) from None
        return self._file

    def write(self, content: str) -> None:
        """Say who holds the lock. Only messages use it, so a full disk does not matter."""
        if self._file is not None:
            wanted = content.ljust(_WIDTH).encode()
            with suppress(OSError):
                self._file.seek(0)
                if self._file.read(_WIDTH + 1) != wanted:
                    self._file.seek(0)
                    # One write of fixed length, so that no process reads a part of it.
                    self._file.write(wanted)
                    self._file.truncate(_WIDTH)

    def holder(self) -> str:
        """Who holds the lock, for a message."""
        pid = ""
        with suppress(OSError):
            pid = self._path.read_bytes()[:_WIDTH].decode("ascii", "replace").strip()
        if pid == str(os.getpid()):
            return "another handle of this process"
        return f"process {pid}" if pid.isdigit() else "another process"

    def release(self) -> None:
        """Release it; twice is harmless."""
        if self._held and self._file is not None:
            with suppress(OSError):
                unlock(self._file)
        self._held = False

    def close(self) -> None:
        """Release it and close the file; twice is harmless."""
        self.release()
        self.forget()

    def forget(self) -> None:
        """In a forked child: close the copy without releasing the parent's lock."""
        self._held = False
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


class WriterTurn:
    """The turn to write one collection."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = FolderLock(folder / LOCK_FILE)
        self._next = FolderLock(folder / NEXT_FILE)

    @property
    def held(self) -> bool:
        """Whether this object has the turn."""
        return self._turn.held

    def acquire(self, timeout: float) -> None:
        """Wait for the turn, and keep it until `release`; calling it twice is harmless.

        Args:
            timeout: the longest wait, in seconds; 0 tries once.

        Raises:
            CollectionBusyError: others had it all the time.
            CollectionError: the folder cannot be written, or its file system has no locks.
        """
        if self._turn.held:
            return
        until = time.monotonic() + timeout
        try:
            if not (self._next.acquire(until) and self._turn.acquire(until)):
                waited = f"; this waited {timeout:g} s" if timeout else ""
                raise CollectionBusyError(
                    f"{self._folder} is being written by {self._turn.holder()}{waited}. Try again, "
                    "or open the collection with a longer write_timeout"
                )
        finally:
            self._next.release()
        self._turn.write(str(os.getpid()))

    def release(self) -> None:
        """Let the next one write; twice is harmless."""
        self._turn.release()

    def forget(self) -> None:
        """In a forked child: close the copies without releasing the parent's locks."""
        self._turn.forget()
        self._next.forget()

    def close(self) -> None:
        """Let the next one write, and close the files; twice is harmless."""
        self._turn.close()
        self._next.close()


# A child that outlives its parent would hold the lock forever.
_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget_all() -> None:
    for held in list(_locks):
        held.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
