"""The command `flowvec`: its subcommands come from entry points and load when they are called."""

from __future__ import annotations

import difflib
import io
import signal
import sys
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from flowvec.cli.interrupts import INTERRUPT_EXIT, interruptible, starting, was_interrupted
from flowvec.compat import override
from flowvec.errors import FlowvecError
from flowvec.progress import hidden_everywhere
from flowvec.texts.unicode import printable
from flowvec.version import __version__

__all__ = ["main"]

_GROUP = "flowvec.commands"


class _LazyGroup(TyperGroup):
    """A group whose commands are the entry points of the group `flowvec.commands`.

    Each entry point names a `typer.Typer`. Its module is imported only when the command is called
    or listed, so `flowvec search` never imports what `flowvec export` needs.
    """

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(point.name for point in entry_points(group=_GROUP))

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entries: list[EntryPoint] = [
            point for point in entry_points(group=_GROUP) if point.name == cmd_name
        ]
        if not entries:
            return None
        command = get_command(entries[0].load())
        command.name = cmd_name
        _add_quiet(command)
        return command

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        # An unknown command is answered with the commands that look most like it.
        name = args[0] if args else ""
        commands = self.list_commands(ctx)
        if name and not name.startswith("-") and name not in commands:
            near = difflib.get_close_matches(name, commands, 3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C ends it without a message."""
        try:
            with interruptible():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPT_EXIT) from None


def _add_quiet(command: Any) -> None:
    """Let a command, or each command of a group, take --quiet."""
    commands = getattr(command, "commands", None)
    if commands is None:
        command.params += get_command(_quiet).params
    else:
        for inner in commands.values():
            _add_quiet(inner)


def _hide_progress(ctx: typer.Context, is_quiet: bool) -> None:
    if is_quiet:
        ctx.with_resource(hidden_everywhere())


# Holds the option: how one is made differs between versions of typer.
_quiet = typer.Typer(add_completion=False)


@_quiet.command()
def _hold_option(
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", callback=_hide_progress, expose_value=False, help="Print no progress."
        ),
    ] = False,
) -> None:
    """Is never called."""


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Text to vectors to neighbours, without torch. Begin with: flowvec demo",
)


def _print_version(requested: bool) -> None:
    if requested:
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
    quiet: Annotated[
        bool, typer.Option("--quiet", callback=_hide_progress, help="Print no progress.")
    ] = False,
) -> None:
    """Text to vectors to neighbours, without torch. Begin with: flowvec demo."""


def main() -> None:
    """Run the command line. A user's mistake is one line on stderr and exit code 2."""
    with starting():
        _run()


def _run() -> None:
    # An exception rather than the default: `finally` blocks remove temporary files.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal may not be able to show a text
            with suppress(OSError):  # the stream may not be seekable
                stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Exception as error:
        # An import that was interrupted fails in other ways than by KeyboardInterrupt.
        if was_interrupted():
            sys.exit(INTERRUPT_EXIT)
        if not isinstance(error, FlowvecError | OSError):
            raise
        if isinstance(error, OSError):
            typer.echo(f"flowvec: {printable(_why(error))}", err=True)
            sys.exit(1)
        typer.echo(f"flowvec: {printable(str(error))}", err=True)
        sys.exit(2)


def _why(error: OSError) -> str:
    """The system's message, with the file."""
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{error.strerror or error}{': ' if names else ''}{' -> '.join(names)}"
