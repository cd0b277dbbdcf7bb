"""The files of the surface: what writes each, and how one differs from the code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
WRITE = "python -m tests.surface --write"
# By file, the module and the function that give its lines.
FILES = {
    "python.txt": ("python_names", "python_lines"),
    "commands.txt": ("commands", "command_lines"),
    "routes.txt": ("routes", "route_lines"),
    "keys.txt": ("json_keys", "key_lines"),
    "messages.txt": ("messages", "message_lines"),
}
MOST_LINES = 60


def text_of(name: str) -> str:
    """What a file should hold."""
    module, function = FILES[name]
    lines: Callable[[], Iterable[str]] = getattr(import_module(f"tests.surface.{module}"), function)
    return "".join(f"{line}\n" for line in lines())


def difference(name: str) -> str:
    """How a file differs from the code, and what to do; empty if it does not."""
    path = FOLDER / name
    held = path.read_text(encoding="utf-8") if path.is_file() else ""
    now = text_of(name)
    if held == now:
        return ""
    before, after = held.splitlines(), now.splitlines()
    lines = list(difflib.unified_diff(before, after, name, "the code", lineterm="", n=2))
    for number, line in enumerate(lines):
        if found := re.match(r"@@ -(\d+)", line):  # as in git, with the name it is about
            above = [one for one in before[: int(found[1])] if not one.startswith(" ")]
            lines[number] += f" {above[-1]}" if above else ""
    left_out = [f"... and {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    advice = f"If the change is meant, write the files again and commit them: {WRITE}"
    return "\n".join([*lines[:MOST_LINES], *left_out, "", advice])
