"""A graph that grows in the background: searches never miss a row, and files are never half."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from flowvec.bundle.manifest import FileRecord
from flowvec.collection.index import growing_graph
from flowvec.collection.index.growing_graph import GrowthLimits
from flowvec.collection.index.hnsw import Graph
from flowvec.vectors import top_k
from tests.inside import index_of
from tests.makers import unit, vectors

AddRows = Callable[[Graph, np.ndarray, np.ndarray], None]


@pytest.fixture
def graphs_add(monkeypatch: pytest.MonkeyPatch) -> Callable[[AddRows], None]:
    """Let graphs add rows by another function."""
    return lambda other: monkeypatch.setattr(Graph, "add", other)


@pytest.fixture
def slowly(graphs_add: Callable[[AddRows], None]) -> threading.Event:
    """A graph that grows by a few rows, and then only when the event is set."""
    go = threading.Event()
    add = Graph.add

    def waiting(self: Graph, labels: np.ndarray, rows: np.ndarray) -> None:
        add(self, labels, rows)
        if self.total > 100:
            go.wait(60)

    graphs_add(waiting)
    return go


def test_searches_see_all_rows_however_far_the_graph_is(
    tmp_path: Path, slowly: threading.Event
) -> None:
    rows, queries = vectors(1000), vectors(20, seed=1)
    expected = top_k(unit(queries), unit(rows), 5, "cosine")[0].tolist()
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        index_of(c).growing.limits = GrowthLimits(most_rows=60)
        c.add_vectors(range(1000), rows, metadata=[{"half": i % 2} for i in range(1000)])
        # The thread holds the lock while it adds: let it go for a step at a time.
        slowly.set()
        seen = set()
        for _ in range(200):
            ids = c.search_ids(queries, 5, ef=400)[0]
            assert np.mean([a == b for a, b in zip(ids, expected, strict=True)]) > 0.9
            seen.add(c.info().graph_rows)
            hits = c.search(queries[0], 1000, filter={"half": 1})
            assert {hit.id for hit in hits} == set(range(1, 1000, 2))
            if seen & {1000}:
                break
        assert c.prepare()
        assert c.info().graph_rows == 1000


def test_changes_while_it_grows_reach_it(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(2000), vectors(2000))
        c.search(vectors(1)[0])
        for n in range(20):
            c.add_vectors([f"new {n}", n], vectors(2, seed=n))
            c.delete([1000 + n])
        assert c.prepare()
        graph = index_of(c).growing.graph
        assert graph is not None
        assert len(graph) == len(c) == 2000
        assert {hit.id for hit in c.search(vectors(1)[0], k=3000)} == {row.id for row in c.rows()}


def test_what_was_grown_is_saved_while_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses the growth of a quarter at most, and the first answer does not wait for it."""
    saved: list[int] = []
    record = growing_graph.GraphSnapshots.record

    def noted(
        self: growing_graph.GraphSnapshots,
        file: Path,
        content: FileRecord,
        graph: Graph,
        newest: int,
    ) -> None:
        record(self, file, content, graph, newest)
        loaded = self.load()
        assert loaded is not None
        assert loaded[0].newest == newest
        saved.append(newest)

    monkeypatch.setattr(growing_graph.GraphSnapshots, "record", noted)
    c = Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50)
    index_of(c).growing.limits = GrowthLimits(unsaved_seconds=0.0)
    c.add_vectors(range(3000), vectors(3000))
    assert c.prepare()
    assert 5 < len(saved) < 60
    assert saved == sorted(saved)
    # As after a kill: another handle loads the newest file, and adds the rest.
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as other:
        assert other.search(vectors(3000)[7], k=1)[0].id == 7
        assert other.prepare()
        assert other.info().graph_rows == 3000
        assert other.verify() == []
    c.close()


def test_a_halt_of_the_thread_does_not_save_a_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows took seconds, so adding them again seems to take as long."""

    class Clock:
        """Says that each step of the graph took an hour."""

        now = 0.0

        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

        def perf_counter(self) -> float:
            self.now += 3600.0
            return self.now

    monkeypatch.setattr(growing_graph, "time", Clock())
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=5) as c:
        c.add_vectors(range(100), vectors(100))
        assert c.prepare()
        assert not list((tmp_path / "c").glob("*.hnsw"))
    assert len(list((tmp_path / "c").glob("*.hnsw"))) == 1


def test_searches_and_changes_go_on_while_the_graph_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the graph as it was; the graph grows again afterwards."""
    writing, go = threading.Event(), threading.Event()
    write = Graph.write

    def slow(self: Graph, path: Path) -> None:
        writing.set()
        assert go.wait(60)
        write(self, path)

    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        index_of(c).growing.limits = GrowthLimits(unsaved_seconds=0.0)
        c.add_vectors(range(2000), vectors(2000))
        with monkeypatch.context() as patch:
            patch.setattr(Graph, "write", slow)
            c.search(vectors(1)[0])
            assert writing.wait(60)
            graph = index_of(c).growing.graph
            assert graph is not None
            held = graph.total
            c.add_vectors(["new"], vectors(1, seed=7))
            c.delete([1, 1999])
            c.search(vectors(1)[0])  # the collection tells the graph of the changes
            ids = {hit.id for hit in c.search(vectors(1)[0], k=3000)}
            assert ids == {*range(2000), "new"} - {1, 1999}
            assert graph.total == held
            go.set()
            assert c.prepare()
        assert len(graph) == len(c) == 1999
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert c.verify() == []
        assert {hit.id for hit in c.search(vectors(1)[0], k=3000)} == ids


FULL = """
import resource, signal, sys
import numpy as np
from pathlib import Path
from flowvec import Collection
c = Collection.open(sys.argv[1], index="graph", exact_below=50)
c.prepare()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    c._index.growing.save(anew=True)
except Exception as error:
    print(type(error).__name__, error)
print(len(c.search(np.ones(8), k=10_000)))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_full_disk_while_the_graph_is_saved_leaves_the_old_file(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(3000), vectors(3000))
        c.prepare()
    before = {file.name for file in (tmp_path / "c").glob("*.hnsw*")}
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "c")],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert first.startswith("CollectionError"), first
    assert second == "3000"
    assert {file.name for file in (tmp_path / "c").glob("*.hnsw*")} == before
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert c.verify() == []


def test_one_process_at_a_time_saves(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(300), vectors(300))
        c.prepare()
        held = growing_graph.FolderLock(tmp_path / "c" / "graph.lock")
        assert held.acquire(0)
        index_of(c).growing.save()  # another one does it
        assert not list((tmp_path / "c").glob("*.hnsw"))
        held.close()
        index_of(c).growing.save()
        index_of(c).growing.save()  # nothing is new
        assert [file.name for file in (tmp_path / "c").glob("*.hnsw")] == ["graph-1.hnsw"]


def test_a_graph_that_cannot_grow_is_left_alone_for_a_while(
    tmp_path: Path, graphs_add: Callable[[AddRows], None], caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def fail(_: Graph, labels: np.ndarray, rows: np.ndarray) -> None:
        tried.append(len(labels))
        raise MemoryError("no room")

    graphs_add(fail)
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        index_of(c).growing.limits = GrowthLimits(retry_seconds=3600.0)
        c.add_vectors(range(300), vectors(300))
        for _ in range(20):
            assert len(c.search(vectors(1)[0], k=400)) == 300
            assert c.prepare()  # rows are compared exactly
        assert len(tried) == 1
    assert sum("does not grow" in record.message for record in caplog.records) == 1


LEFT_OPEN = """
import sys, time
import numpy as np
from flowvec import Collection
c = Collection.open(sys.argv[1], index="graph", exact_below=50)
c.search(np.ones(64))
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.process
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2])
def test_a_program_may_end_while_the_graph_grows(tmp_path: Path, seconds: float) -> None:
    """Python stops its threads in the middle of a change, which aborted the process."""
    with Collection.create(tmp_path / "c", dim=64, index="graph", exact_below=50) as c:
        c.add_vectors(range(10_000), vectors(10_000, dim=64))
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(tmp_path / "c"), str(seconds)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_searches_once_does_not_load_the_graph(tmp_path: Path) -> None:
    """Loading takes seconds where there are many rows, and closing would wait for it."""
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(300), vectors(300))
        c.prepare()
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        growing = index_of(c).growing
        growing.limits = GrowthLimits(grace_seconds=600.0)
        for _ in range(200):  # in which a graph of this size would have been loaded
            assert c.search(vectors(300)[7], k=1)[0].id == 7
            assert growing.graph is None
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        index_of(c).growing.limits = GrowthLimits(grace_seconds=600.0)
        assert c.prepare()  # does not wait for more searches
        assert index_of(c).growing.graph is not None
