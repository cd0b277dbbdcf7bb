"""Options, progress bar and dead letter counts of commands that run bulk jobs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from flowvec.arguments import choice
from flowvec.bulk import BulkProgress, BulkSummary
from flowvec.cli.json_lines import json_lines
from flowvec.cli.options import counted
from flowvec.errors import InputValueError
from flowvec.progress import bar
from flowvec.texts.unicode import printable

__all__ = [
    "TOO_MANY_DEAD",
    "MaxDead",
    "OnDuplicateOption",
    "OnError",
    "ProgressOption",
    "Strict",
    "check_dead_letters",
    "dead_letter_rule",
    "first_dead_letters",
    "is_strict",
    "names_of",
    "progress_bar",
    "progress_lines",
    "progress_option",
    "rejected_in_words",
]

TOO_MANY_DEAD = 3
MaxDead = Annotated[
    str | None,
    typer.Option(
        metavar="N|P%",
        help="With more dead letters the exit code is 3. By default: if all rows are dead.",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Stop at the first row that cannot be embedded.")
]
OnError = Annotated[
    str | None,
    typer.Option(
        "--on-error",
        help="What a row that cannot be embedded does: skip (default) counts it, names it and "
        "writes it to the dead letters; stop ends the command, as --strict.",
    ),
]
ProgressOption = Annotated[
    str,
    typer.Option(
        "--progress",
        help="bar: on a terminal only; json: lines of JSON on stderr, one a second, with rows, "
        "total, rows_per_second and eta_seconds.",
    ),
]
OnDuplicateOption = Annotated[
    str | None,
    typer.Option(
        "--on-duplicate",
        help="Which row is written if ids repeat: last (default) or first; error stops before "
        "writing; dead-letter rejects all but the first.",
    ),
]


def names_of(joined: str | None) -> list[str]:
    """Names that are joined by commas."""
    return [name.strip() for name in joined.split(",") if name.strip()] if joined else []


def dead_letter_rule(text: str | None) -> Callable[[BulkSummary], bool]:
    """A function that says whether a job has more dead letters than --max-dead allows.

    Raises:
        InputValueError: the text is neither a number nor a percentage.
    """
    if text is None:
        return lambda done: 0 < done.rows_in == done.dead_letters
    try:
        most = float(text.removesuffix("%"))
    except ValueError:
        most = math.nan
    if not 0.0 <= most < math.inf or (text.endswith("%") and most > 100.0):
        raise InputValueError(f"--max-dead is a number of rows, or a share as 1%, not {text}")
    if text.endswith("%"):
        return lambda done: done.dead_letters * 100.0 > most * done.rows_in
    return lambda done: done.dead_letters > most


def check_dead_letters(summary: BulkSummary, is_too_many: Callable[[BulkSummary], bool]) -> None:
    """End the command with exit code 3 if a job has too many dead letters.

    Raises:
        typer.Exit: it has.
    """
    if is_too_many(summary):
        typer.echo(f"{summary.dead_letters} of {summary.rows_in} rows are dead letters", err=True)
        raise typer.Exit(TOO_MANY_DEAD)


def warn_of_absent_fields(names: Iterable[str]) -> None:
    """Say on standard error which fields to keep no row has."""
    if named := ", ".join(map(repr, names)):
        typer.echo(f"no row has a field {named} of --keep; is it misspelt?", err=True)


def rejected_in_words(summary: BulkSummary) -> str:
    """Counts of dead letters and repeated ids in words; empty if there are none."""
    dead = ""
    if summary.dead_letters:
        kinds = ", ".join(f"{n} {code}" for code, n in summary.codes.items())
        dead = f", {counted(summary.dead_letters, 'dead letter')} ({kinds})"
    if summary.duplicates:
        named = ", ".join(map(repr, summary.duplicate_ids))
        more = ", ..." if summary.duplicates > len(summary.duplicate_ids) else ""
        dead += f", {summary.duplicates} left out as another row has the same id"
        dead += f" ({named}{more})" if named else ""
    return dead


def is_strict(strict: bool, on_error: str | None) -> bool:
    """Whether to stop at the first row that cannot be embedded.

    Raises:
        InputValueError: --on-error has another value, or contradicts --strict.
    """
    if on_error is None:
        return strict
    if choice("--on-error", on_error, ("skip", "stop")) == "skip" and strict:
        raise InputValueError("--strict is --on-error stop: leave one of them out")
    return on_error == "stop"


def first_dead_letters(path: Path, most: int = 5) -> list[str]:
    """The first dead letters of a file, one line of words each; the last says if there are more."""
    lines: list[str] = []
    with path.open(encoding="utf-8") as file:
        for line in islice(file, most):
            letter = json.loads(line)
            named = "" if letter["id"] is None else f" (id {letter['id']})"
            line = f"{letter['source']}, row {letter['row']}{named}: {letter['reason']}"
            lines.append(printable(line))
        if next(file, None) is not None:
            lines.append("...")
    return lines


def progress_option(kind: str) -> Callable[[str], AbstractContextManager[Any]]:
    """What shows the progress, as --progress says.

    Raises:
        InputValueError: --progress has another value.
    """
    return progress_lines if choice("--progress", kind, ("bar", "json")) == "json" else progress_bar


def progress_lines(name: str) -> AbstractContextManager[Callable[[BulkProgress], None]]:
    """Lines of JSON about a bulk job."""

    def line_of(progress: BulkProgress) -> dict[str, Any]:
        rate = (progress.rows - progress.before) / progress.seconds if progress.seconds else 0.0
        left = None
        if progress.total is not None and rate:
            left = (progress.total - progress.rows) / rate
        return {
            "command": name,
            "rows": progress.rows,
            "total": progress.total,
            "rows_per_second": round(rate, 1),
            "eta_seconds": None if left is None else round(left, 1),
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
        }

    return json_lines(line_of)


@contextmanager
def progress_bar(name: str) -> Iterator[Any]:
    """A progress bar on a terminal."""
    with bar(name, None, "rows") as drawn:

        def show(progress: BulkProgress) -> None:
            drawn.total = progress.total
            # The work of earlier runs does not count for the speed.
            if not drawn.n and progress.rows:
                drawn.initial = progress.rows
            padding = 1.0 - progress.tokens / progress.padded if progress.padded else 0.0
            rate = progress.tokens / progress.seconds if progress.seconds else 0.0
            drawn.set_postfix_str(f"{rate:,.0f} tokens/s, {padding:.1%} padding", refresh=False)
            drawn.update(progress.rows - drawn.n)

        yield show
