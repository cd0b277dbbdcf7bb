"""`flowvec delete`: deletes rows of a collection."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowvec.cli.options import Json, counted, print_json
from flowvec.cli.rows import Ids, Where, ids_named, parsed_filter
from flowvec.collection.collection import Collection
from flowvec.errors import InputValueError
from flowvec.texts.urls import shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec delete ./notes a b")
def delete(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    ids: Ids = None,
    condition: Where = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many rows would be deleted.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete all rows, if the filter is {}.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete rows by id or by a filter. Unknown ids are ignored."""
    if bool(ids) == (condition is not None):
        raise InputValueError("give ids or --filter")
    wanted = parsed_filter(condition)
    if wanted == {} and not (yes or dry_run):
        raise InputValueError("the filter {} is all rows; add --yes to delete them")
    with Collection.open(directory) as collection:
        keys = []
        for name, there in ids_named(collection, ids or []).items():
            if len(there) > 1:
                raise InputValueError(
                    f"{name} is the id of two rows, as a number and as a text; name one by "
                    f'--filter \'{{"$id": {name}}}\' or \'{{"$id": "{name}"}}\''
                )
            keys += there
        if dry_run:
            count = len(keys) if wanted is None else collection.count(wanted)
        elif wanted is None:
            count = collection.delete(keys)
        else:
            count = collection.delete(filter=wanted)
        rows = len(collection)
    if as_json:
        print_json({"path": str(directory), "deleted": 0 if dry_run else count, "rows": rows}
                   | ({"would_delete": count} if dry_run else {}))  # fmt: skip
        return
    done = "would be deleted" if dry_run else "deleted"
    typer.echo(f"{shown(str(directory))}: {counted(count, 'row')} {done}, {rows} in all")
