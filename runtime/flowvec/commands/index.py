"""`flowvec index`: a file of texts into a searchable collection."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from tqdm import tqdm

from flowvec.collection import Collection
from flowvec.commands import Compute, Format, Json, Provider, TextField, print_json
from flowvec.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.inputs import read_rows
from flowvec.pipeline import WINDOW
from flowvec.store import FILE, check_ids

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: flowvec index ./notes notes.jsonl --model mini --id-field id")
def index(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A txt, jsonl or csv file, or - for stdin.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="A shipped model (mini) or a bundle's directory; for a new collection."),
    ] = None,
    text_field: TextField = "text",
    id_field: Annotated[
        str | None,
        typer.Option(help="Field that holds the id; without it rows are numbered from 0."),
    ] = None,
    file_format: Format = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Let numbered rows replace rows of the same numbers."),
    ] = False,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """Add the texts of a file to a collection; make it if there is none.

    Rows whose ids exist are replaced. Every few thousand rows are committed: after an interruption,
    running the same command again (with --replace, if rows are numbered) completes the work.
    """
    exists = (directory / FILE).is_file()
    if not exists and model is None:
        raise InputValueError(f"{directory} is no collection yet; give --model to make one")
    rows = read_rows(source, text_field=text_field, id_field=id_field, file_format=file_format)
    # What is wrong with the input must not leave an empty collection.
    first = list(islice(rows, WINDOW))
    check_ids([row.id for row in first])
    if exists and id_field is None and not replace:
        _refuse_renumbering(directory)
    with (
        Encoder.load(
            model or collection_model(directory), provider=provider, compute=cast(Any, compute)
        ) as encoder,
        (Collection.open if exists else Collection.create)(
            directory, encoder=encoder
        ) as collection,
        tqdm(desc="index", unit=" rows", disable=not sys.stderr.isatty()) as progress,
    ):
        added, window = 0, first
        while window:
            collection.add([row.id for row in window], [row.text for row in window])
            added += len(window)
            progress.update(len(window))
            window = list(islice(rows, WINDOW))
        info = collection.info()
    if as_json:
        print_json({"path": info.path, "added": added, "rows": info.rows, "dim": info.dim})
    else:
        typer.echo(f"{directory}: {added} rows added, {info.rows} in all, {info.dim} dimensions")


def _refuse_renumbering(directory: Path) -> None:
    with Collection.open(directory) as collection:
        if len(collection):
            raise InputValueError(
                f"{directory} holds {len(collection)} rows, and numbers from 0 would replace some; "
                "give --id-field, or --replace to replace them"
            )


def collection_model(directory: Path) -> str:
    """The name or directory of the bundle that a collection was made with.

    Raises:
        CollectionError: there is no collection.
        InputValueError: the collection was made of plain vectors.
    """
    with Collection.open(directory) as collection:
        model = collection.info().model
    if model is None:
        raise InputValueError(f"{directory} was made of plain vectors; give --model")
    return model
