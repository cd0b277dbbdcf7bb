"""A load test of HTTP servers as a Markdown report, with a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowvec_bench.http.figures import HttpFigures, HttpRow
from flowvec_bench.reports.parts import (
    COLOURS,
    MARKERS,
    STYLE,
    machine_line,
    markdown_table,
    save_chart,
    version_lines,
    write_lines,
)

__all__ = ["HEADER", "cells", "level_name", "summary", "write_http_report"]

HEADER = (
    "server", "p50 ms", "p95 ms", "p99 ms", "texts/s", "in time/s", "refused", "client", "",
)  # fmt: skip


def level_name(row: HttpRow, texts_per_call: int) -> str:
    """A load in words."""
    if row.load == "one":
        return "1 caller, one short text"
    of = "" if texts_per_call == 1 else f", {texts_per_call} texts each"
    if row.load == "rate":
        return f"{row.level:g} arrivals per second{of}"
    return f"{row.level:g} caller{'s' if row.level > 1 else ''}{of}"


def cells(row: HttpRow) -> tuple[str, ...]:
    """The cells of a row, see `HEADER`."""
    if row.texts_per_second is None:
        return (row.name, *[""] * 7, (row.error or "")[:80])
    remarks = ["void: other vectors"] if row.void else []
    if row.failed:
        remarks.append(f"{row.failed} failed")
    if row.unanswered:
        remarks.append(f"{row.unanswered} unanswered")
    waits = (row.p50, row.p95, row.p99)
    digits = 2 if row.load == "one" else 1
    return (
        row.name,
        *(f"{wait:.{digits}f}" for wait in waits if wait is not None),
        f"{row.texts_per_second:.0f}",
        "" if row.load != "rate" else f"{row.goodput:.0f}",
        f"{row.refused:.1%}" if row.refused else "",
        f"{row.client:.0%}" if row.client is not None else "",
        ", ".join(remarks),
    )


def summary(figures: HttpFigures, within: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of a table of one row for each server."""
    header = (
        "server", "1 caller p50 ms", "texts/s", "share of in process", "wrk texts/s",
        f"texts/s at p99 of {within:g} ms",
    )  # fmt: skip
    most = max((row.level for row in figures.rows if row.load == "callers"), default=0)
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(row.name for row in figures.rows):
        own = [row for row in figures.rows if row.name == name and not row.void]
        alone = next((row for row in own if row.load == "one"), None)
        many = next((row for row in own if (row.load, row.level) == ("callers", most)), None)
        ratio = figures.ratios.get(name, {}).get(int(most))
        wrk, best = figures.wrk.get(name), figures.best.get(name)
        rows.append((
            name,
            f"{alone.p50:.2f}" if alone and alone.p50 is not None else "",
            f"{many.texts_per_second:.0f}" if many and many.texts_per_second else "",
            f"{ratio:.1%}" if many and ratio is not None else "",
            f"{wrk:.0f}" if wrk is not None else "",
            f"{best:.0f}" if own and best is not None else "",
        ))  # fmt: skip
    return header, rows


def write_http_report(figures: HttpFigures, record: Mapping[str, Any], path: Path) -> None:
    """Write `path`, and a chart of the same name in SVG."""
    texts, within = record["texts_per_call"], record["within"]
    lines = [
        f"# {record['model']} over HTTP",
        "",
        machine_line(record["machine"]),
        "",
        f"{record['texts']} sentences of {record['corpus']}, {texts} a call, seed "
        f"{record['seed']}; the one caller sends a sentence of 4 to 12 words. {record['rounds']} "
        f"rounds of {record['seconds']:g} s for each load; each goes through all servers, and the "
        "others are paused. The client is another process on the same machine; "
        '"client" is what it takes of a core. A caller waits for its answer before the next call. '
        "Arrivals come at random times (Poisson), the same for all servers; their wait starts at "
        "the arrival. "
        f'Percentiles are over answered calls; "in time" are texts answered within {within:g} ms. '
        "A server that answers less than half of the calls in time is not given more.",
        "",
        *markdown_table(*summary(figures, within)),
        "",
        "The last column is the largest rate of texts in time at which 99% of all calls are. The "
        "share of in process is of the callers' texts/s, with the client's load beside the callers "
        "in process: its requests, and its processor time.",
        "",
        f"![goodput and waits]({path.with_suffix('.svg').name})",
        "",
    ]
    if not figures.wrk:
        lines += ["wrk is not installed here (`apt-get install wrk`).", ""]
    for load in dict.fromkeys((row.load, row.level) for row in figures.rows):
        rows = [row for row in figures.rows if (row.load, row.level) == load]
        lines += [f"## {level_name(rows[0], texts)}", ""]
        lines += [*markdown_table(HEADER, [cells(row) for row in rows]), ""]
    if record["settings"]:
        lines += ["Settings (the best of those tried with 64 callers):", ""]
        lines += [f"- {name}: `{chosen}`" for name, chosen in record["settings"].items()] + [""]
    lines += [f"{name} does not run: {why}\n" for name, why in record["errors"].items()]
    write_lines([*lines, *version_lines(record["versions"])], path)
    _draw(figures.rows, within, path.with_suffix(".svg"))


def _draw(rows: Sequence[HttpRow], within: float, path: Path) -> None:
    """Goodput and p99 against offered load, a line for each server."""
    shown = [row for row in rows if row.load == "rate" and row.p99 is not None and not row.void]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        for i, name in enumerate(dict.fromkeys(row.name for row in shown)):
            own = [row for row in shown if row.name == name]
            style: dict[str, Any] = {
                "color": COLOURS[i % len(COLOURS)],
                "marker": MARKERS[i % len(MARKERS)],
                "markersize": 4,
                "label": name,
            }
            _line(left, own, "goodput", style)
            _line(right, own, "p99", style)
        left.set_title(f"texts per second within {within:g} ms", fontsize=10)
        left.set_ylim(bottom=0)
        right.set_title("p99, ms", fontsize=10)
        right.set_yscale("log")
        right.axhline(within, color="#000000", linewidth=0.6, linestyle=(0, (4, 3)))
        for axis in (left, right):
            axis.set_xlabel("calls that arrive per second")
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(visible=True, linewidth=0.4, color="#dddddd")
        if shown:
            handles, labels = left.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        save_chart(figure, path)


def _line(axis: Axes, rows: Sequence[HttpRow], key: str, style: Mapping[str, Any]) -> None:
    axis.plot([row.level for row in rows], [getattr(row, key) for row in rows], **style)
