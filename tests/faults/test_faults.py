"""The campaigns of this folder in short; each module runs the long one from the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.faults import (
    bulk_kills,
    creating,
    damage,
    disk,
    interrupts,
    kills,
    races,
    searches,
    threads,
    writers,
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")
def test_no_kill_loses_what_was_acknowledged(tmp_path: Path) -> None:
    result = kills.campaign(50, seed=int(os.environ.get("FLOWVEC_SEED", "1")), folder=tmp_path)
    assert sum(result.kills.values()) == 50
    assert sum(result.inside.values()) > 5  # in the middle of something
    assert (result.lost, result.phantoms, result.unopened) == (0, 0, 0)
    assert result.codes > 0


@pytest.mark.skipif(sys.platform == "win32", reason="alarms are POSIX's")
def test_interrupts_leave_no_lock_and_no_half_of_a_change(tmp_path: Path) -> None:
    result = interrupts.campaign(600, int(os.environ.get("FLOWVEC_SEED", "1")), tmp_path)
    assert not result.wrong
    assert result.interrupts == 600
    assert result.done > 100
    assert result.searches > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")
def test_a_collection_is_created_once(tmp_path: Path) -> None:
    result = creating.campaign(40, int(os.environ.get("FLOWVEC_SEED", "1")), tmp_path)
    assert not result.wrong
    assert result.made > 20
    assert result.refused > 10
    assert result.kills > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")
def test_a_bulk_job_that_was_killed_ends_with_the_same_output(tmp_path: Path) -> None:
    seed = int(os.environ.get("FLOWVEC_SEED", "1"))
    result = bulk_kills.campaign(24, seed, tmp_path, bulk_kills.FORMATS)
    assert result.kills == 24
    assert result.working > 12
    assert result.finished > 0
    assert (result.different, result.refused) == (0, 0)


def test_every_row_that_cannot_be_embedded_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")
    from tests.faults import bulk_poison

    seed = int(os.environ.get("FLOWVEC_SEED", "1"))
    result = bulk_poison.campaign(30, seed, tmp_path)
    assert not result.wrong
    assert len(result.codes) == 10
    assert 2 * sum(result.codes.values()) < result.rows


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")
def test_no_damage_is_taken_for_the_truth(tmp_path: Path) -> None:
    cases = list(damage.plan(flips=150, cuts=60, pages=40, crafted=150))
    outcomes = damage.run(cases, seed=int(os.environ.get("FLOWVEC_SEED", "1")), work=tmp_path)
    wrong = {key: n for key, n in outcomes.items() if key[2].startswith(("FAILED", "not run"))}
    assert not wrong


def test_threads_search_while_one_changes_everything(tmp_path: Path) -> None:
    counts = threads.campaign(6.0, seed=int(os.environ.get("FLOWVEC_SEED", "1")), folder=tmp_path)
    assert counts["searches"] > 0
    assert counts["changes"] > 0
    assert counts["recall grown"] >= counts["recall at once"] - 0.02


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")
def test_processes_race_for_a_collection(tmp_path: Path) -> None:
    said = races.campaign(15, seed=int(os.environ.get("FLOWVEC_SEED", "1")), folder=tmp_path)
    assert not [line for line in said if line.startswith("FAILED")]
    assert said["added"]
    assert said["read"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGKILL and fork are POSIX's")
def test_every_answer_beside_writers_that_are_killed_fits_one_order(tmp_path: Path) -> None:
    counts = writers.campaign(30, seed=int(os.environ.get("FLOWVEC_SEED", "1")), folder=tmp_path)
    assert counts["operations"] > 100
    wrong = {key: counts[key] for key in ("lost", "halves", "phantoms", "not linearizable")}
    assert not any(wrong.values()), wrong


def test_the_check_notices_what_fits_no_order() -> None:
    def operation(begin: float, end: float, kind: str, value: int | None) -> writers.Operation:
        return writers.Operation(begin, end, kind == "w", value)

    never = float("inf")
    one = operation(0, 1, "w", 1)
    assert writers.is_linearizable([])
    assert writers.is_linearizable([one, operation(0.5, 2, "r", None), operation(0.6, 3, "r", 1)])
    assert not writers.is_linearizable([one, operation(2, 3, "r", None)])  # lost
    assert not writers.is_linearizable([one, operation(2, 3, "r", 2)])  # a phantom
    # An older value after a newer one.
    both = [operation(0, 9, "w", 1), operation(0, 9, "w", 2)]
    assert writers.is_linearizable([*both, operation(1, 2, "r", 1), operation(3, 4, "r", 2)])
    twice = [operation(1, 2, "r", 1), operation(3, 4, "r", 2), operation(5, 6, "r", 1)]
    assert not writers.is_linearizable([*both, *twice])
    # A killed write may count later, or never, but not before it began.
    killed = operation(2, never, "w", 2)
    assert writers.is_linearizable([one, killed, operation(5, 6, "r", 1)])
    assert writers.is_linearizable([one, killed, operation(5, 6, "r", 1), operation(7, 8, "r", 2)])
    assert not writers.is_linearizable([one, killed, operation(1.1, 1.9, "r", 2)])


def test_searches_equal_brute_force(tmp_path: Path) -> None:
    start = int(os.environ.get("FLOWVEC_SEED", "1"))
    counts = searches.campaign(250, start, tmp_path)
    for kind in ("exact", "scan"):
        assert counts[f"{kind} hits"] == counts[f"{kind} hits as good as the best"] > 300
    assert counts["graph hits as good as the best"] >= 0.97 * counts["graph hits"] > 300


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="calls are caught on Linux alone")


@needs_linux
def test_a_disk_that_fails_leaves_the_old_state(tmp_path: Path) -> None:
    counts = disk.campaign(tmp_path, step=23, first=3)
    assert counts["cases"] > 12
    for kind in ("add", "delete", "replace", "save", "compact"):
        assert counts[f"{kind} refused"], counts


@needs_linux
def test_what_is_acknowledged_was_flushed_before(tmp_path: Path) -> None:
    calls = disk.trace(tmp_path)
    changes = {
        key: of for key, of in calls.items() if key.split()[1] in ("add", "delete", "replace")
    }
    assert len(changes) == 5
    for operation, of in changes.items():
        assert "write collection.sqlite-wal" in of, operation
        # The vectors file is a cache, whose records have checksums.
        dirty = {name for name in disk.unsynced(of) if not name.startswith("vectors-")}
        assert dirty <= {"collection.lock"}, operation
    (saved,) = [of for key, of in calls.items() if key.endswith("save")]
    order = [
        "write graph-2.hnsw.partial", "sync graph-2.hnsw.partial", "rename graph-2.hnsw",
        "sync traced", "write collection.sqlite-wal", "sync collection.sqlite-wal",
    ]  # fmt: skip
    assert [saved.index(call) for call in order] == sorted(saved.index(call) for call in order)
    assert list(disk.unsynced(saved)) == []


@needs_linux
def test_the_trace_notices_what_is_not_flushed() -> None:
    assert list(disk.unsynced(["write a", "sync a", "write b"])) == ["b"]
    assert list(disk.unsynced(["write a.partial", "rename a", "sync a.partial"])) == [
        "a.partial was renamed before it was on disk"
    ]
