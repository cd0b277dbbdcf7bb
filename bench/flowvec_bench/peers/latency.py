"""Compares latencies: callers with one text each, for every peer."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.errors import InputValueError
from flowvec_bench.peers.registry import Peer
from flowvec_bench.peers.runner import (
    LEAST_COSINE,
    LEAST_COSINE_8_BIT,
    Lineup,
    Reference,
    Runner,
    least_cosine,
    lined_up,
)

__all__ = ["RATE_SHARES", "Latency", "LatencyRow", "measure_latency"]

# Default rates: shares of what the first peer reached with the most callers.
RATE_SHARES = (0.25, 0.5, 0.75)

# Callers while an engine that gathers calls into batches chooses its batch size.
_CHOOSING_CALLERS = 64
_CHOOSING_SECONDS = 1.5
# An engine that answers less than this share of the arrivals falls behind.
_KEEPS_UP = 0.95


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One peer at one level of load.

    Attributes:
        name: of the peer.
        load: `callers` who each wait for their answer, or `rate` of arrivals per second.
        level: number of callers, or rate.
        p50: median wait in milliseconds, over all rounds.
        p95: the 95th percentile.
        p99: the 99th percentile.
        per_second: answered calls per second, the median of the rounds.
        calls: answered calls, in all rounds.
        unanswered: calls that were given up.
        arrived: arrivals per second in an open loop; else None.
        min_cosine: the smallest cosine to the vectors of the first row that is not in 8 bits.
        error: why there are no figures; None if there are.
        least: the smallest `min_cosine` of a row that counts.
    """

    name: str
    load: str
    level: float
    p50: float | None
    p95: float | None
    p99: float | None
    per_second: float | None
    calls: int
    unanswered: int
    arrived: float | None
    min_cosine: float | None
    error: str | None
    least: float = LEAST_COSINE

    @property
    def void(self) -> bool:
        """Whether its vectors differ by more than they may."""
        return self.min_cosine is None or not self.min_cosine >= self.least

    @property
    def saturated(self) -> bool:
        """Whether it answers fewer calls than arrive."""
        if self.arrived is None or self.per_second is None:
            return False
        return self.per_second < _KEEPS_UP * self.arrived


@dataclass(frozen=True, slots=True)
class Latency:
    """The result of `measure_latency`: rows by level, in the order of the peers."""

    texts: int
    seconds: float
    rounds: int
    batch_sizes: dict[str, int]
    versions: dict[str, dict[str, str]]
    rows: list[LatencyRow]


class _Figures:
    """Measurements so far, by peer and level."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.reference = Reference(least_cosine)
        self.are_8_bit: set[str] = set()
        self.waits: dict[tuple[str, str, float], list[float]] = {}
        self.rates: dict[tuple[str, str, float], list[float]] = {}
        self.unanswered: dict[tuple[str, str, float], int] = {}
        self.seconds: dict[tuple[str, str, float], float] = {}

    def add(self, key: tuple[str, str, float], answer: Mapping[str, Any], seconds: float) -> None:
        self.seconds[key] = self.seconds.get(key, 0.0) + seconds
        self.waits.setdefault(key, []).extend(answer["waits"])
        self.rates.setdefault(key, []).append(len(answer["waits"]) / answer["seconds"])
        self.unanswered[key] = self.unanswered.get(key, 0) + answer["unanswered"]


def measure_latency(
    peers: Sequence[Peer],
    models: Mapping[str, Path],
    options: Mapping[str, Any],
    texts: Sequence[str],
    folder: Path,
    *,
    callers: Sequence[int] = (1, 8, 64, 256),
    rates: Sequence[float] | None = None,
    seconds: float = 3.0,
    rounds: int = 3,
    seed: int = 0,
    on_step: Callable[[str], object] | None = None,
) -> Latency:
    """Measure peers under load: in every round of a level, each peer once.

    Args:
        peers: the peers; vectors are compared with those of the first that is not in 8 bits.
        models: path of each form of the model, see `Peer.form`.
        options: facts about the model for engines (`max_length`, `dim`, `threads`).
        texts: the texts that callers send, in order.
        folder: folder for temporary files.
        callers: numbers of callers in closed loops, see `load.py`.
        rates: arrivals per second of open loops; None takes shares of what the first peer reached
            with the most callers.
        seconds: duration of each level and round; in an open loop, calls that are not answered
            after the same time again are given up.
        rounds: rounds of each level.
        seed: seed of the arrivals; they are the same for all peers.
        on_step: called with a line of text before each step.

    Raises:
        InputValueError: no peers, no texts, no levels, or a number that is not above 0.
        FlowvecError: the first peer fails.
    """
    if not peers or not texts or rounds < 1 or not seconds > 0:
        raise InputValueError("there must be peers, texts, rounds and seconds")
    if any(n < 1 for n in callers) or any(not rate > 0 for rate in rates or ()):
        raise InputValueError("callers must be at least 1, and rates above 0")
    if not callers and not rates:
        raise InputValueError("there must be callers or rates")
    say = on_step or (lambda _: None)
    file = folder / "latency.json"
    file.write_text(json.dumps(list(texts)), encoding="utf-8")
    figures = _Figures()

    def prepare(runner: Runner) -> None:
        say(f"preparing {runner.peer.name}")
        vectors = runner.vectors(file, None)
        figures.reference.add(runner, vectors)
        if runner.is_8_bit:
            figures.are_8_bit.add(runner.peer.name)
        if runner.peer.gathers:
            figures.sizes[runner.peer.name] = _best_size(runner, file)
        _run(runner, file, 1, 0.2, figures.sizes.get(runner.peer.name))

    with lined_up(peers, models, options, say) as lineup:
        lineup.each(prepare)
        figures.reference.finish()
        for load, values in (("callers", callers), ("rate", rates)):
            levels = values
            if levels is None:
                levels = _shares(figures, peers[0].name, callers)
            for level in levels:
                for number in range(rounds):
                    say(f"{load} {level:g}, round {number + 1} of {rounds}")

                    def once(
                        runner: Runner, load: str = load, level: float = level, number: int = number
                    ) -> None:
                        name = runner.peer.name
                        answer = runner.ask(
                            do="load-test",
                            texts=str(file),
                            batch_size=figures.sizes.get(name),
                            seconds=seconds,
                            seed=seed + number,
                            **{load: level},
                        )
                        figures.add((name, load, level), answer, seconds)

                    lineup.each(once)
    return Latency(
        len(texts),
        seconds,
        rounds,
        figures.sizes,
        {peer.name: lineup.versions.get(peer.name, {}) for peer in peers},
        _rows(peers, lineup, figures),
    )


def _run(
    runner: Runner, file: Path, callers: int, seconds: float, size: int | None
) -> dict[str, Any]:
    return runner.ask(
        do="load-test", texts=str(file), batch_size=size, seconds=seconds, callers=callers
    )


def _best_size(runner: Runner, file: Path) -> int:
    """The batch size with which most calls are answered."""
    served: dict[int, float] = {}
    for size in runner.peer.batch_sizes:
        assert size is not None
        _run(runner, file, _CHOOSING_CALLERS, 0.3, size)
        answer = _run(runner, file, _CHOOSING_CALLERS, _CHOOSING_SECONDS, size)
        served[size] = len(answer["waits"]) / answer["seconds"]
    return max(served, key=lambda size: served[size])


def _shares(figures: _Figures, name: str, callers: Sequence[int]) -> list[float]:
    """Default rates: shares of what a peer reached."""
    reached = statistics.median(figures.rates[name, "callers", max(callers)])
    return [float(f"{share * reached:.2g}") for share in RATE_SHARES]


def _rows(peers: Sequence[Peer], lineup: Lineup, figures: _Figures) -> list[LatencyRow]:
    levels = dict.fromkeys((load, level) for _, load, level in figures.waits)
    return [
        _row(peer.name, load, level, lineup, figures) for load, level in levels for peer in peers
    ]


def _row(name: str, load: str, level: float, lineup: Lineup, figures: _Figures) -> LatencyRow:
    key = (name, load, level)
    error = lineup.errors.get(name)
    waits = [] if error else figures.waits.get(key, [])
    arrived = (len(waits) + figures.unanswered.get(key, 0)) / figures.seconds.get(key, 1.0)
    percentiles: list[float | None] = [None] * 3
    if waits:
        percentiles = [round(1000 * float(t), 3) for t in np.percentile(waits, (50, 95, 99))]
    return LatencyRow(
        name=name,
        load=load,
        level=level,
        p50=percentiles[0],
        p95=percentiles[1],
        p99=percentiles[2],
        per_second=round(statistics.median(figures.rates[key]), 2) if waits else None,
        calls=len(waits),
        unanswered=figures.unanswered.get(key, 0),
        arrived=round(arrived, 2) if waits and load == "rate" else None,
        min_cosine=figures.reference.agreements.get(name),
        error=error,
        least=LEAST_COSINE_8_BIT if name in figures.are_8_bit else LEAST_COSINE,
    )
