"""`flowvec get`: shows rows of a collection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flowvec.cli.options import Json, print_json
from flowvec.cli.rows import Ids, Where, ids_named, parsed_filter, row_as_json
from flowvec.collection.collection import Collection
from flowvec.collection.results import Row
from flowvec.collection.store.rows import Item
from flowvec.errors import InputValueError

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec get ./notes a b, or flowvec get ./notes --limit 3")
def get(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    ids: Ids = None,
    condition: Where = None,
    limit: Annotated[int, typer.Option(min=0, help="Most rows, without ids.")] = 10,
    after: Annotated[
        int | None,
        typer.Option(help="The label of the last row of the page before, without ids."),
    ] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Print the vectors too.")] = False,
    as_json: Json = False,
) -> None:
    """Print rows of a collection: those with these ids, or a page of all in their order.

    The exit code is 1 if there is no row with one of the ids.
    """
    if ids and (condition is not None or after is not None):
        raise InputValueError("give ids, or --filter and --after")
    wanted = parsed_filter(condition)
    rows: list[Item | Row] = []
    unknown: list[str] = []
    with Collection.open(directory) as collection:
        if ids:
            by_name = ids_named(collection, ids)
            unknown = [name for name, keys in by_name.items() if not keys]
            keys = dict.fromkeys(key for keys in by_name.values() for key in keys)
            rows += [item for item in collection.get(list(keys)) if item is not None]
        else:
            rows += collection.list(wanted, limit, after, with_vectors=vectors)
    if as_json:
        print_json([{"label": row.label, **row_as_json(row, with_vector=vectors)} for row in rows])
    else:
        typer.echo("\n\n".join(_shown(row, vectors) for row in rows) or "no rows")
    if not ids and limit and len(rows) == limit:
        typer.echo(f"for more rows, add --after {rows[-1].label}", err=True)
    for name in unknown:
        typer.echo(f"{directory} has no row {name}", err=True)
    if unknown:
        raise typer.Exit(1)


def _shown(row: Item | Row, vectors: bool) -> str:
    lines = [f"id        {row.id}"]
    if row.text is not None:
        lines.append(f"text      {row.text}")
    if row.metadata is not None:
        lines.append(f"metadata  {json.dumps(row.metadata, ensure_ascii=False)}")
    if vectors and row.vector is not None:
        lines.append(f"vector    {' '.join(f'{number:g}' for number in row.vector)}")
    return "\n".join(lines)
