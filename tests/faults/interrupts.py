"""Ctrl-C at random moments of adds, deletes, searches and hybrid searches.

    python -m tests.faults.interrupts --interrupts 20000 --seed 0

One thread changes and searches a collection and is interrupted all the time; another searches it
meanwhile. Whatever was acknowledged is there, every row is there as a whole call put it there,
nobody hangs, and the other thread sees no error at all. The work runs in a process of its own,
which is killed where it shows no progress.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Collection, SparseVectors
from flowvec.collection.query import Queries, SearchOptions
from tests.waiting import wait_until

_DIM = 4
_ROWS = 20
_SECONDS_A_THOUSAND = 240


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        interrupts: that came while something ran.
        done: calls that returned.
        searches: of the other thread.
        wrong: what was not as it must be.
    """

    interrupts: int = 0
    done: int = 0
    searches: int = 0
    wrong: list[str] = field(default_factory=list)


def _work(folder: Path, interrupts: int, seed: int) -> Result:
    """Be interrupted a number of times."""
    rng, result = random.Random(seed), Result()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    end = threading.Event()
    query = np.ones(_DIM, np.float32)
    collection = Collection.create(folder / "c", dim=_DIM, index="graph", exact_below=30)
    texts = [f"a cat number {i}" for i in range(_ROWS)]
    collection.add_vectors(list(range(100)), np.random.default_rng(0).random((100, _DIM)))
    collection.index_texts()

    one = (np.arange(_ROWS + 1), np.zeros(_ROWS, np.int32), np.ones(_ROWS, np.float32))
    sparse = SparseVectors(*one, 5)

    def search() -> None:
        while not end.is_set():
            try:
                collection.search(query, k=5)
                result.searches += 1
            except BaseException as error:
                result.wrong.append(f"the other thread: {type(error).__name__}: {error}")
                return

    other = threading.Thread(target=search, daemon=True)
    other.start()
    wait_until(lambda: result.searches or result.wrong)
    # For each group of rows, whether it may be present, absent or both. It is never there in part.
    # The longest delay of each kind of call: it grows until calls return on a slow machine too.
    most = dict.fromkeys(("add", "delete", "search", "hybrid", "ids", "sparse"), 0.004)
    known: dict[int, set[bool]] = {group: {False} for group in range(1, 6)}
    while result.interrupts < interrupts and not result.wrong:
        group = rng.randint(1, 5)
        ids = [1000 * group + i for i in range(_ROWS)]
        kind = rng.choice(list(most))
        delay = rng.random() ** 2 * most[kind] + 1e-6
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            if kind == "add":
                before = known[group]
                known[group] = before | {True}
                vectors = np.full((_ROWS, _DIM), group)
                collection.add_vectors(ids, vectors, texts, sparse=sparse)
                known[group] = {True}
            elif kind == "delete":
                known[group] = known[group] | {False}
                collection.delete(ids)
                known[group] = {False}
            elif kind == "search":
                collection.search(query, k=3)
            elif kind == "sparse":
                found = len(collection.search_sparse(sparse[0], k=1000))
                if found % _ROWS:
                    result.wrong.append(f"{found} rows have the term")
            elif kind == "ids":
                collection.search_ids(query[None], k=3)
            else:
                # The public search takes a text only with an encoder, and this has none.
                queries = Queries(query[None], ["a cat"])
                collection._searcher.hits(queries, SearchOptions.checked(3, None, hybrid=True))
            result.done += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            most[kind] = max(0.004, 0.9 * most[kind])
        except KeyboardInterrupt:
            result.interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            most[kind] *= 1.05
            continue
        except Exception as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            result.wrong.append(f"{kind}: {type(error).__name__}: {error}")
    end.set()
    other.join(60)
    if other.is_alive():
        result.wrong.append("the other thread hangs")
        return result
    for group, may in known.items():
        there = [item is not None for item in
                 collection.get([1000 * group + i for i in range(_ROWS)])]  # fmt: skip
        if len(set(there)) > 1:
            result.wrong.append(f"half of group {group} is there")
        elif there[0] not in may:
            result.wrong.append(f"group {group} is {there[0]}, and should be one of {may}")
    result.wrong += collection.verify()
    collection.close()
    return result


def campaign(interrupts: int, seed: int, folder: Path) -> Result:
    """Interrupt a process a number of times.

    Args:
        interrupts: how many.
        seed: of the moments.
        folder: to work in.
    """
    words = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.interrupts", "--inside",
             str(folder), "--interrupts", str(interrupts), "--seed", str(seed)]  # fmt: skip
    patience = 300 + _SECONDS_A_THOUSAND * interrupts / 1000
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).resolve().parents[2], env=os.environ,
    )  # fmt: skip
    try:
        out, told = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler says where it hangs
        _, told = process.communicate()
        return Result(wrong=[f"it hangs: {told[-3000:]}"])
    if process.returncode:
        return Result(wrong=[f"exit code {process.returncode}: {told[-3000:]}"])
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return Result(**report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interrupts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inside", type=Path)
    given = parser.parse_args()
    if given.inside is not None:
        print(json.dumps(asdict(_work(given.inside, given.interrupts, given.seed))))
    else:
        with tempfile.TemporaryDirectory() as name:
            print(campaign(given.interrupts, given.seed, Path(name)))
