"""The part of a store that is in memory: a table of vectors, ids, and the state they show.

Nothing here is locked: `VectorIndex` lets one thread change it while no other thread reads it. All
reads of the store must be inside its `reading`, so that they see one state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.changes import StateChange
from flowvec.collection.index.hnsw import EF_SEARCH
from flowvec.collection.index.vector_cache import VectorCache
from flowvec.collection.index.vector_file import VectorFileError
from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.store.rows import Id
from flowvec.collection.store.store import Store
from flowvec.encoder.postprocess import normalize
from flowvec.errors import CorruptCollectionError
from flowvec.vectors import Metric

__all__ = ["IndexState", "Loaded"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# With a larger share of new rows, reading all ids at once is faster.
_MOST_NEW_IDS = 0.5
_UNKNOWN = -1


@dataclass(slots=True)
class Loaded:
    """What is in memory. A part that is None is loaded when it is needed.

    Attributes:
        table: vectors of all rows.
        ids: ids of all rows, by label.
    """

    table: VectorTable | None = None
    ids: dict[int, Id] | None = None


@dataclass(slots=True)
class IndexState:
    """Vectors and ids of one state of a store.

    Attributes:
        store: what is on disk.
        folder: the collection's directory.
        cache: the vectors file.
        dim: length of the vectors.
        metric: what compares them.
        number: the number of the state that is in memory.
        count: rows of that state.
        ef_search: search depth in the graph.
        loaded: what is in memory.
    """

    store: Store
    folder: Path
    cache: VectorCache = field(init=False)
    dim: int = field(init=False)
    metric: Metric = field(init=False)
    number: int = field(init=False, default=_UNKNOWN)
    count: int = field(init=False, default=0)
    ef_search: int = field(init=False, default=EF_SEARCH)
    loaded: Loaded = field(init=False, default_factory=Loaded)
    _deletions: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        settings = self.store.settings
        self.dim, self.metric = settings.dim, settings.metric
        self.cache = VectorCache(self.store, self.folder, self.blocks)

    def comparable(self, vectors: Floats) -> Floats:
        """Vectors as the metric compares them: normalized for cosine."""
        return normalize(vectors) if self.metric == "cosine" else vectors

    # --- changes of the store --------------------------------------------------------------------

    def apply(self, change: StateChange) -> None:
        """Apply a change to the state in memory. If it raises, the caller must `drop`.

        In the store's `reading`, or after the transaction that made the change.
        """
        loaded = self._detached()
        if loaded.ids is not None:
            for label in change.deleted:
                loaded.ids.pop(label, None)
            loaded.ids.update(zip(change.labels.tolist(), change.ids, strict=True))
        if loaded.table is not None and not self._extend(loaded.table, change.labels, change):
            loaded.table = None
        self.count += len(change.labels) - len(change.deleted)
        self._deletions += change.deletions
        if change.ef_search is not None:
            self.ef_search = change.ef_search
        self.loaded, self.number = loaded, change.state

    def _extend(self, table: VectorTable, new: Labels, change: StateChange | None) -> bool:
        """Add new rows to a table, and remove deleted ones; whether it is up to date then.

        Args:
            table: of an earlier state.
            new: labels of rows that it may lack, ascending.
            change: has their vectors; None reads those that are not in the file.
        """
        try:
            current = self.cache.current()
            if table.uses(None if current is None else current[0]):
                if current is not None and current[1] > table.mapped:
                    table.extend_mapped(current[1])
            elif table.mapped or current is not None:
                return False  # another file, whose slots are others
            new = new[new > table.newest]
            if len(new) and change is not None:
                table.append(new, change.vectors[-len(new) :])
            elif len(new):
                for labels, vectors in self.blocks(new):
                    table.append(labels, vectors)
        except VectorFileError as error:
            logger.warning("vectors are loaded again: %s", error)
            return False
        if change is not None and len(change.deleted):
            table.delete(np.asarray(change.deleted, np.int64))
        return True

    def _detached(self) -> Loaded:
        """What is in memory, detached for a change: if that is interrupted, memory is empty."""
        loaded, self.number = self.loaded, _UNKNOWN
        self.loaded = Loaded()
        return loaded

    def catch_up(self) -> Labels | None:
        """Bring memory to the state that this thread reads. If it raises, the caller must `drop`.

        Only new rows are read, if it is known which were deleted.

        Returns:
            Labels of the rows that were deleted since; None if that is not known, or nothing was in
            memory.
        """
        counts = self.store.meta.counts()
        self.ef_search = _ef_of(self.store)
        before, loaded = self.number, self._detached()
        gone = None if before == _UNKNOWN else self.store.deletions.since(self._deletions)
        if gone is not None and len(gone) and len(self.store.existing(gone)):
            gone = None  # the record is damaged
        if gone is None:
            loaded = Loaded()
        elif loaded.table is not None:
            self._catch_up(loaded, loaded.table, gone, counts.rows)
        else:
            loaded.ids = None  # which rows are new is not known
        self.count, self._deletions = counts.rows, counts.deletions
        self.loaded, self.number = loaded, counts.state
        return gone

    def _catch_up(self, loaded: Loaded, table: VectorTable, gone: Labels, rows: int) -> None:
        new = self.store.labels(after=table.newest) if table.newest else self.store.labels()
        if loaded.ids is not None:
            for label in gone.tolist():
                loaded.ids.pop(label, None)
            if len(new) <= _MOST_NEW_IDS * len(loaded.ids):
                loaded.ids.update(self.store.ids_of(new.tolist()))
            else:
                loaded.ids = None
        if self._extend(table, new, None):
            table.delete(gone)
            if table.count == rows:
                return
        loaded.table = None

    def drop(self) -> None:
        """Forget everything; the next search loads it again."""
        self.loaded = Loaded()
        self.number = _UNKNOWN

    def close(self) -> None:
        """Forget everything, and close the vectors file; nobody searches any more."""
        if self.loaded.table is not None:
            self.loaded.table.close()
        self.drop()
        self.cache.close()

    # --- reading the store ----------------------------------------------------------------------

    def load_table(self) -> VectorTable:
        """Load the vectors of all rows: from the file, and from the store what it lacks."""
        live = self.store.labels()
        current = self.cache.current()
        table = None
        if current is not None:
            try:
                table = VectorTable(self.dim, self.metric, *current, live, self._reread)
            except VectorFileError as error:
                self.cache.distrust(error)
        if table is None:
            table = VectorTable(self.dim, self.metric)
        for labels, vectors in self.blocks(live[live > table.newest]):
            table.append(labels, vectors)
        self.loaded.table = table
        return table

    def _reread(self, labels: Labels) -> Floats:
        """Vectors of rows whose records in the file are damaged."""
        with self.store.reading():
            parts = [vectors for _, vectors in self.blocks(labels)]
        return np.concatenate([np.empty((0, self.dim), np.float32), *parts])

    def load_ids(self) -> None:
        """Load the ids of all rows."""
        self.loaded.ids = self.store.ids()

    def blocks(self, wanted: Labels | None = None) -> Iterator[tuple[Labels, Floats]]:
        """Labels and vectors of rows, ascending, a few thousand at a time.

        Args:
            wanted: labels of the rows; None is all.
        """
        for labels, vectors in self.store.vectors(None if wanted is None else wanted.tolist()):
            yield labels, self.comparable(vectors)


def _ef_of(store: Store) -> int:
    ef = store.meta.read().get("ef_search", str(EF_SEARCH))
    if not (ef.isdecimal() and 0 < int(ef) < 1 << 20):
        raise CorruptCollectionError(f"its table meta is damaged: ef_search is {ef!r}")
    return int(ef)
