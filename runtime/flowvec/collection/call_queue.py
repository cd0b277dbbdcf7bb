"""Calls that wait for one of a few threads: at most so many threads, and so many that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flowvec.arguments import whole_number
from flowvec.compat import override
from flowvec.errors import ClosedError, OverloadedError
from flowvec.worker_threads import WorkerThreads

__all__ = ["CallQueue", "CallStatistics"]


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """How many calls a queue of an `AsyncCollection` has had, and how many it has now.

        >>> async def main() -> int:
        ...     with Collection.create("counted", dim=2) as collection:
        ...         async with AsyncCollection(collection) as notes:
        ...             await notes.count()
        ...             return notes.statistics()["reads"].calls
        >>> asyncio.run(main())
        1

    Attributes:
        waiting: calls that wait for a thread.
        running: calls that a thread works on, those included whose callers have left.
        calls: calls that were accepted.
        overloaded: calls that were refused because too many waited.
        dropped: calls that never ran: their callers were cancelled or timed out, or the
            collection was closed.
    """

    waiting: int
    running: int
    calls: int
    overloaded: int
    dropped: int


@dataclass(slots=True, eq=False)
class _Waiting:
    run: Callable[[], Any]
    give_up: Callable[[], None] | None
    future: Future[Any] = field(default_factory=Future)


class CallQueue(WorkerThreads):
    """Runs calls on its threads, in the order in which they came."""

    def __init__(self, name: str, *, threads: int, max_waiting: int) -> None:
        """Start the threads.

        Args:
            name: what the calls are, for messages and the threads' names.
            threads: how many calls run at a time.
            max_waiting: most calls that may wait; more are refused.

        Raises:
            InputTypeError, InputValueError: a number is not a whole number above 0.
        """
        whole_number("max_waiting", max_waiting)
        self._name = name
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._running: set[_Waiting] = set()
        self._taken = self._overloaded = self._dropped = 0
        super().__init__(whole_number(f"{name}_threads", threads), f"flowvec-{name}")
        self.owner = "AsyncCollection"

    def submit(
        self, run: Callable[[], Any], give_up: Callable[[], None] | None = None
    ) -> Future[Any]:
        """Queue a call, and return at once.

        Args:
            run: the call.
            give_up: tells a running call that its result is no longer needed. It is called when
                the queue is closed without `drain`.

        Returns:
            A future of its result. A call that is cancelled before it starts never runs.

        Raises:
            OverloadedError: too many calls wait.
            ClosedError: after `close`, or in a forked child.
        """
        call = _Waiting(run, give_up)
        with self._changed:
            self._check()
            self._taken += 1
            self._waiting.append(call)
            self._changed.notify()
        return call.future

    def check(self) -> None:
        """Raise what `submit` would raise now."""
        with self._changed:
            self._check()

    def _check(self) -> None:
        self._check_process()
        self.require_open()
        if len(self._waiting) >= self._max_waiting:
            self._drop_cancelled()
        if len(self._waiting) >= self._max_waiting:
            self._overloaded += 1
            raise OverloadedError(
                f"{len(self._waiting)} {self._name}s wait, and max_waiting is {self._max_waiting}"
            )

    def _drop_cancelled(self) -> None:
        kept: deque[_Waiting] = deque()
        for call in self._waiting:
            if call.future.cancelled():
                call.future.set_running_or_notify_cancel()  # wakes threads that wait for it
                self._dropped += 1
            else:
                kept.append(call)
        self._waiting = kept

    def statistics(self) -> CallStatistics:
        """Counts so far, and how many calls wait and run now."""
        with self._changed:
            self._drop_cancelled()
            return CallStatistics(
                len(self._waiting),
                len(self._running),
                self._taken,
                self._overloaded,
                self._dropped,
            )

    @property
    @override
    def has_work(self) -> bool:
        """Whether calls wait; the lock is held."""
        return bool(self._waiting)

    @override
    def work_once(self) -> None:
        """Run the call that has waited longest."""
        with self._changed:
            if not self._waiting:
                return
            call = self._waiting.popleft()
            if not call.future.set_running_or_notify_cancel():
                self._dropped += 1
                return
            self._running.add(call)
        try:
            result, error = call.run(), None
        except BaseException as raised:  # a thread that ends would leave its callers waiting
            result, error = None, raised
        with self._changed:
            self._running.discard(call)
        with suppress(InvalidStateError):
            if error is None:
                call.future.set_result(result)
            else:
                call.future.set_exception(error)

    @override
    def _abandon(self) -> None:
        for call in self._waiting:
            self._dropped += 1
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(
                    ClosedError(f"this AsyncCollection was closed before the {self._name} began")
                )
        self._waiting.clear()
        for call in self._running:
            if call.give_up is not None:
                call.give_up()
