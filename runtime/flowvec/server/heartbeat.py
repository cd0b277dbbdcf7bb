"""Signs of life that the event loop leaves for other threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["Heartbeat"]

# Seconds between two beats.
_EVERY = 0.1


class Heartbeat:
    """When the event loop last had a turn, and what was wrong then.

    The loop writes, and any thread reads without waiting for the loop.

    Attributes:
        fault: what was wrong at the last beat; None if nothing was.
    """

    def __init__(self) -> None:
        """A heart that does not beat yet."""
        self.fault: str | None = None
        self._last: float | None = None

    def start(self, look: Callable[[], str | None]) -> None:
        """Beat on the running event loop until it ends.

        Args:
            look: says on the loop what is wrong; it must not wait.
        """
        loop = asyncio.get_running_loop()

        def beat() -> None:
            loop.call_later(_EVERY, beat)
            self.fault = look()
            self._last = time.monotonic()

        beat()

    @property
    def has_begun(self) -> bool:
        """Whether the loop has had a turn."""
        return self._last is not None

    def age(self) -> float:
        """Seconds since the last beat; 0 before the first."""
        last = self._last
        return 0.0 if last is None else time.monotonic() - last
