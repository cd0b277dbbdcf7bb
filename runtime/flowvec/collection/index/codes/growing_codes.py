"""Codes that follow the rows in the background; rows without codes are compared exactly."""

from __future__ import annotations

from collections.abc import Callable

from flowvec.collection.index.background import Background
from flowvec.collection.index.state import IndexState
from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.store.locks import ReadersWriter

__all__ = ["GrowingCodes"]


class GrowingCodes:
    """Makes the codes of an index's table, and writes them to their file."""

    def __init__(self, state: IndexState, lock: ReadersWriter, settle: Callable[[], None]) -> None:
        """Make none yet.

        Args:
            state: the rows.
            lock: the index's lock.
            settle: brings the rows in memory to the newest state; inside the store's `reading`.
        """
        self._state, self._lock, self._settle = state, lock, settle
        self._background = Background(self._work, "the set of codes")

    def start_if_due(self) -> None:
        """Make codes in the background, if some are missing in memory or in the file."""
        table = self._state.loaded.table
        if table is not None and table.lacks_codes:
            self._background.start()

    def close(self) -> None:
        """Stop."""
        self._background.close()

    def _work(self, stopped: Callable[[], bool]) -> None:
        with self._state.store.reading():  # a damaged record is read from the store
            self._settle()
            table = self._snapshot()
            if table is not None:
                table.make_codes(stopped)

    def _snapshot(self) -> VectorTable | None:
        with self._lock.reading():
            table = self._state.loaded.table
            return None if table is None else table.snapshot()
