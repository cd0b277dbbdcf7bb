"""Which rows' metadata changed, so that remembered answers of filters are looked at there alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.label_lists import packed, unpacked
from flowvec.collection.store.meta import MetaTable
from flowvec.collection.store.sqlite import Database

__all__ = ["MetadataChanges"]

_KEY = "metadata_changes"
_KEPT = 1000
# A larger change is recorded as one of any row.
_MOST_LABELS = 4096


class MetadataChanges:
    """The table `metadata_changes`: the labels of the last changes.

    A row that is added or deleted is no change of metadata: its label is new, or gone.
    """

    def __init__(
        self,
        database: Database,
        meta: MetaTable,
        *,
        kept: int = _KEPT,
        most_labels: int = _MOST_LABELS,
    ) -> None:
        self._database, self._meta = database, meta
        self._kept, self._most_labels = kept, most_labels

    def newest(self) -> int:
        """The number of the last change in the state that this thread reads; 0 if there is none."""
        return self._meta.number(_KEY)

    def add(self, labels: Sequence[int]) -> None:
        """Record that the metadata of rows changed; inside a transaction."""
        number = self.newest() + 1
        few = packed(labels) if len(labels) <= self._most_labels else None
        db = self._database.connection
        db.execute("INSERT OR REPLACE INTO metadata_changes VALUES (?, ?)", (number, few))
        db.execute("DELETE FROM metadata_changes WHERE n <= ?", (number - self._kept,))
        self._meta.write({_KEY: str(number)})

    def since(self, number: int) -> npt.NDArray[np.int64] | None:
        """Labels of the rows that changed after a change, ascending; None if it may be any row."""
        newest = self.newest()
        if newest == number:
            return np.empty(0, np.int64)
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT CAST(labels AS BLOB) FROM metadata_changes WHERE n > ? AND n <= ?",
                (number, newest),
            ).fetchall()
        lists = [labels for (blob,) in rows if (labels := unpacked(blob)) is not None]
        if len(lists) != newest - number:
            return None
        return np.unique(np.concatenate(lists))
