"""Every command of `flowvec` with its arguments and options, as lines of text."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from enum import Enum
from importlib.metadata import EntryPoint
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.main import get_command

from flowvec.cli.main import app
from tests.surface.source import ROOT

GROUP = "flowvec.commands"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and its title, as `flowvec bench http`."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # Of the source tree, which may be newer than what is installed.
    for name, value in sorted(pyproject["project"]["entry-points"][GROUP].items()):
        yield from _with_inner(
            f"flowvec {name}", get_command(EntryPoint(name, value, GROUP).load())
        )


def _with_inner(title: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield title, command
    for name, one in sorted((inner or {}).items()):
        yield from _with_inner(f"{title} {name}", one)


def command_lines() -> Iterator[str]:
    """The lines of commands.txt. `--quiet`, which each command takes, stands at `flowvec` alone."""
    yield from _parameters("flowvec", get_command(app))
    for title, command in commands():
        yield f"{title}: {_first_sentence(command.help)}"
        yield from _parameters(title, command)


def _parameters(title: str, command: Any) -> Iterator[str]:
    """Arguments in their order, then options by name."""
    function = inspect.unwrap(command.callback) if command.callback else None
    kinds = get_type_hints(function) if function else {}
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    for one in [*arguments, *sorted(options, key=lambda option: max(option.opts, key=len))]:
        marks = ", ".join(_marks(one, kinds.get(one.name, bool)))
        if one in options:
            name = " ".join(sorted([*one.opts, *one.secondary_opts], key=len, reverse=True))
            name += f" {one.metavar}" if one.metavar else ""
        else:
            name = one.metavar or one.name.upper()
        text = _first_sentence(one.help)
        yield f"{title} {name}{f' ({marks})' if marks else ''}{f': {text}' if text else ''}"


def _marks(parameter: Any, kind: Any) -> Iterator[str]:
    """The type, whether it is required, its default and its variable of the environment."""
    if kind is not bool:
        bounds = parameter if hasattr(parameter, "min") else parameter.type
        low, high = getattr(bounds, "min", None), getattr(bounds, "max", None)
        yield (
            _name_of(kind)
            + (f">={low:g}" if low is not None else "")
            + (f"<={high:g}" if high is not None else "")
        )
    if parameter.required:
        yield "required"
    # Without a default it is None, or a sign of the library's own; False needs no word.
    elif isinstance(
        parameter.default, bool | int | float | str | tuple | list | Enum | PurePath
    ) and (parameter.default is not False or parameter.secondary_opts):
        yield f"= {_plain(parameter.default)}"
    if parameter.envvar:
        yield f"${parameter.envvar}"
    if getattr(parameter, "hidden", False):
        yield "hidden"


def _name_of(kind: Any) -> str:
    """A type as a user sees it: `int`, `path...` for several, or the values to choose from."""
    inner = [one for one in get_args(kind) if one is not type(None)]
    if get_origin(kind) is list:
        return f"{_name_of(inner[0])}..."
    if get_origin(kind) is Literal:
        return "|".join(map(str, inner))
    if inner:  # X | None
        return " or ".join(map(_name_of, inner))
    if issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind)
    return str(kind.__name__).lower()


def _plain(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    return value.as_posix() if isinstance(value, PurePath) else str(value)


def _first_sentence(text: str | None) -> str:
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")
