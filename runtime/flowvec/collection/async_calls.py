"""Calls of asyncio tasks that run on threads: reads on some, changes on others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from flowvec.collection.call_queue import CallQueue, CallStatistics
from flowvec.encoder.async_model import deadline
from flowvec.encoder.shared_encoder import SharedEncoder
from flowvec.errors import ClosedError
from flowvec.machine import available_cores

__all__ = ["WRITE_THREADS", "AsyncCalls", "Embedding"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# More threads than cores only keep a slow read from delaying others.
_LEAST_READ_THREADS = 4
_MOST_READ_THREADS = 32
WRITE_THREADS = 4
# An `add` queues so many texts at a time, so that queries do not wait behind thousands of them.
_TEXTS_AT_A_TIME = 64


class AsyncCalls:
    """Runs calls of any number of event loops on threads; reads do not wait for writes."""

    def __init__(self, read_threads: int | None, write_threads: int, max_waiting: int) -> None:
        """Start the threads; arguments are those of `AsyncCollection`."""
        if read_threads is None:
            read_threads = min(max(available_cores(), _LEAST_READ_THREADS), _MOST_READ_THREADS)
        self.reads = CallQueue("read", threads=read_threads, max_waiting=max_waiting)
        try:
            self.writes = CallQueue("write", threads=write_threads, max_waiting=max_waiting)
        except BaseException:
            self.reads.close()
            raise
        self._is_closing = False
        # Of each call that is not done, a future of its event loop.
        self._calls: dict[asyncio.Future[None], None] = {}

    @property
    def is_closing(self) -> bool:
        """Whether new calls are refused."""
        return self._is_closing

    def require_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._is_closing:
            raise ClosedError("this AsyncCollection is closed")

    @asynccontextmanager
    async def call(self, timeout: float | None) -> AsyncIterator[None]:
        """One call, for which `close` waits.

        Raises:
            DeadlineError: the timeout, in seconds, passed.
            ClosedError: after `close`.
        """
        self.require_open()
        done = asyncio.get_running_loop().create_future()
        self._calls[done] = None
        try:
            async with deadline(timeout):
                yield
        finally:
            del self._calls[done]
            if not done.get_loop().is_closed():
                done.set_result(None)

    async def read(self, run: Callable[[], T], give_up: Callable[[], None] | None = None) -> T:
        """Run a read on a thread; `give_up` tells it that its caller has left."""
        return await _result_of(self.reads.submit(run, give_up), give_up)

    async def write(self, run: Callable[[], T], give_up: Callable[[], None] | None = None) -> T:
        """Run a change on a thread; `give_up` tells it that its caller has left."""
        future: Future[T] = self.writes.submit(run, give_up)
        try:
            return await _result_of(future, give_up)
        except asyncio.CancelledError:
            future.add_done_callback(_report_failure)
            raise

    @property
    def dead_threads(self) -> int:
        """Threads that have ended though this is open."""
        return self.reads.dead_threads + self.writes.dead_threads

    def statistics(self) -> dict[str, CallStatistics]:
        """Counts of `reads` and `writes`."""
        return {"reads": self.reads.statistics(), "writes": self.writes.statistics()}

    async def close(self, *, drain: bool) -> None:
        """Refuse new calls; let those of this event loop end first if `drain` is set."""
        self._is_closing = True
        loop = asyncio.get_running_loop()
        calls = [call for call in self._calls.copy() if call.get_loop() is loop]
        if drain and calls:
            await asyncio.wait(calls)
        await asyncio.to_thread(self.stop, drain)

    def stop(self, drain: bool) -> None:
        """Refuse new calls and stop the threads."""
        self._is_closing = True
        queues = (self.writes, self.reads)
        for queue in queues:
            queue.refuse(drain=drain)
        for queue in queues:
            queue.close(drain=drain)


async def _result_of(future: Future[T], give_up: Callable[[], None] | None) -> T:
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if give_up is not None:
            give_up()
        raise


def _report_failure(future: Future[Any]) -> None:
    """Log why a change failed whose caller did not wait for it."""
    error = None if future.cancelled() else future.exception()
    if error is not None and not isinstance(error, ClosedError):
        logger.warning("a change whose caller had left was not made: %s", error)


class Embedding:
    """The texts of an `add` on their way to vectors, until they are given up."""

    def __init__(self, shared: SharedEncoder) -> None:
        self._shared = shared
        self._is_given_up = False
        self._waiting: Future[Any] | None = None

    def give_up(self) -> None:
        """Embed no more texts; nothing happens if all are embedded. Twice is harmless."""
        self._is_given_up = True
        waiting = self._waiting
        if waiting is not None:
            waiting.cancel()

    def __call__(self, texts: list[str]) -> tuple[npt.NDArray[np.float32], int]:
        """Vectors of documents, float32 (texts, dim), and how many of the texts were cut.

        Raises:
            ClosedError: they were given up.
            OverloadedError: the encoder's queue is full.
        """
        encoder = self._shared.encoder
        vectors, truncated = [np.empty((0, encoder.dim), np.float32)], 0
        for first in range(0, len(texts), _TEXTS_AT_A_TIME):
            part = texts[first : first + _TEXTS_AT_A_TIME]
            call = self._shared._call(part, prompt_name=encoder.document_prompt)
            self._waiting = call.future
            if self._is_given_up:  # before it could cancel this part
                call.future.cancel()
            try:
                vectors.append(call.future.result())
            except CancelledError:
                raise _given_up() from None
            truncated += call.truncated
        if self._is_given_up:
            raise _given_up()
        return np.concatenate(vectors), truncated


def _given_up() -> ClosedError:
    return ClosedError("this AsyncCollection was closed before the texts were embedded")
