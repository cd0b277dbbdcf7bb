"""`flowvec compare`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flowvec.cli.options import Format, Overwrite, TextField
from flowvec.optional import require
from flowvec_bench.cli.options import JsonOut, write_json
from flowvec_export.arguments import check_output

if TYPE_CHECKING:
    from flowvec_bench.quality.compare import Comparison

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")

_NEEDS = ("torch", "transformers", "onnx", "onnxscript", "safetensors", "scipy", "psutil")


@app.command(epilog="Example: flowvec compare ./my-checkpoint --corpus sentences.txt --sts ./sts")
def compare(
    source: Annotated[
        str, typer.Argument(help="A Hugging Face name, or a local directory of an encoder.")
    ],
    corpus: Annotated[
        str,
        typer.Option(help="Texts to fit on (may be .xz); sentences of the STS sets are left out."),
    ],
    sts: Annotated[
        Path,
        typer.Option(help="A folder of TSV files (score sentence1 sentence2), or of such folders."),
    ],
    poolings: Annotated[
        str | None,
        typer.Option(
            help="For example mean,cls. `own` is a sentence-transformers model's own pooling and "
            "layers. Default: all."
        ),
    ] = None,
    transforms: Annotated[
        str | None, typer.Option(help="For example whitening,flow. Default: all.")
    ] = None,
    rows: Annotated[int, typer.Option(min=20, help="Texts for each fit.")] = 30_000,
    seeds: Annotated[int, typer.Option(min=1, help="Fits of each transform.")] = 1,
    sentences: Annotated[
        bool, typer.Option("--sentences", help="Split every row of the corpus into sentences.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Most epochs of a flow.")] = None,
    text_field: TextField = "text",
    file_format: Format = None,
    json_out: JsonOut = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare every pooling with every transform by STS, isotropy and cost, and recommend one."""
    require("flowvec compare", "cpu,export,bench", *_NEEDS)
    from flowvec_bench.machine import describe_machine
    from flowvec_bench.quality.advice import TRANSFORMS
    from flowvec_bench.quality.compare import compare as measure
    from flowvec_bench.quality.compare import parse_transforms
    from flowvec_export.fitting.corpus import read_corpus
    from flowvec_export.fitting.fit import FitSettings
    from flowvec_export.sts import read_sts

    check_output(json_out, (source, corpus, sts), overwrite=overwrite)
    chosen = parse_transforms(transforms)
    tasks = read_sts(sts)
    # Several seeds draw from twice as many texts, so that each fit uses different ones.
    drawn = rows if seeds == 1 else 2 * rows
    texts = read_corpus(
        corpus, rows=drawn, sentences=sentences, text_field=text_field, file_format=file_format
    )
    settings = FitSettings()
    if epochs is not None:
        settings = replace(settings, training=replace(settings.training, epochs=epochs))
    result = measure(
        source,
        texts,
        tasks,
        poolings=None if poolings is None else poolings.split(","),
        transforms=chosen,
        rows=rows,
        seeds=seeds,
        settings=settings,
    )
    for line in _lines(result):
        typer.echo(line)
    if json_out is not None:
        record = {
            "evaluation": "compare",
            "machine": asdict(describe_machine()),
            "corpus": "standard input" if corpus == "-" else Path(corpus).name,
            "sentences": sentences,
            "training": asdict(settings.training),
            "transforms": {name: TRANSFORMS[name] for name in chosen},
            **asdict(result),
        }
        write_json(record, json_out)


def _lines(result: Comparison) -> list[str]:
    from flowvec_bench.reports.tables import format_figure, format_table

    names = list(result.candidates[0].sts)
    header = ("pooling", "transform", "dim", *names, "cosine", "unif.", "align.", "bits", "us")
    rows = []
    for i, c in enumerate(result.candidates):
        figures = [
            f"{c.sts[name]:.1f}" + (f" ±{c.sts_deviation[name]:.1f}" if c.seeds > 1 else "")
            for name in names
        ]
        mark = " *" if i == result.best else ""
        rows.append(
            (
                c.pooling,
                c.transform + mark,
                str(c.dim),
                *figures,
                format_figure(c.mean_cosine),
                format_figure(c.uniformity),
                format_figure(c.alignment),
                format_figure(c.bits_per_dim),
                f"{c.added_microseconds:.0f}",
            )
        )
    seeds = max(c.seeds for c in result.candidates)
    return [
        f"{result.source}: Spearman x 100; a fit draws {result.rows} texts and holds a twentieth "
        f"out; {seeds} seed{'s' if seeds > 1 else ''}",
        format_table(header, rows, texts=2),
        "cosine: mean over all pairs; unif., align. (pairs with gold > 4 of all sets): lower is "
        "better; bits: per dimension, held out; us: microseconds per batch of 32 on one thread",
        *(
            f"{f.pooling} with {f.transform} could not be fitted: {f.reason}"
            for f in result.failures
        ),
        result.advice,
    ]
