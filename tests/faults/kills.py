"""SIGKILL at random moments, and what is left: every acknowledged change, and nothing else.

    python -m tests.faults.kills --kills 2000 --seed 0

A child opens the collection and makes changes, each of which follows from its number alone; it
writes a line before a change and one after it was acknowledged. It is killed at a random moment of
the phase that is under test. Then the collection must open, hold exactly the rows of the
acknowledged changes (of the one that was under way all or nothing), and find them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import numpy as np

from flowvec import Collection
from flowvec.collection.index import choice
from flowvec.collection.index.choice import IndexKind
from flowvec.collection.index.codes import codes_file
from tests.inside import index_lock_of, index_of, store_of

PHASES = ("add", "delete", "snapshot", "compact", "rebuild", "codes", "graph and codes")
DIM = 8
# Small, so that graphs are kept of a few hundred rows, and codes of two chunks of 512.
_EXACT_BELOW = 20
_FIRST_ROWS = 1200
_IDS = 2000  # of which about half are there
_MOST_SECONDS = 0.5
_OF_CACHES = re.compile(r"(graph|vectors|codes)-\d")  # files that are made again

Rows = dict[int, tuple[int, str | None]]


@dataclass
class Result:
    """Counts of a campaign."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    phantoms: int = 0
    unopened: int = 0
    codes: int = 0  # a file of them was there after a kill of what makes them
    slowest_open: float = 0.0

    def table(self) -> str:
        lines = ["| phase | kills | inside it |", "|---|---|---|"]
        lines += [f"| {p} | {self.kills[p]} | {self.inside[p]} |" for p in PHASES]
        return "\n".join(lines)


# --- what a change is, from its number ------------------------------------------------------------


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=DIM).astype(np.float32)


def change(number: int, phase: str) -> tuple[str, list[int]]:
    """Kind and ids of a change; the ids of an add are upserts now and then."""
    rng = random.Random(f"{number} {phase}")
    kind = phase if phase in ("add", "delete") else rng.choice(["add", "delete"])
    return kind, rng.sample(range(_IDS), rng.choice([1, 3, 20]))


def apply(rows: Rows, number: int, phase: str) -> None:
    kind, ids = change(number, phase)
    for i in ids:
        if kind == "add":
            rows[i] = (number * _IDS + i, f"text {number}")
        else:
            rows.pop(i, None)


def make(collection: Collection, number: int, phase: str) -> None:
    kind, ids = change(number, phase)
    if kind == "add":
        vectors = np.stack([vector(number * _IDS + i) for i in ids])
        collection.add_vectors(ids, vectors, [f"text {number}"] * len(ids))
    else:
        collection.delete(ids)


# --- the child ------------------------------------------------------------------------------------


def child(folder: Path, phase: str, first: int, out: int) -> None:
    def say(line: str) -> None:
        os.write(out, f"{line}\n".encode())

    kind: IndexKind = "graph"
    if "codes" in phase:
        kind = "scan" if phase == "codes" else "auto"
    collection = Collection.open(folder, index=kind, exact_below=_EXACT_BELOW)
    collection.search(np.ones(DIM), k=3)
    if "codes" in phase:
        collection.compact()  # a file of codes is there from the beginning
    say("ready")
    for number in range(first, first + 10_000):
        say(f"begin {number}")
        make(collection, number, phase)
        say(f"done {number}")
        if phase not in ("add", "delete"):
            say("enter")
            if phase == "snapshot":
                collection.prepare()
                index_of(collection).growing.save()  # `close` does more
            elif phase == "compact" or "codes" in phase:
                collection.compact()  # with "codes", of the new file of vectors
            else:
                # The public way, closing and opening, would save the old graph first.
                with index_lock_of(collection).writing():
                    index_of(collection).growing.drop()
                for file in folder.glob("graph-*.hnsw"):
                    file.unlink(missing_ok=True)
                collection.prepare()
            say("leave")


# --- the parent -----------------------------------------------------------------------------------


class Lines:
    """What a child says through a pipe, a line at a time."""

    def __init__(self, reading: int) -> None:
        self.reading, self.rest = reading, b""
        os.set_blocking(reading, False)

    def next(self, until: float) -> str | None:
        """The next line; None at the end, or when the time is up."""
        while b"\n" not in self.rest:
            try:
                data = os.read(self.reading, 1 << 16)
            except BlockingIOError:
                if time.perf_counter() >= until:
                    return None
                time.sleep(0.0002)
                continue
            if not data:
                return None
            self.rest += data
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def all(self) -> list[str]:
        """What is left, of one that has ended."""
        return list(iter(lambda: self.next(time.perf_counter() + 60), None))


def once(
    folder: Path, phase: str, number: int, rows: Rows, draw: random.Random, result: Result
) -> int:
    """One kill; returns the number of the next change."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        try:
            child(folder, phase, number, writing)
        except BaseException as error:
            os.write(writing, f"failed {error!r}\n".encode())
        os._exit(1)
    os.close(writing)
    lines = Lines(reading)
    first = lines.next(time.perf_counter() + 600)
    assert first == "ready", first
    # A random delay: short ones hit the first change, long ones later changes.
    time.sleep(draw.random() ** 2 * draw.choice([0.002, 0.02, 0.1, _MOST_SECONDS]))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    said = [first, *lines.all()]
    os.close(reading)
    assert not any(line.startswith("failed") for line in said), said[-1]
    result.kills[phase] += 1
    last = said[-1].split()
    under_way = int(last[1]) if last[0] == "begin" else None
    inside = under_way is not None if phase in ("add", "delete") else last[0] == "enter"
    result.inside[phase] += inside
    for line in said:
        kind, *rest = line.split()
        if kind == "done":
            apply(rows, int(rest[0]), phase)
            number = int(rest[0]) + 1
    check(folder, phase, rows, under_way, result)
    return number + (under_way is not None)


def check(folder: Path, phase: str, rows: Rows, under_way: int | None, result: Result) -> None:
    result.codes += "codes" in phase and any(folder.glob("codes-*.q4"))
    begun = time.perf_counter()
    try:
        collection = Collection.open(folder, index="graph", exact_below=_EXACT_BELOW)
    except Exception as error:
        result.unopened += 1
        raise AssertionError(f"it does not open: {error!r}") from error
    with collection:
        connection = store_of(collection).database.connection
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        collection.search(np.ones(DIM), k=1)
        result.slowest_open = max(result.slowest_open, time.perf_counter() - begun)
        stored = {item.id: (item.vector, item.text) for item in collection.rows()}
        if under_way is not None and not same(stored, rows):
            apply(rows, under_way, phase)  # all of it
        result.lost += len(rows.keys() - stored.keys())
        result.phantoms += len(stored.keys() - rows.keys())
        assert same(stored, rows), f"{phase}: {len(stored)} rows found, {len(rows)} expected"
        # Graph files that the child removed are missing until the next one is saved.
        assert [p for p in collection.verify() if not _OF_CACHES.search(p)] == []
        hits = collection.search(np.ones(DIM), k=_IDS)
        assert {hit.id for hit in hits} == rows.keys()
        for hit in hits[:5]:
            expected = vector(rows[int(hit.id)][0])
            cosine = expected.sum() / np.linalg.norm(expected) / np.sqrt(DIM)
            assert abs(hit.score - cosine) < 1e-4
    with Collection.open(folder, index="scan", exact_below=_EXACT_BELOW) as scanned:
        # With 8 numbers, no error is longer than the three deviations that a scan allows.
        found = [hit.score for hit in scanned.search(np.ones(DIM), k=20)]
        assert np.allclose(found, [hit.score for hit in hits[:20]], atol=1e-6)
    for file in folder.glob("codes-*"):  # the next child makes them
        file.unlink()


def same(stored: dict[int, tuple[np.ndarray, str | None]], rows: Rows) -> bool:
    return stored.keys() == rows.keys() and all(
        text == rows[i][1] and (v == vector(rows[i][0])).all() for i, (v, text) in stored.items()
    )


def campaign(kills: int, seed: int, folder: Path) -> Result:
    """Kill a number of times, with the phases in turn."""
    auto = patch.object(choice, "_most_scanned", lambda: 0)  # a graph of any number of rows
    with auto, patch.object(codes_file, "_LEAST_WRITTEN", 1):
        return _campaign(kills, seed, folder)


def _campaign(kills: int, seed: int, folder: Path) -> Result:
    result, draw = Result(seed), random.Random(seed)
    number = 0
    rows: Rows = {}
    collection_folder = folder / "c"
    for kill in range(kills):
        if kill % 100 == 0:  # a new one, so that young collections are killed too
            shutil.rmtree(collection_folder, ignore_errors=True)
            rows = {}
            with Collection.create(
                collection_folder, dim=DIM, index="graph", exact_below=_EXACT_BELOW
            ) as collection:
                ids = list(range(_FIRST_ROWS))
                collection.add_vectors(ids, np.stack([vector(i) for i in ids]), [None] * len(ids))
                rows = {i: (i, None) for i in ids}
        number = once(collection_folder, PHASES[kill % len(PHASES)], number, rows, draw, result)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        result = campaign(arguments.kills, arguments.seed, Path(temporary))
    figures = {
        "kills": arguments.kills, "seed": arguments.seed, "lost": result.lost,
        "phantoms": result.phantoms, "unopened": result.unopened, "with codes": result.codes,
        "slowest open": round(result.slowest_open, 3),
        "seconds": round(time.perf_counter() - begun), "when": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    print(json.dumps(figures))
    print(result.table())
    if result.lost or result.phantoms or result.unopened:
        sys.exit(1)


if __name__ == "__main__":
    main()
