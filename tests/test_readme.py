"""The README is short, and the commands page is the one that the commands' help makes."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_commands_page_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs/list_commands.py"))["current_page"]()
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert page == made, "run python docs/list_commands.py"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 600
