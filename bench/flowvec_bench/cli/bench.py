"""`flowvec bench`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from flowvec.cli.options import (
    MODEL_HELP,
    Compute,
    Format,
    MaxBatchTokens,
    Overwrite,
    Provider,
    TextField,
)
from flowvec.encoder.encoder import Encoder, EncoderInfo
from flowvec.errors import InputValueError
from flowvec.optional import require
from flowvec.progress import bar
from flowvec.texts.rows import read_rows
from flowvec_bench.cli.bulk import bulk
from flowvec_bench.cli.filters import filters
from flowvec_bench.cli.http import http
from flowvec_bench.cli.indexes import retrieval
from flowvec_bench.cli.options import JsonOut, write_json
from flowvec_bench.cli.pairs import pairs
from flowvec_bench.cli.peers import latency, peers
from flowvec_export.arguments import check_output

_MIB = 1 << 20

_BundleName = Annotated[str, typer.Argument(help=MODEL_HELP)]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Measure speed on this machine.",
    epilog="Example: flowvec bench throughput mini",
)


@app.callback()
def bench() -> None:
    """Measure speed on this machine."""


app.command(
    epilog="Example: flowvec bench peers minilm-l6 --tokenizer ./tokenizer --corpus wiki.txt.xz"
)(peers)
app.command(epilog="Example: flowvec bench latency mini --callers 1,8,64")(latency)
app.command(epilog="Example: flowvec bench http mini --texts-per-call 64 --callers 8")(http)
app.command(epilog="Example: flowvec bench pairs ./my-checkpoint --corpus wiki.txt.xz")(pairs)
app.command(epilog="Example: flowvec bench retrieval --corpus wiki.txt.xz --rows 100000")(retrieval)
app.command(epilog="Example: flowvec bench filters --rows 100000")(filters)
app.command(epilog="Example: flowvec bench bulk --corpus wiki.txt.xz --rows 1000000")(bulk)


@app.command(epilog="Example: flowvec bench throughput mini --json-out result.json")
def throughput(
    bundle: _BundleName,
    texts: Annotated[
        str | None,
        typer.Option(help="A txt, jsonl or csv file. Default: a seeded mix of lengths."),
    ] = None,
    text_field: TextField = "text",
    file_format: Format = None,
    batching: Annotated[
        str | None, typer.Option(help="none, characters or tokens. Default: all three.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of texts in the seeded mix.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the mix.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats; medians are shown.")] = 5,
    provider: Provider = None,
    compute: Compute = "auto",
    max_batch_tokens: MaxBatchTokens = None,
    json_out: JsonOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Texts and tokens per second: batches in input order, by characters, and by token count."""
    require("flowvec bench", "cpu,bench", "psutil")
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.speed.mixed_texts import mixed_lengths
    from flowvec_bench.speed.throughput import BATCHINGS, measure_throughput

    if batching is not None and batching not in BATCHINGS:
        raise InputValueError(f"batching must be one of {', '.join(BATCHINGS)}, not {batching!r}")
    check_output(json_out, (bundle, texts), overwrite=overwrite)
    if texts is None:
        items = mixed_lengths(count, seed)
    else:
        rows = read_rows(texts, text_field=text_field, file_format=file_format)
        items = [row.text for row in rows]
    kinds = BATCHINGS if batching is None else (batching,)
    with (
        _loaded(bundle, provider, compute, max_batch_tokens) as encoder,
        bar("repeats", repeats + 1, "passes") as progress,
    ):
        info = encoder.info()
        results = measure_throughput(
            encoder,
            items,
            cast(Any, kinds),
            info.max_batch_tokens,
            repeats,
            lambda: progress.update(1),
        )
    machine = describe_machine()
    typer.echo(f"{machine.cpu}, {machine.cores} cores, {machine.system}")
    typer.echo(
        f"{info.name} on {info.provider} in {info.compute}, {info.streams} streams, "
        f"onnxruntime {info.onnxruntime}, flowvec {machine.flowvec}; {info.proof}"
    )
    first = results[0]
    typer.echo(f"{first.texts} texts of {first.tokens / first.texts:.1f} tokens on average\n")
    typer.echo(
        f"{'batching':11}{'texts/s':>9}{'tokens/s':>10}{'padding':>9}{'batches':>9}"
        f"{'tokenize s':>12}{'session s':>11}{'spread':>8}"
    )
    for r in results:
        typer.echo(
            f"{r.batching:11}{r.texts_per_second:9.0f}{r.tokens_per_second:10.0f}"
            f"{r.padding:9.1%}{r.batches:9}{r.tokenize_seconds:12.3f}{r.session_seconds:11.3f}"
            f"{r.spread:8.0%}"
        )
    record = {
        "benchmark": "throughput",
        "machine": asdict(machine),
        "encoder": _named(info),
        # A name, not a path: others read the result.
        "texts": Path(texts).name if texts else f"mixed lengths, seed {seed}",
        "repeats": repeats,
        "results": [asdict(r) for r in results],
    }
    write_json(record, json_out)


@app.command(epilog="Example: flowvec bench memory mini --texts 200000")
def memory(
    bundle: _BundleName,
    texts: Annotated[
        int, typer.Option(min=2, help="Number of texts to encode, of 1 to 400 words.")
    ] = 100_000,
    warm: Annotated[
        int | None,
        typer.Option(
            min=0, help="Texts to encode before growth is counted. Default: a tenth of them."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = 0,
    provider: Provider = None,
    compute: Compute = "auto",
    max_batch_tokens: MaxBatchTokens = None,
    json_out: JsonOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Growth of resident memory over a long stream of texts of mixed lengths."""
    require("flowvec bench", "cpu,bench", "psutil")
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.speed.memory import measure_memory

    check_output(json_out, (bundle,), overwrite=overwrite)
    with (
        _loaded(bundle, provider, compute, max_batch_tokens) as encoder,
        bar("stream", texts, "texts") as progress,
    ):
        info = encoder.info()
        measured = measure_memory(
            encoder, texts, seed, texts // 10 if warm is None else warm, progress.update
        )
    at_warm = next(size for done, size in measured.resident if done >= measured.warm)
    typer.echo(
        f"{info.name} on {info.provider} in {info.compute}, {info.streams} streams: "
        f"{measured.texts} texts of mixed lengths; {info.proof}"
    )
    typer.echo(
        f"resident after {measured.warm} texts {at_warm / _MIB:.1f} MiB, at the end "
        f"{measured.resident[-1][1] / _MIB:.1f}; grown by at most {measured.grown / _MIB:.1f} MiB, "
        f"{measured.slope * 100 / _MIB:+.2f} MiB per 100,000 texts"
    )
    record = {
        "benchmark": "memory",
        "machine": asdict(describe_machine()),
        "encoder": _named(info),
        "seed": seed,
        **asdict(measured),
    }
    write_json(record, json_out)


def _loaded(
    bundle: str, provider: str | None, compute: str, max_batch_tokens: int | None
) -> Encoder:
    return Encoder.load(
        bundle,
        provider=provider,
        compute=cast(Any, compute),
        max_batch_tokens=max_batch_tokens,
    )


def _named(info: EncoderInfo) -> dict[str, Any]:
    """What ran. The bundle's name replaces its path, because others read the result."""
    return {**asdict(info), "path": Path(info.path).name}
