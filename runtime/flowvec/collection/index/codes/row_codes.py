"""Codes of a table's rows, with which a scan finds the nearest."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.codes.codes_file import CodesFile
from flowvec.collection.index.vector_file import VectorFile
from flowvec.hnsw import Codes, Frame, Places
from flowvec.hnsw.frame import MOST_SAMPLED
from flowvec.machine import available_cores
from flowvec.vectors import Metric

__all__ = ["RowCodes"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# How many standard deviations an estimate may be wrong. With 3, a scan finds .9998 of the ten
# nearest of sentences, and computes about 20 scores: see bench/log/2026-11-29.md.
_REACH = 3.0
# Fewer rows, or more results than this share of them, are not worth estimates.
_LEAST_ESTIMATED, _MOST_RESULTS = 512, 1 / 8
# So many codes are made at once by a search that needs them: a few milliseconds.
_MOST_AT_ONCE = 512
# Numbers that are copied and encoded in one step: 32 MiB of float32.
_STEP_NUMBERS = 1 << 23
# Fewer rows are encoded in less time than a thread takes to start.
_ROWS_OF_ONE_CORE = 256
# Queries times numbers that are scanned in one step: about 50 ms. New codes wait for a step.
_SCANNED_NUMBERS = 1 << 33


class RowCodes:
    """Codes of the first slots of a table and of all its snapshots, which share their vectors.

    Any number of threads may use it.
    """

    def __init__(self, dim: int, metric: Metric, vectors: VectorFile | None) -> None:
        """No codes yet.

        Args:
            dim: length of the vectors.
            metric: what compares them.
            vectors: the file of the first slots, beside which codes are kept.
        """
        self._squared, self._vectors = metric == "l2", vectors
        self._codes = Codes(dim, squared=self._squared)
        self._file = None if vectors is None else CodesFile(vectors, self._codes)
        self._fitted = 0  # slots of which some were looked at for the codes' frame
        self._is_read = False
        self._dim, self._cores = dim, available_cores()
        self._following = threading.RLock()  # which knows whether this thread has it
        self._covered = 0  # slots that have codes
        self.is_usable = True  # very long vectors have no estimates

    @property
    def nbytes(self) -> int:
        """Memory of this process alone."""
        return self._codes.nbytes if self._covered else 0

    @property
    def mapped_bytes(self) -> int:
        """Size of the codes that all processes share."""
        return 0 if self._file is None else self._file.mapped_bytes

    def scan_pays(self, k: int, eligible: int) -> bool:
        """Whether a scan is the fastest search for the k nearest of so many rows with codes."""
        can = self.is_usable and eligible >= _LEAST_ESTIMATED
        return can and k <= _MOST_RESULTS * eligible

    def problem(self, records: int) -> str | None:
        """What is wrong with the file, or None; `records` of the vectors file are valid."""
        return None if self._file is None else self._file.problem(records)

    def ready(self, slots: int, records: int, vectors_of: Callable[[Labels], Floats]) -> int:
        """How many of the first slots have codes, when a search needs them.

        The codes of the file count, and those that are made in a moment. Nothing is waited for.
        """
        is_due = not self._is_read or 0 < slots - self._covered <= _MOST_AT_ONCE
        try:
            if is_due and self.is_usable and self._following.acquire(blocking=False):
                with self._giving_up_on_errors():
                    if not self._is_read:
                        self._read(records)
                    if 0 < slots - self._covered <= _MOST_AT_ONCE:
                        self._add(slots, vectors_of)
        finally:
            try:
                self._leave()
            finally:  # also if a Ctrl-C comes in between
                self._leave()
        return min(slots, self._covered)

    def _leave(self) -> None:
        if self._following._is_owned():  # type: ignore[attr-defined]
            self._following.release()

    def lacks(self, slots: int) -> bool:
        """Whether codes of some of the first slots can be made."""
        return self.is_usable and self._covered < slots

    def worth_writing(self, records: int) -> bool:
        """Whether the file lacks codes of its records that are there."""
        done = min(records, self._covered)
        return self.is_usable and self._file is not None and self._file.worth_writing(done)

    def follow(
        self,
        slots: int,
        records: int,
        vectors_of: Callable[[Labels], Floats],
        stopped: Callable[[], bool] | None = None,
    ) -> bool:
        """Make the codes that the first so many slots lack, and write those that the file lacks.

        Args:
            slots: how many.
            records: how many of them are records of the file.
            vectors_of: returns the vectors of slots, float32 (slots, dim).
            stopped: called now and then; True makes this give up.

        Returns:
            Whether a scan may be asked.
        """
        with self._following, self._giving_up_on_errors():
            if self.lacks(slots):
                self._read(records)
            if self.lacks(slots) and 0 < self._fitted < MOST_SAMPLED <= slots // 2:
                self._begin_again(slots, records, vectors_of, stopped or (lambda: False))
            while True:
                if self._file is not None and self.is_usable:
                    self._file.write(min(records, self._covered))
                if not self.lacks(slots) or (stopped is not None and stopped()):
                    break
                self._add(slots, vectors_of)
        return self.is_usable and self._covered >= slots

    def _read(self, records: int) -> None:
        self._is_read = True
        if self._file is not None:
            self._file.read(records)
            self._covered = len(self._codes)

    def _begin_again(
        self,
        slots: int,
        records: int,
        vectors_of: Callable[[Labels], Floats],
        stopped: Callable[[], bool],
    ) -> None:
        """Make codes with a frame for many rows, instead of those for the first few."""
        codes = Codes(self._dim, squared=self._squared)
        file = None if self._vectors is None else CodesFile(self._vectors, codes)
        if file is not None:
            file.read(records)  # another process may have made them
        while len(codes) < self._covered:
            if stopped():
                return
            self._encode(codes, self._covered, slots, vectors_of)
        # Searches may use these from now on: they are of as many rows.
        self._codes, self._file, self._fitted = codes, file, slots
        self._covered = len(codes)

    def _add(self, slots: int, vectors_of: Callable[[Labels], Floats]) -> None:
        """Make codes of the next slots, and perhaps not of all."""
        if not len(self._codes):
            self._fitted = slots
        self._encode(self._codes, slots, slots, vectors_of)
        self._covered = len(self._codes)

    def _encode(
        self, codes: Codes, slots: int, all_slots: int, vectors_of: Callable[[Labels], Floats]
    ) -> None:
        """Make codes of the next slots, perhaps not of all, with a frame for `all_slots`."""
        if codes.frame is None:
            some = np.linspace(0, all_slots - 1, min(all_slots, MOST_SAMPLED), dtype=np.int64)
            codes.begin(Frame.fit(vectors_of(some), squared=self._squared))
        first = len(codes)  # a Ctrl-C may have come before `_covered` was set
        end = min(first + max(1, _STEP_NUMBERS // self._dim), slots)
        vectors = vectors_of(np.arange(first, end))
        threads = min(self._cores, 1 + len(vectors) // _ROWS_OF_ONE_CORE)
        if not codes.add(vectors, threads):
            logger.warning("a vector is longer than 1e18: rows are compared exactly")
            self.is_usable = False

    @contextmanager
    def _giving_up_on_errors(self) -> Iterator[None]:
        """Do not begin again and again: rows are compared exactly."""
        try:
            yield
        except Exception:
            self.is_usable = False
            raise

    def search(
        self,
        queries: Floats,
        k: int,
        places: Places,
        first: int,
        last: int,
        allowed: Mask | None,
    ) -> tuple[Labels, Floats]:
        """Slots int64 and scores float32 of the k nearest, (queries, k); see `Codes.search`."""
        step = max(1, _SCANNED_NUMBERS // max(1, self._dim * (last - first)))
        found = [
            self._codes.search(
                queries[start : start + step], k, places, first=first, last=last, allowed=allowed,
                reach=_REACH, threads=self._cores,
            )
            for start in range(0, max(1, len(queries)), step)
        ]  # fmt: skip
        if len(found) == 1:
            return found[0]
        slots, scores = zip(*found, strict=True)
        return np.concatenate(slots), np.concatenate(scores)
