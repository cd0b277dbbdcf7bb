"""What `flowvec eval isotropy` finds: the figures of one bundle or two, side by side."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec import Bundle, Encoder
from flowvec.errors import InputValueError
from flowvec_bench.isotropy import Isotropy, measure_isotropy, random_cosines
from flowvec_bench.machine import Machine
from flowvec_bench.sts import StsScore, StsTask, positive_pairs, score_vectors, sentence_rows
from flowvec_bench.word_frequency import WordFrequency

__all__ = [
    "LEAST_ROWS",
    "BundleIsotropy",
    "Figure",
    "IsotropyReport",
    "Picture",
    "examine_bundle",
    "explain",
    "figures",
    "label_bundles",
    "sample_corpus",
]

# Fewer rows cannot span even a small model's dimensions.
LEAST_ROWS = 100
_COSINES = 20_000
_POINTS = 700

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BundleIsotropy:
    """One bundle's figures; `sts` is empty where no labels were given."""

    label: str
    fingerprint: str
    pooling: str
    transform: tuple[str, ...]
    normalised: bool
    provider: str
    compute: str
    isotropy: Isotropy
    sts: list[StsScore]


@dataclass(frozen=True, slots=True)
class Picture:
    """What the charts of one bundle show.

    Attributes:
        cosines: of random pairs, float64 (20,000,).
        points: a sample of the rows on their first two principal components, float64 (<= 700, 2).
        explained: share of the variance that each of the two components holds.
    """

    cosines: Doubles
    points: Doubles
    explained: tuple[float, float]


@dataclass(frozen=True, slots=True)
class IsotropyReport:
    """Everything that is printed, written as JSON, or rendered.

    Attributes:
        corpus: the corpus's file name.
        texts: how many distinct texts it holds.
        rows: how many of them were sampled.
        seed: of every sample.
        sts: the STS folder's name, if any.
        bundles: one or two.
        word_frequency: the checkpoint's table, if one was given.
        notes: what a reader must know to read the figures.
        machine: where they were computed.
    """

    corpus: str
    texts: int
    rows: int
    seed: int
    sts: str | None
    bundles: list[BundleIsotropy]
    word_frequency: WordFrequency | None
    notes: list[str]
    machine: Machine


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: what it means, which way is better, and a text for each bundle."""

    name: str
    meaning: str
    better: str
    values: list[str] = field(default_factory=list)


def sample_corpus(texts: Iterable[str], count: int, seed: int) -> tuple[list[str], list[str]]:
    """The distinct texts of a corpus that are not blank, and a seeded sample of them.

    Returns:
        All of them, and `count` of them (or all, where there are fewer) in random order.

    Raises:
        InputValueError: there are fewer than 100.
    """
    distinct = list(dict.fromkeys(text for text in texts if text.strip()))
    if len(distinct) < LEAST_ROWS:
        raise InputValueError(
            f"the corpus has {len(distinct)} distinct texts; isotropy needs at least {LEAST_ROWS}, "
            "better 10 for each dimension"
        )
    return distinct, random.Random(seed).sample(distinct, min(count, len(distinct)))


def label_bundles(bundles: Sequence[Bundle]) -> list[str]:
    """A name for each bundle: its own, with the fingerprint's beginning where two are the same."""
    names = [bundle.manifest.name for bundle in bundles]
    labels = [
        name if names.count(name) == 1 else f"{name} ({bundle.fingerprint[:8]})"
        for name, bundle in zip(names, bundles, strict=True)
    ]
    if len(set(labels)) < len(labels):
        raise InputValueError(f"the same bundle was given twice: {', '.join(labels)}")
    return labels


def examine_bundle(
    encoder: Encoder, label: str, sample: Sequence[str], tasks: Sequence[StsTask], seed: int
) -> tuple[BundleIsotropy, Picture]:
    """Encode the sample and the labelled sentences, and measure.

    Args:
        encoder: the bundle.
        label: its name in the report.
        sample: texts of a corpus.
        tasks: labelled pairs; none leaves alignment None and measures uniformity over the sample.
        seed: of the random pairs and rows.
    """
    vectors = encoder.encode(sample)
    info = encoder.info()
    scores: list[StsScore] = []
    sentences = positives = None
    if tasks:
        rows = sentence_rows(tasks)
        sentences = encoder.encode(list(rows))
        positives = positive_pairs(tasks, rows)
        scores = score_vectors(tasks, rows, sentences)
    isotropy = measure_isotropy(vectors, seed=seed, sentences=sentences, positives=positives)
    figures = BundleIsotropy(
        label=label,
        fingerprint=info.fingerprint,
        pooling=info.pooling,
        transform=info.transform,
        normalised=info.normalised,
        provider=info.provider,
        compute=info.compute,
        isotropy=isotropy,
        sts=scores,
    )
    points, explained = _project(vectors)
    return figures, Picture(random_cosines(vectors, _COSINES, seed), points, explained)


def _project(vectors: npt.NDArray[np.floating[Any]]) -> tuple[Doubles, tuple[float, float]]:
    """The first rows on the first two principal components of all, signs fixed."""
    centred = np.asarray(vectors, dtype=np.float64) - vectors.mean(0, dtype=np.float64)
    values, basis = np.linalg.eigh(centred.T @ centred)
    axes = basis[:, :-3:-1]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    shares = values[:-3:-1] / values.sum()
    return centred[:_POINTS] @ axes, (float(shares[0]), float(shares[1]))


def explain(bundles: Sequence[BundleIsotropy], has_sts: bool) -> list[str]:
    """What a reader must know to read the figures."""
    notes = [
        f"{b.label} normalises inside its graph: its vectors have unit length, so every figure is "
        "of directions alone."
        if b.normalised
        else f"{b.label} does not normalise: longer vectors weigh more in the spectrum, "
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
            f"{claim}, and without labelled pairs (--sts) nothing here tells. Uniformity is over "
            "the corpus's sample; alignment is not available."
        )
        return notes
    notes.append(f"{claim}: read the figures beside the STS scores.")
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
        "how many equal directions would spread as the variance does, by squares",
        "higher",
    ),
    ("effective_rank", "Effective rank", "the same by entropy: small directions count", "higher"),
    (
        "isoscore",
        "IsoScore",
        "the participation ratio from 0, a single direction, to 1, all alike",
        "higher",
    ),
    (
        "uniformity",
        "Uniformity",
        "log of the mean closeness of all pairs; about -4 where directions are even",
        "lower",
    ),
    ("alignment", "Alignment", "squared distance of pairs that people scored above 4", "lower"),
    ("mean_norm", "Mean norm", "L2 length before any normalisation outside", "-"),
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
