"""Latency side by side: callers with one text each, in front of every peer in turn."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import InputValueError
from flowvec_bench.peers.registry import Peer
from flowvec_bench.peers.runner import LEAST_COSINE, Lineup, Runner, least_cosine, lined_up

__all__ = ["RATE_SHARES", "Latency", "LatencyRow", "measure_latency"]

# Rates that nobody named: these shares of what the first peer reached with the most callers.
RATE_SHARES = (0.25, 0.5, 0.75)

# An engine that gathers calls into batches chooses its batch size with so many callers.
_CHOOSING_CALLERS = 64
_CHOOSING_SECONDS = 1.5
# An engine that answers less of what arrives falls behind.
_KEEPS_UP = 0.95


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One peer at one level of load.

    Attributes:
        name: of the peer.
        load: `callers` who each wait for their answer, or `rate` of arrivals a second.
        level: how many.
        p50: milliseconds that half of the calls waited less than, over all rounds.
        p95: and 95 %.
        p99: and 99 %.
        per_second: answered calls a second, the median of the rounds.
        calls: answered, in all rounds.
        unanswered: given up.
        arrived: calls a second that came, in an open loop; else None.
        min_cosine: to the first row's vectors, the smallest.
        error: why there are no figures, else None.
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

    @property
    def void(self) -> bool:
        """Whether its vectors are others than the first row's."""
        return self.min_cosine is None or not self.min_cosine >= LEAST_COSINE

    @property
    def saturated(self) -> bool:
        """Whether it answers less than what arrives."""
        if self.arrived is None or self.per_second is None:
            return False
        return self.per_second < _KEEPS_UP * self.arrived


@dataclass(frozen=True, slots=True)
class Latency:
    """What `measure_latency` gives: rows by level, in the order of the peers."""

    texts: int
    seconds: float
    rounds: int
    batch_sizes: dict[str, int]
    versions: dict[str, dict[str, str]]
    rows: list[LatencyRow]


class _Figures:
    """What is gathered of the peers, by name and level."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.cosines: dict[str, float] = {}
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
    """Load peers side by side: every level goes through all of them in turn, round after round.

    Args:
        peers: the first is what the others' vectors are compared with.
        models: where each form of the model lies, see `Peer.form`.
        options: what an engine must know of the model (`max_length`, `dim`, `threads`).
        texts: what callers send, one after the other.
        folder: for texts and vectors on the way.
        callers: closed loops of so many, see `load.py`.
        rates: open loops of so many arrivals a second; None takes shares of what the first peer
            reached with the most callers.
        seconds: of each level and round; in an open loop arrivals take so long, and who is not
            answered after as long again is given up.
        rounds: of each level.
        seed: of the arrivals; all peers see the same.
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
    first: list[npt.NDArray[np.float32]] = []

    def prepare(runner: Runner) -> None:
        say(f"preparing {runner.peer.name}")
        vectors = runner.vectors(file, None)
        first.append(vectors)
        figures.cosines[runner.peer.name] = least_cosine(first[0], vectors)
        if runner.peer.gathers:
            figures.sizes[runner.peer.name] = _best_size(runner, file)
        _run(runner, file, 1, 0.2, figures.sizes.get(runner.peer.name))

    with lined_up(peers, models, options, say) as lineup:
        lineup.each(prepare)
        for load, asked in (("callers", callers), ("rate", rates)):
            levels = asked
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
    """The batch size that answers the most callers."""
    served: dict[int, float] = {}
    for size in runner.peer.batch_sizes:
        assert size is not None
        _run(runner, file, _CHOOSING_CALLERS, 0.3, size)
        answer = _run(runner, file, _CHOOSING_CALLERS, _CHOOSING_SECONDS, size)
        served[size] = len(answer["waits"]) / answer["seconds"]
    return max(served, key=lambda size: served[size])


def _shares(figures: _Figures, name: str, callers: Sequence[int]) -> list[float]:
    """Rates from what a peer reached."""
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
    tiles: list[float | None] = [None] * 3
    if waits:
        tiles = [round(1000 * float(t), 3) for t in np.percentile(waits, (50, 95, 99))]
    return LatencyRow(
        name=name,
        load=load,
        level=level,
        p50=tiles[0],
        p95=tiles[1],
        p99=tiles[2],
        per_second=round(statistics.median(figures.rates[key]), 2) if waits else None,
        calls=len(waits),
        unanswered=figures.unanswered.get(key, 0),
        arrived=round(arrived, 2) if waits and load == "rate" else None,
        min_cosine=figures.cosines.get(name),
        error=error,
    )
