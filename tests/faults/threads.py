"""Eight threads search while one adds, deletes and compacts.

    python -m tests.faults.threads --minutes 10 --seed 0

Every hit must be a row that was there at some moment of its search, of the right length and once;
rows that never change must be found; and in the end the graph that grew among all this must find
as much as one that was built in one go.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from flowvec import Collection

DIM = 32
FIXED = 2000
_EXACT_BELOW = 500
_SEARCHERS = 8
_A_CHANGE = 200


def recall(collection: Collection, queries: np.ndarray, exact: list[set[object]]) -> float:
    ids, _ = collection.search_ids(queries, k=10)
    return float(
        np.mean([len({*hits} & wanted) / 10 for hits, wanted in zip(ids, exact, strict=True)])
    )


def campaign(seconds: float, seed: int, folder: Path) -> dict[str, float]:
    """Returns counts and both recalls; raises AssertionError for what is wrong."""
    rng = np.random.default_rng(seed)
    fixed = rng.normal(size=(FIXED, DIM)).astype(np.float32)
    wrong: list[str] = []
    counts = {"searches": 0, "changes": 0, "compactions": 0}
    stop = threading.Event()
    dead: set[object] = set()  # ids that are deleted for good
    live: dict[str, np.ndarray] = {}
    with Collection.create(
        folder / "c", dim=DIM, index="graph", exact_below=_EXACT_BELOW
    ) as collection:
        collection.add_vectors([f"fixed-{i}" for i in range(FIXED)], fixed)

        def search(thread_seed: int) -> None:
            draw = np.random.default_rng(thread_seed)
            try:
                while not stop.is_set():
                    i, k = int(draw.integers(FIXED)), int(draw.integers(1, 30))
                    gone = set(dead)
                    if draw.integers(2):
                        hits = collection.search(fixed[i], k=k)
                        ids = [hit.id for hit in hits]
                    else:
                        (ids,), scores = collection.search_ids(fixed[i : i + 1], k=k)
                        assert scores.shape == (1, k)
                        assert (np.diff(scores[0]) <= 1e-6).all()
                    assert len(ids) == len(set(ids)) == k, f"{len(ids)} hits of {k}"
                    assert not gone & set(ids), "a deleted row was found"
                    assert ids[0] == f"fixed-{i}", f"{ids[0]} instead of fixed-{i}"
                    counts["searches"] += 1
            except Exception as error:
                wrong.append(repr(error))
                stop.set()

        threads = [
            threading.Thread(target=search, args=(seed * 100 + i,)) for i in range(_SEARCHERS)
        ]
        for thread in threads:
            thread.start()
        end = time.perf_counter() + seconds
        number = 0
        while time.perf_counter() < end and not stop.is_set():
            number += 1
            ids = [f"{number}-{i}" for i in range(_A_CHANGE)]
            rows = rng.normal(size=(_A_CHANGE, DIM)).astype(np.float32)
            collection.add_vectors(ids, rows)
            live.update(zip(ids, rows, strict=True))
            # All but a few go again, so that the collection does not outgrow the machine.
            leaving = [i for i in live if rng.random() < 0.5 or len(live) > 3000]
            collection.delete(leaving)
            for i in leaving:
                del live[i]
            dead.update(leaving)
            counts["changes"] += 1
            if number % 20 == 0:
                collection.compact()
                counts["compactions"] += 1
        stop.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not wrong, wrong[:3]
        assert len(collection) == FIXED + len(live)
        # The graph that grew, and one that is built at once.
        names = [*(f"fixed-{i}" for i in range(FIXED)), *live]
        rows = np.concatenate((fixed, *([np.stack(list(live.values()))] if live else [])))
        queries = rng.normal(size=(300, DIM)).astype(np.float32)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        order = np.argsort(-(queries @ unit.T), axis=1)[:, :10]
        exact: list[set[object]] = [{names[i] for i in line} for line in order]
        collection.prepare()
        grown = recall(collection, queries, exact)
        with Collection.create(
            folder / "serial", dim=DIM, index="graph", exact_below=_EXACT_BELOW
        ) as serial:
            serial.add_vectors(names, rows)
            serial.prepare()
            at_once = recall(serial, queries, exact)
    return {**counts, "recall grown": round(grown, 4), "recall at once": round(at_once, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        counts = campaign(60 * arguments.minutes, arguments.seed, Path(temporary))
    print(json.dumps({"minutes": arguments.minutes, "seed": arguments.seed, **counts,
                      "when": datetime.now(UTC).date().isoformat()}))  # fmt: skip
    if counts["recall grown"] < counts["recall at once"] - 0.005:
        sys.exit(1)


if __name__ == "__main__":
    main()
