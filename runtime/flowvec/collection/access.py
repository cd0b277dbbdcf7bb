"""Controls access to an open collection: one process writes, and its threads take turns."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from flowvec.collection.index.vector_index import VectorIndex
from flowvec.collection.store.locks import WriterLock
from flowvec.collection.store.store import Store
from flowvec.errors import ClosedError, CollectionError

__all__ = ["Access"]

logger = logging.getLogger(__name__)


class Access:
    """Access to one open collection, for any number of threads.

    The first change makes this process the collection's only writer, until `close`.
    """

    def __init__(self, path: Path, store: Store, index: VectorIndex) -> None:
        self._store = store
        self._index = index
        # Held by the thread that writes; searches do not wait for it.
        self._turn = threading.RLock()
        self._writer_lock = WriterLock(path)
        # Whether this process holds the writer lock, and has read all earlier changes.
        self._is_writer = False
        self._process = os.getpid()
        self._is_closed = False

    def check(self) -> None:
        """Raise if the collection is closed, or was opened before a fork."""
        if self._is_closed:
            raise ClosedError("this Collection is closed")
        if self._process != os.getpid():
            raise CollectionError("a Collection does not survive a fork; open it again")

    def reading(self) -> AbstractContextManager[None]:
        """All reads in the block see one state."""
        self.check()
        return self._store.reading()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Only this thread of this process writes during the block.

        Raises:
            CollectionError: another process is the writer.
        """
        self.check()
        with self._turn:
            self.check()
            self._become_writer()
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A transaction. Its block stages the change in the index; searches see it afterwards."""
        with self.writing():
            self._index.begin()
            with self._store.transaction():
                yield
            self._index.publish()

    @contextmanager
    def writing_once(self) -> Iterator[None]:
        """`writing` that does not make this process the writer for longer than the block."""
        self.check()
        with self._turn:
            self.check()
            was_writer = self._is_writer
            self._become_writer(briefly=True)
            try:
                yield
            finally:
                if not was_writer:
                    self._is_writer = False
                    self._writer_lock.release()

    def _become_writer(self, *, briefly: bool = False, waits: bool = True) -> None:
        if not self._is_writer:
            self._writer_lock.acquire(briefly=briefly, waits=waits)
            try:
                self._index.refresh()
            except BaseException:
                self._writer_lock.release()
                raise
            self._is_writer = True

    def close(self) -> None:
        """Save the graph, close the files and release the writer lock. Twice is harmless."""
        if self._process != os.getpid():
            # At the fork, a thread of the parent may have held the lock `_turn`.
            self._is_closed = True
            self._writer_lock.forget()
            return
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._index.close()
                self._save_graph()
            except CollectionError as error:
                # The graph is a cache: without its file the next search only takes longer.
                logger.warning("%s", error)
            finally:
                try:
                    self._store.close()
                finally:
                    self._writer_lock.release()

    def _save_graph(self) -> None:
        """Save the graph if this process is the writer, or had to build it."""
        if not self._index.is_unsaved:
            return
        if not self._is_writer:
            if not self._index.was_built:
                return
            try:
                self._become_writer(briefly=True, waits=False)
            except CollectionError as error:
                logger.debug("the graph is not saved: %s", error)
                return
        self._index.save()
