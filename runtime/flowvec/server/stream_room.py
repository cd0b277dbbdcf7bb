"""How much of a model's queue each stream may hold, so that streams wait and requests get in."""

from __future__ import annotations

__all__ = ["StreamRoom"]


class StreamRoom:
    """Room for streams in one queue, in tokens. It decides; nothing here waits.

    All streams together hold at most half of the queue, in equal shares, and each at most what
    keeps the model busy. So however many streams there are, requests are still taken.
    """

    def __init__(self, most: int, enough: int) -> None:
        """No stream yet.

        Args:
            most: most tokens that a call may hold.
            enough: tokens that keep the model busy.
        """
        self._most = max(1, most // 2)
        self._enough = enough
        self._held: dict[object, int] = {}
        self.held = 0

    def enter(self, stream: object) -> None:
        """A stream begins."""
        self._held[stream] = 0

    def leave(self, stream: object) -> None:
        """A stream ends; what it still holds is released as it is done."""
        self._held.pop(stream, None)

    @property
    def share(self) -> int:
        """Most tokens of one stream."""
        return max(1, min(self._enough, self._most // max(1, len(self._held))))

    def fits(self, stream: object, cost: int) -> bool:
        """Whether a stream may add tokens now. One that holds none may add more than its share."""
        own = self._held[stream]
        if own and own + cost > self.share:
            return False
        return self.held == 0 or self.held + cost <= self._most

    def hold(self, stream: object, cost: int) -> None:
        """Tokens of a stream were queued."""
        self._held[stream] += cost
        self.held += cost

    def release(self, stream: object, cost: int) -> None:
        """Tokens of a stream are computed, or given up."""
        self.held -= cost
        if stream in self._held:
            self._held[stream] -= cost
