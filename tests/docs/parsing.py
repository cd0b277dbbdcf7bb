"""Blocks that are not run: their commands must be such as the command line takes."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from typer.main import get_command

from flowvec import MissingDependencyError
from flowvec.cli.main import app

_PACKAGES = ("flowvec", "flowvec_export", "flowvec_bench")
_BEFORE_COMMANDS = ("time", "exec", "nohup", "sudo", "env", "do", "then", "else", "!")


def commands(script: str) -> Iterator[list[str]]:
    """The arguments of every `flowvec` of a shell script, comments and redirections left out."""
    waiting = ""
    for line in script.replace("\\\n", " ").splitlines():
        waiting += line
        lexer = shlex.shlex(waiting, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quotation that continues
            waiting += "\n"
            continue
        waiting = ""
        yield from _commands_of_line(words)
    if waiting:
        raise ValueError(f"a quotation is never closed: {waiting}")


def _commands_of_line(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set("();|&"):
            if command := _command(part):
                yield command
            part = []
        else:
            part.append(word)


def _command(words: list[str]) -> list[str] | None:
    kept: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word.isdecimal() and words and set(words[0]) <= set("<>"):
            word = words.pop(0)
        if set(word) <= set("<>"):
            words = words[1:]
        else:
            kept.append(word)
    while kept and (kept[0] in _BEFORE_COMMANDS or re.match(r"\w+=", kept[0])):
        kept.pop(0)
    return kept[1:] if kept and kept[0] == "flowvec" else None


def parse(words: list[str]) -> None:
    """Parse arguments with the real command line, and do not run it.

    Raises:
        ValueError: an unknown command or option, a missing argument, a value that is refused.
    """
    shown = shlex.join(["flowvec", *words])
    command: Any = get_command(app)
    rest = list(words)
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        command = command.get_command(None, name)
        if command is None:
            raise ValueError(f"{shown}: there is no command {name}")
    try:
        command.make_context(command.name or "flowvec", rest, resilient_parsing=False)
    except Exception as error:
        if type(error).__name__ == "Exit":  # --help
            return
        told = error.format_message() if hasattr(error, "format_message") else error
        raise ValueError(f"{shown}: {type(error).__name__}: {told}") from error


def check_python(code: str, where: str) -> None:
    """Compile a block, and look up what it imports of flowvec.

    Raises:
        SyntaxError: it is not Python.
        ImportError: it imports what is not there.
    """
    compile(code, where, "exec")
    with suppress(MissingDependencyError):  # a module of flowvec.integrations
        _look_up(code)


def _look_up(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_ours(alias.name):
                    importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and _is_ours(node.module):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if alias.name != "*" and not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES
