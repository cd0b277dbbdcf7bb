"""A race of indexes as a Markdown report, with a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from flowvec_bench.peers.indexes import IndexRow
from flowvec_bench.reports.parts import (
    COLOURS,
    MARKERS,
    STYLE,
    bars,
    machine_line,
    save_chart,
    version_lines,
    write_lines,
)

__all__ = ["HEADER", "cells", "write_index_report"]

HEADER = (
    "index", "ef", "recall@10", "queries/s", "slower by", "one p50 ms", "p99 ms", "build s",
    "open s", "MiB",
)  # fmt: skip


def cells(row: IndexRow) -> tuple[str, ...]:
    """The cells of a row."""
    if row.error:
        return (row.name, f"did not run: {row.error[:80]}", *[""] * (len(HEADER) - 2))
    reached = max(row.curve.values(), default=0.0)
    return (
        row.name,
        "" if row.ef is None else str(row.ef),
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
        "cores. Its ef is the smallest one, within 2%, that finds "
        f"{record['recall']:.0%} of the ten nearest rows. {record['rounds']} rounds; each runs "
        "every index once: first all queries in one call (queries/s, the median of the rounds), "
        "then up to 500 queries one at a time (p50 and p99). Seconds to build are the median of "
        f"{_builds(record['builds'])}. When an add returns, flowvec's rows are on disk with "
        "checksums and texts; the other indexes keep vectors in memory and write one file at the "
        "end.",
        "",
        f"![recall by ef, and queries per second]({path.with_suffix('.svg').name})",
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
    """Recall by ef, and queries per second at the given recall."""
    ran = [row for row in rows if row.per_second is not None]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.4), layout="constrained")
        curves, rate_axis = figure.subplots(1, 2)
        for i, row in enumerate(ran):
            curves.plot(
                list(row.curve), list(row.curve.values()), label=row.name,
                color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
            )  # fmt: skip
        curves.set_xlabel("ef")
        curves.set_ylabel("recall of the ten nearest")
        curves.grid(visible=True, linewidth=0.4, color="#dddddd")
        curves.legend(fontsize=7, frameon=False)
        curves.spines[["top", "right"]].set_visible(False)
        rates = {row.name: row.per_second or 0.0 for row in ran}
        bars(rate_axis, rates, "{:,.0f}".format, "queries per second")
        save_chart(figure, path)
