"""The README is short, and the commands page names every command."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_commands_page_names_every_command() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    for point in entry_points(group="flowvec.commands"):
        assert f"| `flowvec {point.name}` |" in page
        assert f"\nflowvec {point.name}" in page


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 600
