"""Which requests began before a model was replaced, so that it is kept open for them."""

from __future__ import annotations

import asyncio

__all__ = ["Generations"]

# Seconds between two looks.
_LOOK = 0.05


class Generations:
    """Requests that run, counted by when they began. It lives on one event loop."""

    def __init__(self) -> None:
        """None runs."""
        self._now = 0
        self._running = {0: 0}

    def begin(self) -> int:
        """A request begins; `end` takes what this returns."""
        self._running[self._now] += 1
        return self._now

    def end(self, generation: int) -> None:
        """A request ends."""
        self._running[generation] -= 1
        if generation != self._now and not self._running[generation]:
            del self._running[generation]

    async def earlier(self) -> None:
        """Wait until every request has ended that runs now."""
        if not self._running[self._now]:
            del self._running[self._now]
        self._now += 1
        first = self._now
        self._running[first] = 0
        while any(generation < first for generation in self._running):
            await asyncio.sleep(_LOOK)
