"""What the queue of a shared model reports to those who watch it: batches, and signs of life."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchReport", "Pulse"]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One run of the graph.

    Attributes:
        texts: texts of the batch; pairs for a reranker.
        tokens: their tokens, without padding.
        padded: tokens that were computed, padding included.
        seconds: time of the run.
    """

    texts: int
    tokens: int
    padded: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pulse:
    """Whether a queue makes progress, read in constant time.

    Attributes:
        waiting: texts that wait.
        oldest: when the text that has waited longest came, by `time.perf_counter`; None if none
            waits.
        busy_since: when the longest piece of work that runs now began; None if none runs.
        dead: worker threads that have ended, though the queue is open.
    """

    waiting: int
    oldest: float | None
    busy_since: float | None
    dead: int
