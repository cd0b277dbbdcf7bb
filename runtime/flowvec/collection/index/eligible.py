"""Which rows meet a filter, remembered for the filters that were used last and kept up."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.store import Store

__all__ = ["EligibleMasks"]

Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Masks of all conditions together: 64 MiB. The second number is what remembering one takes at most
# besides.
_MOST_BYTES = 1 << 26
_BYTES_BESIDES = 4096


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Labels of the rows that met a condition in a state, and what was known then.

    Attributes:
        labels: ascending, int64 (rows,).
        newest: the highest label of that state.
        changes: number of the last change of metadata.
        state: that state's number.
    """

    labels: Labels
    newest: int
    changes: int
    state: int


@dataclass(slots=True)
class _Kept:
    """A condition's mask, and up to what it is evaluated.

    Attributes:
        prepared: the answer as labels, until a table is at hand.
        mask: bool, by slot of the first so many slots; it is replaced, never changed.
        state: number of the state in which it was right.
        changes: number of the last change of metadata that it knows.
        evaluating: held by the thread that brings it up to date.
    """

    prepared: _Prepared | None = None
    mask: Mask | None = None
    state: int = -1
    changes: int = 0
    evaluating: threading.Lock = field(default_factory=threading.Lock)

    def is_evaluated(self) -> bool:
        """Whether an answer is there, though it may be of an older state."""
        return self.mask is not None or self.prepared is not None


class EligibleMasks:
    """Which slots of a table hold rows that meet a condition; services repeat the same few.

    After a change only the rows that came, and those whose metadata changed, are looked at. Deleted
    rows stay: the table knows them. Any number of threads may ask.
    """

    def __init__(self, store: Store, *, most_bytes: int = _MOST_BYTES) -> None:
        self._store, self._most_bytes = store, most_bytes
        self._kept: OrderedDict[Condition, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        # The table whose slots the masks have, and its labels as of the last call.
        self._table: weakref.ref[VectorTable] | None = None
        self._labels: Labels = np.empty(0, np.int64)

    def __len__(self) -> int:
        """How many conditions are remembered."""
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Memory of the masks at most, in bytes."""
        return sum(map(_bytes_of, self._kept.values()))

    def clear(self) -> None:
        """Forget all conditions."""
        with self._lock:
            self._kept.clear()

    def prepare(self, condition: Condition, state: int) -> None:
        """Evaluate a condition that is not remembered; it can take long, and needs no table.

        Inside the store's `reading`.

        Args:
            condition: what the rows' metadata must meet.
            state: number of the state that this thread reads from the store.
        """
        with self._lock:
            kept = self._kept.setdefault(condition, _Kept())
        if kept.is_evaluated():
            return
        with kept.evaluating:
            if kept.is_evaluated():
                return
            kept.prepared = _Prepared(
                self._store.labels(condition),
                self._store.newest_label(),
                self._store.metadata_changes.newest(),
                state,
            )

    def mask(self, condition: Condition, table: VectorTable, state: int) -> Mask:
        """Which slots meet a condition, bool (slots,); do not change it.

        Deleted rows may be among them.

        Args:
            condition: what the rows' metadata must meet.
            table: the rows of the state that this thread reads from the store, inside `reading`.
            state: that state's number. It was committed.
        """
        slots = table.slots
        with self._lock:
            self._follow(table)
            kept = self._kept.setdefault(condition, _Kept())
            self._kept.move_to_end(condition)
            if kept.mask is not None and kept.state == state and len(kept.mask) == slots:
                return kept.mask
        with kept.evaluating:
            with self._lock:
                before, changes, done = kept.mask, kept.changes, kept.state
            if before is not None and done == state and len(before) == slots:
                return before
            prepared = kept.prepared
            if before is None and prepared is not None and prepared.state <= state:
                before = np.zeros(
                    int(np.searchsorted(table.labels, prepared.newest, "right")), np.bool_
                )
                before[_known(table, prepared.labels)] = True
                changes = prepared.changes
            newest = self._store.metadata_changes.newest()
            mask = self._evaluated(condition, table, before, changes)
            with self._lock:
                if self._table is not None and self._table() is table:
                    kept.mask, kept.state, kept.changes = mask, state, newest
                    kept.prepared = None
                self._forget()
        return mask

    def _evaluated(
        self, condition: Condition, table: VectorTable, before: Mask | None, changes: int
    ) -> Mask:
        mask = np.zeros(table.slots, np.bool_)
        start = 0
        changed = None if before is None else self._store.metadata_changes.since(changes)
        if before is not None and changed is not None:
            start = min(len(before), table.slots)
            mask[:start] = before[:start]
            if len(changed):
                mask[_known(table, changed)] = False
                mask[_known(table, self._store.meeting(condition, changed))] = True
        after = int(table.labels[start - 1]) if start else 0
        if start < table.slots:
            mask[_known(table, self._store.labels(condition, after))] = True
        return mask

    def _follow(self, table: VectorTable) -> None:
        """Renumber the masks' slots if the table was made anew, as by `compact`."""
        if self._table is None or self._table() is not table:
            slots = table.slots_of(self._labels)
            for kept in self._kept.values():
                if kept.mask is not None:
                    to = slots[: len(kept.mask)]
                    # A row that the old table did not have is not evaluated yet.
                    known = int(self._labels[len(kept.mask) - 1]) if len(kept.mask) else 0
                    renumbered = np.zeros(
                        int(np.searchsorted(table.labels, known, "right")), np.bool_
                    )
                    renumbered[to[(to >= 0) & kept.mask]] = True
                    kept.mask, kept.state = renumbered, -1
            self._table = weakref.ref(table)
        self._labels = table.labels

    def _forget(self) -> None:
        """Forget the conditions that were not used for longest, to limit memory."""
        total = self.nbytes
        while total > self._most_bytes and len(self._kept) > 1:
            _, kept = self._kept.popitem(last=False)
            total -= _bytes_of(kept)


def _bytes_of(kept: _Kept) -> int:
    held = 0 if kept.mask is None else kept.mask.nbytes
    return _BYTES_BESIDES + held + (0 if kept.prepared is None else kept.prepared.labels.nbytes)


def _known(table: VectorTable, labels: Labels) -> Labels:
    """Slots of labels, without those that the table does not have."""
    slots = table.slots_of(labels)
    return slots[slots >= 0]
