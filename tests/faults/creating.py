"""Processes create the same collection at once: one creates it, and no rows are lost.

    python -m tests.faults.creating --races 250 --seed 0

In a race several processes create a collection in the same directory, of whom some are killed at a
random moment; who made it adds rows at once. Whoever was told that rows are added must find them
there in the end, and whoever did not make it is told that it is there.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from flowvec import Collection, CollectionError

_PROCESSES = 3
_ROWS = 5


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        races: that were run.
        made: collections that somebody made.
        refused: processes that were told that there is one already.
        kills: processes that were killed.
        wrong: what was not as it must be.
    """

    races: int = 0
    made: int = 0
    refused: int = 0
    kills: int = 0
    wrong: list[str] = field(default_factory=list)


def _work(folder: Path, name: str, start: float, exist_ok: bool, out: int) -> None:
    time.sleep(max(0.0, start - time.perf_counter()))
    try:
        with Collection.create(folder, dim=4, exist_ok=exist_ok) as collection:
            ids = [f"{name}-{i}" for i in range(_ROWS)]
            for _ in range(200):
                try:
                    collection.add_vectors(ids, np.ones((_ROWS, 4)))
                except CollectionError as error:
                    if "being written" not in str(error):
                        raise
                    time.sleep(0.01)  # others write, and close it again
                    continue
                os.write(out, f"added {name}\n".encode())
                break
    except CollectionError as error:
        kind = "refused" if "not empty" in str(error) else f"wrong {error}".replace("\n", " ")
        os.write(out, f"{kind}\n".encode())


def campaign(races: int, seed: int, folder: Path) -> Result:
    """Run a number of races.

    Args:
        races: how many.
        seed: of the moments and of who is killed.
        folder: to work in.
    """
    rng, result = random.Random(seed), Result()
    for race in range(races):
        target = folder / str(race)
        exist_ok = rng.random() < 0.5
        reader, out = os.pipe()
        start = time.perf_counter() + 0.01
        children = []
        for process in range(_PROCESSES):
            delay = rng.random() * 0.004
            if not (pid := os.fork()):
                code = 1
                try:
                    _work(target, f"p{process}", start + delay, exist_ok, out)
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        os.close(out)
        if rng.random() < 0.3:
            time.sleep(0.01 + rng.random() * 0.02)
            os.kill(children[0], signal.SIGKILL)
            result.kills += 1
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        with os.fdopen(reader) as told:
            lines = told.read().splitlines()
        result.races += 1
        result.refused += lines.count("refused")
        result.wrong += [f"race {race}: {line}" for line in lines if line.startswith("wrong")]
        if any(code not in (0, -signal.SIGKILL) for code in codes):
            result.wrong.append(f"race {race}: exit codes {codes}")
        added = [line.split()[1] for line in lines if line.startswith("added")]
        with Collection.create(target, dim=4, exist_ok=True) as collection:
            result.made += bool(added)
            for name in added:
                there = collection.get([f"{name}-{i}" for i in range(_ROWS)])
                if None in there:
                    result.wrong.append(f"race {race}: rows of {name} are lost")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--races", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(campaign(given.races, given.seed, Path(name)))
