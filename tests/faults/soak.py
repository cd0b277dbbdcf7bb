"""`flowvec serve` for hours: every kind of request, from callers who know what must come back.

    python -m tests.faults.soak --requests 1000000 --seed 0 --folder DIR [--seconds 280]

Callers over real sockets use every route; some leave, dawdle, send garbage or ask for far too much.
At the end of each cycle there are ten times as many callers, and more than may wait. Each
caller's texts, scores and rows are its own and known before, so an answer to somebody else is
noticed. Other processes ask `/live` all the time, on the server's port and on that of probes.

With `--seconds` it stops at the end of a cycle and leaves the server running; the same command
goes on with that server, so that its memory is that of all requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.served.callers import Caller, Tally
from tests.faults.served.live_probe import LiveProbe
from tests.faults.served.unruly import KINDS, close_half_open
from tests.faults.served.wire import Wire
from tests.faults.served.world import RERANKER, World
from tests.serving import health_port_of, port_of, start_server, url_of

__all__ = ["Soak", "soak"]

_CALLERS = 48
_CYCLE = 2_500
# Of a cycle, how many requests come while ten times as many callers ask for hundreds of texts each.
_GREEDY = 0.15
# Low, so that they are more than may wait.
_MOST_WAITING = 60_000
# That an answer of `/live` may take.
_LIVE_SECONDS = 0.05
# Requests before memory is measured.
_WARM_UP = 20_000


@dataclass
class Soak:
    """A campaign, so far.

    Attributes:
        memory: requests so far, and bytes of the server's memory, after each cycle; none where it
            cannot be read.
        live: seconds that answers of `/live` took on the server's port, of each cycle: how many,
            how many above 50 ms, 99th percentile, longest.
        probed: likewise on the health port, with a connection for each.
    """

    seed: int
    cycles: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    live: list[tuple[int, int, float, float]] = field(default_factory=list)
    probed: list[tuple[int, int, float, float]] = field(default_factory=list)
    url: str = ""
    health_port: int = 0
    pid: int = 0

    @property
    def requests(self) -> int:
        return sum(self.kinds.values())

    @property
    def growth(self) -> int:
        """Bytes by which memory grew after the first requests; 0 if there were no others."""
        first = [size for requests, size in self.memory if requests <= _WARM_UP]
        later = [size for requests, size in self.memory if requests > _WARM_UP]
        return max(0, max(later) - max(first)) if first and later else 0

    def add(self, tally: Tally, live: list[float], probed: list[float]) -> None:
        self.cycles += 1
        self.kinds += tally.kinds
        self.statuses += tally.statuses
        self.wrong += tally.wrong
        self.examples = (self.examples + tally.examples)[:20]
        self.memory += [(self.requests, size) for size in memory_of(self.pid)]
        for times, kept in ((live, self.live), (probed, self.probed)):
            if times:
                slow = sum(seconds > _LIVE_SECONDS for seconds in times)
                kept.append((len(times), slow, float(np.quantile(times, 0.99)), max(times)))


def memory_of(pid: int) -> list[int]:
    """Resident bytes of a process without those of mapped files, where /proc tells."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return [int(found[1]) << 10] if found else []


# --- a cycle --------------------------------------------------------------------------------------


class Cycle:
    """Requests of all kinds, then too many, then a look at what is left."""

    def __init__(self, world: World, port: int, seed: str, size: int) -> None:
        self.tally = Tally()
        callers = range(len(world.texts))
        self.callers = [Caller(i, world, port, self.tally, seed) for i in callers]
        # Their texts are those of others, so their connections are the only difference.
        self.crowd = [
            Caller(i % len(world.texts), world, port, self.tally, f"{seed} {i}")
            for i in range(9 * len(world.texts))
        ]
        self.greedy_from = int(size * (1 - _GREEDY))
        self.size, self.port = size, port

    async def run(self) -> Tally:
        first = Wire(self.port)
        await first.ask("POST", "/v1/collections/notes/rows/delete", {"filter": {}})
        numbers = count()
        names = [name for name, (weight, _) in KINDS.items() if weight]
        weights = [KINDS[name][0] for name in names]

        async def many(caller: Caller, end: int, kinds: list[str], weights: list[int]) -> None:
            while next(numbers) < end:
                (name,) = caller.draw.choices(kinds, weights)
                await caller.run(name, KINDS[name][1])

        async with asyncio.TaskGroup() as group:
            for caller in self.callers:
                group.create_task(many(caller, self.greedy_from, names, weights))
        async with asyncio.TaskGroup() as group:
            for caller in self.callers:
                group.create_task(many(caller, self.size, names, weights))
            for caller in self.crowd:
                group.create_task(many(caller, self.size, ["greedy"], [1]))
        for name in KINDS.keys() - self.tally.kinds.keys():  # in a short cycle, by chance
            await self.callers[0].run(name, KINDS[name][1])
        for caller in self.callers:
            await caller.run("rows", KINDS["rows"][1])
        for caller in [*self.callers, *self.crowd]:
            caller.wire.close()
        close_half_open()
        reply = await first.ask("GET", "/health")
        if reply.status != 200:
            self.tally.add_wrong("not healthy at the end", reply.body)
        first.close()
        return self.tally


def run_cycles(soak: Soak, world: World, requests: int, size: int, until: float) -> None:
    """Cycles until there were that many requests, or the time is up."""
    while soak.requests < requests and time.monotonic() < until:
        begun = time.monotonic()
        probe = LiveProbe(port_of(soak.url))
        other = LiveProbe(soak.health_port, is_new=True)
        try:
            seed = f"{soak.seed} {soak.cycles}"
            tally = asyncio.run(Cycle(world, port_of(soak.url), seed, size).run())
        finally:
            live, probed = probe.times(), other.times()
        soak.add(tally, live, probed)
        soak.seconds += time.monotonic() - begun


# --- a campaign -----------------------------------------------------------------------------------


def words_of(folder: Path) -> list[object]:
    """What `flowvec serve` gets."""
    return ["mini", "--reranker", f"sorts={RERANKER}", "--provider", "cpu", "--collection",
            f"notes={folder / 'notes'}", "--max-waiting-tokens", _MOST_WAITING,
            "--health-port", 0]  # fmt: skip


def begun(process: subprocess.Popen[bytes], seed: int, log: Path) -> Soak:
    """A campaign against a server that was started."""
    url = url_of(process, log)
    return Soak(seed, url=url, health_port=health_port_of(log), pid=process.pid)


def soak(requests: int, seed: int, folder: Path, *, callers: int, size: int) -> Soak:
    """A campaign with a server of its own."""
    log = folder / "log"
    process = start_server(log, *words_of(folder))
    try:
        result = begun(process, seed, log)
        run_cycles(result, World.make(callers, seed), requests, size, float("inf"))
        process.send_signal(signal.SIGTERM)
        if process.wait(600) != 0 or "Traceback" in log.read_text():
            result.wrong["an error in the log"] += 1
            result.examples.append(log.read_text()[-3000:])
    finally:
        process.kill()
        process.wait()
    return result


def resumed(folder: Path, seed: int) -> Soak:
    """The campaign of a folder, with its server, which is started if there is none."""
    state = folder / "state.json"
    if state.exists():
        found: dict[str, Any] = json.loads(state.read_text())
        counters = {name: Counter(found[name]) for name in ("kinds", "statuses", "wrong")}
        return Soak(**{**found, **counters})
    folder.mkdir(parents=True, exist_ok=True)
    process = start_server(folder / "log", *words_of(folder), start_new_session=True)
    return begun(process, seed, folder / "log")


def report(soak: Soak) -> dict[str, Any]:
    """Figures of a campaign."""
    some = soak.memory[:: len(soak.memory) // 20 + 1]
    return {
        "requests": soak.requests, "cycles": soak.cycles, "seed": soak.seed,
        "seconds": round(soak.seconds), "wrong": dict(soak.wrong), "examples": soak.examples,
        "statuses": dict(soak.statuses.most_common()), "kinds": dict(soak.kinds.most_common()),
        "memory MB": {requests: round(size / 1e6, 1) for requests, size in some},
        "growth MB": round(soak.growth / 1e6, 1),
        "/live": _latencies(soak.live), "/live, health port": _latencies(soak.probed),
        "when": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def _latencies(cycles: list[tuple[int, int, float, float]]) -> dict[str, Any]:
    longest = sorted((each[3] for each in cycles), reverse=True)
    return {
        "asked": sum(each[0] for each in cycles),
        "above 50 ms": sum(each[1] for each in cycles),
        "p99 ms, worst cycle": round(1e3 * max((each[2] for each in cycles), default=0), 1),
        "longest ms of a cycle": [round(1e3 * seconds, 1) for seconds in longest[:10]],
        "median of the longest": round(1e3 * float(np.median(longest)), 1) if longest else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cycle", type=int, default=_CYCLE, help="requests of a cycle")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    soak = resumed(arguments.folder, arguments.seed)
    try:
        world = World.make(_CALLERS, soak.seed)
        run_cycles(soak, world, arguments.requests, arguments.cycle, until)
    finally:
        (arguments.folder / "state.json").write_text(json.dumps(vars(soak)))
    print(json.dumps(report(soak), indent=1))
    if soak.requests >= arguments.requests:
        os.kill(soak.pid, signal.SIGTERM)
    if soak.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
