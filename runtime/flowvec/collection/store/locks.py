"""Locks: one writer or many readers within a process, and a file lock for a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from flowvec.errors import BulkError
from flowvec.file_lock import lock, unlock

__all__ = ["FileLock", "ReadersWriter"]

_CHECK_SECONDS = 0.5


class ReadersWriter:
    """Any number of readers at a time, or one writer.

    Neither can starve the other: a waiting writer goes before readers that come later, and all
    readers that waited for a writer go before the next writer. It is not reentrant.

    A Ctrl-C may interrupt a thread between any two steps, even while it leaves a block. So every
    holder is a key in a dict: adding and removing a key is a single step, and removing it twice is
    harmless. If a thread that enters still has a key, a Ctrl-C left it behind, and it is removed.
    Each waiting thread has its own lock to wait for: after a Ctrl-C, `Condition.wait` can return
    without having its lock again.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Thread by block; an object stands for each block.
        self._readers: dict[object, int] = {}
        self._writers: dict[object, int] = {}
        self._waiting_readers: dict[object, int] = {}
        self._waiting_writers: dict[object, int] = {}
        self._admitted: dict[object, int] = {}  # readers whose turn has come
        self._kept = (
            self._writers, self._waiting_readers, self._waiting_writers, self._admitted
        )  # fmt: skip
        self._gates: dict[object, threading.Lock] = {}  # what each waiting block waits for

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock together with other readers."""
        block = object()
        try:
            with self._lock:
                thread = threading.get_ident()
                self._forget(thread)
                if not (self._writers or self._waiting_writers):  # nearly always
                    self._readers[block] = thread
            if block not in self._readers:
                self._wait(block, thread, self._waiting_readers, self._reader_may_go, self._readers)
            yield
        finally:
            try:
                self._leave(block)
            finally:
                if self._has(block):
                    self._leave(block)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock exclusively."""
        block = object()
        try:
            with self._lock:
                thread = threading.get_ident()
                self._forget(thread)
            self._wait(block, thread, self._waiting_writers, self._writer_may_go, self._writers)
            yield
        finally:
            try:
                self._leave(block)
            finally:
                if self._has(block):
                    self._leave(block)

    def _reader_may_go(self, block: object) -> bool:
        return not self._writers and (not self._waiting_writers or block in self._admitted)

    def _writer_may_go(self, block: object) -> bool:
        others = len(self._readers) + len(self._writers) + len(self._admitted)
        return not others and next(iter(self._waiting_writers), block) is block

    def _wait(
        self,
        block: object,
        thread: int,
        waiting: dict[object, int],
        may_go: Callable[[object], bool],
        holding: dict[object, int],
    ) -> None:
        """Wait until a block may hold the lock, and add it to `holding`."""
        gate = threading.Lock()
        gate.acquire()
        while True:
            with self._lock:
                if may_go(block):
                    holding[block] = thread
                    waiting.pop(block, None)
                    self._gates.pop(block, None)
                    if self._admitted.pop(block, None) is not None:
                        self._wake()  # a writer may wait for the last of them
                    return
                waiting[block] = thread
                self._gates[block] = gate
            # A Ctrl-C may prevent another thread from waking this one, so it also checks regularly.
            gate.acquire(timeout=_CHECK_SECONDS)

    def _leave(self, block: object) -> None:
        """Remove a block that holds the lock or waits for it; twice is harmless."""
        with self._lock:
            if self._readers.pop(block, None) is None:
                if block in self._writers:
                    self._admitted.update(self._waiting_readers)
                for kept in self._kept:
                    kept.pop(block, None)
                self._gates.pop(block, None)
            if not self._readers and self._gates:
                self._wake()

    def _wake(self) -> None:
        for gate in list(self._gates.values()):
            with suppress(RuntimeError):  # it is released already
                gate.release()

    def _has(self, block: object) -> bool:
        return block in self._readers or any(block in kept for kept in self._kept)

    def _forget(self, thread: int) -> None:
        """Remove what a Ctrl-C left of a thread's earlier blocks: it enters a new one now."""
        if not (thread in self._readers.values() or any(self._kept)):
            return
        for kept in (self._readers, *self._kept):
            if thread in kept.values():
                for block in [block for block, owner in kept.items() if owner == thread]:
                    kept.pop(block, None)
                    self._gates.pop(block, None)
                self._wake()


class FileLock:
    """A lock on an empty file for a block; the system releases it when the process ends."""

    def __init__(self, path: Path, message: str) -> None:
        self._path = path
        self._message = message
        self._file: IO[bytes] | None = None

    def __enter__(self) -> None:
        """Acquire the lock.

        Raises:
            BulkError: another process, or another thread of this process, holds it.
        """
        try:
            file = self._path.open("a+b", buffering=0)
        except OSError as error:
            raise BulkError(f"cannot write {self._path}: {error.strerror or error}") from None
        try:
            lock(file)
        except OSError:
            file.close()
            raise BulkError(self._message) from None
        self._file = file

    def __exit__(self, *_: object) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                unlock(file)
            file.close()
