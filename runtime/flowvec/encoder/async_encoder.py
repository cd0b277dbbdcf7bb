"""`SharedEncoder` for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, Unpack

import numpy.typing as npt

from flowvec.arguments import seconds_or_none
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.options import EncodeOptions
from flowvec.encoder.shared_encoder import DEFAULT_MAX_WAITING, QueueStatistics, SharedEncoder
from flowvec.errors import DeadlineError

__all__ = ["AsyncEncoder"]

# Checking more texts than this would block the event loop: a thread does it.
_FEW_TEXTS = 64

_Vectors = Future[npt.NDArray[Any]]


class AsyncEncoder:
    """An Encoder for any number of asyncio tasks; texts of different tasks share batches.

    The event loop is never blocked: tokenizing and the model run on threads.

        >>> async def main() -> int:
        ...     async with AsyncEncoder(Encoder.load("mini")) as model:
        ...         vector = await model.encode("A man is eating.", timeout=10.0)
        ...     return len(vector)
        >>> asyncio.run(main())
        384
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_batch_tokens: int | None = None,
    ) -> None:
        """As `SharedEncoder`."""
        self._shared = SharedEncoder(
            encoder, max_waiting=max_waiting, max_batch_tokens=max_batch_tokens
        )

    async def encode(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed texts, as `SharedEncoder.encode`; cancelling the task drops waiting texts."""
        seconds = seconds_or_none("timeout", timeout)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await asyncio.wrap_future(await self._submit(texts, options))
        except TimeoutError:
            if not limit.expired():  # raised by the caller's own iterable
                raise
            raise DeadlineError(f"not done within {timeout} s") from None

    async def _submit(self, texts: str | Iterable[str], options: EncodeOptions) -> _Vectors:
        if isinstance(texts, str) or (isinstance(texts, list | tuple) and len(texts) <= _FEW_TEXTS):
            return self._shared.submit(texts, **options)
        submitting = asyncio.ensure_future(asyncio.to_thread(self._shared.submit, texts, **options))
        try:
            return await asyncio.shield(submitting)
        except asyncio.CancelledError:
            # The thread cannot be stopped; the texts that it queues are dropped.
            submitting.add_done_callback(_drop)
            raise

    def statistics(self) -> QueueStatistics:
        """Counts so far, and how many texts wait now."""
        return self._shared.statistics()

    async def close(self, *, drain: bool = True) -> None:
        """As `SharedEncoder.close`; the event loop runs meanwhile."""
        await asyncio.to_thread(self._shared.close, drain=drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close(drain=kind is None)


def _drop(submitting: asyncio.Task[_Vectors]) -> None:
    """Cancel the call of a task that was cancelled."""
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
