"""The isotropy report as ONE HTML file: styles and charts inside, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from flowvec.errors import InputValueError
from flowvec.files import write_file
from flowvec_bench.quality.isotropy_report import IsotropyReport, Picture
from flowvec_bench.quality.word_frequency import NEIGHBOURS
from flowvec_bench.reports.charts import (
    cosine_chart,
    distance_chart,
    norm_chart,
    projection_chart,
    spectrum_chart,
)
from flowvec_bench.reports.isotropy_figures import figures
from flowvec_bench.reports.tables import format_figure

__all__ = ["check_report_path", "render_report", "write_report"]


def check_report_path(path: Path) -> None:
    """Refuse a report that could not be written, before the work is done.

    Raises:
        InputValueError: it is no .html file, is a directory, or its directory does not exist.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputValueError(f"the report must be an .html file, not {path.name}")
    if path.is_dir():
        raise InputValueError(f"{path} is a directory")
    if not path.absolute().parent.is_dir():
        raise InputValueError(f"there is no directory {path.absolute().parent}")


def render_report(report: IsotropyReport, pictures: Sequence[Picture], command: str) -> str:
    """The page's text; equal arguments give equal text.

    Args:
        report: the figures.
        pictures: what the charts of each bundle show, in the order of `report.bundles`.
        command: the command line that made it, for the footnote.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("flowvec_bench"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = [spectrum_chart(report.bundles), cosine_chart(report.bundles, pictures)]
    charts += [
        projection_chart(bundle.label, picture, i)
        for i, (bundle, picture) in enumerate(zip(report.bundles, pictures, strict=True))
    ]
    words = []
    if report.word_frequency is not None:
        words = [norm_chart(report.word_frequency), distance_chart(report.word_frequency)]
    return environment.get_template("isotropy.html.j2").render(
        report=report,
        figures=figures(report.bundles),
        sts=_sts_rows(report),
        # matplotlib escapes what it writes into an SVG.
        charts=[Markup(chart) for chart in charts],  # noqa: S704
        word_charts=[Markup(chart) for chart in words],  # noqa: S704
        neighbours=NEIGHBOURS,
        figure=format_figure,
        command=command,
    )


def _sts_rows(report: IsotropyReport) -> list[tuple[str, str, int, list[str]]]:
    """Task, part, pairs, and a score for each bundle."""
    rows = []
    for scores in zip(*(bundle.sts for bundle in report.bundles), strict=True):
        first = scores[0]
        total = sum(first.pairs.values())
        for subset, pairs in first.pairs.items():
            own = [format_figure(score.subsets[subset]) for score in scores]
            rows.append((first.task, subset, pairs, own))
        rows.append((first.task, "all", total, [format_figure(score.all) for score in scores]))
        rows.append((first.task, "wmean", total, [format_figure(score.wmean) for score in scores]))
    return rows


def write_report(path: Path, page: str) -> None:
    """Write a page beside its place and rename it: it appears whole or not at all."""
    write_file(path, page.encode())
