"""The command `flowvec`: its subcommands come from entry points and load when they are called."""

from __future__ import annotations

import signal
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from flowvec.errors import FlowvecError
from flowvec.version import __version__

__all__ = ["main"]

_GROUP = "flowvec.commands"


class _LazyGroup(TyperGroup):
    """A group whose commands are the entry points of `flowvec.commands`.

    Each entry point names a `typer.Typer`. Its module is imported only when the command is called
    or listed, so `flowvec search` never imports what `flowvec export` needs.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(point.name for point in entry_points(group=_GROUP))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found: list[EntryPoint] = [
            point for point in entry_points(group=_GROUP) if point.name == cmd_name
        ]
        if not found:
            return None
        command = get_command(found[0].load())
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Text to vectors to neighbours, without torch. Begin with: flowvec demo",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flowvec {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Text to vectors to neighbours, without torch. Begin with: flowvec demo."""


def main() -> None:
    """Run the command line: a user's mistake is one line on stderr and exit code 2."""
    # As an interrupt does, so that what a command has begun to write is cleared away.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except FlowvecError as error:
        typer.echo(f"flowvec: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        typer.echo(f"flowvec: {error}", err=True)
        sys.exit(1)
