"""Damaged files: flipped bits, cuts, zeroed pages, missing, swapped and extra files.

    python -m tests.faults.damage --flips 5000 --cuts 1000 --pages 500 --crafted 2000 --seed 0

Every case works on a copy, in a child process that must neither die of a signal nor hang. What must
come out depends on the file:

- the graph: every row is found all the same, since it is rebuilt from SQLite;
- codes: a scan finds what an exact search does, since wrong codes are made again;
- SQLite: a typed error, or every row as it was; never another row;
- a bundle: a typed error that names the file;
- a crafted graph, whose size and hash the store believes: refused for its structure, or searched
  without harm, and every row is found.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from flowvec import Bundle, BundleError, Collection
from flowvec.errors import FlowvecError
from tests.graph_files import HEADER
from tests.inside import run_sql
from tests.makers import vectors

ROWS, DIM = 300, 8
_EXACT_BELOW = 20
_CODED_ROWS, _CHUNK_BYTES = 10_100, 4 * 4 * 512 + DIM // 2 * 512 + 64
_PAGE = 4096
_A_BATCH = 20
_SECONDS = 600
BUNDLE = Path(__file__).resolve().parents[1] / "data/bundles/tiny"

Change = Callable[[Path, random.Random], str]


def build(folder: Path) -> None:
    """A collection with a graph on disk."""
    with Collection.create(folder, dim=DIM, index="graph", exact_below=_EXACT_BELOW) as collection:
        texts = [f"text {i}" for i in range(ROWS)]
        metadata = [{"n": i} for i in range(ROWS)]
        collection.add_vectors(range(ROWS), vectors(ROWS, DIM), texts, metadata)
        collection.prepare()
        # What changed is recorded too.
        collection.add_vectors(["gone"], vectors(1, DIM))
        collection.delete(["gone"])
        collection.update_metadata([7], {"n": 7, "x": 1})
        collection.update_metadata([7], {"x": None})


def build_coded(folder: Path) -> None:
    """A collection with codes on disk: 16 chunks."""
    with Collection.create(folder, dim=DIM, index="scan") as collection:
        collection.add_vectors(range(_CODED_ROWS), vectors(_CODED_ROWS, DIM))
        collection.prepare()


# --- damage ---------------------------------------------------------------------------------------


def flip(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place}"


def cut(path: Path, draw: random.Random) -> str:
    size = draw.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut at {size}"


def zero_page(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    first = draw.randrange(-(-len(data) // _PAGE)) * _PAGE
    data[first : first + _PAGE] = bytes(min(_PAGE, len(data) - first))
    path.write_bytes(data)
    return f"page at {first} zeroed"


def remove(path: Path, _: random.Random) -> str:
    path.unlink()
    return "removed"


def replace(path: Path, draw: random.Random) -> str:
    path.write_bytes(draw.randbytes(draw.choice([0, 1, 100, path.stat().st_size])))
    return "another file's bytes"


def swap(path: Path, draw: random.Random) -> str:
    """Exchange two chunks of codes, or parts of them."""
    data = bytearray(path.read_bytes())
    count = (len(data) - _PAGE) // _CHUNK_BYTES
    first = draw.choice([0, 100, 8192, 9000])
    size = draw.choice([8, 512, _CHUNK_BYTES - 9000, _CHUNK_BYTES]) if first < 9000 else 8
    size = min(size, _CHUNK_BYTES - first)
    a, b = (_PAGE + i * _CHUNK_BYTES + first for i in draw.sample(range(count), 2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    path.write_bytes(data)
    return "swapped"


def craft(path: Path, draw: random.Random) -> str:
    """Change the structure of a graph, and update the store's checksum to match."""
    data = bytearray(path.read_bytes())
    header = np.frombuffer(data, HEADER, count=1)[0]
    element = int(header["element_bytes"])
    tail = HEADER.itemsize + ROWS * element
    for _ in range(draw.choice([1, 1, 2, 4])):
        where = draw.choice(["header", "links", "tail", "label", "length"])
        if where == "header":
            place = draw.randrange(HEADER.itemsize - 8)
        elif where == "links":
            place = HEADER.itemsize + draw.randrange(ROWS) * element + draw.randrange(0, 130, 2)
        elif where == "label":
            place = HEADER.itemsize + (draw.randrange(ROWS) + 1) * element - 8
        elif where == "tail":
            place = draw.randrange(tail, max(tail + 1, len(data) - 4))
        else:
            data = (
                data[: draw.randrange(HEADER.itemsize, len(data))]
                if draw.randrange(2)
                else data + draw.randbytes(draw.choice([1, 4, 400]))
            )
            continue
        size = draw.choice([1, 2, 4, 8])
        value = draw.choice([draw.randbytes(size), bytes(size), b"\xff" * size])
        data[place : place + size] = value
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    run_sql(path.parent, "UPDATE snapshots SET bytes = ?, sha256 = ?", len(data), digest)
    return "crafted"


# --- what must come out ---------------------------------------------------------------------------


def graph_case(folder: Path, change: Change, draw: random.Random) -> str:
    (file,) = folder.glob("graph-*.hnsw")
    change(file, draw)
    expected = vectors(ROWS, DIM)
    with Collection.open(folder, index="graph", exact_below=_EXACT_BELOW) as collection:
        collection.prepare()
        query = draw.randrange(ROWS)
        hits = collection.search(expected[query], k=5)
        assert hits[0].id == query, f"row {query} is not found, but {hits[0].id}"
        assert len({hit.id for hit in collection.search(expected[0], k=ROWS)}) == ROWS
    return "recovered"


def vectors_case(folder: Path, change: Change, draw: random.Random) -> str:
    """Vectors of a damaged file are read from the store again."""
    (file,) = folder.glob("vectors-*.f32")
    change(file, draw)
    expected = vectors(ROWS, DIM)
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    query = draw.randrange(ROWS)
    scores = unit @ unit[query]
    with Collection.open(folder, index="graph", exact_below=_EXACT_BELOW) as collection:
        for _ in range(2):
            hits = collection.search(expected[query], k=ROWS + 1, exact=True)
            assert [hit.id for hit in hits] == np.argsort(-scores, kind="stable").tolist()
            np.testing.assert_allclose(
                [hit.score for hit in hits], np.sort(scores)[::-1], atol=1e-5
            )
            # A change follows, into the same file or a new one.
            collection.add_vectors(["new"], -expected[query][None])
            hits = collection.search(-expected[query], k=1, exact=True)
            assert hits[0].id == "new"
            collection.delete(["new"])
    return "every score equal"


def codes_case(folder: Path, change: Change, draw: random.Random) -> str:
    """Codes of a damaged file are made again; what is found is as with an exact search."""
    (file,) = folder.glob("codes-*.q4")
    change(file, draw)
    queries = vectors(20, DIM) + np.float32(0.1)
    with Collection.open(folder, index="scan") as collection:
        assert collection.info().search == "scan"
        exact = collection.search_batch(queries, 10, exact=True)
        for prepares in (False, True):
            if prepares:
                collection.prepare()
            scanned = collection.search_batch(queries, 10)
            same = 0
            for some, best in zip(scanned, exact, strict=True):
                same += len({hit.id for hit in some} & {hit.id for hit in best})
                np.testing.assert_allclose(
                    [hit.score for hit in some], [hit.score for hit in best], atol=1e-3
                )
            assert same >= 198, f"recall is {same / 200}"
        row = draw.randrange(_CODED_ROWS)
        assert collection.search(vectors(_CODED_ROWS, DIM)[row], 1)[0].id == row
    return "as an exact search"


def sqlite_case(folder: Path, change: Change, draw: random.Random) -> str:
    change(folder / "collection.sqlite", draw)
    expected = vectors(ROWS, DIM)
    try:
        with Collection.open(folder, index="graph", exact_below=_EXACT_BELOW) as collection:
            # Ids are read separately: reading rows might fail on their checksums first.
            ids = collection.search_ids(expected, k=1)[0]
            assert ids == [[i] for i in range(ROWS)], "a wrong id was given"
            stored = list(collection.rows())
            hits = collection.search(expected[7], k=3)
    except FlowvecError:
        return "typed error"
    for item in stored:
        i = int(item.id)
        assert item.text == f"text {i}"
        assert item.metadata == {"n": i}
        np.testing.assert_array_equal(item.vector, expected[i])
    for hit in hits:
        assert hit.text == f"text {hit.id}"
    # A row that can no longer be reached is not wrong, but it must be reported.
    assert len(stored) == ROWS, f"{ROWS - len(stored)} rows are gone without a word"
    assert hits[0].id == 7
    return "every row equal"


def bundle_case(folder: Path, change: Change, draw: random.Random) -> str:
    file = draw.choice(sorted(folder.iterdir()))
    what = change(file, draw)
    try:
        Bundle.load(folder)
    except BundleError as error:
        said = str(error)
    else:
        said = None
    if said is not None:
        assert file.name in said or file.name == "manifest.json", f"{what}: {said}"
        return "typed error"
    # The manifest's own fields have no hash: what changed there may be a name or a figure.
    assert file.name == "manifest.json", f"{what} of {file.name} was not noticed"
    return "manifest of another text"


def extra_case(folder: Path, _: Change, draw: random.Random) -> str:
    (folder / draw.choice(["x.onnx", "weights.bin", ".hidden"])).write_bytes(b"x")
    try:
        Bundle.load(folder)
    except BundleError:
        return "typed error"
    raise AssertionError("an extra file was not noticed")


CASES = {
    "graph": graph_case,
    "vectors": vectors_case,
    "codes": codes_case,
    "sqlite": sqlite_case,
    "bundle": bundle_case,
    "extra": extra_case,
}


# --- running --------------------------------------------------------------------------------------


def plan(flips: int, cuts: int, pages: int, crafted: int) -> Iterator[tuple[str, Change]]:
    """(file, damage) of every case: as many for each of the files."""
    files = ("graph", "vectors", "codes", "sqlite", "bundle")
    for count, change in ((flips, flip), (cuts, cut), (pages, zero_page)):
        for i in range(count):
            yield files[i % len(files)], change
    for file in files:
        yield from ((file, change) for change in (remove, replace) for _ in range(5))
    yield from (("extra", remove) for _ in range(5))
    yield from (("graph", craft) for _ in range(crafted))
    yield from (("codes", swap) for _ in range(crafted // 10))


def run(cases: list[tuple[str, Change]], seed: int, work: Path) -> Counter[tuple[str, str, str]]:
    """Outcomes by file, damage and what came out; a failure's text is its outcome."""
    warnings.simplefilter(
        "ignore"
    )  # forking while OpenBLAS has threads, which the child never uses
    build(work / "whole")
    build_coded(work / "coded")
    outcomes: Counter[tuple[str, str, str]] = Counter()
    for first in range(0, len(cases), _A_BATCH):
        batch = cases[first : first + _A_BATCH]
        lines = _in_a_child(batch, seed + first, work)
        for (file, change), outcome in zip(batch, lines, strict=True):
            outcomes[file, change.__name__, outcome] += 1
    return outcomes


def _in_a_child(batch: list[tuple[str, Change]], seed: int, work: Path) -> list[str]:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        signal.alarm(_SECONDS)
        for i, (file, change) in enumerate(batch):
            outcome = _one(file, change, random.Random(seed + i), work)
            os.write(writing, (json.dumps(outcome) + "\n").encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = [json.loads(line) for line in pipe]
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if len(lines) < len(batch):
        lines.append("FAILED: hung" if status == -signal.SIGALRM else f"FAILED: status {status}")
        lines += ["not run"] * (len(batch) - len(lines))
    return lines


def _one(file: str, change: Change, draw: random.Random, work: Path) -> str:
    copy = work / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    source = work / ("coded" if file == "codes" else "whole")
    if file in ("bundle", "extra"):
        source = BUNDLE
    shutil.copytree(source, copy)
    try:
        return CASES[file](copy, change, draw)
    except BaseException as error:
        return f"FAILED: {type(error).__name__}: {str(error)[:200]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("flips", 5000), ("cuts", 1000), ("pages", 500), ("crafted", 2000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        cases = list(plan(arguments.flips, arguments.cuts, arguments.pages, arguments.crafted))
        outcomes = run(cases, arguments.seed, Path(temporary))
    print(f"{len(cases)} cases, seed {arguments.seed}, {time.perf_counter() - begun:.0f} s, "
          f"{datetime.now(UTC).date()}")  # fmt: skip
    print("| file | damage | outcome | cases |\n|---|---|---|---|")
    for (file, change, outcome), count in sorted(outcomes.items()):
        print(f"| {file} | {change} | {outcome} | {count} |")
    if any(outcome.startswith(("FAILED", "not run")) for _, _, outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
