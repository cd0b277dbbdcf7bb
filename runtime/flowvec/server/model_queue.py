"""The queue of a served model: what is accepted, what is next, and what is too late.

It lives on one event loop. `SharedModel` computes; it is given so much at a time that its streams
are never without work and its batches are full, and no more, so that the order of what waits is
decided here.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from flowvec.encoder.shared_model import Call, SharedModel
from flowvec.errors import FlowvecError
from flowvec.server.queued_call import Costs, Outcome, QueuedCall, about_item, parts_of
from flowvec.server.rate import Rate
from flowvec.server.refusal import Refusal, refusal_of
from flowvec.server.shares import Part, Shares
from flowvec.server.stream_room import StreamRoom

__all__ = ["Costs", "ModelQueue", "Outcome", "QueuedCall"]

# Batches for each stream that are handed over at a time: one that runs, and some to choose from.
_BATCHES_AHEAD = 4
# A call is split into parts, so that others get their turn in between.
_PARTS_AHEAD = 4


class ModelQueue:
    """Calls of one model, in the order of fair shares."""

    def __init__(
        self,
        shared: SharedModel,
        submit: Callable[..., Call],
        rate: Rate,
        *,
        budget: int,
        streams: int,
        most: int,
        is_shared: bool,
    ) -> None:
        """An empty queue.

        Args:
            shared: what computes.
            submit: queues items there, and gives the call.
            rate: how fast it is.
            budget: most tokens of a batch.
            streams: batches at a time.
            most: most tokens that may wait.
            is_shared: whether there are several API keys.
        """
        self._shared = shared
        self._submit = submit
        self._rate = rate
        self._window = _BATCHES_AHEAD * streams * budget
        self._part = max(1, self._window // _PARTS_AHEAD)
        self._running = 0  # tokens of parts that were handed over
        self._shares = Shares(most, is_shared=is_shared)
        self._progress = time.perf_counter()
        self._freed: asyncio.Future[None] | None = None
        self.streams = StreamRoom(self._shares.most_of_a_call, self._window)
        self.on_part: Callable[[list[Any], Call], None] | None = None

    # --- state ----------------------------------------------------------------------------------

    @property
    def waiting_tokens(self) -> int:
        """Tokens of accepted calls that are not computed yet, as estimated."""
        return self._shares.held

    @property
    def waiting_items(self) -> int:
        """Texts or pairs that have not begun."""
        return self._shares.waiting_items

    @property
    def most_of_a_call(self) -> int:
        """A call with more tokens than this is never accepted."""
        return self._shares.most_of_a_call

    def has_room(self, key: str, cost: int) -> bool:
        """Whether a call of that many tokens would be accepted now."""
        return not self._shares.excess(key, cost)

    def freed(self) -> asyncio.Future[None]:
        """Done when something is computed or given up, after which there may be room."""
        if self._freed is None:
            self._freed = asyncio.get_running_loop().create_future()
        return self._freed

    def stalled_seconds(self) -> float:
        """How long there was no result, though calls wait or a batch runs; 0 if none does."""
        now = time.perf_counter()
        since = self._progress if self._shares.held else now
        # Callers of an engine that hangs leave, and then nothing waits.
        busy = self._shared.pulse().busy_since
        return now - min(since, now if busy is None else busy)

    @property
    def dead_threads(self) -> int:
        """Worker threads that have ended."""
        return self._shared.pulse().dead

    # --- calls ----------------------------------------------------------------------------------

    def put(
        self,
        key: str,
        items: list[Any],
        costs: Costs,
        options: dict[str, Any],
        *,
        came: float,
        end: float,
    ) -> QueuedCall:
        """Accept a call.

        Args:
            key: name of the API key.
            items: at least one.
            costs: tokens of each, as estimated.
            options: of the model.
            came: when the request came, by `time.perf_counter`.
            end: its deadline.

        Raises:
            Refusal: there is no room, or it cannot be done before its deadline.
        """
        cost = int(costs.sum())
        self._check(key, cost, end)
        call = QueuedCall(
            key,
            parts_of(items, costs, self._part),
            cost,
            done=asyncio.get_running_loop().create_future(),
            options=options,
            came=came,
            end=end,
        )
        call.left = len(call.parts)
        if not self._shares.held:
            self._progress = time.perf_counter()
        self._shares.put(call)
        self._begin_what_fits()
        return call

    def _check(self, key: str, cost: int, end: float) -> None:
        if cost > self._shares.most_of_a_call:
            raise Refusal(
                "too_large",
                f"the request holds about {cost:,} tokens (a text counts as at least 16), and the "
                f"server takes {self._shares.most_of_a_call:,} at a time: send fewer texts a "
                "request",
            )
        self._check_time(cost, end)
        if excess := self._shares.excess(key, cost):
            seconds = self._rate.seconds(excess)
            # Callers that were refused together must not come back together.
            wait = max(0.05, 1.0 if seconds is None else seconds) * (1 + random.random() / 4)
            raise Refusal(
                "overloaded",
                f"{self._shares.held:,} tokens wait, and no more than {self._shares.most:,} may: "
                f"try again in {wait:.2g} s",
                retry_after=wait,
            )

    def _check_time(self, cost: int, end: float) -> None:
        left = end - time.perf_counter()
        seconds = self._rate.seconds(cost) if self._rate.is_measured else None
        if left <= 0 or (seconds is not None and seconds > left):
            raise Refusal("late", "the request cannot be answered before its deadline")

    def drop(self, call: QueuedCall) -> None:
        """Give up a call: its place is free at once. Twice is harmless."""
        self._shares.drop(call)
        for running in list(call.running.values()):
            running.future.cancel()
        if not call.done.done():
            call.done.cancel()
        self._begin_what_fits()

    # --- running --------------------------------------------------------------------------------

    def _begin_what_fits(self) -> None:
        freed, self._freed = self._freed, None
        if freed is not None and not freed.done():
            freed.set_result(None)
        while self._running < self._window:
            taken = self._shares.take()
            if taken is None:
                return
            call, part = taken
            assert isinstance(call, QueuedCall)
            try:
                self._check_time(call.cost, call.end)
                running = self._submit(part.items, **call.options)
            except Refusal as refusal:
                self._fail(call, refusal)
            except FlowvecError as error:
                self._fail(call, refusal_of(error))
            else:
                self._running += part.cost
                call.running[part.number] = running
                self._when_done(call, part, running)

    def _when_done(self, call: QueuedCall, part: Part, running: Call) -> None:
        loop = asyncio.get_running_loop()

        def tell(_: Future[Any]) -> None:
            loop.call_soon_threadsafe(self._finished, call, part, running)

        running.future.add_done_callback(tell)

    def _finished(self, call: QueuedCall, part: Part, running: Call) -> None:
        self._running -= part.cost
        if not running.future.cancelled():
            self._progress = time.perf_counter()
        self._shares.finish(call, part)
        call.running.pop(part.number, None)
        # Its deadline may have passed, or its client left, since the loop last gave it a turn.
        if not (call.is_dropped or call.done.done()):
            try:
                self._take_results(call, part, running)
            except CancelledError:
                self.drop(call)
            except FlowvecError as error:
                self._fail(call, about_item(refusal_of(error), part.first))
        self._begin_what_fits()

    def _take_results(self, call: QueuedCall, part: Part, running: Call) -> None:
        call.results[part.number] = running.future.result()
        call.tokens += running.tokens
        call.truncated += running.truncated
        call.tokenize_seconds += running.tokenize_seconds
        call.begun = min(call.begun or running.begun, running.begun)
        call.left -= 1
        if self.on_part is not None:
            self.on_part(part.items, running)
        if not call.left:
            parts = [call.results[number] for number in range(len(call.results))]
            now = time.perf_counter()
            queue = call.begun - call.came - call.tokenize_seconds
            call.done.set_result(
                Outcome(
                    parts[0] if len(parts) == 1 else self._shared.joined(parts),
                    call.tokens,
                    call.truncated,
                    call.tokenize_seconds,
                    max(0.0, queue),
                    now - call.begun,
                )
            )

    def _fail(self, call: QueuedCall, refusal: Refusal) -> None:
        self._shares.drop(call)
        for running in list(call.running.values()):
            running.future.cancel()
        if not call.done.done():
            call.done.set_exception(refusal)
