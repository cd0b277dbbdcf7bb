"""What a load test of HTTP servers found: rows, and what is computed from them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowvec.errors import InputValueError
from flowvec_bench.http.contestants import InProcess, Level
from flowvec_bench.peers.runner import LEAST_COSINE

__all__ = [
    "BESIDE", "HttpFigures", "HttpRow", "LoadPlan", "calls_of", "figures_of", "in_time", "row_of",
]  # fmt: skip

# The percentile that must be in time.
_IN_TIME = 0.99
BESIDE = "in process, beside the client's load"
_REFUSALS = frozenset(("429", "503", "504"))

# What `http_load.py` says of one test.
Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is measured.

    Attributes:
        texts_per_call: texts of each call of callers and arrivals.
        callers: numbers of callers.
        rates: calls per second of arrivals; None takes shares of what each server reached.
        within: milliseconds in which an answer must come to count as good.
        seconds: duration of each level in each round.
        rounds: rounds of each level; each goes through all servers.
        seed: of the arrivals, which are the same for all servers.
        with_wrk: also ask wrk, if it is installed.
    """

    texts_per_call: int = 1
    callers: tuple[int, ...] = (64,)
    rates: tuple[float, ...] | None = None
    within: float = 100.0
    seconds: float = 3.0
    rounds: int = 3
    seed: int = 0
    with_wrk: bool = True

    def __post_init__(self) -> None:
        numbers = (self.texts_per_call, self.rounds, *self.callers)
        if not self.callers or min(numbers) < 1:
            raise InputValueError("there must be callers, texts of a call and rounds")
        if not all(value > 0 for value in (self.within, self.seconds, *(self.rates or ()))):
            raise InputValueError("rates, seconds and milliseconds must be above 0")


@dataclass(frozen=True, slots=True)
class HttpRow:
    """One server at one load.

    Attributes:
        name: of the server.
        load: `one`, `callers` or `rate`.
        level: callers, or arrivals per second.
        p50: median wait in milliseconds, over all rounds.
        p95: the 95th percentile.
        p99: the 99th percentile.
        texts_per_second: texts that were answered, per second; the median of the rounds.
        goodput: texts that were answered in time, per second, over all rounds.
        by_round: texts per second of each round.
        calls: calls that were answered with vectors.
        in_time: share of all calls that were answered with vectors in time.
        refused: share of calls that were answered with 429, 503 or 504.
        failed: calls with another status, a wrong size, or a lost connection.
        unanswered: calls that were given up.
        client: share of a core that the client used.
        min_cosine: smallest cosine to the right vectors.
        error: why there are no figures; None if there are.
    """

    name: str
    load: str
    level: float
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    texts_per_second: float | None = None
    goodput: float | None = None
    by_round: list[float] = field(default_factory=list)
    calls: int = 0
    in_time: float = 0.0
    refused: float = 0.0
    failed: int = 0
    unanswered: int = 0
    client: float | None = None
    min_cosine: float | None = None
    error: str | None = None

    @property
    def void(self) -> bool:
        """Whether its vectors are not the right ones."""
        return self.min_cosine is None or not self.min_cosine >= LEAST_COSINE

    @property
    def keeps_up(self) -> bool:
        """Whether 99 % of all calls, refused ones included, were answered in time."""
        return not self.void and self.in_time >= _IN_TIME


@dataclass(frozen=True, slots=True)
class HttpFigures:
    """The result of `measure_http`.

    Attributes:
        rows: by load, in the order of the servers.
        best: by server, the largest goodput in texts per second at a rate whose p99 is in time.
        ratios: by server, its texts per second over those in process, beside the client's load if
            it was measured; by number of callers, the median of the rounds.
        wrk: by server, texts per second with most callers as wrk says; empty without wrk.
    """

    rows: list[HttpRow]
    best: dict[str, float]
    ratios: dict[str, dict[int, float]]
    wrk: dict[str, float]


def figures_of(rows: list[HttpRow], wrk: dict[str, float]) -> HttpFigures:
    """The figures of all rows, and of wrk."""
    return HttpFigures(rows, _best(rows), _ratios(rows), wrk)


def row_of(
    name: str, level: Level, answers: Sequence[Answer], plan: LoadPlan, cosine: float
) -> HttpRow:
    """The row of a server at a load.

    Args:
        name: of the server.
        level: the load.
        answers: what the load generator said, by round.
        plan: what was measured.
        cosine: the smallest cosine to the right vectors before the test.
    """
    if not any(answer["waits"] for answer in answers):
        unanswered = sum(answer["unanswered"] for answer in answers)
        return HttpRow(name, level.load, level.level, unanswered=unanswered, error="gave no answer")
    texts = plan.texts_per_call if level.load != "one" else 1
    waits = [wait for answer in answers for wait in answer["waits"]]
    p50, p95, p99 = (round(1e3 * float(t), 3) for t in np.percentile(waits, (50, 95, 99)))
    by_round = [round(texts * len(a["waits"]) / a["seconds"], 2) for a in answers]
    seconds = sum(max(a["seconds"], plan.seconds) for a in answers)
    calls = sum(map(calls_of, answers))
    good = sum(in_time(answer, plan.within) for answer in answers)
    cosines = [a["min_cosine"] for a in answers if a["min_cosine"] is not None]
    clients = [a["processor"] for a in answers if a["processor"] is not None]
    return HttpRow(
        name,
        level.load,
        level.level,
        p50,
        p95,
        p99,
        round(statistics.median(by_round), 2),
        round(texts * good / seconds, 2),
        by_round,
        len(waits),
        round(good / calls, 5),
        round(sum(map(_refused, answers)) / calls, 5),
        sum(map(_failed, answers)),
        sum(answer["unanswered"] for answer in answers),
        round(statistics.median(clients), 4) if clients else None,
        _least([cosine, *cosines]),
    )


def in_time(answer: Answer, within: float) -> int:
    """Calls of a test that were answered in so many milliseconds."""
    return sum(1e3 * wait <= within for wait in answer["waits"])


def _refused(answer: Answer) -> int:
    return sum(count for status, count in answer["statuses"].items() if status in _REFUSALS)


def _failed(answer: Answer) -> int:
    others = sum(answer["statuses"].values()) - _refused(answer)
    return int(others + answer["wrong"] + answer["lost"])


def calls_of(answer: Answer) -> int:
    """Calls of a test, answered or not."""
    return len(answer["waits"]) + _refused(answer) + _failed(answer) + int(answer["unanswered"])


def _least(cosines: Sequence[float]) -> float:
    """The smallest; NaN if one is, which no bound lets through."""
    return float(np.min(np.array(cosines, np.float64)))


def _best(rows: Sequence[HttpRow]) -> dict[str, float]:
    best: dict[str, float] = {}
    for row in rows:
        if row.load == "rate":
            good = row.goodput if row.keeps_up else 0.0
            best[row.name] = max(best.get(row.name, 0.0), good or 0.0)
    return best


def _ratios(rows: Sequence[HttpRow]) -> dict[str, dict[int, float]]:
    ratios: dict[str, dict[int, float]] = {}
    at = {(row.name, row.level): row for row in rows if row.load == "callers"}
    for (name, level), row in at.items():
        base = at.get((BESIDE, level)) or at.get((InProcess.name, level))
        if base is not None and base.by_round and row.by_round:
            pairs = zip(row.by_round, base.by_round, strict=False)
            ratio = statistics.median(own / other for own, other in pairs)
            ratios.setdefault(name, {})[int(level)] = round(ratio, 4)
    return ratios
