"""A queue for asyncio: the base of `AsyncEncoder` and `AsyncReranker`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from flowvec.arguments import seconds_or_none
from flowvec.encoder.shared_model import QueueStatistics, SharedModel
from flowvec.errors import DeadlineError
from flowvec.unpicklable import OfOneProcess

__all__ = ["AsyncModel", "deadline", "results_of"]

# Checking more items than this would block the event loop: a thread does it.
_FEW_ITEMS = 64

_Results = Future[npt.NDArray[Any]]


@asynccontextmanager
async def deadline(timeout: float | None) -> AsyncIterator[None]:
    """Cancel the block after so many seconds; None is no limit.

    Raises:
        DeadlineError: the time has passed.
        InputTypeError, InputValueError: it is not a number of seconds.
    """
    seconds = seconds_or_none("timeout", timeout)
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():  # raised by what runs in the block
            raise
        raise DeadlineError(f"not done within {timeout} s") from None


async def results_of(submit: Callable[..., _Results], items: Any, options: Any) -> npt.NDArray[Any]:
    """Queue items, and wait for their results; cancelling the task drops waiting items."""
    return await asyncio.wrap_future(await _submitted(submit, items, options))


class AsyncModel(OfOneProcess):
    """A model for any number of asyncio tasks; items of different tasks share batches."""

    _shared: SharedModel

    async def _within(
        self,
        timeout: float | None,
        submit: Callable[..., _Results],
        items: Any,
        options: Any,
    ) -> npt.NDArray[Any]:
        """Queue items, and wait for their results; cancelling the task drops waiting items.

        Raises:
            DeadlineError: the timeout, in seconds, passed.
        """
        async with deadline(timeout):
            return await results_of(submit, items, options)

    def statistics(self) -> QueueStatistics:
        """Counts so far, and how many texts wait now."""
        return self._shared.statistics()

    async def close(self, *, drain: bool = True) -> None:
        """As `SharedEncoder.close`; the event loop runs meanwhile."""
        await asyncio.to_thread(self._shared.close, drain=drain)

    async def __aenter__(self) -> Self:
        self._shared.require_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:  # the event loop is gone, so nothing can be awaited
            self._shared.close(drain=False)
        else:
            await self.close(drain=kind is None)


async def _submitted(submit: Callable[..., _Results], items: Any, options: Any) -> _Results:
    """Queue items; many are checked on a thread."""
    if isinstance(items, str) or (isinstance(items, list | tuple) and len(items) <= _FEW_ITEMS):
        return submit(items, **options)
    submitting = asyncio.ensure_future(asyncio.to_thread(submit, items, **options))
    try:
        return await asyncio.shield(submitting)
    except asyncio.CancelledError:
        # The thread cannot be stopped; the items that it queues are dropped.
        submitting.add_done_callback(_drop)
        raise


def _drop(submitting: asyncio.Task[_Results]) -> None:
    """Cancel the call of a task that was cancelled."""
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
