"""Puts the same loads on servers in turn: one caller, many callers, and random arrivals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flowvec.errors import FlowvecError
from flowvec_bench.http.contestants import Contestant, InProcess, Level, Loads, Served
from flowvec_bench.http.figures import (
    BESIDE,
    HttpFigures,
    HttpRow,
    LoadPlan,
    calls_of,
    figures_of,
    in_time,
    row_of,
)
from flowvec_bench.http.wrk import WrkError, has_wrk, wrk_calls_per_second
from flowvec_bench.peers.runner import Runner, least_cosine

__all__ = ["RATE_SHARES", "measure_http"]

# Default rates: shares of what each server reached with callers.
RATE_SHARES = (0.4, 0.6, 0.75, 0.9, 1.1)
# Rates within this factor are one.
_SAME_RATE = 1.1
# A server that answers less than this share of the arrivals in time is not given more.
_GIVES_UP = 0.5

Key = tuple[str, Level]


def measure_http(
    contestants: Sequence[Contestant],
    loads: Loads,
    plan: LoadPlan,
    client: Runner,
    on_step: Callable[[str], object] | None = None,
) -> HttpFigures:
    """Measure servers in one run: every round of a load goes through all of them.

    All but the one that is measured are paused. The right vectors are those in process,
    or those of the first server.

    Args:
        contestants: servers, and work in process.
        loads: the texts.
        plan: what is measured.
        client: the load generator.
        on_step: called with a line of text before each step.

    Raises:
        FlowvecError: the first contestant fails.
    """
    run = _Run(contestants, loads, plan, client, on_step or (lambda _: None))
    run.prepare()
    run.measure(Level("one", 1))
    for callers in plan.callers:
        run.measure(Level("callers", callers))
    wrk = run.wrk() if plan.with_wrk and has_wrk() else {}
    for rate in sorted(run.rates() if plan.rates is None else plan.rates):
        run.measure(Level("rate", rate, plan.within / 1e3))
    rows = run.rows()
    return figures_of(rows, wrk)


class _Run:
    """Measurements so far, by server and level."""

    def __init__(
        self,
        contestants: Sequence[Contestant],
        loads: Loads,
        plan: LoadPlan,
        client: Runner,
        say: Callable[[str], object],
    ) -> None:
        self.plan, self._loads, self._client, self._say = plan, loads, client, say
        self._all = list(contestants)
        self._errors: dict[str, str] = {}
        self._cosines: dict[str, float] = {}
        self._answers: dict[Key, list[dict[str, Any]]] = {}
        self._behind: set[str] = set()

    def prepare(self) -> None:
        """Compare the vectors of all with the right ones."""
        for load in ("one", "callers"):
            right: list[Any] = []

            def compare(contestant: Contestant, load: str = load, right: list[Any] = right) -> None:
                self._say(f"comparing the vectors of {contestant.name}")
                vectors = contestant.vectors(self._loads, load)
                if not right:
                    np.save(self._loads.vectors(load), vectors)
                    right.append(vectors)
                cosine = least_cosine(right[0], vectors)
                old = self._cosines.get(contestant.name, 1.0)
                self._cosines[contestant.name] = cosine if not cosine >= old else old

            self._each(compare, sorted(self._all, key=lambda c: not isinstance(c, InProcess)))

    def _each(
        self, work: Callable[[Contestant], object], among: Sequence[Contestant] | None = None
    ) -> None:
        """Run `work` for each in turn, the others paused; one that fails is left out."""
        for contestant in self._all if among is None else among:
            if contestant.name in self._errors:
                continue
            contestant.resume()
            try:
                work(contestant)
            except FlowvecError as error:
                if contestant is self._all[0]:
                    raise
                self._errors[contestant.name] = str(error)
            finally:
                contestant.pause()

    def measure(self, level: Level) -> None:
        """All rounds of a level."""
        for number in range(self.plan.rounds):
            self._say(f"{level.load} {level.level:g}, round {number + 1} of {self.plan.rounds}")
            self._each(partial(self._once, level, number))
        for contestant in self._all:
            if level.load == "rate" and self._share_in_time(contestant.name, level) < _GIVES_UP:
                self._behind.add(contestant.name)

    def _once(self, level: Level, number: int, contestant: Contestant) -> None:
        if level.load == "rate" and contestant.name in self._behind:
            return
        plan = self.plan
        answer = contestant.test(self._loads, level, plan.seconds, plan.seed + number)
        self._answers.setdefault((contestant.name, level), []).append(answer)
        if isinstance(contestant, InProcess) and level.load == "callers":
            served = next((c for c in self._all if isinstance(c, Served)), None)
            against = self._answers.get((served.name, level), []) if served else []
            if len(against) == number + 1:
                load = self._client_load(against[-1])
                answer = contestant.test_beside(
                    self._loads, level, plan.seconds, self._client, load
                )
                self._answers.setdefault((BESIDE, level), []).append(answer)

    def _client_load(self, answer: dict[str, Any]) -> dict[str, float]:
        """What the client did against a server."""
        return {
            "rate": max(1.0, len(answer["waits"]) / answer["seconds"]),
            "share": answer["processor"],
            "answer": answer["answer_bytes"],
        }

    def wrk(self) -> dict[str, float]:
        """Texts per second with most callers, as wrk says."""
        rates: dict[str, float] = {}
        file, callers = self._loads.groups("callers"), max(self.plan.callers)

        def ask(contestant: Contestant) -> None:
            if not isinstance(contestant, Served):
                return
            self._say(f"wrk calls {contestant.name}")
            target, folder = contestant.target, self._loads.folder
            try:
                rate = wrk_calls_per_second(target, file, callers, self.plan.seconds, folder)
            except WrkError as error:  # the server's other figures count
                self._say(str(error))
            else:
                rates[contestant.name] = round(self.plan.texts_per_call * rate, 2)

        self._each(ask)
        return rates

    def _share_in_time(self, name: str, level: Level) -> float:
        answers = self._answers.get((name, level), [])
        calls = sum(map(calls_of, answers))
        good = sum(in_time(answer, self.plan.within) for answer in answers)
        return good / calls if calls else 0.0

    def rates(self) -> list[float]:
        """Default rates, in calls per second: shares of what each reached with most callers."""
        level = Level("callers", max(self.plan.callers))
        rates: list[float] = []
        for contestant in self._all:
            answers = self._answers.get((contestant.name, level))
            if answers and contestant.name not in self._errors:
                reached = statistics.median(len(a["waits"]) / a["seconds"] for a in answers)
                rates += [float(f"{share * reached:.2g}") for share in RATE_SHARES]
        kept: list[float] = []
        for rate in sorted(rate for rate in rates if rate > 0):
            if not kept or rate > _SAME_RATE * kept[-1]:
                kept.append(rate)
        return kept

    # --- rows -----------------------------------------------------------------------------------

    def rows(self) -> list[HttpRow]:
        """Rows by level, in the order of the servers."""
        names = [contestant.name for contestant in self._all]
        levels = dict.fromkeys(level for _, level in self._answers)
        rows = []
        for level in levels:
            beside = [BESIDE] if (BESIDE, level) in self._answers else []
            for name in [*names, *beside]:
                is_left_out = (name, level) not in self._answers and name not in self._errors
                if not is_left_out:
                    rows.append(self._row(name, level))
        return rows

    def _row(self, name: str, level: Level) -> HttpRow:
        if name in self._errors:
            return HttpRow(name, level.load, level.level, error=self._errors[name])
        answers = self._answers.get((name, level), [])
        return row_of(name, level, answers, self.plan, self._cosines.get(name, 1.0))
