"""`flowvec encode`: files of texts to vectors, in jobs that can be continued."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.bulk import BulkSummary, RayWorkers, encode_files, estimate_files
from flowvec.bulk.options import MAX_TEXT_BYTES, ROWS_PER_SHARD
from flowvec.bulk.ray_workers import disconnect_ray
from flowvec.cli.interrupts import stopping
from flowvec.cli.jobs import (
    MaxDead,
    OnDuplicateOption,
    ProgressOption,
    Strict,
    check_dead_letters,
    dead_letter_rule,
    names_of,
    progress_option,
    rejected_in_words,
    warn_of_absent_fields,
)
from flowvec.cli.options import (
    MODEL_HELP,
    BulkFormat,
    Compute,
    IdField,
    Json,
    MaxBatchTokens,
    Provider,
    Revision,
    TextField,
    counted,
    print_json,
    size_in_words,
)
from flowvec.cli.other_vectors import tell_lacking
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.texts.urls import shown, shown_command

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(
    epilog="Example: flowvec encode mini 'notes/*.jsonl' -o vectors --text-field body",
)
def encode(
    bundle: Annotated[str, typer.Argument(help=MODEL_HELP)],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="txt, jsonl or csv files (also .gz, .bz2, .xz, .zst), Parquet, folders or globs "
            "of these, their URLs (s3://, gs://, ...), or - for stdin.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            help="A .npy or .parquet file; any other name is a folder of shards, or its URL.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Instead of --out: a collection, new or existing."),
    ] = None,
    text_field: TextField = "text",
    id_field: IdField = None,
    keep: Annotated[
        str | None, typer.Option(help="Fields to write beside the vectors, joined by commas.")
    ] = None,
    file_format: BulkFormat = None,
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
    dedupe: Annotated[
        bool,
        typer.Option(
            "--dedupe",
            help="Encode equal texts once: those of the whole job for a folder of shards, else "
            "those within a few thousand rows.",
        ),
    ] = False,
    changed_since: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder or URL of an earlier job made with --dedupe: encode only texts that it "
            "lacks, and copy the other vectors.",
        ),
    ] = None,
    on_duplicate: OnDuplicateOption = None,
    skip_unchanged: Annotated[
        bool,
        typer.Option(
            "--skip-unchanged",
            help="With --into: leave out rows that are there with the same text and fields; no "
            "journal is kept, and any file can be added.",
        ),
    ] = False,
    max_dead: MaxDead = None,
    strict: Strict = False,
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
    gpus_per_worker: Annotated[float, typer.Option(min=0.0, help="GPUs per worker.")] = 0.0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--restart",
            help="Continue an earlier run, or delete its work and start again.",
        ),
    ] = True,
    progress_kind: ProgressOption = "bar",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Count the rows, encode a sample, and estimate the job."),
    ] = False,
    provider: Provider = None,
    compute: Compute = "auto",
    max_batch_tokens: MaxBatchTokens = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Embed the texts of files, in input order, at constant memory.

    A folder of shards can be resumed: the same command continues a job that was stopped or killed.
    Ctrl-C stops, and the next run continues within the current shard, if that took long; a second
    Ctrl-C ends the process at once. Rows that cannot be embedded go to _dead_letter.jsonl. The exit
    code is 3 if there are more of them than --max-dead.
    """
    if (out is None) == (into is None) and not dry_run:
        raise InputValueError("give either --out or --into")
    if into is not None:
        out, out_format = str(into), "collection"
    is_too_many = dead_letter_rule(max_dead)
    progress = progress_option(progress_kind)
    on_ray = _on_ray(engine, address, workers, cpus_per_worker, gpus_per_worker)
    common: dict[str, Any] = {
        "input_format": file_format,
        "text_field": text_field,
        "id_field": id_field,
        "keep": names_of(keep),
        "precision": precision,
        "prompt_name": prompt,
        "rows_per_shard": rows_per_shard,
        "max_text_bytes": max_text_bytes,
    }
    with Encoder.load(
        bundle,
        provider=provider,
        compute=cast(Any, compute),
        max_batch_tokens=max_batch_tokens,
        revision=revision,
    ) as encoder:
        if dry_run:
            is_npy = out_format == "npy" or (out is not None and out.endswith(".npy"))
            common["out_format"] = "npy" if is_npy else "parquet"
            _print_estimate(encoder, inputs, out, common, into=into, as_json=as_json)
            return
        clean = nullcontext() if on_ray is None else _ray_says_nothing_more()
        with stopping() as stop, progress("encode") as on_progress, clean:
            summary = encode_files(
                encoder,
                inputs,
                cast(str, out),
                out_format=cast(Any, out_format),
                truncation=cast(Any, truncation),
                dedupe=dedupe,
                changed_since=changed_since,
                on_duplicate=cast(Any, on_duplicate),
                skip_unchanged=skip_unchanged,
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
        typer.echo(_in_words(summary, into))
    warn_of_absent_fields(summary.absent_fields)
    if not summary.complete:
        command = shown_command(["flowvec", *sys.argv[1:]])
        if Path(summary.out).suffix in (".npy", ".parquet"):
            what = "nothing was written; the same command starts again"
        else:
            kept = f"{counted(summary.kept, 'text')} of the current shard are kept, and "
            command = command.replace(" --restart", "")
            what = f"{kept if summary.kept else ''}this continues the job"
        typer.echo(f"stopped; {what}:\n{command}", err=True)
        raise typer.Exit(128 + stop.number)
    if stop.event.is_set():
        message = "all rows are written"
        if into is not None:
            message += "; the first search builds the rest of the search graph"
        typer.echo(message, err=True)
        raise typer.Exit(128 + stop.number)
    if into is not None and summary.rows > summary.unchanged:
        tell_lacking(Path(into))
    check_dead_letters(summary, is_too_many)


@contextmanager
def _ray_says_nothing_more() -> Iterator[None]:
    """Ray prints on standard output what happens to its nodes: let it use standard error, and end.

    Standard output is for the result.
    """
    with redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            disconnect_ray()


def _share(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal()):
        raise InputValueError(f"--shard is I/N, as 2/8, not {text}")
    return int(index), int(count)


def _on_ray(
    engine: str, address: str | None, workers: int | None, cpus: float | None, gpus: float
) -> RayWorkers | None:
    if engine == "ray":
        return RayWorkers(workers or 1, cpus, gpus, address)
    if engine != "local":
        raise InputValueError(f"--engine is local or ray, not {engine}")
    if address is not None or workers is not None or cpus is not None or gpus:
        raise InputValueError("--address and options of workers are for Ray: give --engine ray")
    return None


def _in_words(summary: BulkSummary, into: Path | None = None) -> str:
    """A summary in words.

    Args:
        summary: the summary of a job.
        into: the collection that it fills, if any; it is shown instead of the job's folder.
    """
    where = shown(str(into or summary.out))
    if summary.complete and not summary.encoded:
        if 0 < summary.shards == summary.shards_before:
            return (
                f"{where}: nothing left to do: {summary.rows} x {summary.dim} "
                f"{summary.precision} are there already{rejected_in_words(summary)}, in "
                f"{counted(summary.shards, 'file' if into is None else 'shard')}; --restart "
                "starts again"
            )
        if 0 < summary.rows == summary.unchanged and not summary.pruned:
            return (
                f"{where}: nothing left to do: {counted(summary.unchanged, 'row')} are there "
                f"already, unchanged{rejected_in_words(summary)}"
            )
    rate = summary.encoded / summary.seconds if summary.seconds else 0.0
    same = f" ({summary.unchanged} unchanged)" if summary.unchanged else ""
    before = f", {summary.shards_before} of them before" if summary.shards_before else ""
    same += f" ({summary.repeated} with the text of an earlier row)" if summary.repeated else ""
    same += f" ({summary.carried} carried over)" if summary.carried else ""
    cut = f"; {summary.truncated} texts were cut" if summary.truncated else ""
    return (
        f"{where}: {counted(summary.rows_in, 'row')} in, "
        f"{summary.rows} x {summary.dim} {summary.precision} out{same}"
        f"{rejected_in_words(summary)}; "
        f"{counted(summary.shards, 'file' if into is None else 'shard')}{before}; "
        f"{rate:,.0f} texts/s in {summary.seconds:.1f} s on "
        f"{summary.provider} in {summary.compute}{cut}"
    )


def _print_estimate(
    encoder: Encoder,
    inputs: list[str],
    out: str | None,
    common: dict[str, Any],
    *,
    into: Path | None,
    as_json: bool,
) -> None:
    estimate = estimate_files(encoder, inputs, out, **common)
    if as_json:
        print_json(asdict(estimate))
        return
    what = "" if into is None else " (adding them to the collection takes longer)"
    typer.echo(
        f"{counted(estimate.rows, 'row')}, about {estimate.tokens:,} tokens: "
        f"{_duration(estimate.seconds)} here{what}, "
        f"after {_duration(estimate.survey_seconds)} to count the rows; "
        f"{size_in_words(estimate.bytes)} of vectors in {counted(estimate.shards, 'shard')}; of "
        f"{counted(estimate.sampled, 'sampled row')} {estimate.dead_share:.1%} cannot be embedded"
    )
    if estimate.complete:
        typer.echo(
            f"{shown(str(out))} holds a complete job of {counted(estimate.rows_before, 'row')}: "
            "nothing is left to do for the same job"
        )
    elif estimate.rows_before:
        typer.echo(
            f"{shown(str(out))} holds {counted(estimate.rows_before, 'row')} of a job, which the "
            "same job continues"
        )
    elif out is not None and Path(out).is_file():
        typer.echo(f"{shown(out)} exists: give --restart to replace it")


def _duration(seconds: float) -> str:
    """Seconds in words, such as `2 h 5 min`, `3.4 min` and `12.0 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min"
