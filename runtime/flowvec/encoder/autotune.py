"""Tuning: which provider, streams and token budget are fastest for a bundle on this machine.

The search has up to four steps (provider, streams and threads, OpenVINO's form of attention, batch
size), each from the best of the step before: all combinations would take an hour. The candidates of
a step are timed in interleaved rounds, so that a moment in which the machine is busy affects all of
them. A default is only replaced by settings that are faster by more than noise.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, islice
from math import prod

from flowvec.bundle.bundle import Bundle
from flowvec.demo import load_passages
from flowvec.encoder.encoder import Encoder
from flowvec.engine.providers import (
    OPENVINO,
    PROVIDERS,
    TENSORRT,
    Engine,
    computes_of,
    default_max_batch_tokens,
)
from flowvec.engine.selection import available_providers, choose_engine
from flowvec.engine.tuned import Tuned
from flowvec.errors import (
    EngineError,
    EngineNotProvedError,
    FlowvecError,
    InputValueError,
    ProviderUnavailableError,
)
from flowvec.machine import available_cores
from flowvec.texts.sentences import split_sentences

__all__ = ["KINDS", "Candidate", "Measured", "kinds_of_texts", "tune", "winner"]

logger = logging.getLogger(__name__)

KINDS = ("short", "natural", "long")
BUDGETS = (256, 512, 1024, 2048, 4096)
GPU_BUDGETS = (4096, 16384, 65536)

_SHORT_WORDS = 5
_TEXTS = {"short": 256, "natural": 256, "long": 32}
# In tokens. Static embedders take longer texts, but few texts are, and timing them takes minutes.
_LONGEST = 8192
# The first run of a shape compiles; later runs are timed.
_LEAST_ROUNDS = 3
# A smaller lead than this is noise.
_NOISE = 0.97
_SHARES = {"provider": 0.3, "streams": 0.2, "attention": 0.15, "budget": 0.35}


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine with a batch size in padded tokens."""

    engine: Engine
    max_batch_tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate with its medians.

    Attributes:
        candidate: what was timed.
        texts_per_second: texts per second, by kind of text.
        score: speed relative to the best candidate of the step, as geometric mean over the kinds;
            at most 1.
    """

    candidate: Candidate
    texts_per_second: dict[str, float]
    score: float


def kinds_of_texts(bundle: Bundle) -> dict[str, list[str]]:
    """English texts for timing: a few words, sentences, and passages up to max_length or 8,192
    tokens."""
    passages = [passage.text for passage in load_passages()]
    sentences = [sentence for passage in passages for sentence in split_sentences(passage)]
    short = [" ".join(sentence.split()[:_SHORT_WORDS]) for sentence in sentences]
    words = " ".join(passages).split()
    size = max(1, int(min(bundle.manifest.max_length, _LONGEST) * 0.7))
    long = [" ".join(words[i : i + size]) for i in range(0, len(words), size)]
    pools = {"short": short, "natural": sentences, "long": long}
    return {kind: list(islice(cycle(pool), _TEXTS[kind])) for kind, pool in pools.items()}


def tune(
    bundle: Bundle,
    *,
    seconds: float = 100.0,
    allow_compute: bool = False,
    on_measured: Callable[[str, Sequence[Measured]], object] | None = None,
) -> Tuned:
    """Find the fastest settings among engines that are proved on this machine.

    Args:
        bundle: what to tune for.
        seconds: how long to measure; loading engines takes more time on top.
        allow_compute: also try other compute types than the default. They give slightly different
            vectors.
        on_measured: called after each step with its name and its candidates, best first.

    Raises:
        InputValueError: seconds is not above 0.
        EngineError: no candidate runs.
    """
    if not seconds > 0:
        raise InputValueError(f"seconds must be above 0, but is {seconds:g}")
    texts = kinds_of_texts(bundle)

    def step(name: str, candidates: Sequence[Candidate], standing: Candidate) -> Measured:
        measured = _measure(bundle, candidates, texts, seconds * _SHARES[name])
        if on_measured is not None:
            on_measured(name, measured)
        return winner(measured, standing)

    engines = [
        Candidate(e, default_max_batch_tokens(e, bundle.manifest.layers))
        for e in _engines(bundle, allow_compute)
    ]
    best = step("provider", engines, engines[0])
    best = step(
        "streams", [_with(best.candidate, *s) for s in _streams(best.candidate)], best.candidate
    )
    if best.candidate.engine.provider == OPENVINO and bundle.manifest.layers != 0:
        best = step("attention", _attentions(best.candidate), best.candidate)
    best = step("budget", _budgets(best.candidate), best.candidate)
    engine = best.candidate.engine
    return Tuned(
        provider=engine.provider,
        compute=engine.compute,
        streams=engine.streams,
        threads=engine.threads,
        max_batch_tokens=best.candidate.max_batch_tokens,
        fused_attention=engine.fused_attention,
        texts_per_second={kind: round(rate, 1) for kind, rate in best.texts_per_second.items()},
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def winner(measured: Sequence[Measured], standing: Candidate) -> Measured:
    """The best candidate, or the current one if the lead is only noise.

    Args:
        measured: best first.
        standing: the current candidate; it may not have been measured.
    """
    best = measured[0]
    close = (m for m in measured if m.candidate == standing and m.score >= _NOISE * best.score)
    return next(close, best)


def _engines(bundle: Bundle, allow_compute: bool) -> list[Engine]:
    """All engines that run here; only the default's compute type, unless others are allowed."""
    default = _proved_default(bundle)
    engines = [default]
    for provider in available_providers():
        if provider == TENSORRT or PROVIDERS[provider] != default.device:
            continue
        for compute in computes_of(provider):
            if compute != default.compute and not allow_compute:
                continue
            try:
                engine = choose_engine(provider, compute, variants=bundle.variants)  # type: ignore[arg-type]
            except ProviderUnavailableError:
                continue
            if engine not in engines:
                engines.append(engine)
    return engines


def _proved_default(bundle: Bundle) -> Engine:
    """What `Encoder.load` uses by default."""
    refused: list[tuple[str, str]] = []
    while True:
        engine = choose_engine(
            variants=bundle.variants, layers=bundle.manifest.layers, refused=refused
        )
        try:
            Encoder(bundle, engine).close()
        except EngineNotProvedError as error:
            refused.append((error.provider, error.compute))
        else:
            return engine


def _streams(candidate: Candidate) -> list[tuple[int, int]]:
    """Streams and threads to try: all cores in several ways, half of them, and one."""
    if candidate.engine.device != "cpu":
        return [(1, 1)]
    cores = available_cores()
    half = max(1, cores // 2)
    return sorted({(cores, 1), (half, max(1, cores // half)), (1, cores), (half, 1)}, reverse=True)


def _with(candidate: Candidate, streams: int, threads: int) -> Candidate:
    return replace(candidate, engine=replace(candidate.engine, streams=streams, threads=threads))


def _attentions(candidate: Candidate) -> list[Candidate]:
    return [
        replace(candidate, engine=replace(candidate.engine, fused_attention=fused))
        for fused in (False, True)
    ]


def _budgets(candidate: Candidate) -> list[Candidate]:
    budgets = BUDGETS if candidate.engine.device == "cpu" else GPU_BUDGETS
    return [replace(candidate, max_batch_tokens=budget) for budget in budgets]


def _measure(
    bundle: Bundle,
    candidates: Sequence[Candidate],
    texts: Mapping[str, Sequence[str]],
    seconds: float,
) -> list[Measured]:
    """Time candidates in interleaved rounds for this many seconds, at least three; best first."""
    times: dict[Candidate, dict[str, list[float]]] = {}
    encoders: dict[Engine, Encoder] = {}
    failures: list[str] = []
    try:
        for candidate in candidates:
            try:
                if candidate.engine not in encoders:
                    encoders[candidate.engine] = Encoder(bundle, candidate.engine)
                _round(encoders[candidate.engine], candidate, texts)  # warm up
            except FlowvecError as error:  # another candidate may run
                if isinstance(error, EngineNotProvedError):
                    logger.warning("left out: %s", error)
                failures.append(str(error))
            else:
                times[candidate] = {kind: [] for kind in texts}
        if not times:
            raise EngineError(f"no engine runs this bundle: {'; '.join(failures)}")
        begun, rounds = time.perf_counter(), 0
        while rounds < _LEAST_ROUNDS or time.perf_counter() - begun < seconds:
            for candidate, seconds_per_run in times.items():
                for kind, taken in _round(encoders[candidate.engine], candidate, texts).items():
                    seconds_per_run[kind].append(taken)
            rounds += 1
    finally:
        for encoder in encoders.values():
            encoder.close()
    rates = {
        candidate: {
            kind: len(texts[kind]) / statistics.median(t) for kind, t in seconds_per_run.items()
        }
        for candidate, seconds_per_run in times.items()
    }
    best = {kind: max(rate[kind] for rate in rates.values()) for kind in texts}
    measured = [
        Measured(c, rate, prod(rate[kind] / best[kind] for kind in texts) ** (1 / len(texts)))
        for c, rate in rates.items()
    ]
    return sorted(measured, key=lambda m: -m.score)


def _round(
    encoder: Encoder, candidate: Candidate, texts: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Seconds for each kind."""
    taken: dict[str, float] = {}
    for kind, items in texts.items():
        # The Encoder's own batch size, which a call with few texts makes smaller, as later calls
        # will.
        encoder.max_batch_tokens = candidate.max_batch_tokens
        begun = time.perf_counter()
        encoder.encode(items)
        taken[kind] = time.perf_counter() - begun
    return taken
