"""The campaigns against `flowvec serve` in short; their modules run the long ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from tests.faults import hostile, server_stops, soak
from tests.faults.served.unruly import KINDS
from tests.faults.served.world import World

SEED = int(os.environ.get("FLOWVEC_SEED", "1"))
posix = pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is POSIX's")


@posix
def test_every_caller_gets_its_own_answers(tmp_path: Path) -> None:
    state = soak.soak(1200, SEED, tmp_path, callers=8, size=600)
    assert not state.wrong, state.examples
    assert state.cycles == 2
    assert set(state.kinds) == set(KINDS)
    assert state.statuses["429"] > 0
    assert state.live
    assert state.probed


@posix
def test_no_bytes_are_an_internal_error(tmp_path: Path) -> None:
    result = hostile.campaign(12, SEED, tmp_path)
    assert not result.wrong, result.wrong[:3]
    assert len(result.sent) > 30
    assert {"200", "400", "422", "waits for more"} <= set(result.outcomes)


@posix
def test_no_signal_loses_what_was_acknowledged(tmp_path: Path) -> None:
    result = server_stops.campaign(1, 1, SEED, tmp_path)
    assert not server_stops.wrong_of(result)
    assert (result.lost, result.halves) == (0, 0)
    assert result.rows > 0
    assert result.signals == {"SIGTERM": 1, "SIGKILL": 1}


def test_the_check_notices_answers_of_others() -> None:
    world = World.make(2, SEED)
    right = world.vectors_of(0, [3, 5])
    assert world.difference(0, [3, 5], right) == ""
    assert world.difference(0, [5, 3], right) == "vector of a text of caller 0"
    assert world.difference(1, [3, 5], right) == "vector of a text of caller 0"
    assert world.difference(0, [3, 5], -right) == "vector of nobody"
    assert world.difference(0, [3], right) == "(2, 384) instead of (1, 384)"
    assert world.difference(0, [3], world.vectors_of(0, [3], 64), 64) == ""
