"""A latency benchmark as a Markdown report, with a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowvec_bench.peers.latency import Latency, LatencyRow
from flowvec_bench.reports.parts import STYLE, machine_line, save_chart, version_lines, write_lines

__all__ = ["COLOURS", "LINES", "cells", "level_name", "write_latency_report"]

LINES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")


def level_name(load: str, level: float) -> str:
    """A level of load in words."""
    if load == "rate":
        return f"{level:g} arrivals per second"
    return "1 caller" if level == 1 else f"{level:g} callers"


def cells(row: LatencyRow) -> tuple[str, ...]:
    """The cells of a row: name, p50, p95, p99, texts per second, remark."""
    if row.per_second is None:
        return (row.name, "", "", "", "", (row.error or "gave no answer")[:80])
    remarks = ["void: other vectors"] if row.void else []
    # If an engine falls behind, its waits grow with the test, and are not its latency.
    figures = (row.p50, row.p95, row.p99)
    waits = ["" if row.saturated or f is None else f"{f:.1f}" for f in figures]
    if row.saturated:
        remarks.append("falls behind")
    return (row.name, *waits, f"{row.per_second:.0f}", ", ".join(remarks))


def write_latency_report(result: Latency, record: Mapping[str, Any], path: Path) -> None:
    """Write `path`, and a chart of the same name in SVG."""
    lines = [
        f"# {record['model']} under load",
        "",
        machine_line(record["machine"]),
        "",
        f"{result.texts} sentences of 4 to 12 words of {record['corpus']}, one per call, seed "
        f"{record['seed']}. {result.rounds} rounds per level; each runs every peer once, for "
        f"{result.seconds:g} s. Percentiles are over all calls; throughput is the median of the "
        "rounds. A caller waits for its answer before it sends the next text. Arrivals come at "
        "random times (Poisson), and their wait counts from the moment of arrival. An engine that "
        "answers fewer than 95% of the arrivals per second falls behind: its waits grow as long as "
        "the test lasts.",
        "",
        "flowvec's callers are tasks of its AsyncEncoder; a single caller calls the Encoder. "
        "infinity's callers are tasks of its engine. The other peers compute one call at a time, "
        "behind a fair queue.",
        "",
        f"![latency]({path.with_suffix('.svg').name})",
        "",
    ]
    for load, level in dict.fromkeys((row.load, row.level) for row in result.rows):
        lines += [
            f"## {level_name(load, level)}",
            "",
            "| peer | p50 ms | p95 ms | p99 ms | texts/s | |",
            "|---|---|---|---|---|---|",
        ]
        for row in result.rows:
            if (row.load, row.level) == (load, level):
                lines.append(f"| {' | '.join(cells(row))} |")
        lines.append("")
    if result.batch_sizes:
        sizes = ", ".join(f"{name} {size}" for name, size in result.batch_sizes.items())
        lines += [f"Batch sizes (the best of those tried with 64 callers): {sizes}.", ""]
    write_lines([*lines, *version_lines(result.versions)], path)
    _draw(result, path.with_suffix(".svg"))


def _draw(result: Latency, path: Path) -> None:
    """Percentiles and throughput against load, a line for each peer."""
    shown = [row for row in result.rows if row.per_second is not None and not row.void]
    names = list(dict.fromkeys(row.name for row in shown))
    loads = [load for load in ("callers", "rate") if any(row.load == load for row in shown)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.7 * len(loads) + 0.9), layout="constrained")
        axes = figure.subplots(len(loads), 2, squeeze=False)
        for (left, right), load in zip(axes, loads, strict=True):
            for i, name in enumerate(names):
                rows = [row for row in shown if (row.name, row.load) == (name, load)]
                if rows:
                    _lines(left, right, rows, i)
            label = "callers" if load == "callers" else "arrivals per second"
            for axis, title in ((left, "p50 (thin) and p99, ms"), (right, "answers per second")):
                axis.set_xlabel(label)
                axis.set_title(title, fontsize=10)
                axis.spines[["top", "right"]].set_visible(False)
                axis.grid(visible=True, linewidth=0.4, color="#dddddd")
                levels = sorted({row.level for row in shown if row.load == load})
                if load == "callers":
                    axis.set_xscale("log", base=2)
                axis.set_xticks(levels, [f"{level:g}" for level in levels])
                axis.minorticks_off()
            left.set_yscale("log")
            right.set_ylim(bottom=0)
        legend = {
            label: handle
            for axis in axes[:, 1]
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=3, frameon=False
        )
        save_chart(figure, path)


def _lines(left: Axes, right: Axes, rows: Sequence[LatencyRow], series: int) -> None:
    style: dict[str, Any] = {
        "color": COLOURS[series % len(COLOURS)],
        "marker": _MARKERS[series % len(_MARKERS)],
        "linestyle": LINES[series // len(COLOURS) % len(LINES)],
        "markersize": 4,
    }
    levels = [row.level for row in rows]
    p50, p99, rate = (
        np.array([getattr(row, key) for row in rows], dtype=np.float64)
        for key in ("p50", "p99", "per_second")
    )
    kept = [not row.saturated for row in rows]
    p50, p99 = (np.where(kept, waits, np.nan) for waits in (p50, p99))
    left.plot(levels, p99, linewidth=1.6, **style)
    left.plot(levels, p50, linewidth=0.6, alpha=0.8, **style)
    right.plot(levels, rate, linewidth=1.6, label=rows[0].name, **style)
