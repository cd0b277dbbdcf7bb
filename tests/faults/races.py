"""Processes at the same collection: two writers, readers during commits, writers that die.

    python -m tests.faults.races --races 500 --seed 0

A race has three processes: two that write in turn, of whom one is killed now and then, and one that
reads. No change is lost or half done; a reader sees whole changes only, and never an older state
than before; and nobody has to clear a lock away.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from flowvec import Collection

DIM = 4
_A_CHANGE = 10
_SECONDS = 600


def add_changes(folder: Path, name: str, draw: random.Random, out: int) -> None:
    """Add changes of ten rows each until the time is up."""
    end = time.perf_counter() + 0.02 + 0.05 * draw.random()
    number = 0
    while time.perf_counter() < end:
        with Collection.open(folder) as collection:
            for _ in range(draw.randrange(1, 5)):
                count, number = len(collection), number + 1
                ids = [f"{name}-{number}-{i}" for i in range(_A_CHANGE)]
                collection.add_vectors(ids, np.ones((_A_CHANGE, DIM)), [name] * _A_CHANGE)
                os.write(out, b"added\n")
                added = len(collection) - count
                assert added % _A_CHANGE == 0, "half a change"
                assert added >= _A_CHANGE, "a change of another writer took this one's place"


def read(folder: Path, out: int) -> None:
    """See whole changes, and never fewer than before."""
    seen = looks = 0
    with Collection.open(folder) as collection:
        end = time.perf_counter() + 0.08
        while not looks or time.perf_counter() < end:
            looks += 1
            count = len(collection)
            assert count % _A_CHANGE == 0, f"{count} rows are not whole changes"
            assert count >= seen, f"{count} rows after {seen}"
            hits = collection.search(np.ones(DIM), k=10_000)
            assert len(hits) >= count
            assert len(hits) % _A_CHANGE == 0, f"{len(hits)} hits"
            seen = count
            os.write(out, b"read\n")


def once(folder: Path, draw: random.Random) -> Counter[str]:
    shutil.rmtree(folder, ignore_errors=True)
    Collection.create(folder, dim=DIM).close()
    reading, writing = os.pipe()
    works = [
        lambda: add_changes(folder, "a", random.Random(draw.random()), writing),
        lambda: add_changes(folder, "b", random.Random(draw.random()), writing),
        lambda: read(folder, writing),
    ]
    processes = []
    for work in works:
        process = os.fork()
        if process == 0:
            os.close(reading)
            signal.alarm(_SECONDS)
            try:
                work()
            except BaseException as error:
                os.write(writing, f"FAILED {type(error).__name__} {error}\n".encode())
                os._exit(1)
            os._exit(0)
        processes.append(process)
    os.close(writing)
    if draw.random() < 0.5:
        time.sleep(0.06 * draw.random())
        os.kill(processes[0], signal.SIGKILL)
    with os.fdopen(reading) as pipe:
        said = Counter(line.strip() for line in pipe)
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    said.update(f"FAILED signal {-code}" for code in codes if code < 0 and -code != signal.SIGKILL)
    # The next process may write at once.
    with Collection.open(folder) as collection:
        assert len(collection) % _A_CHANGE == 0
        assert len(collection) >= _A_CHANGE * said["added"], "an acknowledged change is lost"
        collection.add_vectors(["last"], np.ones((1, DIM)))
        assert collection.verify() == []
    return said


def campaign(races: int, seed: int, folder: Path) -> Counter[str]:
    """What all of them said."""
    draw, said = random.Random(seed), Counter[str]()
    for _ in range(races):
        said += once(folder / "c", draw)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--races", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        said = campaign(arguments.races, arguments.seed, Path(temporary))
    print(json.dumps({"races": arguments.races, "seed": arguments.seed, **said,
                      "seconds": round(time.perf_counter() - begun),
                      "when": datetime.now(UTC).date().isoformat()}))  # fmt: skip
    if any(line.startswith("FAILED") for line in said):
        sys.exit(1)


if __name__ == "__main__":
    main()
