"""Times candidates: engines and batch sizes, in interleaved rounds."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from flowvec.bundle.bundle import Bundle
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.engine.providers import Engine
from flowvec.errors import EngineError, EngineNotProvedError, FlowvecError
from flowvec.tuning.workloads import Workload

__all__ = ["Candidate", "Measured", "measure", "winner"]

logger = logging.getLogger(__name__)

# The first run of a shape compiles; later runs are timed.
_LEAST_ROUNDS = 3
# A smaller lead than this is noise.
_NOISE = 0.97


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
        texts_per_second: texts or pairs per second, by kind of text.
        score: speed relative to the best candidate of the step, as geometric mean over the kinds;
            at most 1.
    """

    candidate: Candidate
    texts_per_second: dict[str, float]
    score: float


def winner(measured: Sequence[Measured], standing: Candidate) -> Measured:
    """The best candidate, or the current one if the lead is only noise.

    Args:
        measured: best first.
        standing: the current candidate; it may not have been measured.
    """
    best = measured[0]
    close = (m for m in measured if m.candidate == standing and m.score >= _NOISE * best.score)
    return next(close, best)


def measure(
    bundle: Bundle, candidates: Sequence[Candidate], workload: Workload, seconds: float
) -> list[Measured]:
    """Time candidates in interleaved rounds for this many seconds, at least three; best first.

    Raises:
        EngineError: none of them runs.
    """
    kinds = workload.items
    times: dict[Candidate, dict[str, list[float]]] = {}
    models: dict[Engine, LoadedModel] = {}
    failures: list[str] = []
    try:
        for candidate in candidates:
            try:
                if candidate.engine not in models:
                    models[candidate.engine] = workload.open(bundle, candidate.engine)
                _round(models[candidate.engine], candidate, workload)  # warm up
            except FlowvecError as error:  # another candidate may run
                if isinstance(error, EngineNotProvedError):
                    logger.warning("left out: %s", error)
                failures.append(str(error))
            else:
                times[candidate] = {kind: [] for kind in kinds}
        if not times:
            raise EngineError(f"no engine runs this bundle: {'; '.join(failures)}")
        begun, rounds = time.perf_counter(), 0
        while rounds < _LEAST_ROUNDS or time.perf_counter() - begun < seconds:
            for candidate, seconds_per_run in times.items():
                for kind, taken in _round(models[candidate.engine], candidate, workload).items():
                    seconds_per_run[kind].append(taken)
            rounds += 1
    finally:
        for model in models.values():
            model.close()
    rates = {
        candidate: {
            kind: len(kinds[kind]) / statistics.median(t) for kind, t in seconds_per_run.items()
        }
        for candidate, seconds_per_run in times.items()
    }
    best = {kind: max(rate[kind] for rate in rates.values()) for kind in kinds}
    measured = [
        Measured(c, rate, prod(rate[kind] / best[kind] for kind in kinds) ** (1 / len(kinds)))
        for c, rate in rates.items()
    ]
    return sorted(measured, key=lambda m: -m.score)


def _round(model: LoadedModel, candidate: Candidate, workload: Workload) -> dict[str, float]:
    """Seconds for each kind."""
    taken: dict[str, float] = {}
    for kind, items in workload.items.items():
        # The model's own batch size, which a call with few texts makes smaller, as later calls
        # will.
        model.max_batch_tokens = candidate.max_batch_tokens
        begun = time.perf_counter()
        workload.run(model, items)
        taken[kind] = time.perf_counter() - begun
    return taken
