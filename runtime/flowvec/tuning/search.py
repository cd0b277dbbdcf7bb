"""The search for the provider, streams and token budget that are fastest for a bundle here.

It has up to four steps (provider, streams and threads, OpenVINO's form of attention, batch size),
each from the best of the step before: all combinations would take an hour. The candidates of a step
are timed in interleaved rounds, so that a moment in which the machine is busy affects all of them.
A default is only replaced by settings that are faster by more than noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from flowvec.bundle.bundle import Bundle
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
from flowvec.errors import EngineNotProvedError, InputValueError, ProviderUnavailableError
from flowvec.machine import available_cores
from flowvec.tuning.measuring import Candidate, Measured, measure, winner
from flowvec.tuning.workloads import Workload, workload_of

__all__ = ["tune"]

BUDGETS = (256, 512, 1024, 2048, 4096)
GPU_BUDGETS = (4096, 16384, 65536)

_SHARES = {"provider": 0.3, "streams": 0.2, "attention": 0.15, "budget": 0.35}


def tune(
    bundle: Bundle,
    *,
    seconds: float = 100.0,
    allow_compute: bool = False,
    on_measured: Callable[[str, Sequence[Measured]], object] | None = None,
) -> Tuned:
    """Find the fastest settings among engines that are proved on this machine.

    Args:
        bundle: what to tune for, an embedder or a reranker.
        seconds: how long to measure; loading engines takes more time on top.
        allow_compute: also try other compute types than the default. They give slightly different
            vectors or scores.
        on_measured: called after each step with its name and its candidates, best first.

    Raises:
        InputValueError: seconds is not above 0.
        EngineError: no candidate runs.
    """
    if not seconds > 0:
        raise InputValueError(f"seconds must be above 0, but is {seconds:g}")
    workload = workload_of(bundle)

    def step(name: str, candidates: Sequence[Candidate], standing: Candidate) -> Measured:
        measured = measure(bundle, candidates, workload, seconds * _SHARES[name])
        if on_measured is not None:
            on_measured(name, measured)
        return winner(measured, standing)

    engines = [
        Candidate(e, default_max_batch_tokens(e, bundle.manifest.layers))
        for e in _engines(bundle, workload, allow_compute)
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


def _engines(bundle: Bundle, workload: Workload, allow_compute: bool) -> list[Engine]:
    """All engines that run here; only the default's compute type, unless others are allowed."""
    default = _proved_default(bundle, workload)
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


def _proved_default(bundle: Bundle, workload: Workload) -> Engine:
    """What `load` uses by default."""
    refused: list[tuple[str, str]] = []
    while True:
        engine = choose_engine(
            variants=bundle.variants, layers=bundle.manifest.layers, refused=refused
        )
        try:
            workload.open(bundle, engine).close()
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
