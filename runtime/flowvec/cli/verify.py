"""`flowvec verify`: whether a collection, or the output of a bulk job, is intact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flowvec.bulk import verify_folder
from flowvec.bulk.verify import is_bulk_folder
from flowvec.cli.options import Json, counted, print_json
from flowvec.collection.collection import Collection
from flowvec.errors import CorruptCollectionError, InputValueError
from flowvec.sharded import is_sharded, verify_shards
from flowvec.texts.unicode import printable
from flowvec.texts.urls import is_url, public, shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_AGAIN = (
    "delete files that are damaged, and give the command of the job, or of a missing share, again: "
    "it writes what is missing"
)


@app.command(epilog="Example: flowvec verify ./notes")
def verify(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A collection, one in shards, or the folder of a bulk job; or the URL of the last "
            "two.",
        ),
    ],
    salvage: Annotated[
        Path | None,
        typer.Option(metavar="NEW", help="Create a new collection there, of all intact rows."),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="For a bulk job's folder, and shards below a URL: first delete what killed jobs "
            "left and nothing needs.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the rows and indexes of a collection, or the shards of a bulk job.

    For a collection: every row's checksum, SQLite's structure, the full-text index and the graph.
    For a bulk job's folder: that it is complete, and each shard's size, SHA-256 and rows. For a
    collection in shards below a URL: the size and SHA-256 of each file.

    The exit code is 1 if something is wrong. `flowvec compact` rebuilds a missing or damaged
    graph, vectors file or full-text index. A damaged row is lost; --salvage saves all other rows.
    """
    if is_sharded(directory):
        if salvage is not None:
            raise InputValueError("--salvage is for one collection; give a shard's folder")
        _verify_shards(directory, clean, as_json)
        return
    if is_bulk_folder(directory):
        if salvage is not None:
            raise InputValueError(f"--salvage is for collections; {_AGAIN}")
        _verify_bulk(directory, clean, as_json)
        return
    if clean or is_url(directory):
        raise InputValueError(
            f"{shown(directory)} is not the folder of a bulk job"
            f"{', and not a collection in shards' if is_url(directory) else ''}"
        )
    rows: int | None = None
    try:
        with Collection.open(directory) as collection:
            rows = len(collection)
            problems = collection.verify()
    except CorruptCollectionError as error:  # too damaged to be opened
        problems = [str(error)]
    lost = None if salvage is None else Collection.salvage(directory, salvage)
    if as_json:
        print_json({"rows": rows, "problems": problems, "lost": lost})
    else:
        _print_lines(problems or [f"{directory}: {rows} rows, all well"])
        if salvage is not None:
            typer.echo(f"{shown(str(salvage))}: made of all intact rows; {lost} were lost")
    if problems:
        raise typer.Exit(1)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(printable(line))


def _verify_bulk(directory: str, clean: bool, as_json: bool) -> None:
    check = verify_folder(directory, clean=clean)
    if as_json:
        print_json(asdict(check))
    else:
        left_out = f"{check.duplicates} duplicates left out, " if check.duplicates else ""
        whole = (
            f"{public(directory)}: {check.rows} rows in {counted(check.shards, 'shard')}, "
            f"{counted(check.dead_letters, 'dead letter')}, {left_out}all well"
        )
        _print_lines(f"removed {name}" for name in check.removed)
        _print_lines((*check.problems, _AGAIN) if check.problems else (whole,))
    if check.problems:
        raise typer.Exit(1)


def _verify_shards(directory: str, clean: bool, as_json: bool) -> None:
    if clean and not is_url(directory):
        raise InputValueError("--clean is for shards below a URL: in a folder nothing is left over")
    check = verify_shards(directory, clean=clean)
    if as_json:
        print_json(asdict(check))
    else:
        _print_lines(f"removed {name}" for name in check.removed)
        whole = (
            f"{public(directory)}: {check.rows} rows in {counted(check.shards, 'shard')}, all well"
        )
        _print_lines(check.problems or (whole,))
    if check.problems:
        raise typer.Exit(1)
