"""A call that waits in the queue of a model, and what comes of it."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.encoder.shared_model import Call
from flowvec.server.refusal import Refusal
from flowvec.server.shares import Part, Work
from flowvec.server.spent import Stage

__all__ = ["Costs", "Outcome", "QueuedCall", "about_item", "parts_of"]

# Tokens of each item, as estimated: whole numbers, (items,).
Costs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of a call.

    Attributes:
        results: vectors, scores, SparseVectors or a list of the vectors of tokens; in the order of
            the items.
        tokens: tokens that were computed, special tokens included.
        truncated: items that were cut.
        tokenize_seconds: time in the tokenizer.
        queue_seconds: from the arrival to the first batch, without the tokenizer's time.
        compute_seconds: from the first batch to the last.
    """

    results: Any
    tokens: int
    truncated: int
    tokenize_seconds: float
    queue_seconds: float
    compute_seconds: float

    def stages(self, model: str, end: float) -> list[Stage]:
        """Where the time went of a call that ended at a time of `time.perf_counter`.

        The tokenizer ran at some time between arrival and first batch; it is put at the end.
        """
        begun = end - self.compute_seconds
        tokenize = begun - self.tokenize_seconds
        return [
            Stage("queue", model, tokenize - self.queue_seconds, tokenize),
            Stage("tokenize", model, tokenize, begun),
            Stage("compute", model, begun, end),
        ]


@dataclass(slots=True, eq=False)
class QueuedCall(Work):
    """A call that waits for its results.

    Attributes:
        done: has the Outcome, or the reason why there is none.
        options: of the model, for every part.
        came: when it came, by `time.perf_counter`.
        end: deadline, by `time.perf_counter`.
    """

    done: asyncio.Future[Outcome] = field(kw_only=True)
    options: dict[str, Any] = field(kw_only=True)
    came: float = field(kw_only=True)
    end: float = field(kw_only=True)
    running: dict[int, Call] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    left: int = 0
    tokens: int = 0
    truncated: int = 0
    tokenize_seconds: float = 0.0
    begun: float = 0.0


def parts_of(items: list[Any], costs: Costs, most: int) -> deque[Part]:
    """Runs of items, each with as many as fit into so many tokens, and at least one."""
    cost = int(costs.sum())
    if cost <= most:
        return deque([Part(0, 0, items, cost)])
    ends = np.cumsum(costs)
    parts: deque[Part] = deque()
    start, before = 0, 0
    while start < len(items):
        stop = int(np.searchsorted(ends, before + most, side="right"))
        stop = max(stop, start + 1)
        after = int(ends[stop - 1])
        parts.append(Part(len(parts), start, items[start:stop], after - before))
        start, before = stop, after
    return parts


def about_item(refusal: Refusal, first: int) -> Refusal:
    """Count the items of a message in the call instead of its part."""
    refusal.message = re.sub(
        r"\bitem (\d+)", lambda match: f"item {int(match[1]) + first}", refusal.message
    )
    return refusal
