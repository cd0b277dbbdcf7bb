"""A disk that is full, broken or read-only, at each single call that changes a file.

    python -m tests.faults.disk --seed 0

A child process adds, deletes, replaces, saves and compacts, while one of its calls (the first, the
second, ... until there are no more) fails with ENOSPC, EIO or EDQUOT, once or from then on, or a
limit on the size of files stops it. Whatever happens, an error is typed, the old state can still be
read by the process itself, and a new one finds all changes that were acknowledged, each of the
others whole or not at all. The same library logs the order of calls, from which `trace` tells
whether what must be on disk before something else is.

The calls are caught by a small library that is preloaded, compiled on the spot: Linux alone.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from flowvec import Collection
from flowvec.errors import FlowvecError
from tests.inside import index_of

DIM = 8
_EXACT_BELOW = 20
_FIRST_ROWS = 60
_OF_CACHES = re.compile(r"(graph|vectors)-\d")  # files that are made again
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
OPERATIONS = ("add", "delete", "replace", "save", "add", "compact", "words", "add", "tune", "close")

Rows = dict[int, str]


def vector(i: int, text: str) -> np.ndarray:
    seed = i + sum(text.encode())
    return np.random.default_rng(seed).normal(size=DIM).astype(np.float32)


def put(collection: Collection, ids: range, text: str) -> None:
    collection.add_vectors(ids, np.stack([vector(i, text) for i in ids]), [text] * len(ids))


def build(folder: Path) -> Rows:
    """A collection with a graph on disk."""
    with Collection.create(folder, dim=DIM, index="graph", exact_below=_EXACT_BELOW) as collection:
        put(collection, range(_FIRST_ROWS), "first")
        collection.prepare()
    return dict.fromkeys(range(_FIRST_ROWS), "first")


def operate(collection: Collection, number: int) -> None:
    """Operation `number` of a child."""
    kind = OPERATIONS[number]
    if kind == "add":
        put(collection, range(100 * number, 100 * number + 15), f"add {number}")
    elif kind == "delete":
        collection.delete(range(10))
    elif kind == "replace":
        put(collection, range(20, 40), f"replace {number}")
    elif kind == "save":
        index_of(collection).growing.wait()  # until it has the rows that were added
        index_of(collection).growing.save()  # the public way, `close`, does more
    elif kind == "compact":
        collection.compact()
    elif kind == "words":
        collection.index_texts()
    elif kind == "tune":
        collection.tune_recall(0.9, queries=10)
    else:
        collection.close()


def expected_after(rows: Rows, number: int) -> Rows:
    """What an operation makes of the rows."""
    kind = OPERATIONS[number]
    after = dict(rows)
    if kind == "add":
        after.update(dict.fromkeys(range(100 * number, 100 * number + 15), f"add {number}"))
    elif kind == "delete":
        for i in range(10):
            after.pop(i, None)
    elif kind == "replace":
        after.update(dict.fromkeys(range(20, 40), f"replace {number}"))
    return after


# --- the child ------------------------------------------------------------------------------------


def child(folder: Path, at: int, error: int, once: bool, limit: int) -> None:
    """Operate with a disk that fails; says what was acknowledged and what was refused."""
    disk = ctypes.CDLL(None)
    collection = Collection.open(folder, index="graph", exact_below=_EXACT_BELOW)
    collection.prepare()
    if limit:
        import resource

        largest = max(file.stat().st_size for file in folder.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + limit, resource.RLIM_INFINITY))
    disk.faulty_disk_arm(os.fsencode(folder), at, error, int(once))
    for number, kind in enumerate(OPERATIONS):
        _log(f"begin {number} {kind}")
        try:
            operate(collection, number)
            _log("end")
        except FlowvecError as refused:
            print(f"refused {number} {refused}", flush=True)
        else:
            print(f"done {number}", flush=True)
        if kind != "close":
            # Whatever the disk does, the collection has the old state or the new one.
            assert len(collection.search(np.ones(DIM), k=10_000)) == len(collection)
    print(f"calls {disk.faulty_disk_calls()}", flush=True)
    disk.faulty_disk_arm(None, 0, 0, 0)


def _log(line: str) -> None:
    if path := os.environ.get("FAULTY_DISK_LOG"):
        with Path(path).open("a", encoding="utf-8") as log:
            log.write(f"# {line}\n")


# --- the parent -----------------------------------------------------------------------------------


def compile_disk(folder: Path) -> Path:
    """The library that is preloaded."""
    source, library = Path(__file__).with_name("faulty_disk.c"), folder / "faulty_disk.so"
    subprocess.run(
        [
            os.environ.get("CC", "cc"),
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(library),
            str(source),
            "-ldl",
        ],
        check=True,
    )
    return library


def run_child(
    folder: Path,
    library: Path,
    at: int,
    error: int,
    once: bool,
    limit: int = 0,
    log: Path | None = None,
) -> list[str]:
    """Lines of a child; raises AssertionError if it died of an untyped error."""
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    if log is not None:
        environment["FAULTY_DISK_LOG"] = str(log)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.disk", "child", str(folder), str(at), str(error),
         str(int(once)), str(limit)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert done.returncode == 0, f"call {at}, {os.strerror(error)}: {done.stderr[-600:]}"
    return done.stdout.splitlines()


def check(folder: Path, rows: Rows, lines: list[str]) -> None:
    """A new process's view: all that was acknowledged, and the rest whole or not at all."""
    possible = [rows]
    for line in lines:
        kind, number = line.split()[:2]
        if kind == "done":
            possible = [expected_after(state, int(number)) for state in possible]
        elif kind == "refused":
            possible += [expected_after(state, int(number)) for state in possible]
    with Collection.open(folder, index="graph", exact_below=_EXACT_BELOW) as collection:
        texts = {int(item.id): str(item.text) for item in collection.rows()}
        assert texts in possible, f"{len(texts)} rows"
        hits = collection.search(np.ones(DIM), k=10_000)
        assert {hit.id for hit in hits} == texts.keys()
        assert [p for p in collection.verify() if not _OF_CACHES.search(p)] == []
        put(collection, range(9000, 9005), "after")
        assert len(collection) == len(texts) + 5


def campaign(folder: Path, *, step: int = 1, first: int = 1) -> Counter[str]:
    """Let each call (or every `step`th) fail in each way; returns how often an operation failed."""
    library, counts = compile_disk(folder), Counter[str]()
    rows = build(folder / "whole")
    for once in (True, False):
        for error in ERRORS:
            at = first
            while True:
                lines = _one(folder, rows, library, counts, at, error, once)
                if at > int(lines[-1].split()[1]):
                    break  # there were no more calls
                at += step
    for limit in (1, 4096, 20_000, 60_000, 200_000):
        _one(folder, rows, library, counts, 0, 0, False, limit)
    return counts


def _one(
    folder: Path, rows: Rows, library: Path, counts: Counter[str], at: int, error: int,
    once: bool, limit: int = 0,
) -> list[str]:  # fmt: skip
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "whole", copy)
    lines = run_child(copy, library, at, error, once, limit)
    check(copy, rows, lines)
    counts["cases"] += 1
    for line in lines:
        kind, number = line.split()[:2]
        if kind == "refused":
            counts[f"{OPERATIONS[int(number)]} refused"] += 1
    return lines


# --- the order of calls ---------------------------------------------------------------------------


def trace(folder: Path) -> dict[str, list[str]]:
    """Calls of each operation ("<number> <kind>") until it was acknowledged, in order, as "<call>
    <name of the file>".
    """
    library = compile_disk(folder)
    build(folder / "traced")
    log = folder / "calls.log"
    run_child(folder / "traced", library, 0, 0, False, log=log)
    calls_of: dict[str, list[str]] = {}
    calls: list[str] = []
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("# begin "):
            calls = calls_of[line.removeprefix("# begin ")] = []
            continue
        if line == "# end":
            calls = []  # what comes now is too late
            continue
        call, path = line.split(" ", 1)
        name = re.sub(r"\.\d+\.partial$", ".partial", Path(path).name)
        calls.append(f"{call} {name}")
    return calls_of


def unsynced(calls: list[str]) -> Iterator[str]:
    """Files that were written and not flushed to disk afterwards, and renames of such."""
    dirty: set[str] = set()
    for call in calls:
        kind, name = call.split(" ", 1)
        if kind in ("write", "truncate"):
            dirty.add(name)
        elif kind == "sync":
            dirty.discard(name)
        elif kind == "rename" and f"{name}.partial" in dirty:
            yield f"{name}.partial was renamed before it was on disk"
    yield from sorted(dirty)


def main() -> None:
    if sys.argv[1:2] == ["child"]:
        folder, *numbers = sys.argv[2:]
        at, error, once, limit = map(int, numbers)
        child(Path(folder), at, error, bool(once), limit)
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--step", type=int, default=1, help="Try each call (1), each second one (2), ..."
    )
    arguments = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        counts = campaign(Path(temporary), step=arguments.step)
    print(json.dumps({**counts, "seconds": round(time.perf_counter() - begun),
                      "when": datetime.now(UTC).date().isoformat()}))  # fmt: skip


if __name__ == "__main__":
    main()
