"""The native graph: the laws of its searches, its threads, and the package hnswlib as a peer."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.hnsw import GraphFileError, HnswError, HnswGraph, HnswlibIndex
from tests.runtime.hnsw.graphs import scores_of, search

ROWS, DIM, M = 2000, 16, 8
SPACES = ("ip", "l2")


def whole_numbers(rows: int, dim: int = DIM, seed: int = 0) -> np.ndarray:
    """Vectors whose distances float32 holds exactly, however they are summed."""
    return np.random.default_rng(seed).integers(-50, 50, (rows, dim)).astype(np.float32)


def graph_of(rows: np.ndarray, space: Any = "l2", labels: np.ndarray | None = None) -> HnswGraph:
    graph = HnswGraph(space, rows.shape[1], len(rows), M, 60)
    graph.add(np.arange(len(rows)) if labels is None else labels, rows)
    return graph


# --- the package hnswlib --------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
def test_an_index_for_hnswlib_has_its_bytes(tmp_path: Path, space: Any) -> None:
    hnswlib = pytest.importorskip("hnswlib", reason="needs hnswlib, a peer")
    rows = whole_numbers(ROWS)
    peer = hnswlib.Index(space=space, dim=DIM)
    peer.init_index(max_elements=ROWS, M=M, ef_construction=60)
    peer.add_items(rows, np.arange(ROWS), num_threads=1)
    peer.save_index(str(tmp_path / "peer"))
    own = HnswlibIndex(space, DIM, ROWS, M, 60)
    for start in range(0, ROWS, 700):
        part = rows[start : start + 700]
        own.add(np.arange(start, start + len(part)), part)
    own.save(tmp_path / "own")
    assert (tmp_path / "own").read_bytes() == (tmp_path / "peer").read_bytes()
    for labels, vectors in (
        ([ROWS], whole_numbers(1)), ([ROWS - 1], whole_numbers(1)), ([ROWS], whole_numbers(1, 3))
    ):  # fmt: skip
        with pytest.raises(HnswError):
            own.add(np.array(labels), vectors)


@pytest.mark.parametrize("space", SPACES)
def test_eight_bits_lose_nothing_of_hnswlibs_recall(space: Any) -> None:
    """At equal settings; vectors far from zero, as texts of one kind have."""
    hnswlib = pytest.importorskip("hnswlib", reason="needs hnswlib, a peer")
    rng = np.random.default_rng(0)
    rows, queries = np.split(rng.normal(300, 1, (ROWS + 200, DIM)).astype(np.float32), [ROWS])
    peer = hnswlib.Index(space=space, dim=DIM)
    peer.init_index(max_elements=ROWS, M=M, ef_construction=60, random_seed=0)
    peer.add_items(rows, np.arange(ROWS), num_threads=1)
    peer.set_ef(40)
    best = np.argsort(-scores_of(queries, rows, space), axis=1)[:, :10]

    def recall(found: np.ndarray) -> float:
        return float(np.mean([np.isin(a, b).mean() for a, b in zip(best, found, strict=True)]))

    theirs = recall(peer.knn_query(queries, k=10, num_threads=1)[0])
    graph = graph_of(rows, space)
    assert recall(search(graph, rows, queries, 10, 40)[0]) >= theirs - 0.02
    assert graph.nodes == ROWS  # they are not nearly equal, but for what they have in common


# --- searches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
def test_a_deep_search_is_exact(space: Any) -> None:
    rng = np.random.default_rng(3)
    rows, queries = whole_numbers(600), whole_numbers(20, seed=1)
    labels = np.cumsum(rng.integers(2, 4, 600)) + 10**12  # with gaps
    graph = graph_of(rows, space, labels)
    graph.delete(labels[::9])
    is_there = np.arange(600) % 9 != 0
    exact = np.where(is_there, scores_of(queries, rows, space), -np.inf).astype(np.float32)
    expected = -np.sort(-exact, axis=1)[:, :300]
    # With rows that the graph lacks, and without those that are deleted.
    more = np.concatenate((labels[is_there], labels[:100] + 1))
    order = np.argsort(more)
    vectors = np.concatenate((rows[is_there], whole_numbers(100, seed=2)))[order]
    for among, there in ((labels, rows), (more[order], vectors)):
        found, scores = search(graph, there, queries, 300, 600, labels=among)
        np.testing.assert_array_equal(scores, expected)
        assert np.isin(found, labels[is_there]).all()
        for line, ranked in zip(scores, found, strict=True):
            assert (np.lexsort((ranked, -line)) == np.arange(300)).all()
    found, _ = search(graph, rows[:0], queries, 3, 600, labels=labels[:0])
    assert (found == -1).all()


def test_threads_change_no_answer() -> None:
    rows, queries = whole_numbers(ROWS), whole_numbers(64, seed=1)
    graph = graph_of(rows)
    one = search(graph, rows, queries, 10, 50)
    for threads in (2, 5, 100):
        many = search(graph, rows, queries, 10, 50, threads)
        np.testing.assert_array_equal(one[0], many[0])
        np.testing.assert_array_equal(one[1], many[1])


def test_a_search_deeper_than_the_graph_finds_all_that_are_left() -> None:
    rows = whole_numbers(5)
    labels, found = search(graph_of(rows), rows, whole_numbers(1, seed=1), 8, 10**9)
    assert sorted(labels[0].tolist()) == [-1, -1, -1, 0, 1, 2, 3, 4]
    assert np.isinf(found[0, 5:]).all()
    assert (search(HnswGraph("l2", DIM, 1), rows, whole_numbers(2), 3, 9)[0] == -1).all()


LEVELS = """
import sys, numpy as np
from flowvec.hnsw import HnswGraph, Places
from flowvec.hnsw.library import library
rng = np.random.default_rng(0)
recall = []
for dim in [*range(1, 67), 127, 384, 1000]:
    rows = rng.normal(1, 1, size=(200, dim)).astype(np.float32)
    for space in ("ip", "l2"):
        graph = HnswGraph(space, dim, 200)
        graph.add(np.arange(200), rows)
        labels, scores = graph.search(rows[:30], 3, 30, np.arange(200), Places(None, 0, rows))
        a, b = rows[:30, None].astype(float), rows.astype(float)
        right = (a * b).sum(-1) if space == "ip" else -np.sqrt(((a - b) ** 2).sum(-1))
        found = np.take_along_axis(right, labels, 1)
        np.testing.assert_allclose(scores, found, rtol=1e-5, atol=1e-5 * dim**0.5)
        recall.append(np.mean(scores[:, -1] >= np.sort(right, 1)[:, -3] - 1e-4))
assert min(recall) > 0.8 and np.mean(recall) > 0.97, (min(recall), np.mean(recall))
print(library().flowvec_hnsw_simd().decode())
"""


def test_distances_are_right_in_every_instruction_set(
    python: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for limit in ("base", "avx2", ""):
        monkeypatch.setenv("FLOWVEC_HNSW_SIMD", limit)
        done = python(LEVELS)
        assert done.returncode == 0, done.stderr
        names.append(done.stdout.strip())
    assert names[0] == "base"
    assert names[1] in ("base", "avx2")
    assert names[2] == "avx512" or names[2] == names[1]


# --- threads of the caller ------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no fork")
@pytest.mark.parametrize("what", ["save", "load"])
def test_other_threads_go_on_while_a_file_is_read_or_written(tmp_path: Path, what: str) -> None:
    """Opening a pipe waits for its other end, which this thread opens: it needs Python's lock."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    graph = graph_of(whole_numbers(10))
    errors: list[OSError] = []

    def work() -> None:
        try:
            graph.save(pipe) if what == "save" else HnswGraph.load(pipe, "l2", DIM, M)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with pipe.open("rb" if what == "save" else "wb") as file:
        if what == "save":
            assert len(file.read()) == graph.file_bytes
    thread.join(60)
    assert not thread.is_alive()
    assert len(errors) == (what == "load")  # a pipe has no size


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no fork")
def test_a_file_is_written_beside_searches_and_deletions(tmp_path: Path) -> None:
    """Each write to a pipe waits for its reader, which searches and deletes first."""
    pipe, rows = tmp_path / "pipe", whole_numbers(8000)
    os.mkfifo(pipe)
    graph = graph_of(rows)
    thread = threading.Thread(target=graph.save, args=(pipe,), daemon=True)
    thread.start()
    with pipe.open("rb") as file:
        begin = file.read(100)
        marked: list[bool] = []

        def delete() -> None:
            marked.extend(graph.delete(np.arange(7000, 7100)))

        beside = threading.Thread(target=delete, daemon=True)
        beside.start()
        beside.join(600)
        labels, _ = search(graph, rows, rows[:20], 50, 200, 2)
        is_beside = thread.is_alive()  # more than a pipe and a buffer hold is still to come
        (tmp_path / "g").write_bytes(begin + file.read())
    thread.join(60)
    assert is_beside
    assert marked == [True] * 100
    assert not np.isin(labels, np.arange(7000, 7100)).any()
    assert not graph.delete(np.arange(7000, 7100)).any()
    again = HnswGraph.load(tmp_path / "g", "l2", DIM, M)
    labels, deleted = again.labels()
    assert (labels == np.arange(8000)).all()
    assert set(labels[deleted].tolist()) <= set(range(7000, 7100))
    assert graph.deleted == 100


def test_searches_and_changes_may_come_at_once() -> None:
    rows = whole_numbers(4000)
    graph = graph_of(rows[:1000])
    graph.resize(1000)
    problems: list[object] = []

    def ask() -> None:
        for n in range(200):
            labels, found = search(graph, rows, rows[n : n + 2], 5, 20, 2)
            if not (labels >= 0).all() or (np.diff(found, axis=1) > 0).any():
                problems.append(labels)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(1000, 4000, 100):
        graph.resize(start + 100)
        graph.add(np.arange(start, start + 100), rows[start : start + 100], 2)
        graph.delete(np.arange(start - 500, start - 495))
    for thread in threads:
        thread.join()
    assert not problems
    assert (len(graph), graph.deleted, graph.capacity) == (4000, 150, 4000)


# --- what is refused ------------------------------------------------------------------------------


def test_wrong_arguments_are_refused_and_change_nothing(tmp_path: Path) -> None:
    graph = graph_of(whole_numbers(10))
    graph.resize(20)
    graph.save(tmp_path / "before")
    one = whole_numbers(1)
    nan, infinite = np.full((2, 1, DIM), [[[np.nan]], [[np.inf]]], np.float32)
    for labels, rows in (
        ([9], one), ([-1], one), ([12, 11], whole_numbers(2)), ([11, 11], whole_numbers(2)),
        ([11], nan), ([11], infinite), ([11, 12], one), ([11], whole_numbers(1, DIM + 1)),
        (range(10, 21), whole_numbers(11)),
    ):  # fmt: skip
        with pytest.raises(HnswError):
            graph.add(np.array(labels), rows)
    for call in (
        lambda: graph.resize(9),
        lambda: graph.resize(1 << 31),
        lambda: search(graph, one, one, 0, 10),
        lambda: search(graph, one, one[0], 1, 10),
        lambda: search(graph, one, one, 1, 10, labels=np.arange(2)),
        lambda: search(graph, whole_numbers(1, DIM + 1), one, 1, 10),
        lambda: HnswGraph("cosine", 4, 1),  # type: ignore[arg-type]
        lambda: HnswGraph("ip", 0, 1),
        lambda: HnswGraph("ip", 4, 1, m=1),
        lambda: HnswGraph("ip", 4, 1 << 31),
    ):
        with pytest.raises(HnswError):
            call()
    with pytest.raises(TypeError, match="save it to a file"):
        pickle.dumps(graph)
    graph.save(tmp_path / "after")
    assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()


def test_files_that_cannot_be_read_or_written_are_the_systems_errors(tmp_path: Path) -> None:
    graph = graph_of(whole_numbers(100))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        graph.save(tmp_path / "nowhere" / "g")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        HnswGraph.load(tmp_path / "nowhere", "l2", DIM)
    with pytest.raises((OSError, GraphFileError)):
        HnswGraph.load(tmp_path, "l2", DIM)
    graph.save(tmp_path / "\u00fc \u732b")  # any name
    assert len(HnswGraph.load(tmp_path / "\u00fc \u732b", "l2", DIM, M)) == 100


def test_a_full_disk_is_an_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for rows in (10, 8_000):  # noticed at the end, and before
        with pytest.raises(OSError, match="No space left"):
            graph_of(whole_numbers(rows, 2)).save("/dev/full")
