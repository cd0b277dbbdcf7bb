"""Laws of fair shares: who is next, and how much may wait."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")
hypothesis = pytest.importorskip("hypothesis", reason="needs the extra [serve]")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from flowvec.server.shares import Part, Shares, Work  # noqa: E402

MOST = 10_000


def work(key: str, costs: list[int]) -> Work:
    parts = deque(Part(number, number, [], cost) for number, cost in enumerate(costs))
    return Work(key, parts, sum(costs))


costs = st.lists(st.integers(1, 100), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.sampled_from("abc"), costs), min_size=1, max_size=30))
def test_backlogged_keys_are_served_alike_to_one_part_and_nothing_is_lost(
    calls: list[tuple[str, list[int]]],
) -> None:
    shares = Shares(MOST, is_shared=True)
    works = [work(key, parts) for key, parts in calls]
    total = Counter[str]()
    for item in works:
        shares.put(item)
        total[item.key] += item.cost
    served = Counter[str]()
    largest = max(cost for _, parts in calls for cost in parts)
    begun: dict[int, list[int]] = {}
    while (taken := shares.take()) is not None:
        call, part = taken
        served[call.key] += part.cost
        begun.setdefault(id(call), []).append(part.number)
        backlogged = [served[key] for key in total if served[key] < total[key]]
        if backlogged:
            assert max(backlogged) - min(backlogged) <= largest
        shares.finish(call, part)
    assert served == total
    assert all(begun[id(item)] == sorted(begun[id(item)]) for item in works)
    assert shares.held == 0


def test_calls_of_one_key_take_turns() -> None:
    shares = Shares(MOST, is_shared=False)
    bulk, single = work("", [10] * 50), work("", [10])
    shares.put(bulk)
    assert shares.take() is not None
    shares.put(single)
    order = [shares.take() for _ in range(3)]
    assert any(taken is not None and taken[0] is single for taken in order[:2])


def test_a_key_that_was_away_gets_no_more_than_its_share() -> None:
    shares = Shares(MOST, is_shared=True)
    for _ in range(10):  # b is away meanwhile
        shares.put(work("a", [10]))
        assert shares.take() is not None
    shares.put(work("a", [10] * 10))
    shares.put(work("b", [10] * 10))
    first = [taken[0].key for taken in (shares.take() for _ in range(10)) if taken is not None]
    assert Counter(first) == {"a": 5, "b": 5}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, MOST), st.sampled_from(["put", "end"])),
        max_size=60,
    )
)
def test_what_waits_is_bounded_and_leaves_room_for_others(steps: list[Any]) -> None:
    shares = Shares(MOST, is_shared=True)
    held: dict[str, list[Work]] = {}
    for key, cost, step in steps:
        if step == "end" and held.get(key):
            shares.drop(held[key].pop())
        elif step == "put" and not shares.excess(key, cost):
            held.setdefault(key, []).append(work(key, [cost]))
            shares.put(held[key][-1])
            own = sum(item.cost for item in held[key])
            assert own <= MOST - shares.held  # as much as its own is free
        assert shares.held == sum(item.cost for works in held.values() for item in works)
        assert shares.held < MOST
        assert not shares.excess("new", (MOST - shares.held) // 2)


def test_one_key_alone_may_fill_the_queue() -> None:
    shares = Shares(MOST, is_shared=False)
    assert not shares.excess("", MOST)
    shares.put(work("", [MOST - 10]))
    assert shares.excess("", 11) == 1
    assert not shares.excess("", 10)


def test_what_is_dropped_never_begins() -> None:
    shares = Shares(MOST, is_shared=False)
    first, second = work("", [10, 10]), work("", [10])
    shares.put(first)
    shares.put(second)
    taken = shares.take()
    assert taken is not None
    assert taken[0] is first
    shares.drop(first)
    shares.drop(first)
    assert shares.held == 10
    shares.finish(*taken)  # what was begun ends later
    assert shares.held == 10
    rest = [shares.take(), shares.take()]
    assert rest[0] is not None
    assert rest[0][0] is second
    assert rest[1] is None
