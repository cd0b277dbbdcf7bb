"""A race as a Markdown report, with a chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flowvec_bench.peers.race import LEAST_QUALITY, Race, Row
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

__all__ = [
    "quality_cells",
    "quality_names",
    "rate",
    "write_peer_report",
]


def rate(value: float) -> str:
    """Texts per second, with a decimal if there are few."""
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}"


# Columns for the figures of `Row.quality`.
_QUALITY = {"kendall_tau": "Kendall's tau", "top_1": "same first", "top_10": "same ten"}


def quality_names(result: Race) -> dict[str, str]:
    """The quality figures that a race has, with the titles of their columns."""
    return {
        name: title
        for name, title in _QUALITY.items()
        if any(name in row.quality for row in result.rows)
    }


def quality_cells(row: Row, names: Iterable[str]) -> list[str]:
    """A row's quality figures as texts; empty where it has none, as of too few texts."""
    return [f"{row.quality[name]:.3f}" if name in row.quality else "" for name in names]


def write_peer_report(
    result: Race, record: Mapping[str, Any], path: Path, unit: str = "texts"
) -> None:
    """Write `path`, and a chart of the same name in SVG; `unit` is what is counted."""
    same = "min cosine" if unit == "texts" else "correlation"
    names = quality_names(result)
    of_texts = ""
    if names:
        of_texts = (
            "Some of the texts are queries, and rank the others. Kendall's tau (mean over the "
            "queries), the share of queries with the same first text, and the share of the same "
            "texts among the ten best compare that with flowvec in float32 on ONNX Runtime. Rows "
            "in 8 bits have other vectors: they count if these figures are at least "
            f"{LEAST_QUALITY:g}. "
        )
    about = (
        of_texts
        if unit == "texts"
        else "A query has 100 documents of 50 to 200 words, which are scored in one call. "
        "Kendall's tau (mean over the queries) and the share of queries with the same first "
        "document compare each ranking with that of flowvec in float32 on ONNX Runtime. "
    )
    lines = [
        f"# {record['model']} compared with its peers",
        "",
        machine_line(record["machine"]),
        "",
        f"{unit.capitalize()} of {record['corpus']}, seed {record['seed']}, cut at "
        f"{record['max_length']} tokens. {about}Every peer has the same weights and texts, its "
        f"own process and environment, and the best of its batch sizes. {result.rounds} rounds; "
        "each runs every peer once. "
        f'{unit.capitalize()} per second (tokenizing included) and "slower by" are medians of the '
        "rounds.",
        "",
        f"![{unit} per second]({path.with_suffix('.svg').name})",
        "",
    ]
    for kind, count in result.kinds.items():
        lines += [
            f"## {kind}: {count} {unit}",
            "",
            " | ".join(("| peer", "batch", f"{unit}/s", "slower by", same, *names.values())) + " |",
            "|---|---|---|---|---|" + "---|" * len(names),
        ]
        for row in (row for row in result.rows if row.texts == kind):
            if row.texts_per_second is None:
                lines.append(f"| {row.name} | | did not run: {row.error} | | |" + " |" * len(names))
                continue
            batch = "default" if row.batch_size is None else str(row.batch_size)
            void = f" ({row.remark})" if row.remark else ""
            figures = "".join(f" {figure} |" for figure in quality_cells(row, names))
            lines.append(
                f"| {row.name} | {batch} | {rate(row.texts_per_second)} | "
                f"{'' if row.ratio is None else f'{row.ratio:.2f}'} | {row.min_cosine:.5f}{void} |"
                f"{figures}"
            )
        lines.append("")
    versions: dict[str, dict[str, str]] = {}
    for row in result.rows:
        versions.setdefault(row.name, row.versions)
    write_lines([*lines, *version_lines(versions)], path)
    _draw(result, path.with_suffix(".svg"), unit)


def _draw(result: Race, path: Path, unit: str) -> None:
    """Bars of the peers that ran, by kind of text; below, throughput against batch size."""
    kinds = list(result.kinds)
    ran = [row for row in result.rows if row.texts_per_second is not None and not row.void]
    names = list(dict.fromkeys(row.name for row in ran))
    swept = [row for row in ran if len(row.by_batch_size) > 1]
    with matplotlib.rc_context(STYLE):
        height = 0.34 * len(names) + 1.1
        figure = Figure(
            figsize=(5.2 * len(kinds), height + (3.6 if swept else 0)), layout="constrained"
        )
        grid = figure.subplots(
            2 if swept else 1, len(kinds), squeeze=False,
            height_ratios=[height, 3.6] if swept else None,
        )  # fmt: skip
        for axis, kind in zip(grid[0], kinds, strict=True):
            _bars(axis, [row for row in ran if row.texts == kind], names, unit)
            axis.set_title(f"{kind} ({result.kinds[kind]} {unit})", fontsize=10)
            if axis is not grid[0][0]:
                axis.set_yticklabels([])
        if swept:
            for axis, kind in zip(grid[1], kinds, strict=True):
                _budgets(axis, [row for row in swept if row.texts == kind])
            grid[1][0].set_ylabel(f"{unit} per second (a sample of the {unit})")
            grid[1][-1].legend(fontsize=7, frameon=False)
        save_chart(figure, path)


def _bars(axis: Axes, rows: Sequence[Row], names: Sequence[str], unit: str) -> None:
    values = {row.name: row.texts_per_second for row in rows}
    bars(axis, {name: values.get(name) or 0.0 for name in names}, rate, f"{unit} per second")


def _budgets(axis: Axes, rows: Sequence[Row]) -> None:
    """Only flowvec's budgets of padded tokens: others count texts."""
    budgets = [row for row in rows if row.name.startswith("flowvec")]
    for i, row in enumerate(budgets):
        sizes = {int(size): rate for size, rate in row.by_batch_size.items() if size != "own"}
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        axis.plot(list(sizes), list(sizes.values()), label=row.name, color=colour, marker=marker)
    axis.set_xscale("log", base=2)
    sizes_of = sorted({int(s) for row in budgets for s in row.by_batch_size if s != "own"})
    axis.set_xticks(sizes_of, [str(size) for size in sizes_of])
    axis.minorticks_off()
    axis.set_xlabel("budget of padded tokens per batch")
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(visible=True, linewidth=0.4, color="#dddddd")
