"""Which rows meet a filter, remembered for the filters that were used last."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.filters import Condition
from flowvec.collection.store.store import Store

__all__ = ["EligibleRows"]

Labels = npt.NDArray[np.int64]

_MAX_CONDITIONS = 32
_MAX_LABELS = 1 << 21  # 16 MiB


class EligibleRows:
    """Labels of the rows that meet a condition; services repeat the same few. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: OrderedDict[Condition, tuple[int, Labels]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many conditions are remembered."""
        return len(self._known)

    def labels(self, condition: Condition, state: int) -> Labels:
        """Labels of the rows that meet a condition, ascending, int64 (rows,).

        Args:
            condition: what their metadata must meet.
            state: number of the state that this thread reads from the store.
        """
        with self._lock:
            known = self._known.get(condition)
            if known is not None and known[0] == state:
                self._known.move_to_end(condition)
                return known[1]
        labels = self._store.labels(condition)
        with self._lock:
            self._known[condition] = (state, labels)
            self._known.move_to_end(condition)
            total = sum(len(rows) for _, rows in self._known.values())
            while total > _MAX_LABELS or len(self._known) > _MAX_CONDITIONS:
                _, (_, dropped) = self._known.popitem(last=False)
                total -= len(dropped)
        return labels
