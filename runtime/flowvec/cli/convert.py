"""`flowvec convert`: vectors of a bulk job or a collection in the format of another tool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.arguments import choice
from flowvec.cli.interrupts import telling_how_to_continue
from flowvec.cli.json_lines import json_lines
from flowvec.cli.options import Json, counted, print_json, size_in_words
from flowvec.convert import Converted, ConvertProgress, Labels, convert
from flowvec.convert.options import FORMATS, ConvertFormat
from flowvec.errors import InputValueError
from flowvec.progress import bar
from flowvec.texts.unicode import printable
from flowvec.texts.urls import name_of, shown
from flowvec.vectors import Metric

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
Show = Callable[[ConvertProgress], None]


@app.command("convert", epilog="Example: flowvec convert vectors vectors.parquet")
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="The folder of a bulk job, or its URL; or a collection."
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The file or folder to write, or its URL (s3://...), or that of a Qdrant server.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(FORMATS)}; by default the target's extension decides."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="cosine, ip or l2; by default the collection's, or cosine for a job."),
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide each vector by its length.")
    ] = False,
    labels: Annotated[
        str | None,
        typer.Option(
            help="What faiss and hnswlib return: ids, or numbers of rows. By default the ids if "
            "all are whole numbers; rows.parquet maps either to the rows."
        ),
    ] = None,
    row_group_rows: Annotated[
        int, typer.Option(help="Rows of a row group of Parquet; fewer find an id faster.")
    ] = 8192,
    m: Annotated[
        int, typer.Option("--m", help="hnswlib, pgvector and qdrant: links of a node.")
    ] = 16,
    ef_construction: Annotated[
        int, typer.Option(help="hnswlib, pgvector and qdrant: search depth for new nodes.")
    ] = 200,
    table: Annotated[
        str | None,
        typer.Option(help="pgvector: TABLE or SCHEMA.TABLE; by default the target's name."),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(help="qdrant: name of the collection; by default the source's name."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a target that exists.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check the source and the target, and write nothing."),
    ] = False,
    progress: Annotated[
        str, typer.Option(help="bar: on a terminal only; json: lines of JSON on stderr.")
    ] = "bar",
    as_json: Json = False,
) -> None:
    """Write vectors, ids and metadata in the format of another tool.

    **parquet**: one file, sorted by id, in small row groups, so that engines read only the row
    groups that can hold an id. **faiss**: a folder with an IndexIDMap over an IndexFlat.
    **hnswlib**: a folder with an index of hnswlib. Both have `rows.parquet` beside the index.
    **pgvector**: a folder with `rows.copy`, which PostgreSQL's COPY reads, and `load.sql` for psql.
    **lance**: a Lance dataset (extra `[lance]`). **qdrant**: a collection of a Qdrant server, whose
    API key is in the environment variable QDRANT_API_KEY, or of a folder of qdrant-client's local
    mode (extra `[qdrant]`).

    Vectors are kept bit for bit. Shards are checked against the manifest while they are read. The
    target appears whole or not at all.
    """
    shown = _lines if choice("--progress", progress, ("bar", "json")) == "json" else _bar
    with shown() as show, telling_how_to_continue("the same command starts again"):
        done = convert(
            source,
            target,
            _format_of(target, to),
            metric=cast(Metric | None, metric),
            normalize=normalize,
            labels=cast(Labels | None, labels),
            row_group_rows=row_group_rows,
            m=m,
            ef_construction=ef_construction,
            table=table,
            collection=collection,
            overwrite=overwrite,
            dry_run=dry_run,
            on_progress=show,
        )
    if as_json:
        print_json(done.plain())
        return
    typer.echo(f"{_rows(done)}; nothing was written" if dry_run else _in_words(done))
    for note in done.notes:
        typer.echo(printable(note))


def _format_of(target: str, to: str | None) -> ConvertFormat:
    """The format that --to names, or that the target's extension does.

    Raises:
        InputValueError: neither does.
    """
    if to is not None:
        name: ConvertFormat = choice("--to", to, FORMATS)
        return name
    extension = Path(name_of(target)).suffix.removeprefix(".")
    for name in FORMATS:
        if name == extension:
            return name
    raise InputValueError(f"name the format of {shown(target)}: --to {' | '.join(FORMATS)}")


def _in_words(done: Converted) -> str:
    rate = f"{done.rows / done.seconds:,.0f} rows/s" if done.seconds else ""
    size = "" if done.bytes is None else f", {size_in_words(done.bytes)}"
    return f"{_rows(done)}{size}; {done.seconds:.1f} s, {rate}"


def _rows(done: Converted) -> str:
    return f"{shown(done.target)}: {counted(done.rows, 'row')} of {done.dim} x {done.dtype}"


@contextmanager
def _bar() -> Iterator[Show]:
    """A progress bar on a terminal, one for each stage."""
    drawn: Any = None
    stage = ""
    with ExitStack() as bars:

        def show(progress: ConvertProgress) -> None:
            nonlocal drawn, stage
            if drawn is None or stage != progress.stage:
                bars.close()
                stage = progress.stage
                drawn = bars.enter_context(bar(stage, progress.total, "rows"))
            drawn.update(progress.rows - drawn.n)

        yield show


def _lines() -> AbstractContextManager[Show]:
    """Lines of JSON about a conversion."""
    return json_lines(_line_of)


def _line_of(progress: ConvertProgress) -> dict[str, Any]:
    return {
        "command": "convert",
        "stage": progress.stage,
        "rows": progress.rows,
        "total": progress.total,
        "seconds": round(progress.seconds, 3),
    }
