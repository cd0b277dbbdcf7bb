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
        self._cached: OrderedDict[Condition, tuple[int, Labels]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many conditions are remembered."""
        return len(self._cached)

    def labels(self, condition: Condition, state: int) -> Labels:
        """Labels of the rows that meet a condition, ascending, int64 (rows,).

        Args:
            condition: what their metadata must meet.
            state: number of the state that this thread reads from the store.
        """
        with self._lock:
            cached = self._cached.get(condition)
            if cached is not None and cached[0] == state:
                self._cached.move_to_end(condition)
                return cached[1]
        labels = self._store.labels(condition)
        with self._lock:
            self._cached[condition] = (state, labels)
            self._cached.move_to_end(condition)
            total = sum(len(rows) for _, rows in self._cached.values())
            while total > _MAX_LABELS or len(self._cached) > _MAX_CONDITIONS:
                _, (_, dropped) = self._cached.popitem(last=False)
                total -= len(dropped)
        return labels
