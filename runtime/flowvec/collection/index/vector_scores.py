"""The best of vectors that come part by part, on all cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.machine import available_cores
from flowvec.vectors import Metric, best_rows, scores

__all__ = ["PART_NUMBERS", "Parts", "Scorer"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# Numbers of rows that are multiplied at once with few queries, as in a block of a vectors file:
# they stay in the cache, numpy uses memory again that it freed just before, and OpenBLAS, which
# waits long for its threads on a busy machine, uses none.
PART_NUMBERS = 400_000
# Up to this many queries are multiplied one by one with a part while it is in the cache. For more,
# OpenBLAS's threads pay, if the product is large.
_FEW_QUERIES = 16
# Numbers of rows that are joined for many queries: 16 MiB of float32.
_JOINED_NUMBERS = 1 << 22
# Fewer numbers take less than a millisecond on one core.
_NUMBERS_OF_ONE_CORE = 3_000_000
# Scores held at once: 64 MiB of float32.
_MOST_SCORES = 1 << 24


@dataclass(frozen=True, slots=True)
class Parts:
    """Vectors that come part by part, in any order, to any thread.

    Attributes:
        rows: how many rows they are.
        starts: number of the first row of each part.
        get: returns a part, float32 (rows, dim).
    """

    rows: int
    starts: list[int]
    get: Callable[[int], Floats]


class Scorer:
    """Compares queries with parts. Any number of threads may use one."""

    def __init__(self, metric: Metric) -> None:
        """Compare by a metric; threads start when they are first needed."""
        self._metric = metric
        self._cores = available_cores()
        self._threads: ThreadPoolExecutor | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the threads. Later comparisons use the caller's alone."""
        with self._lock:
            threads, self._threads, self._is_closed = self._threads, None, True
        if threads is not None:
            threads.shutdown()

    def best(
        self, queries: Floats, k: int, labels: Labels, parts: Parts, chosen: Labels | None = None
    ) -> tuple[Labels, Floats]:
        """The k best rows of each query, best first; equal scores in their order.

        Args:
            queries: float32 (queries, dim).
            k: how many; there are at least so many.
            labels: labels of the rows, or of the chosen ones.
            parts: the rows.
            chosen: which rows may be found, ascending; None is all.

        Returns:
            Labels int64 and scores float32, (queries, k).
        """
        best = np.empty((len(queries), k), np.int64)
        best_scores = np.empty((len(queries), k), np.float32)
        step = max(1, _MOST_SCORES // max(1, parts.rows))
        for start in range(0, len(queries), step):
            for i, line in enumerate(self._scores(queries[start : start + step], parts), start):
                taken = line if chosen is None else line[chosen]
                rows = best_rows(taken, k)
                best[i], best_scores[i] = labels[rows], taken[rows]
        return best, best_scores

    def _scores(self, queries: Floats, parts: Parts) -> Floats:
        """Scores of all rows, float32 (queries, rows)."""
        lines = np.empty((len(queries), parts.rows), np.float32)
        if len(queries) > _FEW_QUERIES:
            for start, rows in _joined(parts):
                lines[:, start : start + len(rows)] = scores(queries, rows, self._metric)
            return lines
        # Threads take the next part each: one that starts late keeps nobody waiting.
        numbers = iter(range(len(parts.starts)))
        helpers: list[Future[None]] = []
        if self._cores > 1 and parts.rows * queries.size >= _NUMBERS_OF_ONE_CORE:
            count = min(self._cores, len(parts.starts)) - 1
            helpers = self._helpers(count, lines, queries, parts, numbers)
        try:
            self._fill(lines, queries, parts, numbers)
        finally:
            for helper in helpers:  # none may go on when the caller's locks are released
                helper.cancel()
            wait(helpers)
        for helper in helpers:
            if not helper.cancelled():
                helper.result()
        return lines

    def _fill(self, lines: Floats, queries: Floats, parts: Parts, numbers: Iterator[int]) -> None:
        """Fill in the scores of parts until there are no more."""
        for number in numbers:
            rows, start = parts.get(number), parts.starts[number]
            out = lines[:, start : start + len(rows)]
            if self._metric == "l2":
                out[:] = scores(queries, rows, "l2")
                continue
            for query, line in zip(queries, out, strict=True):
                np.matmul(rows, query, out=line)

    def _helpers(self, count: int, *work: Any) -> list[Future[None]]:
        """Let other threads call `_fill`; none after `close`."""
        with self._lock:
            if self._is_closed:
                return []
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    self._cores - 1, thread_name_prefix="flowvec-exact"
                )
            return [self._threads.submit(self._fill, *work) for _ in range(count)]


def _joined(parts: Parts) -> Iterator[tuple[int, Floats]]:
    """Fewer and larger parts: the first row, and the rows."""
    waiting, start, numbers = list[Floats](), 0, 0
    for number in range(len(parts.starts)):
        rows = parts.get(number)
        waiting.append(rows)
        numbers += rows.size
        if numbers >= _JOINED_NUMBERS or number + 1 == len(parts.starts):
            yield start, np.concatenate(waiting)
            start, waiting, numbers = parts.starts[number] + len(rows), [], 0
