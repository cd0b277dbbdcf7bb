"""`flowvec bench bulk`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from flowvec.cli.options import MODEL_HELP, Overwrite
from flowvec.errors import InputValueError
from flowvec.optional import require
from flowvec.progress import say
from flowvec_bench.cli.options import (
    EXTRAS,
    Corpus,
    JsonOut,
    Report,
    about_machine,
    check_corpus,
    check_outputs,
    write_json,
)

__all__ = ["bulk"]


def bulk(
    corpus: Corpus,
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = "mini",
    rows: Annotated[int, typer.Option(min=1000, help="Sentences to encode.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes of each mode.")] = 3,
    ray_workers: Annotated[
        int, typer.Option(min=0, help="Also run on Ray on this machine, with this many workers.")
    ] = 0,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder for temporary files. Default: the system's."),
    ] = None,
    json_out: JsonOut = None,
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Rows per second and memory of bulk jobs, compared with `Encoder.encode` in memory."""
    require("flowvec bench bulk", EXTRAS, "psutil", "matplotlib", "pyarrow")
    if ray_workers:
        require("flowvec bench bulk --ray-workers", f"{EXTRAS},ray", "ray")
    from flowvec_bench.reports.bulk import HEADER, cells, write_bulk_report
    from flowvec_bench.reports.tables import format_table
    from flowvec_bench.speed.bulk import measure_bulk
    from flowvec_bench.texts import natural_sentences

    check_corpus(corpus)
    check_outputs(json_out, report, (corpus, model), overwrite=overwrite)
    if folder is not None and not folder.is_dir():
        raise InputValueError(f"{folder} is not a directory")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        file = Path(name) / "texts.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            count = 0
            for text in islice(natural_sentences(corpus), rows):
                lines.write(json.dumps({"text": text}) + "\n")
                count += 1
        if count < rows:
            raise InputValueError(f"{corpus} has only {count} sentences")
        measured = measure_bulk(
            model, file, rows, Path(name), rounds=rounds,
            ray_workers=ray_workers, on_step=say,
        )  # fmt: skip
    typer.echo(format_table(HEADER, [cells(row, measured) for row in measured], texts=1))
    record = about_machine(
        "bulk", model=Path(model).name, corpus=corpus.name, count=rows, rounds=rounds,
        rows=[asdict(row) for row in measured],
    )  # fmt: skip
    write_json(record, json_out)
    if report is not None:
        write_bulk_report(measured, record, report)
