"""The graph: growth, tombstones, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowvec.collection.index.hnsw import Graph
from flowvec.errors import CollectionError
from flowvec.vectors import METRICS, top_k
from tests.makers import unit_vectors
from tests.runtime.collection.index.graphs import search


def labels(n: int, first: int = 1) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.int64)


@pytest.mark.parametrize("metric", METRICS)
def test_a_graph_grows_and_finds_what_an_exact_search_finds(metric) -> None:
    rows = unit_vectors(3000, 16)
    graph = Graph(16, metric)
    for start in range(0, 3000, 700):  # past its first capacity, twice
        part = rows[start : start + 700]
        graph.add(labels(len(part), start + 1), part)
    assert len(graph) == graph.total == 3000
    queries = unit_vectors(50, 16, seed=1)
    neighbours = search(graph, rows, queries, 10)
    assert neighbours is not None
    exact_rows, exact_scores = top_k(queries, rows, 10, metric)
    recall = np.mean(
        [len(set(a) & set(b + 1)) / 10 for a, b in zip(neighbours[0], exact_rows, strict=True)]
    )
    assert recall >= 0.95
    np.testing.assert_allclose(neighbours[1][:, 0], exact_scores[:, 0], atol=1e-6)
    assert (np.diff(neighbours[1], axis=1) <= 0).all()


def test_deleted_rows_are_never_found() -> None:
    rows = unit_vectors(500, 16)
    graph = Graph(16, "cosine")
    graph.add(labels(500), rows)
    gone = list(range(1, 400))
    graph.delete(gone)
    graph.delete(gone)  # marking twice counts once
    graph.delete([9999])
    assert len(graph) == 101
    assert graph.total == 500
    neighbours = search(graph, rows, rows[:50], 20)
    assert neighbours is not None
    assert not set(neighbours[0].ravel().tolist()) & set(gone)


def test_a_graph_without_rows_bears_deletions(python) -> None:
    """A null pointer would end the process."""
    done = python(
        "from flowvec.collection.index.hnsw import Graph\n"
        "Graph(4, 'l2').delete([1, 2]); print('alive')"
    )
    assert done.stdout == "alive\n"


def test_labels_come_in_ascending_order_once() -> None:
    graph = Graph(16, "l2")
    graph.add(labels(10, 5), unit_vectors(10, 16))
    for again in (labels(3, 14), labels(3, 1), np.array([20, 22, 21]), np.array([20, 20, 21])):
        with pytest.raises(CollectionError, match="ascending"):
            graph.add(again, unit_vectors(3, 16))
    assert len(graph) == 10


def test_more_than_can_be_reached_is_none_not_an_exception() -> None:
    graph = Graph(16, "cosine")
    rows = unit_vectors(20, 16)
    assert search(graph, rows, rows[:1], 1) is None
    graph.add(labels(20), rows)
    assert search(graph, rows, rows[:1], 21) is None
    graph.delete(range(1, 16))
    assert search(graph, rows, rows[:1], 6) is None


def test_a_saved_graph_loads_with_its_tombstones(tmp_path: Path) -> None:
    rows = unit_vectors(300, 16)
    graph = Graph(16, "cosine")
    graph.add(labels(300), rows)
    graph.delete([1, 2, 3])
    file = tmp_path / "graph-1.hnsw"
    graph.write(file)
    again = Graph(16, "cosine")
    live = labels(296, 5)  # label 4 was deleted after the file was written
    again.load(file, live)
    assert (len(again), again.total) == (296, 300)
    neighbours = search(again, rows, rows[:10], 5)
    assert neighbours is not None
    assert not set(neighbours[0].ravel().tolist()) & {1, 2, 3, 4}
    again.add(labels(2000, 301), unit_vectors(2000, 16, seed=2))
    assert len(again) == 2296


def test_a_graph_that_was_not_written_whole_is_refused() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    graph = Graph(16, "cosine")
    graph.add(labels(10), unit_vectors(10, 16))
    with pytest.raises(CollectionError, match="cannot write /dev/full"):
        graph.write(Path("/dev/full"))


def test_a_file_that_is_not_a_graph_is_a_typed_error(tmp_path: Path) -> None:
    file = tmp_path / "graph-1.hnsw"
    file.write_bytes(b"")
    with pytest.raises(CollectionError, match="not a graph"):
        Graph(16, "cosine").load(file, labels(1))


def test_a_graph_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    graph = Graph(16, "cosine")
    graph.add(labels(10), unit_vectors(10, 16))
    with pytest.raises(CollectionError, match="cannot write"):
        graph.write(tmp_path / "nowhere" / "graph-1.hnsw")
