"""Figures of the server as they are now, once or every second."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypedDict

import msgspec
import numpy as np

from flowvec.server.answer import Answer, json_answer
from flowvec.server.described import described
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served

__all__ = ["Live", "live", "live_of"]

_PERIOD = 1.0
# A stream ends after so many events, and its reader asks again.
_EVENTS = 600
_MOST_STREAMS = 64
# Percentiles are of requests that were answered in the last seconds.
_WINDOW = 10.0
_REFUSED = (429, 503, 504)

_streams: set[int] = set()


class Live(TypedDict):
    """Counts since the start, and what is going on.

    Percentiles are milliseconds of requests for work that were answered in the last ten seconds;
    null without one. `memory` is bytes; null where the system does not tell.
    """

    seconds: float
    requests: int
    refused: int
    texts: int
    tokens: int
    padding: int
    running: int
    waiting_texts: int
    waiting_tokens: int
    p50: float | None
    p95: float | None
    p99: float | None
    memory: int | None


@described(Live)
async def live(served: Served, request: Request) -> Answer:
    """The server's figures now; with `Accept: text/event-stream`, an event a second."""
    if "text/event-stream" not in (request.header(b"accept") or ""):
        return json_answer(live_of(served))
    if len(_streams) >= _MOST_STREAMS:
        raise Refusal("overloaded", f"{_MOST_STREAMS} pages follow the figures", retry_after=10.0)
    headers = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    return Answer(_events(served, request), 200, b"text/event-stream", headers)


def live_of(served: Served) -> Live:
    """A server's figures now."""
    measures, queues = served.measures, served.queues
    since = time.perf_counter() - _WINDOW
    recent = [seconds for when, seconds in list(measures.recent) if when >= since]
    p50, p95, p99 = (
        (1e3 * np.percentile(recent, (50, 95, 99))).tolist() if recent else (None, None, None)
    )
    return {
        "seconds": time.time() - served.started,
        "requests": measures.requests.total(),
        "refused": sum(n for (_, status), n in measures.requests.items() if status in _REFUSED),
        "texts": sum(model.measures.items for model in queues),
        "tokens": sum(model.measures.tokens for model in queues),
        "padding": sum(model.measures.padding for model in queues),
        "running": served.running,
        "waiting_texts": sum(model.queue.waiting_items for model in queues),
        "waiting_tokens": sum(model.queue.waiting_tokens for model in queues),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "memory": _memory(),
    }


async def _events(served: Served, request: Request) -> AsyncIterator[bytes]:
    """Figures every second, until the client leaves or the server stops."""
    _streams.add(id(request))
    gone = asyncio.ensure_future(request.gone())
    try:
        for _ in range(_EVENTS):
            yield b"data: " + msgspec.json.encode(live_of(served)) + b"\n\n"
            done, _pending = await asyncio.wait({gone}, timeout=_PERIOD)
            if done or served.is_leaving:
                return
    finally:
        gone.cancel()
        _streams.discard(id(request))


def _memory() -> int | None:
    """Resident bytes of this process."""
    if sys.platform != "linux":
        return None
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
