"""`flowvec encode`: files of texts to vectors, in jobs that can be continued."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from tqdm import tqdm

from flowvec.bulk import BulkProgress, BulkSummary, RayWorkers, encode_files, estimate_files
from flowvec.bulk.options import MAX_TEXT_BYTES, ROWS_PER_SHARD
from flowvec.cli.options import (
    Compute,
    Json,
    MaxBatchTokens,
    Provider,
    TextField,
    counted,
    print_json,
)
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError

app = typer.Typer(add_completion=False)
_TOO_MANY_DEAD = 3


@app.command(
    epilog="Example: flowvec encode mini 'notes/*.jsonl' -o vectors --text-field body",
)
def encode(
    bundle: Annotated[str, typer.Argument(help="A shipped model (mini) or a bundle's directory.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="txt, jsonl or csv files (also .gz, .bz2, .xz, .zst), Parquet, folders or globs "
            "of these, their URLs (s3://, gs://, ...), or - for stdin.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="A .npy or .parquet file; any other name is a folder of shards."
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead of --out: a collection, new or existing."),
    ] = None,
    text_field: TextField = "text",
    id_field: Annotated[
        str | None,
        typer.Option(help="Field that holds the id; without it rows are numbered from 0."),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Fields to write beside the vectors, joined by commas.")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="txt, jsonl, csv or parquet; without it the extensions decide."
        ),
    ] = None,
    out_format: Annotated[
        str | None, typer.Option(help="Format of shards: parquet (the default) or npy.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="float32, float16, int8, uint8, binary or ubinary.")
    ] = "float32",
    prompt: Annotated[str | None, typer.Option(help="Name of the bundle's prompt to use.")] = None,
    truncation: Annotated[
        str, typer.Option(help="truncate: cut long texts; error: make them dead letters.")
    ] = "truncate",
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Encode equal texts within a few thousand rows once.")
    ] = False,
    on_duplicate: Annotated[
        str | None,
        typer.Option(
            help="Where rows have the same id: last (the default) or first is written, error: stop "
            "before anything is, dead-letter: all but the first are dead letters."
        ),
    ] = None,
    max_dead: Annotated[
        str | None,
        typer.Option(
            metavar="N|P%",
            help="With more dead letters the exit code is 3. By default: if all rows are dead.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that cannot be embedded.")
    ] = False,
    rows_per_shard: Annotated[
        int, typer.Option(min=1, help="Input rows per shard.")
    ] = ROWS_PER_SHARD,
    max_text_bytes: Annotated[
        int, typer.Option(min=1, help="Longer texts are dead letters.")
    ] = MAX_TEXT_BYTES,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Do the I-th of N shares of the shards, from 1/N to N/N: several machines fill "
            "one folder.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray: Encoders on a Ray cluster share the shards.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster; by default a running or a new one."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Encoders on Ray.")] = None,
    cpus_per_worker: Annotated[
        float | None,
        typer.Option(min=0.0, help="Cores per worker; without it the cluster's cores are divided."),
    ] = None,
    gpus_per_worker: Annotated[float, typer.Option(min=0.0, help="GPUs for each.")] = 0.0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--restart",
            help="Continue an earlier run, or delete its work and start again.",
        ),
    ] = True,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Count the rows, encode a sample, and estimate the job."),
    ] = False,
    provider: Provider = None,
    compute: Compute = "auto",
    max_batch_tokens: MaxBatchTokens = None,
    as_json: Json = False,
) -> None:
    """Embed the texts of files, in input order, at constant memory.

    A folder of shards can be resumed: the same command continues a job that was stopped or killed.
    Ctrl-C drops the current shard and stops; a second Ctrl-C ends the process at once. Rows that
    cannot be embedded go to _dead_letter.jsonl. The exit code is 3 if there are more of them than
    --max-dead.
    """
    if (out is None) == (into is None) and not dry_run:
        raise InputValueError("give either --out or --into")
    if into is not None:
        out, out_format = into, "collection"
    is_too_many = _max_dead(max_dead)
    on_ray = _on_ray(engine, address, workers, cpus_per_worker, gpus_per_worker)
    common: dict[str, Any] = {
        "input_format": file_format,
        "text_field": text_field,
        "id_field": id_field,
        "keep": [name.strip() for name in keep.split(",") if name.strip()] if keep else [],
        "precision": precision,
        "prompt_name": prompt,
        "rows_per_shard": rows_per_shard,
        "max_text_bytes": max_text_bytes,
    }
    with Encoder.load(
        bundle, provider=provider, compute=cast(Any, compute), max_batch_tokens=max_batch_tokens
    ) as encoder:
        if dry_run:
            _print_estimate(encoder, inputs, common, as_json=as_json)
            return
        with _stopping() as stop, _bar() as on_progress:
            summary = encode_files(
                encoder,
                inputs,
                cast(Path, out),
                out_format=cast(Any, out_format),
                truncation=cast(Any, truncation),
                dedup=dedup,
                on_duplicate=cast(Any, on_duplicate),
                strict=strict,
                share=_share(shard),
                workers=on_ray,
                resume=resume,
                stop=stop.event,
                on_progress=on_progress,
                **common,
            )
    if as_json:
        print_json(asdict(summary))
    else:
        typer.echo(_told(summary, into))
    if not summary.complete:
        command = shlex.join(["flowvec", *sys.argv[1:]])
        if Path(summary.out).suffix in (".npy", ".parquet"):
            what = "nothing was written; the same command starts again"
        else:
            command, what = command.replace(" --restart", ""), "this goes on"
        typer.echo(f"stopped; {what}:\n{command}", err=True)
        raise typer.Exit(128 + stop.number)
    if stop.event.is_set():
        told = "all rows are written"
        if into is not None:
            told += "; the first search builds the rest of the search graph"
        typer.echo(told, err=True)
        raise typer.Exit(128 + stop.number)
    if is_too_many(summary):
        typer.echo(f"{summary.dead_letters} of {summary.rows_in} rows are dead letters", err=True)
        raise typer.Exit(_TOO_MANY_DEAD)


def _max_dead(text: str | None) -> Callable[[BulkSummary], bool]:
    """Whether a job has more dead letters than a number, or a percentage, allows.

    Raises:
        InputValueError: it is neither.
    """
    if text is None:
        return lambda done: 0 < done.rows_in == done.dead_letters
    try:
        most = float(text.removesuffix("%"))
    except ValueError:
        most = math.nan
    if not 0.0 <= most < math.inf or (text.endswith("%") and most > 100.0):
        raise InputValueError(f"--max-dead is a number of rows, or a share as 1%, not {text}")
    if text.endswith("%"):
        return lambda done: done.dead_letters * 100.0 > most * done.rows_in
    return lambda done: done.dead_letters > most


def _share(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    index, _, of = text.partition("/")
    if not (index.isdecimal() and of.isdecimal()):
        raise InputValueError(f"--shard is I/N, as 2/8, not {text}")
    return int(index), int(of)


def _on_ray(
    engine: str, address: str | None, workers: int | None, cpus: float | None, gpus: float
) -> RayWorkers | None:
    if engine == "ray":
        return RayWorkers(workers or 1, cpus, gpus, address)
    if engine != "local":
        raise InputValueError(f"--engine is local or ray, not {engine}")
    if address is not None or workers is not None or cpus is not None or gpus:
        raise InputValueError("workers are Ray's: give --engine ray")
    return None


class _Stop:
    """Whether a signal asked to stop, and which."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.number = int(signal.SIGINT)


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """The first SIGINT or SIGTERM asks the job to stop; the second ends the process."""
    stop = _Stop()
    known = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }

    def ask(number: int, _: Any) -> None:
        stop.number = number
        stop.event.set()
        for known_number in known:
            signal.signal(known_number, _end)
        typer.echo("stopping; a second Ctrl-C ends at once", err=True)

    def restore() -> None:
        for number, handler in known.items():
            signal.signal(number, handler)

    for number in known:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()


def _end(number: int, _: Any) -> None:
    """End the process now, as a kill would; the next run removes what is left."""
    os._exit(128 + number)


@contextmanager
def _bar() -> Iterator[Any]:
    """A progress bar on a terminal."""
    with tqdm(desc="encode", unit=" rows", disable=not sys.stderr.isatty()) as bar:

        def show(progress: BulkProgress) -> None:
            bar.total = progress.total
            if not bar.n and progress.rows:  # the work of earlier runs does not count for the speed
                bar.initial = progress.rows
            padding = 1.0 - progress.tokens / progress.padded if progress.padded else 0.0
            rate = progress.tokens / progress.seconds if progress.seconds else 0.0
            bar.set_postfix_str(f"{rate:,.0f} tokens/s, {padding:.1%} padding", refresh=False)
            bar.update(progress.rows - bar.n)

        yield show


def _told(summary: BulkSummary, into: Path | None = None) -> str:
    """A summary in words.

    Args:
        summary: of a job.
        into: the collection that it fills, if any; it is shown instead of the job's folder.
    """
    rate = summary.encoded / summary.seconds if summary.seconds else 0.0
    dead = f", {counted(summary.dead_letters, 'dead letter')}" if summary.dead_letters else ""
    if summary.dead_letters and summary.codes:
        dead += " (" + ", ".join(f"{n} {code}" for code, n in summary.codes.items()) + ")"
    if summary.duplicates:
        named = ", ".join(map(repr, summary.duplicate_ids))
        more = ", ..." if summary.duplicates > len(summary.duplicate_ids) else ""
        dead += f", {summary.duplicates} left out as another row has the same id"
        dead += f" ({named}{more})" if named else ""
    before = f", {summary.shards_before} of them before" if summary.shards_before else ""
    cut = f"; {summary.truncated} texts were cut" if summary.truncated else ""
    return (
        f"{into or summary.out}: {counted(summary.rows_in, 'row')} in, "
        f"{summary.rows} x {summary.dim} {summary.precision} out{dead}; "
        f"{counted(summary.shards, 'file' if into is None else 'part')}{before}; "
        f"{rate:,.0f} texts/s in {summary.seconds:.1f} s on "
        f"{summary.provider} in {summary.compute}{cut}"
    )


def _print_estimate(
    encoder: Encoder, inputs: list[str], common: dict[str, Any], *, as_json: bool
) -> None:
    found = estimate_files(encoder, inputs, **common)
    if as_json:
        print_json(asdict(found))
        return
    hours, seconds = divmod(found.seconds, 3600)
    typer.echo(
        f"{found.rows} rows, about {found.tokens:,} tokens: {hours:.0f} h {seconds / 60:.1f} min "
        f"here, {found.bytes / 1e6:,.1f} MB of vectors in {found.shards} shards; of "
        f"{found.sampled} sampled rows {found.dead_share:.1%} cannot be embedded"
    )
