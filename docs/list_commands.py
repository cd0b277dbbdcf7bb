"""Writes the list of commands in commands.md from their `--help`: python docs/list_commands.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.main import get_command

from flowvec.cli.main import app

PAGE = Path(__file__).with_name("commands.md")
START, END = "<!-- made by list_commands.py -->\n\n", "\n<!-- end -->\n"


def current_page() -> str:
    """The page, with the list made anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    root: Any = get_command(app)
    commands = {name: root.get_command(None, name) for name in root.list_commands(None)}
    lines = (f"- `flowvec {name}`: {_summary(command)}\n" for name, command in commands.items())
    return f"{before}{START}{''.join(lines)}{END}{after}"


def _summary(command: Any) -> str:
    """The first paragraph of its help, and the names of its subcommands."""
    first = " ".join(command.help.split("\n\n")[0].split())
    inner = ", ".join(f"`{name}`" for name in getattr(command, "commands", ()))
    return f"{first} ({inner})" if inner else first


if __name__ == "__main__":
    PAGE.write_text(current_page(), encoding="utf-8")
