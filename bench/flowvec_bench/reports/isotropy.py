"""The isotropy report as Markdown, with its charts in an SVG file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flowvec.errors import InputValueError
from flowvec.files import write_file
from flowvec_bench.quality.isotropy_report import IsotropyReport, Picture
from flowvec_bench.quality.word_frequency import NEIGHBOURS
from flowvec_bench.reports.charts import draw_charts
from flowvec_bench.reports.isotropy_figures import figures
from flowvec_bench.reports.parts import markdown_table
from flowvec_bench.reports.tables import format_figure
from flowvec_export.arguments import check_output

__all__ = ["check_report_path", "report_markdown", "write_report"]

# Characters that Markdown or HTML do not show as they are.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|])")


def check_report_path(path: Path, inputs: Iterable[str | Path | None], *, overwrite: bool) -> None:
    """Check the report's path before the work is done.

    Args:
        path: the report; its charts are beside it.
        inputs: files and folders that are read.
        overwrite: whether files that exist may be replaced.

    Raises:
        InputValueError: it does not end in .md, exists, is or is in an input, or cannot be
            written.
    """
    if path.suffix.lower() != ".md":
        raise InputValueError(f"the report must be a .md file, not {path.name}")
    for one in (path, path.with_suffix(".svg")):
        check_output(one, inputs, overwrite=overwrite)


def write_report(
    path: Path, report: IsotropyReport, pictures: Sequence[Picture], command: str
) -> None:
    """Write the report at `path`, and its charts in an SVG file of the same name.

    Args:
        path: a .md file.
        report: the figures.
        pictures: data for the charts of each bundle, in the order of `report.bundles`.
        command: the command line that made it.
    """
    charts = path.with_suffix(".svg")
    draw_charts(report, pictures, charts)
    write_file(path, report_markdown(report, charts.name, command).encode())


def report_markdown(report: IsotropyReport, charts: str, command: str) -> str:
    """The report's text; equal arguments give equal text."""
    return "\n".join(_lines(report, charts, command)) + "\n"


def _lines(report: IsotropyReport, charts: str, command: str) -> Iterator[str]:
    labels = [_plain(bundle.label) for bundle in report.bundles]
    yield f"# Isotropy of {' and '.join(labels)}"
    yield ""
    yield (
        f"{report.rows:,} texts, drawn from the {report.texts:,} distinct texts of "
        f"{_plain(report.corpus)} with seed {report.seed}."
    )
    yield ""
    yield from markdown_table(
        ("bundle", "pooling", "transform", "normalizes", "computed by"),
        [
            (
                label,
                _plain(bundle.pooling),
                _plain(", ".join(bundle.transform)) or "none",
                "yes" if bundle.normalised else "no",
                f"{bundle.provider}, {bundle.compute} ({_plain(bundle.proof)})",
            )
            for label, bundle in zip(labels, report.bundles, strict=True)
        ],
        texts=5,
    )
    yield from ("", f"![charts]({charts})", "", "## Figures", "")
    yield from markdown_table(
        ("figure", "what it is", "better", *labels),
        [(row.name, row.meaning, row.better, *row.values) for row in figures(report.bundles)],
        texts=3,
    )
    yield ""
    yield (
        "Spectrum, participation ratio, effective rank, IsoScore and the projections are of "
        "centred vectors; mean cosine, uniformity and alignment are of the vectors as they are."
    )
    if report.sts is not None:
        yield from _sts_lines(report, labels)
    yield from ("", "## How to read the figures", "")
    yield from (f"- {_plain(note)}" for note in report.notes)
    if report.word_frequency is not None:
        yield from _word_lines(report)
    yield from ("", "## How it was made", "", f"    {command}", "")
    machine = report.machine
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    yield (
        f"flowvec {machine.flowvec}, Python {machine.python}, {packages}; {machine.cpu}, "
        f"{machine.cores} cores, {machine.system}."
    )
    yield ""
    for label, bundle in zip(labels, report.bundles, strict=True):
        yield f"- fingerprint of {label}: `{bundle.fingerprint}`"


def _sts_lines(report: IsotropyReport, labels: Sequence[str]) -> Iterator[str]:
    yield from ("", "## Semantic textual similarity", "")
    yield (
        f"Spearman x 100 of the cosine with people's scores on {_plain(report.sts or '')}. all: "
        "over all pairs of a task; wmean: mean of its parts, weighted by their pairs. Higher is "
        "better."
    )
    yield ""
    yield from markdown_table(("task", "part", "pairs", *labels), _sts_rows(report), texts=2)


def _sts_rows(report: IsotropyReport) -> list[tuple[str, ...]]:
    """Task, part, pairs, and a score for each bundle."""
    rows = []
    for scores in zip(*(bundle.sts for bundle in report.bundles), strict=True):
        first = scores[0]
        task, total = _plain(first.task), f"{sum(first.pairs.values()):,}"
        for subset, pairs in first.pairs.items():
            each = [format_figure(score.subsets[subset]) for score in scores]
            rows.append((task, _plain(subset), f"{pairs:,}", *each))
        rows.append((task, "all", total, *(format_figure(score.all) for score in scores)))
        rows.append((task, "wmean", total, *(format_figure(score.wmean) for score in scores)))
    return rows


def _word_lines(report: IsotropyReport) -> Iterator[str]:
    words = report.word_frequency
    assert words is not None
    yield from ("", "## Word embeddings by frequency", "")
    yield (
        f"Input word embeddings of {_plain(words.source)}, ranked by how often they occur among "
        f"the {words.tokens:,} tokens of the corpus. Of {words.vocabulary:,} entries "
        f"{words.special:,} special ones are left out, and {words.unused:,} that the corpus never "
        "uses are not ranked. Neighbours are exact, by L2 distance, among all entries but the "
        "special ones. In an uneven space, frequent words are short and dense, and rare words are "
        "long and sparse."
    )
    yield ""
    yield from markdown_table(
        (
            "rank", "words", "norm",
            *(f"distance, {k} nearest" for k in NEIGHBOURS),
            *(f"dot product, {k} nearest" for k in NEIGHBOURS),
        ),
        [
            (
                f"{band.first:,} on" if band.last is None else f"{band.first:,}-{band.last - 1:,}",
                f"{band.words:,}",
                format_figure(band.norm),
                *(format_figure(band.distance[k]) for k in NEIGHBOURS),
                *(format_figure(band.dot[k]) for k in NEIGHBOURS),
            )
            for band in words.bands
        ],
    )  # fmt: skip


def _plain(text: str) -> str:
    """A text, escaped for Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
