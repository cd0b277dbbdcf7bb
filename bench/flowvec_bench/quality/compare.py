"""Measures all poolings and transforms of a model on one corpus and STS.

Vectors of all poolings are computed once, in one graph. Every transform is fitted once per seed,
each time on another sample of the corpus, without the scored sentences.

`flow-released` is the released shape under flowvec's own training; `flowvec fit flow
--like-the-paper` is the released recipe.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flowvec.errors import FlowvecError, InputValueError
from flowvec.progress import say
from flowvec_bench.quality.advice import NONE, OWN, TRANSFORMS, WORD_VECTORS, Candidate, advise
from flowvec_bench.quality.isotropy import UNIFORMITY_ROWS, alignment, mean_cosine, uniformity
from flowvec_bench.speed.transform_cost import added_microseconds
from flowvec_export.fitting.corpus import embed_raw
from flowvec_export.fitting.fit import (
    FitSettings,
    fit_transform,
    held_out_rows,
    parse_method,
    split,
)
from flowvec_export.layers.names import parse_pooling
from flowvec_export.sources.load import read_torch_source
from flowvec_export.sources.torch import TorchSource
from flowvec_export.sts import StsScore, StsTask, positive_pairs, score_vectors, sentence_rows
from flowvec_export.transforms import PRESETS, Transform

__all__ = [
    "Comparison",
    "Failure",
    "compare",
    "figure_names",
    "parse_transforms",
]

Floats = npt.NDArray[np.float32]

POOLINGS = ("cls", "mean", "first_last_mean", "pooler")


@dataclass(frozen=True, slots=True)
class Failure:
    """A transform that could not be fitted to a pooling, and why."""

    pooling: str
    transform: str
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        source: name of the checkpoint.
        rows: texts drawn for each fit.
        candidates: candidates, in the order in which they were measured.
        failures: those that could not be measured.
        chosen_on: the deciding figure.
        best: index of the recommended candidate.
        advice: what to do, and why.
    """

    source: str
    rows: int
    candidates: list[Candidate]
    failures: list[Failure]
    chosen_on: str
    best: int
    advice: str


def parse_transforms(names: str | None) -> list[str]:
    """Split `whitening,flow`; None gives all of `TRANSFORMS`.

    Raises:
        InputValueError: a name is unknown.
    """
    if names is None:
        return list(TRANSFORMS)
    chosen = [name for name in names.split(",") if name != NONE]
    for name in chosen:
        if name not in TRANSFORMS:
            raise InputValueError(
                f"transform {name!r} is unknown; choose from {', '.join(TRANSFORMS)}"
            )
    return list(dict.fromkeys(chosen))


def figure_names(scores: Sequence[StsScore]) -> dict[str, float]:
    """The figures of a set of scores by name.

    A task with a `dev` or `test` subset, such as STS-B, gives each of these; every other task gives
    `all` and `wmean`.
    """
    figures: dict[str, float] = {}
    for score in scores:
        if {"dev", "test"} & score.subsets.keys():
            for part in ("dev", "test"):
                if part in score.subsets:
                    figures[f"{score.task} {part}"] = score.subsets[part]
        else:
            figures[f"{score.task} all"] = score.all
            figures[f"{score.task} wmean"] = score.wmean
    return figures


def compare(
    source: str | Path,
    texts: Sequence[str],
    tasks: Sequence[StsTask],
    *,
    poolings: Sequence[str] | None = None,
    transforms: Sequence[str] = tuple(TRANSFORMS),
    rows: int = 30_000,
    seeds: int = 1,
    settings: FitSettings | None = None,
    show_progress_bar: bool | None = None,
    on_step: Callable[[str], object] | None = say,
) -> Comparison:
    """Measure every pooling with every transform, and without.

    Args:
        source: as for `export`.
        texts: distinct texts to fit on, shuffled; sentences of the tasks are left out.
        tasks: STS tasks.
        poolings: the poolings; None takes cls, mean, first_last_mean and, if the checkpoint has
            one, pooler; and `own` for a sentence-transformers model as it is.
        transforms: names from `TRANSFORMS`.
        rows: texts drawn for each fit, a twentieth of which is held out; with several seeds at most
            half of the texts, so that the draws differ.
        seeds: number of fits of each transform.
        settings: settings of the transforms; the flow's shape is the transform's own.
        show_progress_bar: show a progress bar while embedding; None shows one on a terminal for
            long work.
        on_step: called with a line of text before each step; by default it goes to standard
            error. None is silent.

    Raises:
        InputValueError: too few texts for a transform, or an unknown or a joined pooling.
        ExportError: the source cannot be exported.
    """
    tell = on_step or (lambda _: None)
    settings = settings or FitSettings()
    checkpoint = read_torch_source(source)
    names = _poolings(checkpoint, poolings)
    row_of = sentence_rows(tasks)
    sentences = list(row_of)
    scored = {sentence.strip() for sentence in sentences}
    texts = [text for text in texts if text.strip() not in scored]
    rows = min(rows, len(texts) if seeds == 1 else len(texts) // 2)
    for name in transforms:  # before any long work
        held_out_rows(rows, parse_method(TRANSFORMS[name][0]))
    everything = [*texts, *sentences]
    measure = _Measure(tasks, row_of)
    candidates: list[Candidate] = []
    failures: list[Failure] = []
    if poolings is None:
        tell("averaging word vectors")
        candidates.append(measure.raw(WORD_VECTORS, _word_vectors(checkpoint, sentences)))
    for name, vectors in _embed(source, names, everything, show_progress_bar, on_step):
        corpus, sts = vectors[: len(texts)], vectors[len(texts) :]
        candidates.append(measure.raw(name, sts))
        for transform in transforms:
            tell(f"{name}: fitting {transform}")
            try:
                candidate = measure.fitted(name, transform, corpus, sts, rows, seeds, settings)
            except FlowvecError as error:  # the results of the others are kept
                tell(f"{name}: {transform} failed: {error}")
                failures.append(Failure(name, transform, str(error)))
            else:
                candidates.append(candidate)
    chosen_on, best, advice = advise(candidates, encoder_only=checkpoint.pooling is not None)
    return Comparison(checkpoint.name, rows, candidates, failures, chosen_on, best, advice)


def _poolings(source: TorchSource, requested: Sequence[str] | None) -> list[str]:
    has_own = source.pooling is not None
    if requested is None:
        names = [name for name in POOLINGS if name != "pooler" or source.pooler is not None]
        return [*([OWN] if has_own else []), *names]
    if joined := [name for name in requested if "+" in name]:
        raise InputValueError(f"{joined[0]} is several poolings; they are compared one by one")
    for name in requested:
        if name != OWN:
            parse_pooling(name)
    if OWN in requested and not has_own:
        raise InputValueError(f"{source.origin} is a plain encoder and has no pooling of its own")
    return list(dict.fromkeys(requested))


def _embed(
    source: str | Path,
    names: Sequence[str],
    texts: Sequence[str],
    show_progress_bar: bool | None,
    on_step: Callable[[str], object] | None,
) -> Iterator[tuple[str, Floats]]:
    """Raw vectors of all texts by pooling; one graph computes all plain poolings."""
    options: dict[str, Any] = {"show_progress_bar": show_progress_bar, "on_step": on_step}
    if OWN in names:
        yield OWN, embed_raw(source, texts, **options)
    plain = [name for name in names if name != OWN]
    if plain:
        joined = embed_raw(source, texts, pooling="+".join(plain), encoder_only=True, **options)
        width = joined.shape[1] // len(plain)
        # Slices are views: nothing is copied until a transform works on one.
        for i, name in enumerate(plain):
            yield name, joined[:, i * width : (i + 1) * width]


def _word_vectors(source: TorchSource, sentences: Sequence[str]) -> Floats:
    """Means of the input word embeddings of each sentence's tokens, without special tokens."""
    table = source.model.get_input_embeddings().weight.detach().numpy()
    encodings = source.tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
    out = np.zeros((len(sentences), table.shape[1]), dtype=np.float32)
    for i, encoding in enumerate(encodings):
        if encoding.ids:
            out[i] = table[encoding.ids].mean(axis=0)
    return out


class _Measure:
    """Scores of vectors of the STS sentences."""

    def __init__(self, tasks: Sequence[StsTask], row_of: Mapping[str, int]) -> None:
        self.tasks, self.row_of = tasks, row_of
        self.positives = positive_pairs(tasks, row_of)
        chosen = np.random.default_rng(0).permutation(len(row_of))[:UNIFORMITY_ROWS]
        self.sample = np.sort(chosen)

    def raw(self, pooling: str, sts: Floats) -> Candidate:
        """A pooling without a transform."""
        figures = [self._figures(sts)]
        return self._candidate(pooling, NONE, figures, [sts.shape[1]], 0.0, [])

    def fitted(
        self, pooling: str, name: str, corpus: Floats, sts: Floats, rows: int, seeds: int,
        settings: FitSettings,
    ) -> Candidate:  # fmt: skip
        """A pooling with a transform, fitted once per seed on another sample of the corpus."""
        method, preset = TRANSFORMS[name]
        figures: list[dict[str, float | None]] = []
        dims: list[int] = []
        bits: list[float] = []
        transform: Transform | None = None
        for seed in range(seeds):
            chosen = np.random.default_rng(seed).permutation(len(corpus))[:rows]
            train, held_out = split(np.ascontiguousarray(corpus[chosen]))
            seeded = replace(
                settings,
                shape=replace(PRESETS[preset], seed=seed),
                training=replace(settings.training, seed=seed),
            )
            transform, history = fit_transform(parse_method(method), train, held_out, seeded)
            with torch.no_grad():
                latent = transform(torch.from_numpy(np.ascontiguousarray(sts))).numpy()
            figures.append(self._figures(latent))
            dims.append(transform.out_dim)
            if history:
                bits.append(min(epoch.held_out for epoch in history))
        assert transform is not None
        return self._candidate(pooling, name, figures, dims, added_microseconds(transform), bits)

    def _figures(self, vectors: Floats) -> dict[str, float | None]:
        scores = score_vectors(self.tasks, self.row_of, vectors)
        left, right = vectors[self.positives[:, 0]], vectors[self.positives[:, 1]]
        return {
            **figure_names(scores),
            "mean_cosine": mean_cosine(vectors),
            "uniformity": uniformity(vectors[self.sample]),
            "alignment": alignment(left, right) if len(left) else None,
        }

    def _candidate(
        self, pooling: str, transform: str, figures: Sequence[Mapping[str, float | None]],
        dims: Sequence[int], microseconds: float, bits: Sequence[float],
    ) -> Candidate:  # fmt: skip
        means = {k: _mean([f[k] for f in figures]) for k in figures[0]}
        others = {k: means.pop(k) for k in ("mean_cosine", "uniformity", "alignment")}
        deviations = {
            k: statistics.stdev(f[k] or 0.0 for f in figures) if len(figures) > 1 else 0.0
            for k in means
        }
        return Candidate(
            pooling=pooling,
            transform=transform,
            seeds=len(figures),
            dim=max(dims),
            sts={k: v or 0.0 for k, v in means.items()},
            sts_deviation=deviations,
            sts_by_seed=[{k: f[k] or 0.0 for k in means} for f in figures],
            mean_cosine=others["mean_cosine"] or 0.0,
            uniformity=others["uniformity"] or 0.0,
            alignment=others["alignment"],
            added_microseconds=microseconds,
            bits_per_dim=statistics.fmean(bits) if bits else None,
        )


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present else None
