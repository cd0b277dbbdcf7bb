"""Many threads that search and change one collection."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flowvec import Collection
from tests.makers import vectors


def test_many_threads_take_turns(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c, ThreadPoolExecutor(8) as pool:
        c.add_vectors(range(100), vectors(100))

        def work(i: int) -> None:
            if i % 4 == 0:
                c.add_vectors([1000 + i], vectors(1, seed=i))
            elif i % 4 == 1:
                c.delete([i])
            else:
                assert len(c.search(vectors(1, seed=i)[0], k=5)) == 5

        list(pool.map(work, range(200)))
        assert len(c) == 100 + 50 - 25


@pytest.mark.parametrize("exact_below", [50, 10_000])
def test_searches_continue_while_another_thread_changes_everything(
    tmp_path: Path, exact_below: int
) -> None:
    """What never changes is always found, and what is gone never is."""
    fixed = vectors(120, seed=1)
    wrong: list[str] = []
    stop = threading.Event()
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=exact_below) as c:
        c.add_vectors([f"fixed-{i}" for i in range(120)], fixed)
        deleted: set[str] = set()

        def search(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                while not stop.is_set():
                    i = int(rng.integers(120))
                    gone = set(deleted)
                    hits = c.search(fixed[i], k=5)
                    if [hit.id for hit in hits][:1] != [f"fixed-{i}"]:
                        wrong.append(f"{i}: {hits[:1]}")
                    if len({hit.id for hit in hits}) != 5:
                        wrong.append(f"{len(hits)} hits, or twice the same")
                    if deleted_hits := gone & {hit.id for hit in hits}:
                        wrong.append(f"deleted rows: {deleted_hits}")
                    ids, scores = c.search_ids(fixed[i : i + 1], k=3)
                    if ids[0][0] != f"fixed-{i}" or scores.shape != (1, 3):
                        wrong.append(f"{ids}")
            except Exception as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=search, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for round_ in range(12):
            ids = [f"{round_}-{i}" for i in range(60)]
            c.add_vectors(ids, vectors(60, seed=100 + round_))
            c.delete(ids[:50])
            deleted.update(ids[:50])
            if round_ % 4 == 3:
                c.compact()
        stop.set()
        for thread in threads:
            thread.join(120)
        assert not wrong, wrong[:5]
        assert len(c) == 120 + 12 * 10
        assert len(c.search(fixed[0], k=1000)) == 240


_EVERY_CALL = """
import sys
from flowvec import Collection
with Collection.create(sys.argv[1], dim=2) as c:
    before = set(sys.modules)
    c.add_vectors(["a", "b"], [[1, 0], [0, 1]], ["a text", None], [{"n": 1}, None])
    c.search([1, 0], filter={"n": 1})
    c.search([1, 0], text="text", hybrid=True)
    c.search_ids([[1, 0]])
    c.search_mmr([1, 0])
    c.update_metadata(["a"], {"n": 2})
    c.get(["a"]), c.list(), c.ids(), c.count({"n": 2}), c.info()
    c.delete(["b"])
    print(sorted(set(sys.modules) - before))
"""


@pytest.mark.process
def test_calls_import_nothing(tmp_path: Path) -> None:
    """An import that Ctrl-C interrupts can block the other threads that need the module."""
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_CALL, str(tmp_path / "c")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
