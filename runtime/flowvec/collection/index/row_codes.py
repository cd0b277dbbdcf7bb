"""Codes of a table's rows, made when a scan first needs them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from flowvec.hnsw import Codes, Places
from flowvec.machine import available_cores
from flowvec.vectors import Metric

__all__ = ["RowCodes"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# How many standard deviations an estimate may be wrong. With 3, a scan finds .9998 of the ten
# nearest of sentences, and computes about 20 scores: see bench/log/2026-11-29.md.
_REACH = 3.0
# The scores of fewer rows are all computed, and for more results than this share of the rows: an
# estimate would exclude few.
_LEAST_ESTIMATED, _MOST_RESULTS = 512, 1 / 8
# Numbers that are copied and encoded at once: 32 MiB of float32.
_ENCODED_NUMBERS = 1 << 23
# Fewer rows are encoded in less time than a thread takes to start.
_ROWS_OF_ONE_CORE = 256


class RowCodes:
    """Codes of the first slots of a table and of all its snapshots, which share their vectors.

    Any number of threads may use it. One that needs codes of more rows makes them, and others that
    need them too wait.
    """

    def __init__(self, dim: int, metric: Metric) -> None:
        """No codes yet."""
        self._codes = Codes(dim, squared=metric == "l2")
        self._step = max(1, _ENCODED_NUMBERS // dim)
        self._cores = available_cores()
        self._following = threading.Lock()
        # Very long vectors have no estimates.
        self._is_usable = True

    @property
    def nbytes(self) -> int:
        """Their memory."""
        return self._codes.nbytes

    def covers(self, slots: int) -> bool:
        """Whether the first so many slots have codes."""
        return self._is_usable and len(self._codes) >= slots

    def follow(self, slots: int, vectors_of: Callable[[Labels], Floats]) -> bool:
        """Make the codes that the first so many slots lack.

        Args:
            slots: how many.
            vectors_of: returns the vectors of slots, float32 (slots, dim).

        Returns:
            Whether a scan may be asked.
        """
        if self.covers(slots):
            return True
        with self._following:
            while self._is_usable and (start := len(self._codes)) < slots:
                vectors = vectors_of(np.arange(start, min(start + self._step, slots)))
                threads = min(self._cores, 1 + len(vectors) // _ROWS_OF_ONE_CORE)
                self._is_usable = self._codes.add(vectors, threads)
        return self._is_usable

    def search(
        self,
        queries: Floats,
        k: int,
        places: Places,
        *,
        first: int,
        last: int,
        allowed: Mask | None,
        eligible: int,
    ) -> tuple[Labels, Floats]:
        """Slots int64 and scores float32 of the k nearest, (queries, k); see `Codes.search`.

        Args:
            eligible: how many rows may be returned.
        """
        computes_all = eligible < _LEAST_ESTIMATED or k > _MOST_RESULTS * eligible
        return self._codes.search(
            queries, k, places, first=first, last=last, allowed=allowed,
            reach=math.inf if computes_all else _REACH, threads=self._cores,
        )  # fmt: skip
