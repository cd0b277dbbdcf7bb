"""The load generator of the latency benchmark: what is counted, and from when.

Waits are compared with what the engine under test says of itself, not with a wall clock.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from flowvec_bench.workers import load
from flowvec_bench.workers.load import (
    arrivals,
    closed_loop,
    closed_loop_async,
    open_loop,
    open_loop_async,
)
from tests.waiting import wait_until

TEXTS = ["a", "b", "c"]


def test_arrivals_are_poisson_and_the_same_for_all() -> None:
    moments = arrivals(200, 50, seed=3)
    assert moments == arrivals(200, 50, seed=3) != arrivals(200, 50, seed=4)
    assert moments == sorted(moments)
    assert moments[0] > 0
    assert moments[-1] < 50
    assert len(moments) == pytest.approx(10_000, abs=400)  # four standard deviations
    gaps = [b - a for a, b in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert spread == pytest.approx(mean, rel=0.1)  # an exponential's


class Clock:
    """The time of the load generator: it passes when a test says so.

    Attributes:
        now: seconds.
        lookers: threads that have looked at it.
    """

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now = 0.0
        self.lookers: set[int] = set()

    def perf_counter(self) -> float:
        self.lookers.add(threading.get_ident())
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(load, "time", clock)
    return clock


def test_a_blocking_engine_is_never_called_twice_at_once(clock: Clock) -> None:
    running, most, seen = 0, 0, []
    lock = threading.Lock()

    def call(text: str) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        # All callers have come: this thread, and those.
        wait_until(lambda: len(clock.lookers) == 1 + callers)
        time.sleep(0.002)
        seen.append(text)
        clock.now += 1.0
        with lock:
            running -= 1

    callers = 5
    measured = closed_loop(call, callers, TEXTS, 1.0)
    assert most == 1
    assert len(measured.waits) == len(seen) == 5
    assert set(seen) == set(TEXTS)
    assert measured.unanswered == 0
    # Five callers of one engine: each waits for those before it.
    assert all(wait >= place for place, wait in enumerate(sorted(measured.waits), 1))
    clock.lookers.clear()
    callers = 0
    alone = closed_loop(call, 1, TEXTS, 7.0)
    assert most == 1
    assert (alone.waits, alone.seconds) == ([1.0] * 7, 7.0)


def test_tasks_call_an_engine_all_at_once(clock: Clock) -> None:
    running = 0
    are_all_here = asyncio.Event()

    async def call(_: str) -> None:
        nonlocal running
        running += 1
        if running == 7:
            are_all_here.set()
            clock.now += 2.0
        await asyncio.wait_for(are_all_here.wait(), 300.0)

    measured = asyncio.run(closed_loop_async(call, 7, TEXTS, 1.0))
    assert (measured.waits, measured.seconds) == ([2.0] * 7, 2.0)


def test_a_wait_counts_from_the_arrival_and_not_from_the_call() -> None:
    moments = [0.0, 0.001, 0.002, 0.003]
    took = 0.03

    measured = open_loop(lambda _: time.sleep(took), moments, TEXTS, 300.0)
    assert measured.unanswered == 0
    # The fourth arrives at 3 ms and starts after three others.
    assert max(measured.waits) >= 4 * took - 0.003
    assert sorted(measured.waits) == measured.waits

    async def call(_: str) -> None:
        await asyncio.sleep(took)

    together = asyncio.run(open_loop_async(call, moments, TEXTS, 300.0))
    assert len(together.waits) == 4
    assert min(together.waits) >= took - 0.001


def test_a_call_that_is_sent_late_has_waited_since_its_arrival() -> None:
    """The arrivals are an hour ago: waits that were counted from sending would be short."""
    moments = [-3600.0, -3600.0]

    async def call(_: str) -> None:
        pass

    for measured in (
        open_loop(lambda _: None, moments, TEXTS, 300.0),
        asyncio.run(open_loop_async(call, moments, TEXTS, 300.0)),
    ):
        assert len(measured.waits) == 2
        assert min(measured.waits) >= 3600


def test_calls_without_an_answer_in_time_are_given_up_and_counted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    are_given_up, numbers = threading.Event(), itertools.count(1)

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            are_given_up.set()
            super().shutdown()

    def call(_: str) -> None:
        if next(numbers) == 4:
            while not are_given_up.wait(0.01):
                clock.now += 1.0

    monkeypatch.setattr(load, "ThreadPoolExecutor", Pool)
    measured = open_loop(call, [0.0] * 60, TEXTS, 3.0)
    assert (len(measured.waits), measured.unanswered) == (4, 56)


def test_tasks_without_an_answer_in_time_are_given_up_and_counted() -> None:
    async def never(_: str) -> None:
        await asyncio.Event().wait()

    assert asyncio.run(open_loop_async(never, [0.0] * 3, TEXTS, 0.05)).unanswered == 3
    assert asyncio.run(open_loop_async(never, [], TEXTS, 0.05)).waits == []


def test_an_engine_that_fails_is_not_chosen() -> None:
    def call(_: str) -> None:
        raise ValueError("no")

    async def acall(_: str) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        closed_loop(call, 1, TEXTS, 0.1)
    with pytest.raises(ValueError, match="no"):
        closed_loop(call, 3, TEXTS, 0.1)
    with pytest.raises(ValueError, match="no"):
        open_loop(call, [0.0], TEXTS, 1.0)
    with pytest.raises(ValueError, match="no"):
        asyncio.run(closed_loop_async(acall, 3, TEXTS, 0.1))
    with pytest.raises(ValueError, match="no"):
        asyncio.run(open_loop_async(acall, [0.0], TEXTS, 1.0))
