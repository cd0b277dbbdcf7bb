"""`flowvec index`: adds the texts of files to a collection."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.arguments import choice
from flowvec.bulk import RayWorkers, encode_files
from flowvec.cli.indexed import print_other_vectors, print_shards, print_summary, rows_of
from flowvec.cli.interrupts import stopping, telling_how_to_continue
from flowvec.cli.jobs import (
    MaxDead,
    OnDuplicateOption,
    OnError,
    Strict,
    check_dead_letters,
    dead_letter_rule,
    is_strict,
    names_of,
    progress_bar,
    warn_of_absent_fields,
)
from flowvec.cli.options import (
    MODEL_HELP,
    BulkFormat,
    Compute,
    IdField,
    Json,
    Provider,
    Revision,
    TextField,
)
from flowvec.cli.other_vectors import (
    OtherVectors,
    check_sparse_vectors,
    check_token_vectors,
    make_other_vectors,
    tell_lacking,
)
from flowvec.collection.collection import Collection
from flowvec.collection.creation import is_collection
from flowvec.collection.store.field_indexes import checked_path
from flowvec.collection.store.full_text import TOKENIZERS
from flowvec.collection.store.settings import TOKEN_DTYPES
from flowvec.encoder.encoder import Encoder
from flowvec.errors import BundleError, ExportError, InputValueError, MissingDependencyError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.sharded import index_shards, is_sharded
from flowvec.sparse.encoder import SparseEncoder
from flowvec.texts.places import check_apart
from flowvec.texts.urls import is_url, shown

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: flowvec index ./notes notes.jsonl --model mini --id-field id")
def index(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="The collection's directory; with --engine ray also a URL."
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUT]...",
            help="txt, jsonl or csv files (also .gz, .bz2, .xz, .zst), Parquet, folders or globs "
            "of these, their URLs (s3://, gs://, ...), or - for stdin. Without any, --full-text, "
            "--index-field, --sparse-model and --token-model work on the rows that are there.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"For a new collection: {MODEL_HELP[0].lower()}{MODEL_HELP[1:]}"),
    ] = None,
    text_field: TextField = "text",
    id_field: IdField = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Fields to keep as metadata, joined by commas; searches filter by them. Those of "
            "a csv file are texts."
        ),
    ] = None,
    file_format: BulkFormat = None,
    on_duplicate: OnDuplicateOption = None,
    max_dead: MaxDead = None,
    strict: Strict = False,
    on_error: OnError = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete rows whose ids are not in the inputs. The inputs must be all that the "
            "collection is made of.",
        ),
    ] = False,
    split: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Split texts into chunks of whole sentences of at most so many tokens; 0 is as "
            "many as the model reads. Search with --group-by parent.",
        ),
    ] = None,
    split_overlap: Annotated[
        int, typer.Option(min=0, help="Most tokens that a chunk repeats of the one before.")
    ] = 0,
    full_text: Annotated[
        str | None,
        typer.Option(
            help="Make the full-text index of hybrid searches: unicode61 for words, trigram for "
            "parts of words and languages without spaces."
        ),
    ] = None,
    sparse_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A sparse encoder: all texts of the collection whose rows have no sparse vector "
            "get theirs.",
        ),
    ] = None,
    token_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A multi-vector encoder: its token vectors of all texts are stored, for searches "
            "with --rerank. Their size is printed before.",
        ),
    ] = None,
    token_dtype: Annotated[
        str | None,
        typer.Option(help="How token vectors are stored: float16 (the default), or signs."),
    ] = None,
    replace_token_vectors: Annotated[
        bool,
        typer.Option(
            "--replace-token-vectors",
            help="Delete stored token vectors of another --token-model or --token-dtype, and make "
            "all again.",
        ),
    ] = False,
    index_field: Annotated[
        list[str] | None,
        typer.Option(
            help="Make an index over a field that --keep keeps, for filters by it; may be repeated."
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Let numbered rows replace rows with the same numbers."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="The input is the same as before, or has grown: without --id-field, its rows are "
            "numbered as before.",
        ),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(help="local, or ray: a collection in shards, built by a Ray cluster."),
    ] = "local",
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many shards, with --engine ray; rows are dealt out in blocks of 32,768.",
        ),
    ] = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild", help="Build all shards again, also of other files, with --engine ray."
        ),
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Shards built at a time, with --engine ray.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster; by default a running or a new one."),
    ] = None,
    provider: Provider = None,
    compute: Compute = "auto",
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Add the texts of files to a collection, which is created if there is none.

    A row replaces the row with the same id; rows that are there with the same text and fields are
    left out. So the same command continues after an interruption; without --id-field, add --resume.
    Without files, the rows that are there get the vectors and indexes that they lack. Rows that
    cannot be embedded go to DIR.dead_letter.jsonl, and blank lines of a txt file are skipped. The
    exit code is 3 if there are more dead letters than --max-dead.
    """
    wanted = names_of(keep)
    is_too_many = dead_letter_rule(max_dead)
    stops = is_strict(strict, on_error)
    if full_text is not None:
        choice("--full-text", full_text, TOKENIZERS)
    if token_dtype is not None:
        choice("--token-dtype", token_dtype, TOKEN_DTYPES)
        if token_model is None:
            raise InputValueError("--token-dtype goes with --token-model")
    if replace_token_vectors and token_model is None:
        raise InputValueError("--replace-token-vectors goes with --token-model")
    for field in index_field or ():
        checked_path(field)
    if not inputs:
        _check_without_files(
            engine,
            makes={
                "--sparse-model": sparse_model is not None,
                "--token-model": token_model is not None,
                "--full-text": full_text is not None,
                "--index-field": bool(index_field),
            },
            reads={
                "--id-field": id_field is not None,
                "--keep": bool(wanted),
                "--on-duplicate": on_duplicate is not None,
                "--prune": prune,
                "--split": split is not None,
                "--replace": replace,
                "--resume": resume,
            },
        )
    common: dict[str, Any] = {"text_field": text_field, "id_field": id_field, "keep": wanted,
                              "input_format": file_format}  # fmt: skip
    if engine == "ray":
        if model is None or shards is None:
            raise InputValueError("a collection in shards needs --model and --shards")
        local_only = {
            "--on-duplicate": on_duplicate is not None,
            "--max-dead": max_dead is not None,
            "--strict": strict,
            "--on-error": on_error is not None,
            "--prune": prune,
            "--split": split is not None,
            "--index-field": bool(index_field),
            "--token-model": token_model is not None,
            "--replace": replace,
            "--resume": resume,
        }
        if given := [name for name, is_given in local_only.items() if is_given]:
            raise InputValueError(f"{', '.join(given)} cannot be used with --engine ray")
        with (
            Encoder.load(
                model, provider=provider, compute=cast(Any, compute), revision=revision
            ) as encoder,
            nullcontext() if sparse_model is None else SparseEncoder.load(sparse_model) as sparse,
        ):
            again = "rebuilds" if rebuild else "completes"
            with telling_how_to_continue(f"the same command {again} the shards"):
                done = index_shards(
                    encoder, inputs or [], place, shards=shards, resume=not rebuild,
                    workers=RayWorkers(workers or shards, address=address),
                    sparse_encoder=sparse, full_text=cast(Any, full_text), **common,
                )  # fmt: skip
        print_shards(place, done, as_json=as_json)
        # A shard of few rows may lack a field that others have, and one without rows has none.
        filled = [one for one in done if one.encoded]
        warn_of_absent_fields(
            name for name in wanted if filled and all(name in one.absent_fields for one in filled)
        )
        return
    if engine != "local":
        raise InputValueError(f"--engine is local or ray, not {engine}")
    if shards is not None or workers is not None or address is not None or rebuild:
        raise InputValueError(
            "--shards, --rebuild, --workers and --address are for Ray: give --engine ray"
        )
    if is_url(place):
        raise InputValueError(
            f"a collection is a directory of a file system, not {shown(place)}; below a URL it "
            "is in shards: give --engine ray and --shards"
        )
    directory = Path(place)
    if not inputs:
        if not is_collection(directory):
            raise InputValueError(f"{directory} is not a collection yet; give files to make one of")
    elif is_collection(directory):
        if id_field is None and not (replace or resume):
            _refuse_renumbering(directory)
    elif directory.is_file():
        raise InputValueError(
            f"{directory} is a file: give the collection's directory first, then the files"
        )
    elif model is None and is_sharded(directory):
        raise InputValueError(
            f"{directory} is a collection in shards, which only `flowvec index --engine ray` writes"
        )
    elif model is None:
        raise InputValueError(f"{directory} is not a collection yet; give --model to create one")
    # Before the job, so that a wrong name is said at once.
    check_apart(directory, (sparse_model, token_model))
    sparse_encoder = None if sparse_model is None else SparseEncoder.load(sparse_model)
    if sparse_encoder is not None:
        check_sparse_vectors(directory, sparse_encoder)
    token_encoder = None if token_model is None else MultiVectorEncoder.load(token_model)
    if token_encoder is not None:
        check_token_vectors(directory, token_encoder, token_dtype, replace=replace_token_vectors)

    make_others = partial(
        make_other_vectors, directory, sparse_encoder, token_encoder, token_dtype,
        replace_tokens=replace_token_vectors,
    )  # fmt: skip
    if not inputs:
        _make_indexes(directory, full_text, index_field)
        made = make_others()
        print_other_vectors(directory, made, as_json=as_json)
        if made.stopped_by is not None:
            typer.echo("stopped; the same command continues", err=True)
            raise typer.Exit(128 + made.stopped_by)
        return
    with (
        encoder_of(directory, model, provider, compute, revision) as encoder,
        stopping() as stop,
        progress_bar("index") as on_progress,
    ):
        summary = encode_files(
            encoder,
            inputs,
            directory,
            out_format="collection",
            skip_unchanged=True,
            on_duplicate=cast(Any, on_duplicate),
            strict=stops,
            prune=prune,
            split_tokens=encoder.max_length if split == 0 else split,
            split_overlap=split_overlap,
            stop=stop.event,
            on_progress=on_progress,
            **common,
        )
        limit = encoder.max_length
    if not summary.complete:
        # Rows that are numbered anew are refused without one of these options.
        can_repeat = id_field is not None or resume or replace
        again = "the same command" if can_repeat else "the same command with --resume"
        typer.echo(
            f"{shown(place)}: {rows_of(directory)} rows are there; {again} continues", err=True
        )
        raise typer.Exit(128 + stop.number)
    made = OtherVectors()
    if is_collection(directory):
        _make_indexes(directory, full_text, index_field)
        if not stop.event.is_set():
            made = make_others()
    print_summary(directory, summary, limit, made, as_json=as_json)
    if made.stopped_by is not None:
        typer.echo("all rows are added; the same command makes the other vectors", err=True)
        raise typer.Exit(128 + made.stopped_by)
    warn_of_absent_fields(summary.absent_fields)
    if stop.event.is_set():
        what = "the first search builds the rest of the graph"
        if sparse_encoder is not None or token_encoder is not None:
            what = "the same command makes the other vectors"
        typer.echo(f"all rows are added; {what}", err=True)
        raise typer.Exit(128 + stop.number)
    if summary.rows > summary.unchanged:
        tell_lacking(directory)
    check_dead_letters(summary, is_too_many)


def _make_indexes(directory: Path, full_text: str | None, fields: Sequence[str] | None) -> None:
    if full_text is None and not fields:
        return
    with Collection.open(directory) as collection:
        if full_text is not None:
            collection.index_texts(tokenizer=cast(Any, full_text))
        for field in fields or ():
            collection.create_index(field)


def _check_without_files(engine: str, *, makes: dict[str, bool], reads: dict[str, bool]) -> None:
    """Refuse a command without files that has nothing to do, or options about files.

    Args:
        engine: as given.
        makes: whether each option is given that makes something of the rows that are there.
        reads: whether each option is given that is about the rows of files.
    """
    if engine != "local" or not any(makes.values()):
        raise InputValueError("give files to add, or - for standard input")
    if given := [name for name, is_given in reads.items() if is_given]:
        raise InputValueError(f"{', '.join(given)} cannot be used without files")


def _refuse_renumbering(directory: Path) -> None:
    with Collection.open(directory) as collection:
        if len(collection):
            raise InputValueError(
                f"{directory} holds {len(collection)} rows, and numbers from 0 would replace some; "
                "give --id-field, --replace to replace them, or --resume with the same input"
            )


def encoder_of(
    directory: Path,
    model: str | None,
    provider: str | None,
    compute: str,
    revision: str | None = None,
) -> Encoder:
    """The given model, or the one that made the collection.

    Raises:
        CollectionError: there is no collection.
        InputValueError: the collection holds plain vectors.
        BundleError: the model cannot be loaded.
    """
    if model is not None:
        return Encoder.load(model, provider=provider, compute=cast(Any, compute), revision=revision)
    if revision is not None:
        raise InputValueError("--revision goes with --model")
    with Collection.open(directory) as collection:
        recorded = collection.info().model
    if recorded is None:
        raise InputValueError(
            f"{directory} holds plain vectors; give --model: the model that made them. Queries "
            "embedded by another model would find wrong rows"
        )
    try:
        # With `auto`, whoever opens the collection takes the compute type of its vectors.
        return Encoder.load(recorded, provider=provider, compute=cast(Any, compute))
    except (BundleError, ExportError, MissingDependencyError) as error:
        raise BundleError(
            f"{directory} was made with the model {recorded}, which cannot be loaded: {error}. If "
            "it has moved, name it with --model"
        ) from error
