"""`flowvec get`: shows rows of a collection, in shards or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flowvec.cli.options import Json, ShardTimeout, print_json
from flowvec.cli.rows import Ids, Where, ids_typed, parsed_filter, row_as_json
from flowvec.collection.collection import Collection
from flowvec.collection.results import Row
from flowvec.collection.store.rows import Id, Item
from flowvec.errors import CollectionError, InputValueError
from flowvec.sharded import ShardedRows, ShardedSearcher, is_sharded
from flowvec.texts.urls import is_url, shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec get ./notes a b, or flowvec get ./notes --limit 3")
def get(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="The collection's directory, or the URL of one in shards."
        ),
    ],
    ids: Ids = None,
    condition: Where = None,
    limit: Annotated[int, typer.Option(min=0, help="Most rows, without ids.")] = 10,
    after: Annotated[
        int | None,
        typer.Option(help="The label of the last row of the page before, without ids."),
    ] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Print the vectors too.")] = False,
    timeout: ShardTimeout = 10.0,
    as_json: Json = False,
) -> None:
    """Print rows of a collection: those with these ids, or a page of all in their order.

    Of a collection in shards, rows are printed by their ids alone; with --json, an object with
    `rows`, `partial` and `missing`: the shards that did not answer, and why.

    The exit code is 1 if there is no row with one of the ids.
    """
    if ids and (condition is not None or after is not None):
        raise InputValueError("give ids, or --filter and --after")
    wanted = parsed_filter(condition)
    if ids:
        _print_named(place, ids, timeout, vectors=vectors, as_json=as_json)
        return
    with Collection.open(Path(place)) as collection:
        rows = collection.list(wanted, limit, after, with_vectors=vectors)
    if as_json:
        print_json(_plain(rows, vectors))
    else:
        _print_rows(rows, vectors)
    if limit and len(rows) == limit:
        typer.echo(f"for more rows, add --after {rows[-1].label}", err=True)


def _print_named(
    place: str, names: Sequence[str], timeout: float, *, vectors: bool, as_json: bool
) -> None:
    """Print the rows with these ids, and name on stderr the ids that are unknown.

    Raises:
        CollectionError: no shard could be read.
        typer.Exit: there is no row with one of the ids.
    """
    ids_by_name = ids_typed(names)
    keys = list(dict.fromkeys(key for keys in ids_by_name.values() for key in keys))
    where = shown(place)
    if is_url(place) or is_sharded(place):
        found = _read_shards(place, keys, timeout)
        items = found.rows
        unread = " in the shards that answered" if found.missing else ""
    else:
        found, unread = None, ""
        with Collection.open(Path(place)) as collection:
            items = collection.get(keys)
    rows = [item for item in items if item is not None]
    if not as_json:
        _print_rows(rows, vectors)
    elif found is None:
        print_json(_plain(rows, vectors))
    else:
        print_json(
            {"rows": _plain(rows, vectors), "partial": found.partial, "missing": found.missing}
        )
    there = {row.id for row in rows}
    unknown = [name for name, keys in ids_by_name.items() if there.isdisjoint(keys)]
    for name in unknown:
        typer.echo(f"{where} has no row {name}{unread}", err=True)
    if unknown:
        raise typer.Exit(1)


def _read_shards(place: str, ids: list[Id], timeout: float) -> ShardedRows:
    """Rows of a collection in shards; shards that do not answer are named on stderr.

    Raises:
        CollectionError: no shard answered.
    """
    with ShardedSearcher(place, timeout=timeout) as searcher:
        found, shards = searcher.get(ids), searcher.shards
    for name, reason in found.missing.items():
        typer.echo(f"{name} is missing: {reason}", err=True)
    if len(found.missing) == shards:
        raise CollectionError(f"no shard of {shown(place)} could be read")
    return found


def _plain(rows: Sequence[Item | Row], vectors: bool) -> list[dict[str, Any]]:
    return [{"label": row.label, **row_as_json(row, with_vector=vectors)} for row in rows]


def _print_rows(rows: Sequence[Item | Row], vectors: bool) -> None:
    typer.echo("\n\n".join(_shown(row, vectors) for row in rows) or "no rows")


def _shown(row: Item | Row, vectors: bool) -> str:
    lines = [f"id        {row.id}"]
    if row.text is not None:
        lines.append(f"text      {row.text}")
    if row.metadata is not None:
        lines.append(f"metadata  {json.dumps(row.metadata, ensure_ascii=False)}")
    if vectors and row.vector is not None:
        lines.append(f"vector    {' '.join(f'{number:g}' for number in row.vector)}")
    return "\n".join(lines)
