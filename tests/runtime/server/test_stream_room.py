"""However many streams there are, each goes on, and half of the queue is left to requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.stream_room import StreamRoom

MOST, ENOUGH = 1000, 300
STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 250), st.booleans()), max_size=60)


@given(STEPS)
def test_streams_hold_half_in_shares(steps: list[tuple[int, int, bool]]) -> None:
    room = StreamRoom(MOST, ENOUGH)
    held: dict[int, list[int]] = {}
    for stream, cost, is_release in steps:
        if stream not in held:
            room.enter(stream)
            held[stream] = []
        if is_release and held[stream]:
            room.release(stream, held[stream].pop())
        elif room.fits(stream, cost):
            room.hold(stream, cost)
            held[stream].append(cost)
        assert room.held == sum(map(sum, held.values())) <= MOST // 2
        for costs in held.values():
            assert len(costs) <= 1 or sum(costs) <= ENOUGH
    for stream, costs in held.items():
        room.leave(stream)
        for cost in costs:  # what is computed after its stream has ended
            room.release(stream, cost)
    assert room.held == 0


def test_one_call_fits_an_empty_room() -> None:
    room = StreamRoom(100, 10)
    room.enter("a")
    assert room.fits("a", 1000)  # a text may be longer than any share
    room.hold("a", 1000)
    assert not room.fits("a", 1)
