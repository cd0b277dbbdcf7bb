"""How fast a model computes, from the batches that it has computed."""

from __future__ import annotations

import threading

from flowvec.encoder.queue_reports import BatchReport

__all__ = ["Rate"]

# The newest batch counts this much; older ones count less and less.
_WEIGHT = 0.1


class Rate:
    """Tokens per second of a model whose streams are all busy. Threads may share it."""

    def __init__(self, streams: int, budget: int) -> None:
        """Nothing has been measured yet.

        Args:
            streams: batches that are computed at the same time.
            budget: most tokens of a batch. Batches of less than half of it say little about a busy
                model, and count only until there is a larger one.
        """
        self._streams = streams
        self._enough = budget / 2
        self._lock = threading.Lock()
        self._tokens = self._seconds = 0.0
        self._is_measured = False

    def add(self, batch: BatchReport) -> None:
        """Count a batch."""
        is_full = batch.padded >= self._enough
        with self._lock:
            if not is_full and self._is_measured:
                return
            if is_full and not self._is_measured:
                self._is_measured = True
                self._tokens = self._seconds = 0.0
            keep = 1.0 - _WEIGHT
            self._tokens = keep * self._tokens + batch.tokens
            self._seconds = keep * self._seconds + batch.seconds

    @property
    def is_measured(self) -> bool:
        """Whether there was a batch that shows what the model can do."""
        return self._is_measured

    def seconds(self, tokens: float) -> float | None:
        """How long that many tokens take, if nothing else is computed; None before any batch."""
        with self._lock:
            if not self._tokens:
                return None
            return tokens * self._seconds / (self._tokens * self._streams)
