"""The tiers of tests. `pytest` runs the unit tier; CONTRIBUTING.md says what each one costs.

A test belongs to one tier: that of its folder, else that of its mark, else `unit`. A test of the
unit tier starts no process. `pytest FOLDER` and `pytest -m TIER` run other tiers.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["TIERS", "mark", "of_place", "shuffle", "watch_for_processes"]

TIERS = {
    "unit": "laws and contracts that need no process but the test worker",
    "process": "starts processes: commands, servers, forks, signals",
    "campaign": "kills, damage and full disks, in short campaigns",
    "docs": "runs the code of the pages",
    "train": "trains models: the examples and the paper's recipe",
    "peers": "races other libraries, and runs the benchmarks' commands",
    "exports": "exports whole models: every architecture, pooling and weight type",
    "engines": "exports in many variants, compares engines and tunes them",
    "environment": "needs an environment of its own: Ray, buckets, integrations, a browser",
}

# Tiers of whole folders and files; the longest path counts. Empty leaves it to the tests' marks.
_PLACES = {
    "browser": "environment",
    "buckets": "environment",
    "conversions": "environment",
    "integrations": "environment",
    "scaling": "environment",
    "docs/test_docs": "docs",
    "examples": "train",
    "examples/test_grafana": "unit",
    "faults": "campaign",
    "bench/peers": "peers",
    "bench/peers/test_filters": "",
    "bench/peers/test_indexes": "",
    "export/test_engines": "engines",
    "export/variants": "engines",
}
# These fixtures start a process for each call.
_PROCESS_FIXTURES = {"python"}
_TIER = pytest.StashKey[str]()
_TESTS = Path(__file__).resolve().parent


@functools.cache
def of_place(path: Path) -> str | None:
    """The tier of all tests of a folder or file below tests/, or None if their marks decide."""
    if not path.is_relative_to(_TESTS):
        return None
    place = path.relative_to(_TESTS)
    for part in (place, *place.parents):
        tier = _PLACES.get(part.as_posix().removesuffix(".py"))
        if tier is not None:
            return tier or None
    return None


def mark(items: Sequence[pytest.Item]) -> None:
    """Mark each test with its tier.

    Of a function with the mark `TIER(but=n)` the first n cases are of the unit tier: the rest shows
    the same of more cases.
    """
    cases: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        cases[function] += 1
        tier, but = _declared(item)
        if cases[function] <= but:
            tier = "unit"
        item.stash[_TIER] = tier
        item.own_markers[:] = [m for m in item.own_markers if m.name not in TIERS]
        if item.get_closest_marker(tier) is None:
            item.add_marker(tier)
        if is_property(item):
            item.add_marker("property")


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Put files, and the tests of each file, into an order that the seed decides."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    chance = random.Random(seed)
    for group in groups:
        chance.shuffle(group)
    chance.shuffle(groups)
    items[:] = [item for group in groups for item in group]


def _declared(item: pytest.Item) -> tuple[str, int]:
    """The tier that a test's place, mark or fixtures give it, and how many cases are left out."""
    if tier := of_place(item.path):
        return tier, 0
    marks = {mark.name: mark for mark in item.iter_markers() if mark.name in TIERS}
    if len(marks) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked with two tiers: {sorted(marks)}")
    for name, found in marks.items():
        return name, found.kwargs.get("but", 0)
    return "process" if _PROCESS_FIXTURES & set(getattr(item, "fixturenames", ())) else "unit", 0


def is_property(item: pytest.Item) -> bool:
    """Whether Hypothesis draws the examples of a test."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


# --- no test of the unit tier starts a process ----------------------------------------------------

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
_running: list[str] = []


def _refuse_processes(event: str, arguments: Any) -> None:
    if _running and event in _STARTS:
        raise AssertionError(f"{_running[-1]} starts a process: mark it with `process`")


def watch_for_processes() -> None:
    """From now on, a test of the unit tier that starts a process fails."""
    sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Note which test of the unit tier runs."""
    if item.stash[_TIER] == "unit":
        _running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running.clear()
