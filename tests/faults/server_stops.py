"""SIGTERM and SIGKILL of `flowvec serve` under load, and what is left.

    python -m tests.faults.server_stops --terms 200 --kills 200 --seed 0

Callers add rows, and embed texts whose vectors are known, until the server is gone. After SIGTERM
every answer that began must be whole and right, and the process must exit with 0. After either
signal the next server must have every acknowledged row, with its vector, and of the others each one
whole or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.served.wire import Cut, NotBegun, Wire
from tests.faults.served.world import World
from tests.serving import port_of, start_server, url_of

__all__ = ["Result", "campaign", "wrong_of"]

_CALLERS = 12
_ROWS = 3
_NOTES = "/v1/collections/notes/rows"
# Seconds from the first answer to the signal, at most.
_MOST_SECONDS = 0.6


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        seen: what became of requests, by signal.
        lost: acknowledged rows that the next server did not have.
        halves: additions of which it had some rows.
        rows: all that it had.
        first_answer, ready: seconds from the start after a kill to an answer of `/live`, and to 200
            of `/ready`.
    """

    seed: int
    signals: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    halves: int = 0
    rows: int = 0
    first_answer: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)


class Adder:
    """Adds rows and embeds texts until the server is gone.

    Attributes:
        acknowledged: numbers of additions that were answered with 200.
        begun: numbers of all additions; each is a few rows.
    """

    def __init__(self, number: int, world: World, seed: str) -> None:
        self.number, self.world = number, world
        self.draw = random.Random(f"{seed} {number}")
        self.acknowledged: set[int] = set()
        self.begun = 0

    def ids(self, addition: int) -> list[int]:
        first = self.number * 10_000_000 + addition * _ROWS
        return list(range(first, first + _ROWS))

    def texts(self, addition: int) -> list[int]:
        """Numbers of the texts of an addition."""
        return [(addition + i) % len(self.world.texts[0]) for i in range(_ROWS)]

    async def run(
        self, port: int, result: Result, which: signal.Signals, sent: asyncio.Event
    ) -> None:
        """Requests until nothing listens; `sent` is set when the signal was."""
        wire = Wire(port)
        while True:
            what = "add" if self.draw.random() < 0.5 else "embed"
            try:
                said = await (self.add(wire) if what == "add" else self.embed(wire, result))
            except ConnectionRefusedError:
                wire.close()
                return
            except Cut:
                said = "cut"
            except (NotBegun, ConnectionResetError):
                # The connection was idle, or in the listener's queue, when it closed.
                said = "not begun" if sent.is_set() else "not begun before the signal"
            result.seen[f"{which.name} {what}: {said}"] += 1

    async def add(self, wire: Wire) -> str:
        addition = self.begun
        self.begun += 1
        own = self.world.texts[self.number]
        pairs = zip(self.ids(addition), self.texts(addition), strict=True)
        rows = [{"id": each, "text": own[i]} for each, i in pairs]
        reply = await wire.ask("POST", _NOTES, {"rows": rows})
        if reply.status == 200:
            self.acknowledged.add(addition)
        return _said(reply)

    async def embed(self, wire: Wire, result: Result) -> str:
        which = self.draw.choices(range(len(self.world.texts[0])), k=40)
        texts = [self.world.texts[self.number][i] for i in which]
        reply = await wire.ask("POST", "/embed", {"inputs": texts})
        if reply.status == 200:
            wrong = self.world.difference(self.number, which, reply.json())
            if wrong:
                result.wrong.append(wrong)
        return _said(reply)


def _said(reply: Any) -> str:
    if reply.status == 503:
        return "503, close" if reply.headers.get("connection") == "close" else "503, stays"
    return str(reply.status)


# --- a round --------------------------------------------------------------------------------------


async def load(
    process: subprocess.Popen[bytes], port: int, adders: list[Adder], which: signal.Signals,
    result: Result, seconds: float, least: int,
) -> None:  # fmt: skip
    """Callers, and a signal among them, after at least some seconds and acknowledged additions."""
    sent = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for adder in adders:
            group.create_task(adder.run(port, result, which, sent))
        await asyncio.sleep(seconds)
        while process.poll() is None and sum(len(a.acknowledged) for a in adders) < least:
            await asyncio.sleep(0.001)
        sent.set()
        process.send_signal(which)
        result.signals[which.name] += 1


async def look(port: int, adders: list[Adder], result: Result) -> None:
    """What the next server has of what was added."""
    wire = Wire(port)
    for adder in adders:
        additions = range(adder.begun)
        ids = [each for addition in additions for each in adder.ids(addition)]
        body = {"ids": ids, "with_vectors": True}
        rows = (await wire.ask("POST", f"{_NOTES}/get", body)).json()["rows"]
        for addition in additions:
            found = rows[addition * _ROWS : (addition + 1) * _ROWS]
            there = [row for row in found if row is not None]
            result.rows += len(there)
            is_acknowledged = addition in adder.acknowledged
            result.lost += (_ROWS - len(there)) * is_acknowledged
            result.halves += 0 < len(there) < _ROWS
            if len(there) == _ROWS:
                own, which = adder.world.texts[adder.number], adder.texts(addition)
                vectors = [row["vector"] for row in there]
                wrong = adder.world.difference(adder.number, which, vectors)
                if wrong or [row["text"] for row in there] != [own[i] for i in which]:
                    result.wrong.append(f"row of addition {addition}: {wrong or 'text'}")
        adder.acknowledged, adder.begun = set(), 0
    await wire.ask("POST", f"{_NOTES}/delete", {"filter": {}})
    wire.close()


async def wait_ready(port: int, begun: float, result: Result) -> None:
    """Note when the first answer comes, and when the server is ready."""
    wire = Wire(port)
    assert (await wire.ask("GET", "/live")).status == 200
    result.first_answer.append(time.monotonic() - begun)
    while (await wire.ask("GET", "/ready")).status != 200:
        await asyncio.sleep(0.01)
    result.ready.append(time.monotonic() - begun)
    wire.close()


def campaign(terms: int, kills: int, seed: int, folder: Path) -> Result:
    """Signals at random moments, of both kinds in a random order."""
    result, draw = Result(seed), random.Random(seed)
    world = World.make(_CALLERS, seed)
    adders = [Adder(number, world, str(seed)) for number in range(_CALLERS)]
    order = [signal.SIGTERM] * terms + [signal.SIGKILL] * kills
    draw.shuffle(order)
    log = folder / "log"
    last: signal.Signals | None = None
    for round_, which in enumerate([*order, None], 1):
        begun = time.monotonic()
        words = ("mini", "--provider", "cpu", "--collection", f"notes={folder / 'notes'}")
        process = start_server(log, *words)
        try:
            port = port_of(url_of(process, log))
            asyncio.run(wait_ready(port, begun, result))
            if last != signal.SIGKILL:
                result.first_answer.pop()
                result.ready.pop()
            asyncio.run(look(port, adders, result))
            if which is None:
                break
            seconds = draw.random() ** 2 * _MOST_SECONDS
            # A slow server may have acknowledged nothing yet, of which nothing can be lost.
            least = 1 if round_ == len(order) else 0
            asyncio.run(load(process, port, adders, which, result, seconds, least))
            _check_end(process, which, log, result)
        finally:
            process.kill()
            process.wait()
        last = which
    return result


def _check_end(
    process: subprocess.Popen[bytes], which: signal.Signals, log: Path, result: Result
) -> None:
    code = process.wait(600)
    expected = 0 if which == signal.SIGTERM else -signal.SIGKILL
    if code != expected:
        result.wrong.append(f"{which.name}: exit {code}")
    if "Traceback" in log.read_text():
        result.wrong.append(log.read_text()[-2000:])


def wrong_of(result: Result) -> list[str]:
    """What must not be; a kill may cut answers."""
    allowed = {"200", "503, close", "not begun"}
    odd = [
        f"{n} times {said}"
        for said, n in result.seen.items()
        if said.split(": ")[1] not in allowed | ({"cut"} if "SIGKILL" in said else set())
    ]
    return [*result.wrong, *odd]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--terms", type=int, default=200)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        result = campaign(arguments.terms, arguments.kills, arguments.seed, Path(temporary))
    figures: dict[str, Any] = {
        "seed": arguments.seed, "signals": dict(result.signals), "lost": result.lost,
        "halves": result.halves, "rows": result.rows, "seen": dict(result.seen.most_common()),
        "seconds": round(time.monotonic() - begun), "when": datetime.now(UTC).date().isoformat(),
        "wrong": wrong_of(result)[:20],
    }  # fmt: skip
    for name in ("first_answer", "ready"):
        if times := getattr(result, name):
            figures[f"{name}: median, longest"] = [
                round(float(np.median(times)), 2), round(max(times), 2)
            ]  # fmt: skip
    print(json.dumps(figures, indent=1))
    if result.lost or result.halves or figures["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
