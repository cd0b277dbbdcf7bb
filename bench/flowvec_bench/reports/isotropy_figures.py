"""Names, explanations and formats of the isotropy report's figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flowvec_bench.quality.isotropy_report import BundleIsotropy, IsotropyReport
from flowvec_bench.quality.word_frequency import NEIGHBOURS
from flowvec_bench.reports.tables import format_figure, format_table

__all__ = ["Figure", "explain", "figures", "report_lines"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: its meaning, which direction is better, and a text for each bundle."""

    name: str
    meaning: str
    better: str
    values: list[str] = field(default_factory=list)


def explain(bundles: Sequence[BundleIsotropy], has_sts: bool) -> list[str]:
    """Notes on how to read the figures."""
    notes = [
        f"{b.label} normalizes inside its graph: its vectors have unit length, so every figure "
        "describes directions only."
        if b.normalised
        else f"{b.label} does not normalize: longer vectors weigh more in the spectrum, "
        "participation ratio, effective rank and IsoScore; the cosine figures, alignment and "
        "uniformity do not depend on length."
        for b in bundles
    ]
    notes += [
        f"{b.label}: {b.isotropy.rows:,} rows are fewer than 10 for each of {b.isotropy.dim} "
        "dimensions, so its spectrum falls too fast and its ranks come out too low."
        for b in bundles
        if b.isotropy.rows < 10 * b.isotropy.dim
    ]
    claim = "A higher isotropy score does not by itself mean better vectors"
    if not has_sts:
        notes.append(
            f"{claim}; only labelled pairs (--sts) show whether they are. Uniformity is over the "
            "corpus's sample; alignment is not available."
        )
        return notes
    notes.append(f"{claim}: read the figures together with the STS scores.")
    if all(b.isotropy.alignment is None for b in bundles):
        notes.append("No pair has a gold score above 4, so alignment is not available.")
    return notes


_FIGURES = (
    ("mean_cosine", "Mean cosine", "of two random texts, over all pairs", "nearer 0"),
    ("top1_share", "Share of the top dimension", "in the mean cosine (none below .01)", "lower"),
    ("top3_share", "Share of the top 3", "dimensions in the mean cosine", "lower"),
    ("top5_share", "Share of the top 5", "dimensions in the mean cosine", "lower"),
    (
        "participation_ratio",
        "Participation ratio",
        "number of equal directions with the same spread of variance, by squares",
        "higher",
    ),
    ("effective_rank", "Effective rank", "the same, by entropy: small directions count", "higher"),
    (
        "isoscore",
        "IsoScore",
        "the participation ratio, scaled from 0 (one direction) to 1 (all equal)",
        "higher",
    ),
    (
        "uniformity",
        "Uniformity",
        "log of the mean closeness of all pairs; about -4 where directions are even",
        "lower",
    ),
    ("alignment", "Alignment", "squared distance of pairs that people scored above 4", "lower"),
    ("mean_norm", "Mean norm", "L2 length of the graph's vectors", "-"),
    ("dim", "Dimensions", "of a vector", "-"),
)


def figures(bundles: Sequence[BundleIsotropy]) -> list[Figure]:
    """The table's rows, each with a text for every bundle."""
    return [
        Figure(name, meaning, better, [_text(getattr(b.isotropy, key), key) for b in bundles])
        for key, name, meaning, better in _FIGURES
    ]


def _text(value: float | None, key: str) -> str:
    if value is None:
        return "-"
    if key == "dim":
        return str(value)
    if key.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:.1f}" if key in ("participation_ratio", "effective_rank") else f"{value:.3f}"


def report_lines(result: IsotropyReport) -> Iterator[str]:
    """The report for a terminal, line by line."""
    labels = [bundle.label for bundle in result.bundles]
    yield f"{result.rows:,} of {result.texts:,} texts of {result.corpus}, seed {result.seed}\n"
    table = [(row.name, row.better, *row.values) for row in figures(result.bundles)]
    yield format_table(("figure", "better", *labels), table, texts=2)
    if result.sts is not None:
        scores = [
            (first.task, part, *(format_figure(getattr(score, part)) for score in each))
            for each in zip(*(bundle.sts for bundle in result.bundles), strict=True)
            for first in each[:1]
            for part in ("all", "wmean")
        ]
        yield "\n" + format_table(("STS", "part", *labels), scores, texts=2)
    if result.word_frequency is not None:
        words = result.word_frequency
        yield (
            f"\nword embeddings of {words.source}: of {words.vocabulary:,} entries {words.special} "
            f"special ones are left out; {words.unused:,} that never occur are not ranked"
        )
        bands = [
            (
                f"{band.first:,} on" if band.last is None else f"{band.first:,}-{band.last - 1:,}",
                f"{band.words:,}",
                format_figure(band.norm),
                *(format_figure(band.distance[k]) for k in NEIGHBOURS),
                *(format_figure(band.dot[k]) for k in NEIGHBOURS),
            )
            for band in words.bands
        ]
        header = ("rank", "words", "norm", *(f"dist {k}" for k in NEIGHBOURS))
        yield format_table((*header, *(f"dot {k}" for k in NEIGHBOURS)), bands)
    yield ""
    yield from result.notes
