"""Which vectors file a collection uses, and how many of its records are valid.

Both stand in the table `meta`, and change in the transaction that changes the rows. So the file
belongs to the state that a thread reads, though the file itself has no transactions.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.codes.row_codes import RowCodes
from flowvec.collection.index.vector_file import (
    VectorFile,
    VectorFileError,
    path_of,
    remove_other_generations,
    write_generation,
)
from flowvec.collection.store.store import Store
from flowvec.errors import CorruptCollectionError

__all__ = ["VectorCache"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Blocks = Iterator[tuple[Labels, Floats]]

_NUMBER, _RECORDS = "vectors file", "vectors records"
_IS_NO_LOSS = "no row is lost, and `compact` makes it again"


@dataclass(frozen=True, slots=True)
class _End:
    """Where a file ended in a state of the store: how many records, and the last one's label."""

    state: int
    file: VectorFile
    records: int
    newest: int


class VectorCache:
    """The vectors file of one open collection. Callers hold the locks."""

    def __init__(
        self, store: Store, folder: Path, blocks: Callable[[Labels | None], Blocks]
    ) -> None:
        """Find the file that a store names.

        Args:
            store: the rows.
            folder: where the file is.
            blocks: reads rows from the store, as the metric compares them: those with these labels,
                or all.
        """
        self._store, self._folder = store, folder
        self._dim = store.settings.dim
        self._blocks = blocks
        self._file: VectorFile | None = None
        self._number = self._bad_number = 0
        # Where the file ends after the newest transaction, and after the one that is open.
        self._end: _End | None = None
        self._next_end: _End | None = None

    def current(self) -> tuple[VectorFile, int] | None:
        """The file of the state that this thread reads, and how many records are valid.

        None if there is no file that can be used; a warning says why.
        """
        number = self._recorded(_NUMBER)
        if not number or number == self._bad_number:
            return None
        if self._file is None or number != self._number:
            if self._file is not None:
                self._file.retire()
                self._file = None
            try:
                self._file = VectorFile.open(
                    path_of(self._folder, number),
                    self._dim,
                    read_only=not self._store.database.is_writable,
                )
            except VectorFileError as error:
                self.distrust(error, number)
                return None
            self._number = number
        return self._file, self._recorded(_RECORDS)

    def distrust(self, error: Exception, number: int | None = None) -> None:
        """Use a file no longer, since it does not fit the store; the next change replaces it.

        Args:
            error: what is wrong.
            number: the file; None is the one in use.
        """
        logger.warning("vectors are read from the store: %s", error)
        self._end = self._next_end = None
        self._bad_number = self._number if number is None else number

    def _recorded(self, key: str) -> int:
        try:
            return max(0, self._store.meta.number(key))
        except CorruptCollectionError:
            return 0  # the file is a cache: it is made again

    def append(self, labels: Labels, vectors: Floats, before: int = -1, state: int = -1) -> None:
        """Write new rows to the file, and record that; inside their transaction, at its end.

        Rows that the file lacks, since it could not be written then, come first. If there is no
        good file, one of all rows is made. If it cannot be written, it lacks rows, which are then
        held in memory.

        Args:
            labels: of all rows of the transaction that are still there, ascending.
            vectors: float32 (rows, dim), as the metric compares them.
            before: number of the state before the transaction.
            state: number of the state that it leads to.
        """
        end, self._end, self._next_end = self._end, None, None
        try:
            is_end = end is not None and end.state == before and end.file is self._file
            # Then nobody else has written since this object did.
            if end is not None and is_end and self._number != self._bad_number:
                file, n = end.file, end.records
                file.append(n, labels, vectors, end.newest)
                self._note_records(file, n + len(labels), labels, state)
                return
            current = self.current()
            missing = None if current is None else self._missing(*current, labels)
            if current is None or missing is None:
                self.replace()
                return
            file, n = current
            for part, rows in self._blocks(missing):
                file.append(n, part, rows)
                n += len(part)
            file.append(n, labels, vectors)
            self._note_records(file, n + len(labels), labels, state)
        except VectorFileError as error:
            logger.warning("new vectors are held in memory: %s", error)

    def _note_records(self, file: VectorFile, records: int, labels: Labels, state: int) -> None:
        self._store.meta.write({_RECORDS: str(records)})
        if len(labels):
            self._next_end = _End(state, file, records, int(labels[-1]))

    def keep(self, before: int, state: int) -> None:
        """Note that a transaction adds no rows; arguments as for `append`."""
        end, self._end, self._next_end = self._end, None, None
        if end is not None and end.state == before:
            self._next_end = replace(end, state=state)

    def committed(self) -> None:
        """Note that the transaction of the last `append` or `keep` was committed."""
        self._end, self._next_end = self._next_end, None

    def _missing(self, file: VectorFile, n: int, new: Labels) -> Labels | None:
        """Labels of rows that the file lacks besides the new ones; None if it does not fit."""
        try:
            last = int(file.labels(n, n - 1)[0]) if n else 0
            present = self._store.labels(after=last) if last else self._store.labels()
            if len(present) == len(new):  # nearly always
                return present[:0]
            missing = np.setdiff1d(present, new, assume_unique=True)
            if len(missing) and len(new) and missing[-1] > new[0]:
                raise VectorFileError(f"{file.path} does not fit the rows of the store")
        except VectorFileError as error:
            self.distrust(error)
            return None
        return missing

    def replace(self) -> None:
        """Make a new file of all rows, and record it; inside a transaction, or at its end.

        Raises:
            VectorFileError: it cannot be written.
        """
        number = max(self._recorded(_NUMBER), self._number) + 1
        records = write_generation(self._folder, number, self._dim, self._blocks(None))
        self._store.meta.write({_NUMBER: str(number), _RECORDS: str(records)})

    def remove_others(self) -> None:
        """Remove the files that the store does not name; after the transaction of `replace`."""
        remove_other_generations(self._folder, self._recorded(_NUMBER) or None)

    def problem(self) -> str | None:
        """What is wrong with the file of the state that this thread reads, or with its codes."""
        number = self._recorded(_NUMBER)
        path = path_of(self._folder, number)
        if not number or not os.path.lexists(path):
            return None  # it may be deleted
        try:
            file = VectorFile.open(path, self._dim, read_only=True)
            try:
                records = self._recorded(_RECORDS)
                file.require(records)
                damaged = len(file.damaged(0, records))
                codes = RowCodes(self._dim, self._store.settings.metric, file).problem(records)
            finally:
                file.close()
        except VectorFileError as error:
            return f"{error}; {_IS_NO_LOSS}"
        if damaged:
            return f"{path} is damaged: {damaged:,} of its vectors; {_IS_NO_LOSS}"
        return codes

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
