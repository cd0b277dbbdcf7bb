"""`flowvec index`: adds the texts of a file to a collection."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from tqdm import tqdm

from flowvec.bulk import BulkSummary, RayWorkers
from flowvec.cli.options import Compute, Format, Json, Provider, TextField, print_json
from flowvec.collection.collection import Collection
from flowvec.collection.store.rows import check_ids, encode_metadata
from flowvec.collection.store.store import FILE
from flowvec.encoder.encoder import Encoder
from flowvec.errors import BundleError, FlowvecError, InputValueError
from flowvec.sharded import index_shards
from flowvec.texts.inputs import Row, read_rows
from flowvec.texts.unicode import replace_surrogates
from flowvec.texts.window import WINDOW

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: flowvec index ./notes notes.jsonl --model mini --id-field id")
def index(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The collection's directory.")],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A txt, jsonl or csv file, or - for stdin.")
    ],
    model: Annotated[
        str | None,
        typer.Option(help="A shipped model (mini) or a bundle's directory, for a new collection."),
    ] = None,
    text_field: TextField = "text",
    id_field: Annotated[
        str | None,
        typer.Option(help="Field that holds the id; without it rows are numbered from 0."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Fields to keep as metadata, joined by commas; searches filter by them. Those of "
            "a csv file are texts."
        ),
    ] = None,
    file_format: Format = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Let numbered rows replace rows with the same numbers."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Skip rows that are there already with the same text and fields, and replace "
            "changed ones. Without --id-field the ids are the rows' numbers.",
        ),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(help="local, or ray: a collection in shards, built by a Ray cluster."),
    ] = "local",
    shards: Annotated[
        int | None, typer.Option(min=1, help="How many shards, with --engine ray.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Shards built at a time, with --engine ray.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster; by default a running or a new one."),
    ] = None,
    provider: Provider = None,
    compute: Compute = "auto",
    as_json: Json = False,
) -> None:
    """Add the texts of a file to a collection, which is created if there is none.

    Rows whose ids exist are replaced, and blank lines of a txt file are skipped. Every few thousand
    rows are committed: after an interruption, the same command with --resume completes the work,
    and embeds only new and changed rows.
    """
    wanted = [name.strip() for name in keep.split(",") if name.strip()] if keep else []
    if engine == "ray":
        if model is None or shards is None:
            raise InputValueError("a collection in shards needs --model and --shards")
        with Encoder.load(model, provider=provider, compute=cast(Any, compute)) as encoder:
            done = index_shards(
                encoder, [source], directory, shards=shards, text_field=text_field,
                id_field=id_field, keep=wanted, input_format=file_format,
                workers=RayWorkers(workers or shards, address=address),
            )  # fmt: skip
        _tell_shards(directory, done, as_json=as_json)
        return
    if engine != "local":
        raise InputValueError(f"--engine is local or ray, not {engine}")
    if shards is not None or workers is not None or address is not None:
        raise InputValueError("shards are Ray's: give --engine ray")
    exists = is_collection(directory)
    if not exists and model is None:
        raise InputValueError(f"{directory} is not a collection yet; give --model to create one")
    rows = read_rows(
        source,
        text_field=text_field,
        id_field=id_field,
        file_format=file_format,
        keep=wanted,
        skip_blank=True,
    )
    logging.getLogger("flowvec.collection.truncation").disabled = True  # it is reported at the end
    # A wrong input must not leave an empty collection.
    first = list(islice(rows, WINDOW))
    _check(first, 0)
    _check_fields(first, wanted)
    if exists and id_field is None and not (replace or resume):
        _refuse_renumbering(directory)
    with (
        encoder_of(directory, model, provider, compute) as encoder,
        (Collection.open if exists else Collection.create)(
            directory, encoder=encoder
        ) as collection,
        tqdm(desc="index", unit=" rows", disable=not sys.stderr.isatty()) as progress,
    ):
        added, left_out, replaced, truncated, window = 0, 0, 0, 0, first
        seen: set[str] = set()
        try:
            while window:
                _check(window, added + left_out)
                seen.update(*(row.kept for row in window if row.kept))
                new = _changed(collection, window, bool(wanted)) if resume else window
                metadata = [row.kept for row in new] if wanted else None
                result = collection.add(
                    [row.id for row in new], [row.text for row in new], metadata
                )
                added += len(new)
                replaced += len(new) - result.rows + result.replaced
                truncated += result.truncated
                left_out += len(window) - len(new)
                progress.update(len(window))
                window = list(islice(rows, WINDOW))
        except KeyboardInterrupt:
            typer.echo(
                f"{directory}: {len(collection)} rows are there; the same command with --resume "
                "goes on",
                err=True,
            )
            raise
        collection.prepare()  # else the first search builds the graph
        info, limit = collection.info(), encoder.max_length
    for name in wanted:
        if name not in seen:
            typer.echo(f"no row has the field {name!r}", err=True)
    if as_json:
        print_json(
            {"path": info.path, "added": added, "replaced": replaced, "left_out": left_out,
             "truncated": truncated, "rows": info.rows, "dim": info.dim}
        )  # fmt: skip
    else:
        there = f" ({replaced} replaced others)" if replaced else ""
        there += f" ({left_out} were there already)" if resume else ""
        typer.echo(
            f"{directory}: {added} rows added{there}, {info.rows} in all, {info.dim} dimensions"
        )
        if truncated:
            typer.echo(f"{truncated} texts have more than {limit} tokens, and were cut")


def _check_fields(window: list[Row], wanted: list[str]) -> None:
    """Refuse a field that no row has, before existing values are replaced."""
    for name in wanted:
        if window and not any(row.kept and name in row.kept for row in window):
            raise InputValueError(f"none of the first {len(window)} rows has the field {name!r}")


def _tell_shards(directory: Path, done: list[BulkSummary], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(one) for one in done])
        return
    for one in done:
        typer.echo(f"{Path(one.out).name}: {one.rows} rows, {one.dead_letters} dead letters")
    typer.echo(f"{directory}: {sum(one.rows for one in done)} rows in {len(done)} shards")


def _changed(collection: Collection, window: list[Row], with_metadata: bool) -> list[Row]:
    """Rows that are new or changed; of rows with equal ids the last counts."""
    last = list({row.id: row for row in window}.values())
    there = collection.get([row.id for row in last])
    return [
        row
        for row, item in zip(last, there, strict=True)
        if item is None
        or item.text != replace_surrogates(row.text)
        or (with_metadata and item.metadata != row.kept)
    ]


def is_collection(directory: Path) -> bool:
    """Whether it is a collection; an interrupted creation is not."""
    return (directory / FILE).is_file() and not Collection.is_unmade(directory)


def _check(window: list[Row], first: int) -> None:
    """Refuse rows that cannot be added, and name them."""
    try:
        check_ids([row.id for row in window])
        for place, row in enumerate(window):
            encode_metadata(row.kept, first + place)
    except FlowvecError as error:
        raise InputValueError(f"rows from {first} on: {error}") from None


def _refuse_renumbering(directory: Path) -> None:
    with Collection.open(directory) as collection:
        if len(collection):
            raise InputValueError(
                f"{directory} holds {len(collection)} rows, and numbers from 0 would replace some; "
                "give --id-field, --replace to replace them, or --resume with the same input"
            )


def encoder_of(directory: Path, model: str | None, provider: str | None, compute: str) -> Encoder:
    """The given model, or the one that made the collection.

    Raises:
        CollectionError: there is no collection.
        InputValueError: the collection holds plain vectors.
        BundleError: the model cannot be loaded.
    """
    if model is not None:
        return Encoder.load(model, provider=provider, compute=cast(Any, compute))
    with Collection.open(directory) as collection:
        recorded = collection.info().model
    if recorded is None:
        raise InputValueError(f"{directory} holds plain vectors; give --model")
    try:
        return Encoder.load(recorded, provider=provider, compute=cast(Any, compute))
    except BundleError as error:
        raise BundleError(
            f"{directory} was made with the model {recorded}, which cannot be loaded: {error}. If "
            "it has moved, name it with --model"
        ) from error
