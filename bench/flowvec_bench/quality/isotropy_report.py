"""Measures for `flowvec eval isotropy`: the figures of one bundle or of two bundles."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec import Bundle, Encoder
from flowvec.errors import InputValueError
from flowvec_bench.machine import Machine
from flowvec_bench.quality.isotropy import Isotropy, measure_isotropy, random_cosines
from flowvec_bench.quality.word_frequency import WordFrequency
from flowvec_export.sts import StsScore, StsTask, positive_pairs, score_vectors, sentence_rows

__all__ = [
    "LEAST_ROWS",
    "BundleIsotropy",
    "IsotropyReport",
    "Picture",
    "examine_bundle",
    "label_bundles",
    "sample_corpus",
]

# Fewer rows cannot span the dimensions of even a small model.
LEAST_ROWS = 100
_COSINES = 20_000
_POINTS = 700
_WINDOW = 2048

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BundleIsotropy:
    """One bundle's figures, which become JSON; `sts` is empty without labelled pairs."""

    label: str
    fingerprint: str
    pooling: str
    transform: tuple[str, ...]
    normalised: bool
    provider: str
    compute: str
    proof: str
    isotropy: Isotropy
    sts: list[StsScore]


@dataclass(frozen=True, slots=True)
class Picture:
    """Data for the charts of one bundle.

    Attributes:
        cosines: of random pairs, float64 (20,000,).
        points: a sample of the rows on their first two principal components, float64 (<= 700, 2).
        explained: share of the variance of each of the two components.
    """

    cosines: Doubles
    points: Doubles
    explained: tuple[float, float]


@dataclass(frozen=True, slots=True)
class IsotropyReport:
    """Everything that is printed, written as JSON, or rendered.

    Attributes:
        corpus: the corpus's file name.
        texts: number of its distinct texts.
        rows: number of sampled texts.
        seed: seed of every sample.
        sts: the STS folder's name, if any.
        bundles: one or two.
        word_frequency: the checkpoint's table, if one was given.
        notes: how to read the figures.
        machine: the machine that computed them.
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


def sample_corpus(
    texts: Iterable[str],
    count: int,
    seed: int,
    on_window: Callable[[list[str]], object] | None = None,
    *,
    texts_at_once: int = _WINDOW,
) -> tuple[int, list[str]]:
    """A seeded sample of the distinct texts of a corpus that are not blank, in one pass.

    Args:
        texts: the corpus; only the sample and a digest of each text are kept.
        count: number of texts to draw; all, if there are fewer.
        seed: seed of the sample.
        on_window: called with distinct texts, some at a time.
        texts_at_once: how many are read at a time.

    Returns:
        The number of distinct texts, and the sample in random order.

    Raises:
        InputValueError: there are fewer than 100.
    """
    rng = random.Random(seed)
    sample: list[str] = []
    seen: set[bytes] = set()
    rows = iter(texts)
    while window := list(islice(rows, texts_at_once)):
        fresh = []
        for text in window:
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if digest in seen or not text.strip():
                continue
            seen.add(digest)
            fresh.append(text)
            # Algorithm R: each text so far is in the sample with the same probability.
            if len(sample) < count:
                sample.append(text)
            elif (place := rng.randrange(len(seen))) < count:
                sample[place] = text
        if on_window is not None:
            on_window(fresh)
    if len(seen) < LEAST_ROWS:
        raise InputValueError(
            f"the corpus has {len(seen)} distinct texts; isotropy needs at least {LEAST_ROWS}, "
            "better 10 for each dimension"
        )
    rng.shuffle(sample)
    return len(seen), sample


def label_bundles(bundles: Sequence[Bundle]) -> list[str]:
    """A name for each bundle: its own, with a part of the fingerprint if two are the same."""
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
        tasks: labelled pairs; without them, alignment is None and uniformity uses the sample.
        seed: seed of the random pairs and rows.
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
        proof=info.proof,
        isotropy=isotropy,
        sts=scores,
    )
    points, explained = _project(vectors)
    return figures, Picture(random_cosines(vectors, _COSINES, seed), points, explained)


def _project(vectors: npt.NDArray[np.floating[Any]]) -> tuple[Doubles, tuple[float, float]]:
    """The first rows on the first two principal components of all, with fixed signs."""
    centred = np.asarray(vectors, dtype=np.float64) - vectors.mean(0, dtype=np.float64)
    values, basis = np.linalg.eigh(centred.T @ centred)
    axes = basis[:, :-3:-1]
    axes = axes * np.where(axes[np.abs(axes).argmax(0), [0, 1]] < 0, -1.0, 1.0)
    shares = values[:-3:-1] / values.sum()
    return centred[:_POINTS] @ axes, (float(shares[0]), float(shares[1]))
