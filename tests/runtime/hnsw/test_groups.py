"""Rows with equal or nearly equal vectors: they hide no other rows, and each of them is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.hnsw import GraphFileError, HnswGraph
from tests.runtime.hnsw.graphs import scores_of, search

DIM, OTHERS, GROUPED = 24, 400, 1000
METRICS = ("cosine", "ip", "l2")


def vectors(rows: int, metric: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = rng.normal(size=(rows, DIM))
    if metric == "cosine":
        made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made.astype(np.float32)


def graph_of(rows: np.ndarray, metric: str) -> HnswGraph:
    graph = HnswGraph("l2" if metric == "l2" else "ip", DIM, len(rows))
    for start in range(0, len(rows), 400):  # copies in one call, and in several
        part = rows[start : start + 400]
        graph.add(np.arange(start, start + len(part)), part)
    return graph


def exact(queries: np.ndarray, rows: np.ndarray, metric: str) -> np.ndarray:
    """Scores, of distances in a form that takes less memory than differences."""
    left, right = queries.astype(float), rows.astype(float)
    if metric != "l2":
        return left @ right.T
    squared = (left**2).sum(1)[:, None] - 2 * left @ right.T + (right**2).sum(1)
    return -np.sqrt(np.maximum(squared, 0))


def recall(graph: HnswGraph, queries: np.ndarray, rows: np.ndarray, metric: str) -> float:
    """A row as near as the tenth is one of the ten nearest, whichever of equal ones it is."""
    tenth = -np.sort(-exact(queries, rows, metric), axis=1)[:, 9:10]
    found = search(graph, rows, queries, 10, 60)[1]
    return float(np.mean(found >= tenth - 2e-6 * (1 + np.abs(tenth))))


def copies_of(centres: np.ndarray, apart: float) -> np.ndarray:
    rng = np.random.default_rng(9)
    rows = np.repeat(centres, GROUPED // len(centres), axis=0)
    return (rows + apart * rng.normal(size=rows.shape)).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("groups", "apart", "order"),
    [
        (1, 0.0, "mixed"), (1, 0.0, "first"), (1, 1e-7, "last"), (100, 1e-7, "mixed"),
        (100, 0.0, "last"), ("zero", 0.0, "first"), ("zero", 1e-7, "mixed"),
    ],
)  # fmt: skip
def test_equal_rows_hide_no_others(metric: str, groups: Any, apart: float, order: str) -> None:
    others, queries = vectors(OTHERS, metric, 0), vectors(100, metric, 1)
    centres = np.zeros((1, DIM)) if groups == "zero" else vectors(groups, metric, 2)
    copies = copies_of(centres, apart)
    rows = np.concatenate((copies, others) if order == "first" else (others, copies))
    if order == "mixed":
        rows = rows[np.random.default_rng(3).permutation(len(rows))]
    graph = graph_of(rows, metric)
    alone = recall(graph_of(others, metric), queries, others, metric)
    assert recall(graph, queries, rows, metric) >= alone - 0.01
    # Every row that an exact search finds first is found by its own vector.
    scores = exact(rows, rows, metric)
    own = np.diagonal(scores)
    is_first = own >= scores.max(axis=1) - 1e-6
    labels, found = search(graph, rows, rows, 1, 60)
    assert (found[is_first, 0] >= own[is_first] - 2e-6 * (1 + np.abs(own[is_first]))).all()
    if metric == "l2":  # only here float32 tells nearly equal rows apart
        assert (rows[labels[:, 0]] == rows).all()


def test_each_row_of_a_group_is_returned_in_the_order_of_labels() -> None:
    others, twin = vectors(300, "cosine", 0), vectors(1, "cosine", 1)
    rows = np.repeat(twin, 1200, axis=0)  # by label
    rows[:300] = others
    graph = HnswGraph("ip", DIM, 600)
    graph.add(np.arange(1000, 1200), rows[1000:])
    graph.add(np.arange(300), others)
    graph.add(np.arange(500, 600), rows[500:600])  # lower labels, later
    own = [*range(500, 600), *range(1000, 1200)]
    assert (len(graph), graph.nodes) == (600, 301)
    for k in (1, 10, 300):
        assert search(graph, rows, twin, k, 50)[0][0].tolist() == own[:k]
    labels, scores = search(graph, rows, twin, 350, 350)
    assert labels[0, :300].tolist() == own
    assert len({*labels[0].tolist()}) == 350
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_rows_that_eight_bits_do_not_tell_apart_have_their_own_scores(metric: str) -> None:
    """Between these rows is less than their numbers in the graph can say."""
    centres, rng = vectors(40, metric, 0), np.random.default_rng(1)
    rows = np.repeat(centres, 25, axis=0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True) / DIM**0.5
    rows += (2e-4 * lengths * rng.normal(size=rows.shape)).astype(np.float32)
    graph = graph_of(rows, metric)
    assert graph.nodes < len(rows)
    labels, found = search(graph, rows, rows, 10, 60)
    best = -np.sort(-exact(rows, rows, metric), axis=1)[:, :10]
    assert np.mean(found >= best[:, 9:] - 2e-6 * (1 + np.abs(best[:, 9:]))) > 0.99
    scores = np.take_along_axis(exact(rows, rows, metric), labels, 1)
    np.testing.assert_allclose(found, scores, atol=2e-5 if metric != "l2" else 2e-4)


def test_rows_of_a_group_are_deleted_one_by_one(tmp_path: Path) -> None:
    others, twin = vectors(200, "l2", 0), vectors(1, "l2", 1)
    rows = np.concatenate((others, np.repeat(twin, 50, axis=0), twin + np.float32(1e-7)))
    graph = graph_of(rows, "l2")
    assert graph.nodes == 201
    assert graph.delete(np.array([200, 201, 201, 7])).tolist() == [True, True, False, True]
    assert search(graph, rows, twin, 2, 20)[0][0].tolist() == [202, 203]
    graph.save(tmp_path / "g")
    assert (tmp_path / "g").stat().st_size == graph.file_bytes
    again = HnswGraph.load(tmp_path / "g", "l2", DIM)
    rows = np.concatenate((rows, np.repeat(twin, 50, axis=0)))  # those that come later too
    for held in (graph, again):
        assert (len(held), held.deleted, held.nodes) == (251, 3, 201)
        held.delete(np.arange(202, 250))  # all but the one that is nearly equal
        assert search(held, rows, twin, 1, 20)[0][0].tolist() == [250]
        held.delete(np.array([250]))
        assert held.deleted == 52
        labels, _ = search(held, rows, twin, 199, 300)
        assert sorted(labels[0].tolist()) == [i for i in range(200) if i != 7]
        held.resize(300)
        held.add(np.array([300]), twin)  # hardly any link leads to its old node
        assert search(held, rows, twin, 1, 20)[0][0].tolist() == [300]
        assert (len(held), held.deleted, held.nodes) == (252, 52, 202)
        labels, deleted = held.labels()
        assert sorted(labels.tolist()) == [*range(251), 300]
        assert sorted(labels[~deleted].tolist()) == [i for i in range(200) if i != 7] + [300]
    graph.save(tmp_path / "one")
    again.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("space", ["ip", "l2"])
def test_rows_of_a_cluster_are_told_apart_though_rounding_moves_them_further(space: Any) -> None:
    """Their errors are at right angles to them, so those of rows near each other cancel out."""
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(16, 64)), 150, axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows += 0.03 * rng.normal(size=rows.shape) / 8
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows.astype(np.float32)
    graph = HnswGraph(space, 64, len(rows))
    graph.add(np.arange(len(rows)), rows)
    assert graph.nodes == len(rows)
    queries, scores = rows[::4], exact(rows[::4], rows, "cosine")
    found, _ = search(graph, rows, queries, 10, 60)
    tenth = -np.sort(-scores, axis=1)[:, 9:10]
    assert np.mean(np.take_along_axis(scores, found, 1) >= tenth - 1e-7) > 0.98


def test_rows_that_come_again_after_many_others_are_found() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6500, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[6000:] = rows[:500]
    graph = HnswGraph("ip", 64, len(rows), 16, 100)
    graph.add(np.arange(1000), rows[:1000])
    graph.delete(np.arange(500))
    for start in range(1000, len(rows), 500):
        graph.add(np.arange(start, start + 500), rows[start : start + 500])
    found, _ = search(graph, rows, rows[6000:], 1, 60)
    assert (found[:, 0] == np.arange(6000, 6500)).mean() > 0.98


@pytest.mark.parametrize("space", ["ip", "l2"])
def test_a_node_whose_own_row_is_deleted_hides_no_better_row(space: Any) -> None:
    rng = np.random.default_rng(0)
    others = rng.normal(size=(400, DIM)).astype(np.float32) / DIM**0.5
    e, f = np.eye(2, DIM, dtype=np.float32)
    own, near, better = (
        (1.012 * e, e, 1.008 * e + 0.3 * f)
        if space == "ip"
        else (1.012 * e, e, 1.015 * e + 0.2 * f)
    )
    rows = np.concatenate((others, np.stack((own, near, better)).astype(np.float32)))
    graph = HnswGraph(space, DIM, len(rows))
    graph.add(np.arange(len(rows)), rows)
    assert graph.nodes == len(rows) - 1
    graph.delete(np.array([400]))
    query = (e if space == "ip" else 3 * e)[None]
    best = scores_of(query, rows, space)[0]
    best[400] = -np.inf
    for k in (1, 2):
        found = search(graph, rows, query, k, 60)[0][0]
        assert found.tolist() == np.argsort(-best)[:k].tolist()


def test_copies_share_a_node_whatever_the_other_lengths(tmp_path: Path) -> None:
    """The usual length changes as rows come: they may be longer, shorter, or much longer."""
    rng = np.random.default_rng(0)
    for factor in (0.1, 0.7, 1.5, 3.0, 40.0):
        rows = rng.normal(size=(300, 40)).astype(np.float32)
        rows[10:] *= factor
        graph = HnswGraph("l2", 40, 600)
        for start in range(0, 300, 10):
            graph.add(np.arange(start, start + 10), rows[start : start + 10])
        graph.add(np.arange(300, 600), rows)
        assert (len(graph), graph.nodes) == (600, 300)


@pytest.mark.parametrize("place", [3, 100])
def test_one_long_row_changes_nothing_for_the_others(place: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[place] *= 1e6
    graph = HnswGraph("ip", 64, 2000)
    for start in range(0, 2000, 8):
        graph.add(np.arange(start, start + 8), rows[start : start + 8])
    assert graph.nodes == 2000
    queries = rng.normal(size=(100, 64)).astype(np.float32)
    best = np.argsort(-(queries @ rows.T), axis=1)[:, :10]
    found, _ = search(graph, rows, queries, 10, 100)
    assert np.mean([np.isin(a, b).mean() for a, b in zip(best, found, strict=True)]) > 0.93


def test_threads_group_the_same_rows() -> None:
    rows = np.repeat(vectors(100, "ip", 0), 20, axis=0)
    graph = HnswGraph("ip", DIM, len(rows))
    graph.add(np.arange(len(rows)), rows, 8)
    assert graph.nodes == 100
    assert (search(graph, rows, rows, 1, 50)[0][:, 0] // 20 == np.arange(2000) // 20).mean() > 0.5
    labels, _ = search(graph, rows, rows[::20], 2000, 2000)
    assert (np.sort(labels, axis=1) == np.arange(2000)).all()


def change(file: Path, place: int, value: bytes) -> None:
    data = bytearray(file.read_bytes())
    data[place : place + len(value)] = value
    file.write_bytes(data)


def test_a_group_of_one_row_is_refused(tmp_path: Path) -> None:
    graph, rows = HnswGraph("ip", DIM, 20), vectors(10, "ip", 0)
    graph.add(np.arange(10), rows)
    graph.add(np.array([20]), rows[4:5])
    graph.save(tmp_path / "g")
    whole = (tmp_path / "g").read_bytes()
    head = len(whole) - 18 - 16 - 12
    of_one = (1).to_bytes(8, "little") + whole[-26:-10] + b"\0"
    for count, rest in ((0, b""), (1, of_one)):
        changed = whole[: head + 4] + count.to_bytes(4, "little") + whole[head + 8 : head + 12]
        (tmp_path / "g").write_bytes(changed + rest)
        with pytest.raises(GraphFileError, match="one row"):
            HnswGraph.load(tmp_path / "g", "ip", DIM)


@pytest.mark.parametrize(
    ("back", "value", "part"),
    [
        (8 + 12 + 16 + 27, b"\xff" * 8, "cut|node"),
        (12 + 16 + 27, (10).to_bytes(4, "little"), "belong to a node"),
        (8 + 16 + 27, (9).to_bytes(4, "little"), "cut"),
        (4 + 16 + 27, b"\xff" * 4, "radius"),
        (16 + 27, (1 << 60).to_bytes(8, "little"), "cut"),
        (8 + 27, bytes(8), "not its node's"),
        (27, (99).to_bytes(8, "little"), "lacks the row of its node"),
        (19, (1 << 63).to_bytes(8, "little"), "out of range"),
        (19, (9).to_bytes(8, "little"), "same label"),
        (1, b"\x02", "not valid"),
    ],
)
def test_damaged_groups_are_refused(tmp_path: Path, back: int, value: bytes, part: str) -> None:
    graph, rows = HnswGraph("ip", DIM, 20), vectors(10, "ip", 0)
    graph.add(np.arange(10), rows)
    graph.add(np.array([20, 30]), rows[[4, 4]])
    graph.save(tmp_path / "g")
    change(tmp_path / "g", (tmp_path / "g").stat().st_size - back, value)
    with pytest.raises(GraphFileError, match=part):
        HnswGraph.load(tmp_path / "g", "ip", DIM)
