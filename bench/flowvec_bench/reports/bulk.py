"""The report of `flowvec bench bulk`: a table, and a job's memory as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from flowvec_bench.reports.parts import STYLE, machine_line, save_chart, write_lines
from flowvec_bench.speed.bulk import MODES, BulkRow, grown

__all__ = ["HEADER", "WARM_SHARE", "cells", "write_bulk_report"]

HEADER = ("mode", "rows/s", "of in memory", "seconds", "survey s", "MB on disk", "RAM grown, MB")
# The share of the rows after which a job is warm.
WARM_SHARE = 0.05


def cells(row: BulkRow, rows: Sequence[BulkRow]) -> tuple[str, ...]:
    """The cells of a row."""
    median = sorted(row.seconds)[len(row.seconds) // 2]
    is_job = bool(row.resident)
    return (
        MODES[row.mode],
        f"{row.rate:,.0f}",
        f"{row.share_of(rows[0]):.1%}",
        f"{median:.1f}",
        f"{min(row.survey_seconds):.1f}" if is_job else "",
        f"{row.megabytes:,.0f}" if is_job else "",
        f"{grown(row.resident, int(WARM_SHARE * row.rows)) / 1e6:.1f}" if is_job else "",
    )


def write_bulk_report(rows: Sequence[BulkRow], record: Mapping[str, Any], path: Path) -> None:
    """Write `path`, and a plot of the same name in SVG."""
    lines = [
        f"# A bulk job over {record['count']:,} sentences, with {record['model']}",
        "",
        machine_line(record["machine"]),
        "",
        f"The first {record['count']:,} sentences of {record['corpus']}, one line of JSON per "
        f"sentence. {record['rounds']} rounds; each runs every mode once, in its own process. Rows "
        "per second are those of the median pass; the share is the median over the rounds. The "
        "time covers reading, encoding and writing to disk; for the mode in memory, "
        "`Encoder.encode` of a list. The survey of a job (counting and hashing its input) runs "
        "before and has its own column. Memory is that of the process without file pages (on Ray: "
        f"of all workers together). Its growth is measured after the first "
        f"{WARM_SHARE:.0%} of the rows.",
        "",
        f"![memory]({path.with_suffix('.svg').name})",
        "",
        f"| {' | '.join(HEADER)} |",
        "|" + "---|" * len(HEADER),
        *(f"| {' | '.join(cells(row, rows))} |" for row in rows),
        "",
        f"On {rows[0].provider} in {rows[0].compute} ({rows[0].proof}).",
    ]
    write_lines(lines, path)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 3.2), layout="constrained")
        axes = figure.subplots()
        for row in rows:
            if row.mode != "memory":
                working = [reading for reading in row.resident if reading.rows < row.rows]
                axes.plot(
                    [reading.rows / 1e3 for reading in working],
                    [reading.bytes / 1e6 for reading in working],
                    label=MODES[row.mode],
                )
        axes.set_xlabel("rows done, thousands")
        axes.set_ylabel("memory, MB")
        axes.set_ylim(bottom=0)
        figure.legend(loc="outside upper center", ncols=3)
        save_chart(figure, path.with_suffix(".svg"))
