"""A race of indexes as a Markdown report, with a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from flowvec_bench.peers.indexes import MOST, IndexRow
from flowvec_bench.reports.parts import (
    COLOURS,
    MARKERS,
    STYLE,
    machine_line,
    save_chart,
    version_lines,
    write_lines,
)

__all__ = ["HEADER", "cells", "write_index_report"]

HEADER = (
    "index", "for", "effort", "recall@10", "queries/s", "slower by", "one p50 ms", "p99 ms",
    "build s", "open s", "MiB",
)  # fmt: skip


def cells(row: IndexRow) -> tuple[str, ...]:
    """The cells of a row."""
    if row.error:
        return (row.name, f"did not run: {row.error[:80]}", *[""] * (len(HEADER) - 2))
    reached = max(row.curve.values(), default=0.0)
    return (
        row.name,
        f"{row.target:g}",
        "" if row.ef is None else f"{row.probes} lists, {row.ef}" if row.probes else str(row.ef),
        f"{reached:.3f} at most" if row.recall is None else f"{row.recall:.3f}",
        _figure(row.per_second, 0),
        _figure(row.ratio, 2),
        _figure(row.single_p50, 3),
        _figure(row.single_p99, 3),
        _figure(row.build_seconds, 1),
        _figure(row.open_seconds, 2),
        "" if row.bytes is None else f"{row.bytes / (1 << 20):.0f}",
    )


def _builds(count: int) -> str:
    return "one build" if count == 1 else f"{count} interleaved builds"


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def write_index_report(rows: Sequence[IndexRow], record: Mapping[str, Any], path: Path) -> None:
    """Write `path`, and a chart of the same name in SVG."""
    lines = [
        "# The index of a collection, compared with other indexes",
        "",
        machine_line(record["machine"]),
        "",
        f"{record['rows']:,} vectors of {record['dim']} dimensions ({record['vectors']}), "
        f"{record['queries']:,} others as queries, cosine; graphs of M {record['m']} and "
        f"ef_construction {record['ef_construction']}. Each index runs in its own process with all "
        f"cores. Its effort is the least one, within 2% and up to {MOST}, that finds "
        f"{' and '.join(f'{one:g}' for one in record['recall'])} of the ten nearest rows of half "
        "the queries; the other half is timed. It is the ef of a graph, or how many rows found by "
        "codes are scored again in float32 (10: none). An IVF reads as many lists as took least "
        f"time. {record['rounds']} rounds; each runs every index once for each recall: first "
        "all queries in one call (queries/s, the median of the rounds), then up to 500 queries one "
        "at a time (p50 and p99). Seconds to build end when all can be searched, the median of "
        f"{_builds(record['builds'])}. When an add returns, flowvec's rows are on disk with "
        "checksums and texts; the other indexes keep vectors in memory and write one file at the "
        "end. MiB are those files, with the vectors if rows are scored again.",
        "",
        f"![queries per second and milliseconds by recall]({path.with_suffix('.svg').name})",
        "",
        f"| {' | '.join(HEADER)} |",
        "|" + "---|" * len(HEADER),
        *(f"| {' | '.join(cells(row))} |" for row in rows),
        "",
        *version_lines({row.name: row.versions for row in rows}),
    ]
    write_lines(lines, path)
    _draw(rows, path.with_suffix(".svg"))


def _draw(rows: Sequence[IndexRow], path: Path) -> None:
    """Queries per second, and milliseconds of one, by recall: a line for each index."""
    ran = [row for row in rows if row.per_second is not None]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        rates, waits = figure.subplots(1, 2)
        for i, name in enumerate(dict.fromkeys(row.name for row in ran)):
            own = [row for row in ran if row.name == name]
            shown: dict[str, Any] = {
                "label": name, "color": COLOURS[i % len(COLOURS)],
                "marker": MARKERS[(i + i // len(COLOURS)) % len(MARKERS)],
            }  # fmt: skip
            recalls = [row.recall for row in own]
            rates.plot(recalls, [row.per_second for row in own], **shown)
            waits.plot(recalls, [row.single_p50 for row in own], **shown)
        for axis, label in ((rates, "queries per second"), (waits, "milliseconds of one query")):
            axis.set_yscale("log")
            axis.set_xlabel("recall of the ten nearest")
            axis.set_ylabel(label)
            axis.grid(visible=True, which="both", linewidth=0.4, color="#dddddd")
            axis.spines[["top", "right"]].set_visible(False)
        waits.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        save_chart(figure, path)
