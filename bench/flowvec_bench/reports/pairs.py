"""A race for the most similar pairs as a Markdown report, with a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from flowvec_bench.peers.pairs import PairRow
from flowvec_bench.reports.parts import (
    STYLE,
    bars,
    machine_line,
    save_chart,
    version_lines,
    write_lines,
)

__all__ = ["HEADER", "cells", "write_pair_report"]

HEADER = ("peer", "batch", "seconds", "slower by", "same pairs", "")


def cells(row: PairRow) -> tuple[str, ...]:
    """The cells of a row."""
    if row.median is None:
        return (row.name, "", "", "", "", f"did not run: {row.error or ''}"[:120])
    return (
        row.name,
        "default" if row.batch_size is None else str(row.batch_size),
        f"{row.median:.2f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.shared is None else f"{row.shared:.3f}",
        "void: other pairs" if row.void else "",
    )


def write_pair_report(rows: Sequence[PairRow], record: Mapping[str, Any], path: Path) -> None:
    """Write `path`, and a chart of the same name in SVG."""
    lines = [
        f"# The most similar of all pairs of {record['count']:,} sentences, with {record['model']}",
        "",
        machine_line(record["machine"]),
        "",
        f"Sentences of {record['corpus']}, seed {record['seed']}, cut at {record['max_length']} "
        f"tokens; from raw text to the {record['top_k']:,} most similar of all "
        f"{record['count'] * (record['count'] - 1) // 2:,} pairs. Every peer has the same "
        "weights and texts, its own process and environment, and the batch size with which it "
        f"encodes a sample fastest. {record['rounds']} rounds; each runs every peer once. Seconds "
        'and "slower by" are medians of the rounds. '
        "The rows of sentence-transformers are its `paraphrase_mining`.",
        "",
        f"![seconds]({path.with_suffix('.svg').name})",
        "",
        f"| {' | '.join(HEADER)} |",
        "|" + "---|" * len(HEADER),
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        *version_lines({row.name: row.versions for row in rows}),
    ]
    write_lines(lines, path)
    seconds = {row.name: row.median for row in rows if row.median is not None and not row.void}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 0.34 * len(seconds) + 0.9), layout="constrained")
        bars(figure.subplots(), seconds, "{:.1f}".format, "seconds, from raw text")
        save_chart(figure, path.with_suffix(".svg"))
