"""`flowvec compact`: rebuilds a collection's indexes, and frees the space of deleted rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowvec.cli.options import Json, print_json
from flowvec.collection.collection import Collection
from flowvec.texts.urls import shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec compact ./notes")
def compact(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    as_json: Json = False,
) -> None:
    """Rebuild the caches and the full-text index, and return free space to the disk.

    The graph is rebuilt if searches use it, which depends on the number of rows. If not, it stays
    for programs that search by it, unless it is damaged or most of its rows were deleted.
    """
    with Collection.open(directory) as collection:
        before = collection.info().bytes
        collection.compact()
        info = collection.info()
    if as_json:
        print_json({"path": info.path, "rows": info.rows, "before": before, "bytes": info.bytes})
    else:
        typer.echo(
            f"{shown(str(directory))}: {info.rows} rows, {before:,} bytes before, "
            f"{info.bytes:,} now"
        )
