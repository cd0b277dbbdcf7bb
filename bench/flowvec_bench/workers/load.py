"""Callers who each send one text and wait: how long each waits, and how many are served.

It runs in a peer's environment, so it only imports the standard library.

A *closed loop* has a fixed number of callers, who send the next text when they have their vector.
An *open loop* has arrivals at random times (Poisson), which do not wait for earlier answers; a wait
starts at the arrival, so the waits of an engine that falls behind grow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, takewhile

__all__ = ["Load", "arrivals", "closed_loop", "closed_loop_async", "open_loop", "open_loop_async"]

Call = Callable[[str], object]
AsyncCall = Callable[[str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Load:
    """Measurements of the callers.

    Attributes:
        waits: seconds of each call that was answered.
        seconds: from the first call to the last answer.
        unanswered: calls that were given up.
    """

    waits: list[float]
    seconds: float
    unanswered: int = 0


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Times of a Poisson process with `rate` events per second, from 0 to `seconds`."""
    draw = random.Random(seed)
    gaps = iter(lambda: draw.expovariate(rate), None)
    return list(takewhile(lambda moment: moment < seconds, accumulate(gaps)))


def closed_loop(call: Call, callers: int, texts: Sequence[str], seconds: float) -> Load:
    """Run threads that call an engine which serves one call at a time, in order of arrival.

    Each calls at least once.
    """
    waits: list[float] = []
    started = time.perf_counter()
    end = started + seconds

    def caller(first: int, send: Call) -> None:
        place = first
        now = time.perf_counter()
        while True:
            send(texts[place % len(texts)])
            waits.append(time.perf_counter() - now)
            if (now := time.perf_counter()) >= end:
                return
            place += callers

    if callers == 1:  # no other callers, so no other thread is needed
        caller(0, call)
        return Load(waits, time.perf_counter() - started)
    # One worker acts as a lock with a fair queue, which shortens the longest waits.
    with ThreadPoolExecutor(1) as engine, ThreadPoolExecutor(callers) as crowd:

        def send(text: str) -> None:
            engine.submit(call, text).result()

        for done in [crowd.submit(caller, i, send) for i in range(callers)]:
            done.result()
    return Load(waits, time.perf_counter() - started)


async def closed_loop_async(
    call: AsyncCall, callers: int, texts: Sequence[str], seconds: float
) -> Load:
    """Run tasks that call an engine which takes any number of calls; each calls at least once."""
    waits: list[float] = []
    started = time.perf_counter()
    end = started + seconds

    async def caller(place: int) -> None:
        now = time.perf_counter()
        while True:
            await call(texts[place % len(texts)])
            waits.append(time.perf_counter() - now)
            if (now := time.perf_counter()) >= end:
                return
            place += callers

    await asyncio.gather(*(caller(i) for i in range(callers)))
    return Load(waits, time.perf_counter() - started)


def open_loop(call: Call, moments: Sequence[float], texts: Sequence[str], patience: float) -> Load:
    """Arrivals at an engine that serves one call at a time; `patience` in seconds."""
    waits: list[float] = []
    started = time.perf_counter()

    def serve(text: str, arrived: float) -> None:
        call(text)
        waits.append(time.perf_counter() - arrived)

    engine = ThreadPoolExecutor(1)
    futures = []
    for place, moment in enumerate(moments):
        time.sleep(max(0.0, started + moment - time.perf_counter()))
        futures.append(engine.submit(serve, texts[place % len(texts)], started + moment))
    end = time.perf_counter() + patience
    while not all(future.done() for future in futures) and time.perf_counter() < end:
        time.sleep(0.01)
    engine.shutdown(cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()
    return Load(waits, time.perf_counter() - started, len(moments) - len(waits))


async def open_loop_async(
    call: AsyncCall, moments: Sequence[float], texts: Sequence[str], patience: float
) -> Load:
    """Arrivals at an engine that takes any number of calls; `patience` in seconds."""
    waits: list[float] = []
    started = time.perf_counter()

    async def serve(text: str, arrived: float) -> None:
        await call(text)
        waits.append(time.perf_counter() - arrived)

    tasks = []
    for place, moment in enumerate(moments):
        await asyncio.sleep(max(0.0, started + moment - time.perf_counter()))
        tasks.append(asyncio.create_task(serve(texts[place % len(texts)], started + moment)))
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()
    return Load(waits, time.perf_counter() - started, len(moments) - len(waits))
