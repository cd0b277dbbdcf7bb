"""Whose work is next: fair shares between API keys, and between the calls of each key, by tokens.

Keys take turns as in start-time fair queueing (Goyal, Vin and Cheng 1996): the key that has
had the fewest tokens is next, and a key that comes back after a pause begins where the others are.
The calls of one key take turns part by part. So a caller who sends a hundred thousand texts delays
one who sends a single text by one part at most.

How much may wait follows dynamic thresholds (Choudhury and Hahne 1998): with several keys, none may
hold more than what is left free. One key alone holds half of the bound at most, two a third each,
and there is always room for another.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

__all__ = ["Part", "Shares", "Work"]


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a call's items.

    Attributes:
        number: which part of the call it is, from 0.
        first: index of its first item in the call.
        items: the texts, or pairs of texts.
        cost: their tokens, as estimated.
    """

    number: int
    first: int
    items: list[Any]
    cost: int


@dataclass(slots=True, eq=False)
class Work:
    """One call: its parts that have not begun, and what its unfinished parts cost.

    Attributes:
        key: name of the API key; "" without one.
        parts: those that have not begun, in order.
        cost: tokens of the parts that are not finished.
        is_dropped: nobody waits for it any more.
    """

    key: str
    parts: deque[Part]
    cost: int
    is_dropped: bool = False


@dataclass(slots=True, eq=False)
class _Share:
    """What one key has had, and what it waits for.

    Attributes:
        served: tokens that were begun, as virtual time.
        held: tokens of its calls that are not finished.
        calls: its calls with parts that have not begun; the first is next.
        is_listed: whether it is in the heap.
    """

    served: float = 0.0
    held: int = 0
    calls: deque[Work] = field(default_factory=deque)
    is_listed: bool = False


class Shares:
    """Calls that wait. It decides; nothing here runs or waits."""

    def __init__(self, most: int, *, is_shared: bool) -> None:
        """Nothing waits yet.

        Args:
            most: most tokens of calls that are not finished.
            is_shared: whether there are several keys, for which room is kept.
        """
        self.most = most
        self._is_shared = is_shared
        self._shares: dict[str, _Share] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._order = count()
        self._clock = 0.0  # virtual time: `served` of the key that was last in turn
        self.held = 0

    @property
    def most_of_a_call(self) -> int:
        """A call with more tokens than this is never accepted."""
        return self.most // 2 if self._is_shared else self.most

    @property
    def waiting_items(self) -> int:
        """Items of parts that have not begun."""
        calls = (call for share in self._shares.values() for call in share.calls)
        return sum(len(part.items) for call in calls for part in call.parts)

    def excess(self, key: str, cost: int) -> int:
        """By how many tokens a call is too much now; 0 if there is room for it."""
        excess = self.held + cost - self.most
        if self._is_shared:
            share = self._shares.get(key)
            own = cost + (share.held if share is not None else 0)
            excess = max(excess, own + self.held + cost - self.most)
        return max(0, excess)

    def put(self, work: Work) -> None:
        """Take a call in; `excess` has been looked at."""
        share = self._shares.setdefault(work.key, _Share())
        if not share.calls:
            share.served = max(share.served, self._clock)
        share.calls.append(work)
        share.held += work.cost
        self.held += work.cost
        self._list(work.key, share)

    def take(self) -> tuple[Work, Part] | None:
        """The part that is next; None if all have begun."""
        while self._heap:
            _, _, key = heapq.heappop(self._heap)
            share = self._shares[key]
            share.is_listed = False
            while share.calls and (share.calls[0].is_dropped or not share.calls[0].parts):
                share.calls.popleft()
            if not share.calls:
                continue
            work = share.calls.popleft()
            part = work.parts.popleft()
            if work.parts:
                share.calls.append(work)
            self._clock = share.served
            share.served += part.cost
            self._list(key, share)
            return work, part
        return None

    def finish(self, work: Work, part: Part) -> None:
        """A part that was taken is done."""
        if not work.is_dropped:
            self._release(work, part.cost)

    def drop(self, work: Work) -> None:
        """Give up a call: what has not begun never begins, and its room is free. Twice is
        harmless."""
        if not work.is_dropped:
            work.is_dropped = True
            self._release(work, work.cost)
            work.parts.clear()

    def _release(self, work: Work, cost: int) -> None:
        share = self._shares[work.key]
        work.cost -= cost
        share.held -= cost
        self.held -= cost

    def _list(self, key: str, share: _Share) -> None:
        if share.calls and not share.is_listed:
            share.is_listed = True
            heapq.heappush(self._heap, (share.served, next(self._order), key))
