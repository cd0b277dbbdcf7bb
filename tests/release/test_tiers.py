"""Every tier of tests is run by the gate, and named where contributors look."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tiers import TIERS, of_place

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
OTHERS = set(TIERS) - {"unit", "environment"}


def test_the_gate_runs_every_tier_that_needs_no_environment_of_its_own() -> None:
    runs = re.findall(r'pytest [^"]*-m "([a-z ]+)"\n', (ROOT / ".ci/run").read_text())
    assert {tier for run in runs for tier in run.split(" or ")} == {*OTHERS, "property"}


def test_the_gate_runs_every_folder_that_needs_an_environment() -> None:
    commands = re.findall(r"pytest .*", (ROOT / ".ci/run").read_text())
    folders = [folder for folder in TESTS.iterdir() if of_place(folder) == "environment"]
    assert len(folders) > 3
    for folder in folders:
        assert any(f"tests/{folder.name}" in command.split() for command in commands), folder


def test_contributing_names_every_tier() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \w", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert rows == list(TIERS)


@pytest.mark.parametrize(
    ("place", "tier"),
    [
        ("docs/test_docs.py", "docs"),
        ("export/variants/test_variants.py", "engines"),
        ("export/test_engines.py", "engines"),
        ("bench/peers/test_peers.py", "peers"),
        ("bench/peers/test_filters.py", None),
        ("examples/test_grafana.py", "unit"),
        ("bench/test_quiet.py", None),
        ("runtime/encoder/test_proof.py", None),
    ],
)
def test_a_folder_decides_for_its_files(place: str, tier: str | None) -> None:
    assert of_place(TESTS / place) == tier
