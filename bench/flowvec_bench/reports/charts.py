"""The isotropy report's charts: inline SVG that takes its colours from the page.

Text stays text, and colours become CSS variables, so one file reads well in light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from flowvec_bench.quality.isotropy_report import BundleIsotropy, Picture
from flowvec_bench.quality.word_frequency import NEIGHBOURS, WordFrequency

__all__ = ["cosine_chart", "distance_chart", "norm_chart", "projection_chart", "spectrum_chart"]

# Stand-ins, each replaced by what the page says.
_INK, _RULE = "#010203", "#040506"
_SERIES = ("#0a0a01", "#0a0a02", "#0a0a03")
_COLOURS = {
    _INK: "currentColor",
    _RULE: "var(--rule)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(_SERIES, 1)},
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flowvec",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _INK,
    "grid.color": _RULE,
    "grid.linewidth": 0.5,
    "text.color": _INK,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "legend.frameon": False,
}
_LINES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
# A direction below this is noise of rounding: the axis does not stretch to it.
_LEAST_SHOWN = 1e-4
_NULL = 1e-9
_MARKERS = ("o", "s", "^")


def _draw(title: str, paint: Callable[[Axes], None]) -> str:
    """One chart as an `<svg>` element; equal data give equal text."""
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(5.6, 3.9), layout="constrained")
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        axes.set_title(title)
        paint(axes)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return _inline(buffer.getvalue(), title)


def _inline(svg: str, title: str) -> str:
    """Cut the XML head, size by the page, and let the page colour it."""
    svg = svg[svg.index("<svg") :]
    # Every chart numbers its groups alike; ids must be unique in a page, and none is referred to.
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    label = re.sub(r"[^\w ,.()-]", "", title)
    head, body = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    svg = f'{head} role="img" aria-label="{label}">{body}'
    pattern = "|".join(map(re.escape, _COLOURS))
    coloured = re.sub(
        r'style="[^"]*"',
        lambda style: re.sub(pattern, lambda colour: _COLOURS[colour[0]], style[0]),
        svg,
    )
    return coloured.strip()


def _named(bundle: BundleIsotropy) -> str:
    # matplotlib leaves labels that begin with an underscore out of a legend.
    return bundle.label if bundle.label[:1] != "_" else f"\u200b{bundle.label}"


def _legend(axes: Axes, series: int) -> None:
    if series > 1:
        axes.legend()


def spectrum_chart(bundles: Sequence[BundleIsotropy]) -> str:
    """Singular values of the centred vectors, relative to the first, on a log axis."""

    def paint(axes: Axes) -> None:
        for i, bundle in enumerate(bundles):
            # A null direction has no logarithm; its line leaves the chart at the bottom.
            values = np.maximum(bundle.isotropy.spectrum, _NULL)
            order = np.arange(1, len(values) + 1)
            axes.plot(order, values, color=_SERIES[i], linestyle=_LINES[i], label=_named(bundle))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("singular value, largest first")
        axes.set_ylabel("size relative to the first")
        axes.set_xlim(left=0)
        shown = [v for b in bundles for v in b.isotropy.spectrum if v > _LEAST_SHOWN]
        axes.set_ylim(min(0.5 * min(shown), 0.08), 1.3)
        _legend(axes, len(bundles))

    return _draw("Singular spectrum (centred)", paint)


def cosine_chart(bundles: Sequence[BundleIsotropy], pictures: Sequence[Picture]) -> str:
    """Histogram of the cosines of random pairs."""

    def paint(axes: Axes) -> None:
        low = min(float(picture.cosines.min()) for picture in pictures)
        high = max(float(picture.cosines.max()) for picture in pictures)
        bins: Any = np.linspace(max(-1.0, low - 0.02), min(1.0, high + 0.02), 61)
        for i, (bundle, picture) in enumerate(zip(bundles, pictures, strict=True)):
            weights = np.full(len(picture.cosines), 100.0 / len(picture.cosines))
            shared: dict[str, Any] = {"bins": bins, "weights": weights, "color": _SERIES[i]}
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

    return _draw("Cosines of random pairs", paint)


def projection_chart(label: str, picture: Picture, series: int) -> str:
    """A bundle's rows on their first two principal components, on equal axes."""

    def paint(axes: Axes) -> None:
        x, y = picture.points.T
        axes.scatter(x, y, s=7, color=_SERIES[series], alpha=0.5, linewidths=0)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel(f"component 1 ({picture.explained[0]:.1%} of the variance)")
        axes.set_ylabel(f"component 2 ({picture.explained[1]:.1%})")

    return _draw(f"{label}: two principal components", paint)


def norm_chart(table: WordFrequency) -> str:
    """Mean norm of the word embeddings by frequency rank."""

    def paint(axes: Axes) -> None:
        norms = [np.nan if band.norm is None else band.norm for band in table.bands]
        axes.plot(_bands(axes, table), norms, color=_SERIES[0], marker=_MARKERS[0])
        axes.set_ylabel("mean L2 norm")
        axes.set_ylim(0, 1.1 * max(band.norm or 0.0 for band in table.bands) or 1.0)

    return _draw("Word embeddings: norm by frequency", paint)


def distance_chart(table: WordFrequency) -> str:
    """Mean distance of the word embeddings to their k nearest, by frequency rank."""

    def paint(axes: Axes) -> None:
        places = _bands(axes, table)
        for i, k in enumerate(NEIGHBOURS):
            values = [band.distance[k] for band in table.bands]
            heights = [np.nan if value is None else value for value in values]
            axes.plot(
                places,
                heights,
                color=_SERIES[i],
                linestyle=_LINES[i],
                marker=_MARKERS[i],
                label=f"{k} nearest",
            )
        axes.set_ylabel("mean L2 distance")
        axes.margins(y=0.2)
        _legend(axes, len(NEIGHBOURS))

    return _draw("Word embeddings: distance to neighbours", paint)


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
