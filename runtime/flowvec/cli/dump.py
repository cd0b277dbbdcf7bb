"""`flowvec dump`: writes the rows of a collection to a file or to standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Annotated

import typer

from flowvec.bundle.bundle import absolute_path
from flowvec.cli.options import Overwrite, counted
from flowvec.cli.rows import Where, parsed_filter, row_as_json
from flowvec.collection.collection import Collection
from flowvec.collection.store.rows import Item
from flowvec.errors import InputValueError
from flowvec.files import staged_file
from flowvec.texts.places import check_apart, check_new
from flowvec.texts.urls import shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec dump ./notes -o notes.jsonl")
def dump(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="A .jsonl or .parquet file; by default standard output. "
            "Parquet has the vectors and is read by `Collection.from_parquet`.",
        ),
    ] = None,
    condition: Where = None,
    vectors: Annotated[
        bool, typer.Option("--vectors", help="Write the vectors to JSON lines too.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Write all rows, one JSON object a line: id, text, metadata."""
    wanted = parsed_filter(condition)
    if out is not None and out.suffix not in (".jsonl", ".parquet"):
        raise InputValueError(f"the output is a .jsonl or .parquet file, not {out.name}")
    with Collection.open(directory) as collection:
        if out is None:
            _print(collection.rows(wanted), vectors)
            return
        if out.suffix == ".parquet":
            count = collection.to_parquet(out, filter=wanted, overwrite=overwrite)
        else:
            check_apart(absolute_path(out), [directory])
            check_new(absolute_path(out), overwrite=overwrite)
            with staged_file(absolute_path(out)) as partial, partial.open("wb") as file:
                count = _write(file, collection.rows(wanted), vectors)
    typer.echo(f"{shown(str(out))}: {counted(count, 'row')}")


def _write(file: IO[bytes], rows: Iterable[Item], vectors: bool) -> int:
    count = 0
    for row in rows:
        line = json.dumps(row_as_json(row, with_vector=vectors), ensure_ascii=False)
        file.write(line.encode() + b"\n")
        count += 1
    return count


def _print(rows: Iterable[Item], vectors: bool) -> None:
    try:
        _write(sys.stdout.buffer, rows, vectors)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # whoever reads this has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
