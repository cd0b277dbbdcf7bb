"""The isotropy report's charts, as one SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from flowvec_bench.quality.isotropy_report import BundleIsotropy, IsotropyReport, Picture
from flowvec_bench.quality.word_frequency import NEIGHBOURS, WordFrequency
from flowvec_bench.reports.parts import COLOURS, MARKERS, STYLE, save_chart

__all__ = ["draw_charts"]

_LINES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
# A direction below this is rounding noise, and outside the axis.
_LEAST_SHOWN = 1e-4
_NULL = 1e-9
_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class Chart:
    """A title, and the function that draws the chart."""

    title: str
    paint: Callable[[Axes], None]


def draw_charts(report: IsotropyReport, pictures: Sequence[Picture], path: Path) -> None:
    """Write all charts of a report into one SVG; equal data give equal bytes.

    Args:
        report: the figures.
        pictures: data for the charts of each bundle, in the order of `report.bundles`.
        path: the SVG file.
    """
    charts = [_spectrum(report.bundles), _cosine(report.bundles, pictures)]
    charts += [
        _projection(bundle.label, picture, i)
        for i, (bundle, picture) in enumerate(zip(report.bundles, pictures, strict=True))
    ]
    if report.word_frequency is not None:
        charts += [_norm(report.word_frequency), _distance(report.word_frequency)]
    lines = -(-len(charts) // _COLUMNS)
    # A name such as $x$ is shown as text, not as a formula.
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):
        figure = Figure(figsize=(5.2 * _COLUMNS, 3.7 * lines), layout="constrained")
        grid = figure.subplots(lines, _COLUMNS, squeeze=False).ravel()
        for axes, chart in zip(grid, charts, strict=False):
            axes.set_title(chart.title, fontsize=10, loc="left")
            axes.set_axisbelow(True)
            axes.grid(visible=True, linewidth=0.4, color="#dddddd")
            axes.spines[["top", "right"]].set_visible(False)
            chart.paint(axes)
        for axes in grid[len(charts) :]:
            axes.set_axis_off()
        save_chart(figure, path)


def _named(bundle: BundleIsotropy) -> str:
    # matplotlib leaves labels that start with an underscore out of legends.
    return bundle.label if bundle.label[:1] != "_" else f"\u200b{bundle.label}"


def _legend(axes: Axes, series: int) -> None:
    if series > 1:
        axes.legend(fontsize=7, frameon=False)


def _spectrum(bundles: Sequence[BundleIsotropy]) -> Chart:
    """Singular values of the centred vectors, relative to the first, on a log axis."""

    def paint(axes: Axes) -> None:
        for i, bundle in enumerate(bundles):
            # Zero has no logarithm; the line leaves the chart at the bottom.
            values = np.maximum(bundle.isotropy.spectrum, _NULL)
            order = np.arange(1, len(values) + 1)
            axes.plot(order, values, color=COLOURS[i], linestyle=_LINES[i], label=_named(bundle))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("singular value, largest first")
        axes.set_ylabel("size relative to the first")
        axes.set_xlim(left=0)
        shown = [v for b in bundles for v in b.isotropy.spectrum if v > _LEAST_SHOWN]
        axes.set_ylim(min(0.5 * min(shown), 0.08), 1.3)
        _legend(axes, len(bundles))

    return Chart("Singular spectrum (centred)", paint)


def _cosine(bundles: Sequence[BundleIsotropy], pictures: Sequence[Picture]) -> Chart:
    """Histogram of the cosines of random pairs."""

    def paint(axes: Axes) -> None:
        low = min(float(picture.cosines.min()) for picture in pictures)
        high = max(float(picture.cosines.max()) for picture in pictures)
        bins: Any = np.linspace(max(-1.0, low - 0.02), min(1.0, high + 0.02), 61)
        for i, (bundle, picture) in enumerate(zip(bundles, pictures, strict=True)):
            weights = np.full(len(picture.cosines), 100.0 / len(picture.cosines))
            shared: dict[str, Any] = {"bins": bins, "weights": weights, "color": COLOURS[i]}
            axes.hist(picture.cosines, histtype="stepfilled", alpha=0.25, **shared)
            axes.hist(
                picture.cosines,
                histtype="step",
                linewidth=1.5,
                linestyle=_LINES[i],
                label=_named(bundle),
                **shared,
            )
        axes.set_xlabel("cosine of two random texts")
        axes.set_ylabel("pairs, %")
        _legend(axes, len(bundles))

    return Chart("Cosines of random pairs", paint)


def _projection(label: str, picture: Picture, series: int) -> Chart:
    """A bundle's rows on their first two principal components, on equal axes."""

    def paint(axes: Axes) -> None:
        x, y = picture.points.T
        axes.scatter(x, y, s=7, color=COLOURS[series], alpha=0.5, linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel(f"component 1 ({picture.explained[0]:.1%} of the variance)")
        axes.set_ylabel(f"component 2 ({picture.explained[1]:.1%})")

    return Chart(f"{label}: two principal components", paint)


def _norm(table: WordFrequency) -> Chart:
    """Mean norm of the word embeddings by frequency rank."""

    def paint(axes: Axes) -> None:
        norms = [np.nan if band.norm is None else band.norm for band in table.bands]
        axes.plot(_bands(axes, table), norms, color=COLOURS[0], marker=MARKERS[0])
        axes.set_ylabel("mean L2 norm")
        axes.set_ylim(0, 1.1 * max(band.norm or 0.0 for band in table.bands) or 1.0)

    return Chart("Word embeddings: norm by frequency", paint)


def _distance(table: WordFrequency) -> Chart:
    """Mean distance of the word embeddings to their k nearest neighbours, by frequency rank."""

    def paint(axes: Axes) -> None:
        places = _bands(axes, table)
        for i, k in enumerate(NEIGHBOURS):
            values = [band.distance[k] for band in table.bands]
            heights = [np.nan if value is None else value for value in values]
            axes.plot(
                places,
                heights,
                color=COLOURS[i],
                linestyle=_LINES[i],
                marker=MARKERS[i],
                label=f"{k} nearest",
            )
        axes.set_ylabel("mean L2 distance")
        axes.margins(y=0.2)
        _legend(axes, len(NEIGHBOURS))

    return Chart("Word embeddings: distance to neighbours", paint)


def _bands(axes: Axes, table: WordFrequency) -> list[int]:
    """Put the bands on the x axis, and return their places."""
    places = list(range(len(table.bands)))
    axes.set_xticks(
        places,
        [
            f"{band.first:,} on" if band.last is None else f"{band.first:,}-{band.last - 1:,}"
            for band in table.bands
        ],
    )
    axes.set_xlim(-0.3, len(places) - 0.7)
    axes.set_xlabel("frequency rank, 0 the most frequent")
    return places
