"""Measures the throughput of a bundle with three kinds of batching, interleaved in one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from flowvec import Encoder
from flowvec.encoder.batching import Batch, padded_tokens, plan, plan_in_order
from flowvec.errors import InputValueError

__all__ = ["BATCHINGS", "Batching", "Throughput", "make_plan", "measure_throughput"]

Batching = Literal["none", "characters", "tokens"]
BATCHINGS: tuple[Batching, ...] = ("none", "characters", "tokens")

# The default batch size of most libraries.
FIXED_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Throughput:
    """Medians over the repeats of one kind of batching.

    Attributes:
        batching: `none` (input order, 32 texts per batch), `characters` (sorted by characters, 32
            per batch) or `tokens` (flowvec's: sorted by token count, with a token budget).
        texts: texts encoded in each repeat.
        tokens: their tokens, including special tokens.
        seconds: median wall time of tokenizing, batching and the graph, in sequence.
        texts_per_second: texts / seconds.
        tokens_per_second: tokens, without padding, / seconds.
        padding: share of the computed tokens that was padding.
        batches: runs of the graph.
        tokenize_seconds: median time of tokenizing all texts.
        session_seconds: median wall time of the graph over all batches.
        spread: (max - min) / median of the seconds over the repeats.
    """

    batching: Batching
    texts: int
    tokens: int
    seconds: float
    texts_per_second: float
    tokens_per_second: float
    padding: float
    batches: int
    tokenize_seconds: float
    session_seconds: float
    spread: float


def make_plan(
    batching: Batching,
    texts: Sequence[str],
    lengths: Sequence[int],
    max_batch_tokens: int,
    max_length: int,
) -> list[Batch]:
    """The batches that a kind of batching makes of texts with these token counts."""
    if batching == "tokens":
        return plan(lengths, max_batch_tokens, max_length)
    order = range(len(texts))
    if batching == "characters":
        order = sorted(order, key=lambda i: -len(texts[i]))  # type: ignore[assignment]
    return plan_in_order(lengths, order, FIXED_BATCH_SIZE, max_length)


def measure_throughput(
    encoder: Encoder,
    texts: Sequence[str],
    batchings: Sequence[Batching] = BATCHINGS,
    max_batch_tokens: int = 1024,
    repeats: int = 5,
    on_repeat: Callable[[], object] | None = None,
) -> list[Throughput]:
    """Time each kind of batching in every repeat, and check that their vectors agree.

    Tokenizing and the graph run in sequence here, to measure each; `Encoder.encode` overlaps them.

    Raises:
        InputValueError: no texts, or no repeats.
        ArithmeticError: two kinds of batching gave different vectors (cosine below 0.999).
    """
    if not texts or repeats < 1:
        raise InputValueError("there must be at least one text and one repeat")
    times: dict[Batching, list[tuple[float, float, float]]] = {b: [] for b in batchings}
    plans: dict[Batching, list[Batch]] = {}
    vectors: dict[Batching, npt.NDArray[np.float32]] = {}
    lengths: list[int] = []
    for repeat in range(repeats + 1):  # the first is the warm-up
        for batching in batchings:
            started = time.perf_counter()
            tokenized = encoder.tokenize(texts)
            tokenized_at = time.perf_counter()
            lengths = tokenized.lengths
            batches = make_plan(batching, texts, lengths, max_batch_tokens, encoder.max_length)
            planned_at = time.perf_counter()
            vectors[batching] = encoder.run(tokenized.ids, batches)
            done = time.perf_counter()
            plans[batching] = batches
            if repeat:
                times[batching].append((done - started, tokenized_at - started, done - planned_at))
        if on_repeat is not None:
            on_repeat()
    _require_agreement([vectors[b] for b in batchings])
    return [_summary(b, len(texts), sum(lengths), plans[b], times[b]) for b in batchings]


def _require_agreement(results: Sequence[npt.NDArray[np.float32]]) -> None:
    """Check that all kinds of batching give the same vectors."""
    for other in results[1:]:
        dots = (results[0] * other).sum(1)
        cosine = dots / (np.linalg.norm(results[0], axis=1) * np.linalg.norm(other, axis=1))
        if not cosine.min() >= 0.999:
            raise ArithmeticError(f"two ways of batching differ: cosine {cosine.min():.5f}")


def _summary(
    batching: Batching,
    texts: int,
    tokens: int,
    batches: Sequence[Batch],
    times: Sequence[tuple[float, float, float]],
) -> Throughput:
    totals, tokenizing, session = (list(column) for column in zip(*times, strict=True))
    seconds = statistics.median(totals)
    return Throughput(
        batching=batching,
        texts=texts,
        tokens=tokens,
        seconds=seconds,
        texts_per_second=texts / seconds,
        tokens_per_second=tokens / seconds,
        padding=1.0 - tokens / padded_tokens(batches),
        batches=len(batches),
        tokenize_seconds=statistics.median(tokenizing),
        session_seconds=statistics.median(session),
        spread=(max(totals) - min(totals)) / seconds,
    )
