"""`flowvec bench filters`: filtered searches beside writes, compared with other collections."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flowvec.cli.options import Overwrite
from flowvec.errors import InputValueError
from flowvec.optional import require
from flowvec.progress import say
from flowvec_bench.cli.options import (
    EXTRAS,
    JsonOut,
    Report,
    about_machine,
    check_outputs,
    chosen,
    numbers,
    write_json,
)

__all__ = ["filters"]

_NEEDS = ("psutil", "matplotlib")


def filters(
    rows: Annotated[int, typer.Option(min=1000, help="Rows to search.")] = 100_000,
    dim: Annotated[int, typer.Option(min=2, help="Dimensions of a vector.")] = 384,
    queries: Annotated[int, typer.Option(min=1, help="Queries that are timed in a case.")] = 300,
    tried: Annotated[
        int, typer.Option(min=1, help="Other queries, by which a collection's setting is chosen.")
    ] = 40,
    selectivities: Annotated[
        str, typer.Option(help="Shares of the rows that meet a filter, joined by commas.")
    ] = "0.9,0.1,0.01,0.001",
    recall: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Recall of the ten nearest to reach.")
    ] = 0.95,
    rate: Annotated[
        float, typer.Option(min=0.0, help="Timed queries per second; 0: one after another.")
    ] = 60.0,
    writes: Annotated[
        float, typer.Option(min=0.0, help="Rows that are added per second meanwhile.")
    ] = 15.0,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Most seconds of a collection in a case.")
    ] = 60.0,
    only: Annotated[
        str | None, typer.Option(help="Collections, for example lancedb,chroma. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of rows, queries and filters.")] = 0,
    json_out: JsonOut = None,
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare recall, p50 and p99 of filtered searches in flowvec, LanceDB, Chroma and Qdrant.

    The rows are synthetic, in clusters. Filters do not depend on the vectors, or let rows near the
    query pass, or rows far from it. Another thread adds rows meanwhile.
    """
    require("flowvec bench filters", EXTRAS, *_NEEDS)
    from flowvec_bench.peers.filter_data import cases_of, write_data
    from flowvec_bench.peers.filters import COLLECTIONS, race_filters
    from flowvec_bench.reports.filters import HEADER, cells, write_filter_report
    from flowvec_bench.reports.tables import format_table

    racers = chosen(only, COLLECTIONS)
    check_outputs(json_out, report, (), overwrite=overwrite)
    shares = numbers("--selectivities", selectivities)
    if not all(0 < share <= 1 for share in shares):
        raise InputValueError(f"--selectivities must be above 0 and at most 1, not {selectivities}")
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        data = write_data(folder, rows, queries + tried, dim, seed)
        result = race_filters(
            racers, data, cases_of(data, shares, seed), folder, recall=recall, tried=tried,
            rate=rate, writes=writes, most_seconds=seconds, on_step=say,
        )  # fmt: skip
    typer.echo(format_table(HEADER, list(cells(result)), texts=2))
    record = about_machine(
        "filters", rows=rows, dim=dim, timed=queries, tried=tried, selectivities=shares,
        recall=recall, rate=rate, writes=writes, seconds=seconds, seed=seed,
        collections=[asdict(row) for row in result],
    )  # fmt: skip
    write_json(record, json_out)
    if report is not None:
        write_filter_report(result, record, report)
