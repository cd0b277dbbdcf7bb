"""Which rows were deleted last, so that other processes look at those rows alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.label_lists import packed, unpacked
from flowvec.collection.store.meta import MetaTable
from flowvec.collection.store.sqlite import Database

__all__ = ["Deletions"]

_KEPT = 1000  # changes
_MOST_LABELS = 1 << 16  # of one change; a larger one is not recorded, and the gap shows


class Deletions:
    """The table `deletions`: the labels of the last changes, by the count after each."""

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

    def add(self, labels: Sequence[int]) -> None:
        """Record rows that are deleted or replaced; inside a transaction that has counted them."""
        if not labels:
            return
        db, total = self._database.connection, self._meta.counts().deletions
        if len(labels) <= self._most_labels:
            db.execute("INSERT OR REPLACE INTO deletions VALUES (?, ?)", (total, packed(labels)))
        db.execute(
            "DELETE FROM deletions WHERE n <= "
            "(SELECT n FROM deletions ORDER BY n DESC LIMIT 1 OFFSET ?)",
            (self._kept,),
        )

    def since(self, deletions: int) -> npt.NDArray[np.int64] | None:
        """Labels of the rows that were deleted after so many deletions; None if it is not known."""
        total = self._meta.counts().deletions
        if total == deletions:
            return np.empty(0, np.int64)
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT CAST(labels AS BLOB) FROM deletions WHERE n > ?", (deletions,)
            ).fetchall()
        lists = [labels for (blob,) in rows if (labels := unpacked(blob)) is not None]
        if not lists or sum(map(len, lists)) != total - deletions:
            return None
        return np.concatenate(lists)
