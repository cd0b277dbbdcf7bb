"""The tiers of tests. `pytest` runs the unit tier; CONTRIBUTING.md says what each one costs.

A test belongs to one tier: that of its folder, else that of its mark, else `unit`. A test of the
unit tier starts no process. `pytest FOLDER` and `pytest -m TIER` run other tiers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

__all__ = ["TIERS", "is_property", "of", "of_place", "watch_for_processes"]

TIERS = {
    "unit": "laws and contracts that need no process but the test worker",
    "process": "starts processes: commands, servers, forks, signals",
    "campaign": "kills, damage and full disks, in short campaigns",
    "docs": "runs the code of the pages",
    "train": "trains models: the examples and the paper's recipe",
    "peers": "races other libraries, and runs the benchmarks' commands",
    "engines": "exports in many variants and compares engines",
    "environment": "needs an environment of its own: Ray, buckets, integrations, a browser",
}

# Tiers of whole folders and files; the longest path counts.
_PLACES = {
    "browser": "environment",
    "buckets": "environment",
    "conversions": "environment",
    "integrations": "environment",
    "scaling": "environment",
    "docs": "docs",
    "examples": "train",
    "faults": "campaign",
    "bench/peers": "peers",
    "export/test_engines": "engines",
    "export/variants": "engines",
}
# These fixtures start a process for each call.
_PROCESS_FIXTURES = {"python"}
_TESTS = Path(__file__).resolve().parent


def of_place(path: Path) -> str | None:
    """The tier of all tests of a folder or file below tests/, or None."""
    if not path.is_relative_to(_TESTS):
        return None
    place = path.relative_to(_TESTS)
    for part in (place, *place.parents):
        if tier := _PLACES.get(part.as_posix().removesuffix(".py")):
            return tier
    return None


def of(item: pytest.Item) -> str:
    """The tier of a test."""
    if tier := of_place(item.path):
        return tier
    marks = [mark.name for mark in item.iter_markers() if mark.name in TIERS]
    if len(set(marks)) > 1:
        raise pytest.UsageError(f"{item.nodeid} is marked with two tiers: {sorted(set(marks))}")
    if marks:
        return marks[0]
    return "process" if _PROCESS_FIXTURES & set(getattr(item, "fixturenames", ())) else "unit"


# --- no test of the unit tier starts a process ----------------------------------------------------

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}
_running: list[str] = []


def _refuse_processes(event: str, arguments: Any) -> None:
    if _running and event in _STARTS:
        raise AssertionError(f"{_running[-1]} starts a process: mark it with `process`")


def is_property(item: pytest.Item) -> bool:
    """Whether Hypothesis draws the examples of a test."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def watch_for_processes() -> None:
    """From now on, a test of the unit tier that starts a process fails."""
    sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Note which test of the unit tier runs."""
    if of(item) == "unit":
        _running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running.clear()
