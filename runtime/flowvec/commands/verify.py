"""`flowvec verify`: whether a collection is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowvec.collection import Collection
from flowvec.commands import Json, print_json
from flowvec.errors import CorruptCollectionError

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: flowvec verify ./notes")
def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    salvage: Annotated[
        Path | None,
        typer.Option(metavar="NEW", help="Make a new collection there of all intact rows."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every row's checksum, SQLite's own structure and the graph's file.

    The exit code is 1 where something is wrong. A damaged graph is rebuilt by itself at the next
    search, and `flowvec compact` makes a damaged full-text index anew; a damaged row is lost, and
    --salvage saves all others.
    """
    rows: int | None = None
    try:
        with Collection.open(directory) as collection:
            rows = len(collection)
            problems = collection.verify()
    except CorruptCollectionError as error:  # so much that it cannot even be opened
        problems = [str(error)]
    lost = None if salvage is None else Collection.salvage(directory, salvage)
    if as_json:
        print_json({"rows": rows, "problems": problems, "lost": lost})
    else:
        typer.echo("\n".join(problems) or f"{directory}: {rows} rows, all well")
        if salvage is not None:
            typer.echo(f"{salvage}: made of all intact rows; {lost} were lost")
    if problems:
        raise typer.Exit(1)
