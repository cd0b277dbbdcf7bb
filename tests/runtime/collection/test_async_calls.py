"""Calls of tasks on threads, and texts on their way to vectors."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from flowvec import ClosedError, CollectionError, Encoder, SharedEncoder
from flowvec.collection.async_calls import AsyncCalls, Embedding


def test_texts_that_were_given_up_before_are_not_embedded(tiny: Encoder) -> None:
    with SharedEncoder(tiny) as shared:
        embedding = Embedding(shared)
        embedding.give_up()
        with pytest.raises(ClosedError, match="before the texts were embedded"):
            embedding(["a cat"] * 1000)
        assert shared.statistics().calls == 1
        # Nothing to embed is given up as well.
        with pytest.raises(ClosedError):
            embedding([])


def test_a_failure_that_no_caller_hears_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    entered, let_go = threading.Event(), threading.Event()

    def fail() -> None:
        entered.set()
        assert let_go.wait(60)
        raise CollectionError("the disk is full")

    async def main() -> None:
        calls = AsyncCalls(read_threads=1, write_threads=1, max_waiting=9)
        task = asyncio.create_task(calls.write(fail))
        assert await asyncio.to_thread(entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        let_go.set()
        await calls.close(drain=True)

    with caplog.at_level(logging.WARNING, "flowvec.collection.async_calls"):
        asyncio.run(main())
    assert "not made: the disk is full" in caplog.text
