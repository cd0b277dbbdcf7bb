"""Writes the list of commands in commands.md from their `--help`: python docs/list_commands.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from flowvec.cli.main import app

PAGE = Path(__file__).with_name("commands.md")
START, END = "<!-- made by list_commands.py -->\n", "<!-- end -->\n"


def current_page() -> str:
    """The page, with the list made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    summaries = _summaries(get_command(app), "flowvec")
    lines = (f"- `{name}`: {summary}\n" for name, summary in summaries)
    return f"{before}{START}{''.join(lines)}{END}{after}"


def _summaries(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Each command's name, and the first paragraph of its help."""
    if not hasattr(command, "list_commands"):
        yield name, " ".join(command.help.split("\n\n")[0].split())
        return
    for inner in command.list_commands(None):
        yield from _summaries(command.get_command(None, inner), f"{name} {inner}")


if __name__ == "__main__":
    PAGE.write_text(current_page(), encoding="utf-8")
