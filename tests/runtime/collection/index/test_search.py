"""The recall of a graph search, `ef`, `exact` and `exact_below`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from flowvec.collection.index.hnsw import Graph
from flowvec.collection.index.search import candidates, search_graph, search_rest
from flowvec.collection.index.vector_format import HEADER_BYTES
from flowvec.collection.index.vector_table import VectorTable
from flowvec.vectors import METRICS, Metric, top_k
from tests.makers import unit, vectors


def search_table(
    table: VectorTable,
    queries: np.ndarray,
    k: int,
    mask: np.ndarray | None,
    graph: Graph,
    in_graph: int,
    ef: int = 100,
) -> tuple[np.ndarray, np.ndarray]:
    """A search by a graph and exactly, as `VectorIndex` does it."""
    hits = search_graph(table, graph, in_graph, queries, k, mask, ef)
    return search_rest(table, queries, k, mask, hits)


def test_a_large_collection_uses_its_graph_and_keeps_recall(tmp_path: Path) -> None:
    rows = vectors(400)
    queries = vectors(40, seed=9)
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(300), rows[:300])
        c.prepare()  # builds the graph, which follows later adds
        c.add_vectors(range(300, 400), rows[300:])
        c.prepare()
        c.delete(range(0, 400, 7))
        assert c.info().search == "graph"
        assert c.info().graph_rows == 400
        before = [[h.id for h in hits] for hits in c.search_batch(queries, k=5)]
    assert [p.name for p in (tmp_path / "c").glob("graph-*.hnsw")] == ["graph-1.hnsw"]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    live = [i for i in range(400) if i % 7]
    exact = [{live[j] for j in np.argsort(-(unit[live] @ q))[:5]} for q in queries]
    recall = np.mean([len(set(a) & b) / 5 for a, b in zip(before, exact, strict=True)])
    assert recall >= 0.99
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        c.prepare()
        after = [[h.id for h in hits] for hits in c.search_batch(queries, k=5)]
        assert c.info().graph_rows == 400  # loaded, not rebuilt
        assert after == before


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_an_exact_search_misses_nothing(tmp_path: Path, metric: Metric) -> None:
    rng = np.random.default_rng(0)
    rows, queries = (rng.normal(size=(n, 24)).astype(np.float32) for n in (3000, 200))
    with Collection.create(
        tmp_path / "c", dim=24, metric=metric, index="graph", exact_below=50
    ) as c:
        c.add_vectors(range(3000), rows, metadata=[{"half": i % 2} for i in range(3000)])
        c.prepare()
        assert c.info().search == "graph"
        left, right = (
            (a / np.linalg.norm(a, axis=1, keepdims=True) if metric == "cosine" else a)
            for a in (queries, rows)
        )
        for condition, stride in ((None, 1), ({"half": 0}, 2)):
            best, _ = top_k(left, right[::stride], 10, metric)
            true = (best * stride).tolist()
            if condition is None:  # a filter fetches more, and may well miss none
                assert c.search_ids(queries, 10, ef=10)[0] != true
            assert c.search_ids(queries, 10, filter=condition, exact=True)[0] == true
            hit_lists = c.search_batch(queries, 10, filter=condition, exact=True)
            assert [[hit.id for hit in line] for line in hit_lists] == true
            one = c.search(queries[0], 10, filter=condition, exact=True)
            assert [hit.id for hit in one] == true[0]


def test_ef_applies_to_one_search_only(tmp_path: Path) -> None:
    """Searches with other `ef` at the same time give what each gives alone."""
    rows, queries = vectors(4000, 24), vectors(30, 24, seed=1)
    with Collection.create(tmp_path / "c", dim=24, metric="ip", index="graph", exact_below=0) as c:
        c.add_vectors(range(4000), rows, metadata=[{"half": i % 2} for i in range(4000)])
        c.prepare()
        efs = (1, 10, 40, 400)
        alone = {ef: c.search_ids(queries, 10, ef=ef)[0] for ef in efs}
        true = c.search_ids(queries, 10, exact=True)[0]
        recalls = [np.mean([x == y for x, y in zip(alone[ef], true, strict=True)]) for ef in efs]
        assert recalls[0] == recalls[1] < recalls[2] < recalls[3]  # at least 28
        assert alone[400] != alone[10]
        assert c.search_ids(queries, 10)[0] == c.search_ids(queries, 10, ef=c.info().ef_search)[0]
        with ThreadPoolExecutor(4) as pool:
            results = list(
                pool.map(
                    lambda ef: (ef, c.search_ids(queries, 10, ef=ef)[0]), [*efs * 25], chunksize=1
                )
            )
        assert all(ids == alone[ef] for ef, ids in results)
        for ef in (10, 400):
            batch = c.search_batch(queries, 10, ef=ef)
            assert [[hit.id for hit in line] for line in batch] == alone[ef]
            assert [hit.id for hit in c.search(queries[0], 10, ef=ef)] == alone[ef][0]
            assert len(c.search(queries[0], 5000, ef=ef)) == 4000
            assert len(c.search(queries[0], 10, ef=ef, filter={"half": 1})) == 10


def test_a_search_goes_no_further_than_there_are_rows(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=0) as c:
        c.add_vectors(range(20), vectors(20))
        c.delete(range(15))
        assert c.info().search == "graph"
        for k in (1, 5, 9):
            assert len(c.search(vectors(1)[0], k, ef=1000)) == min(k, 5)


def test_up_to_how_many_rows_a_search_is_exact_is_the_callers(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=60) as c:
        c.add_vectors(range(60), vectors(60))
        assert c.info().search == "exact"
        c.add_vectors([60], vectors(1))
        assert c.info().search == "graph"
    with Collection.open(tmp_path / "c") as c:
        assert c.info().search == "exact"
    with Collection.open(tmp_path / "c", index="graph", exact_below=0) as c:
        assert c.info().search == "graph"
    with Collection.open_or_create(tmp_path / "c", dim=8, index="graph", exact_below=0) as c:
        assert c.info().search == "graph"


def test_an_exact_search_is_exact_however_much_another_handle_has_added(tmp_path: Path) -> None:
    rows, queries = vectors(3000, 24), vectors(20, 24, seed=1)
    with Collection.create(tmp_path / "c", dim=24, metric="ip", index="graph", exact_below=50) as c:
        c.add_vectors(range(40), rows[:40])
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader:
            assert reader.info().search == "exact"
            c.add_vectors(range(40, 3000), rows[40:])
            c.tune_recall(0.01)  # the graph is searched as little as can be from now on
            true = top_k(queries, rows, 10, "ip")[0].tolist()
            reader.prepare()
            assert reader.search_ids(queries, 10, exact=True)[0] == true
            assert reader.search_ids(queries, 10)[0] != true


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_a_graph_keeps_recall_and_scores_at_any_scale(tmp_path: Path, metric, scale) -> None:
    rows, queries = vectors(400) * np.float32(scale), vectors(20, seed=3) * np.float32(scale)
    with Collection.create(
        tmp_path / "c", dim=8, metric=metric, index="graph", exact_below=50
    ) as c:
        c.add_vectors(range(400), rows)
        for _ in range(2):  # built, then loaded
            hit_lists = c.search_batch(queries, k=5)
            c.close()
            c = Collection.open(tmp_path / "c", index="graph", exact_below=50)
        c.close()
    a, b = rows.astype(np.float64), queries.astype(np.float64)
    if metric == "cosine":
        a /= np.linalg.norm(a, axis=1, keepdims=True)
        b /= np.linalg.norm(b, axis=1, keepdims=True)
    exact = b @ a.T if metric != "l2" else -np.linalg.norm(b[:, None] - a[None], axis=2)
    recall = [
        len({h.id for h in hits} & set(np.argsort(-line)[:5].tolist())) / 5
        for hits, line in zip(hit_lists, exact, strict=True)
    ]
    assert np.mean(recall) >= 0.98
    for hits, line in zip(hit_lists, exact, strict=True):
        scores = [hit.score for hit in hits]
        expected = [line[hit.id] for hit in hits]
        np.testing.assert_allclose(scores, expected, atol=2e-6 * np.abs(exact).max())


def test_k_above_what_a_graph_reaches_is_searched_exactly(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(200), vectors(200))
        c.search(vectors(1)[0])
        c.delete(range(90))
        assert len(c.search(vectors(1)[0], k=500)) == 110
        c.delete(range(90, 149))
        assert len(c.search(vectors(1)[0], k=500)) == 51
        c.delete(range(149, 199))
        assert [h.id for h in c.search(vectors(1)[0], k=500)] == [199]


@pytest.mark.parametrize("place", [0, 700, 1999])
def test_one_long_vector_does_not_spoil_inner_products(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(place)
    vectors, queries = rng.standard_normal((2000, 24)), rng.standard_normal((50, 24))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[place] *= 1e5
    with Collection.create(
        tmp_path / "c", dim=24, metric="ip", index="graph", exact_below=100
    ) as c:
        c.add_vectors(list(range(2000)), vectors)
        ids, scores = c.search_ids(queries, 10)
        exact, _ = c.search_ids(queries, 10, exact=True)
    shared = [len(set(hit_ids) & set(true)) for hit_ids, true in zip(ids, exact, strict=True)]
    assert np.mean(shared) > 8.5
    products = np.take_along_axis(queries @ vectors.T, np.asarray(ids), axis=1)
    np.testing.assert_allclose(scores, products, rtol=1e-4, atol=1e-5)


# --- tables with a graph ---------------------------------------------------------------------


def table_and_graph(metric: Metric, in_graph: int) -> tuple[VectorTable, Graph, np.ndarray]:
    """4,000 rows of which the graph has the first; some were deleted before and after."""
    rows = vectors(4000, 12)
    rows = unit(rows) if metric == "cosine" else rows
    labels = np.arange(1, 4001) * 2
    table = VectorTable(12, metric)
    table.append(labels, rows)
    graph = Graph(12, metric)
    if in_graph:
        graph.add(labels[:in_graph], rows[:in_graph])
        graph.delete(labels[5:in_graph:50].tolist())
    table.delete(labels[5::50])
    table.delete(labels[7::50])  # not in the graph yet
    return table, graph, rows


@pytest.mark.campaign(but=6)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("in_graph", [0, 1000, 3990, 4000])
@pytest.mark.parametrize("queries", [1, 40])
def test_a_graph_and_a_mask_find_the_nearest_eligible_rows(
    metric: Metric, in_graph: int, queries: int
) -> None:
    table, graph, rows = table_and_graph(metric, in_graph)
    rng = np.random.default_rng(1)
    asked = vectors(queries, 12, seed=3)
    asked = unit(asked) if metric == "cosine" else asked
    towards = rows @ asked[0]
    masks: dict[str, np.ndarray | None] = {
        "none": None,
        "all": np.ones(4000, np.bool_),
        "nothing": np.zeros(4000, np.bool_),
        "near": towards > np.quantile(towards, 0.9),
        "far": towards < np.quantile(towards, 0.1),
        **{f"{share}": rng.random(4000) < share for share in (0.9, 0.3, 0.03, 0.002)},
    }
    for name, mask in masks.items():
        eligible = table.live if mask is None else table.live & mask
        for k in (0, 1, 10, 300):
            labels, scores = search_table(table, asked, k, mask, graph, in_graph, ef=100)
            best, expected = top_k(asked, rows[eligible], k, metric)
            true = table.labels[eligible][best]
            assert labels.shape == scores.shape == true.shape, name
            assert eligible[table.slots_of(labels)].all(), name
            assert all(len(set(line)) == len(line) for line in labels.tolist())
            hits = [np.isin(a, b).mean() for a, b in zip(labels, true, strict=True) if len(b)]
            assert not hits or np.mean(hits) >= 0.98, (name, k)
            if not hits:
                continue
            assert (np.diff(scores, axis=1) <= 1e-5).all()
            same = labels == true
            np.testing.assert_allclose(scores[same], expected[same], rtol=1e-4, atol=1e-4)


def test_rows_that_the_graph_lacks_are_compared_exactly() -> None:
    table, graph, rows = table_and_graph("cosine", 3000)
    newest = np.flatnonzero(table.live[3000:]) + 3000
    labels, _ = search_table(table, rows[newest], 1, None, graph, 3000, ef=10)
    assert labels[:, 0].tolist() == table.labels[newest].tolist()


def test_a_graph_that_knows_rows_of_the_future_shows_none() -> None:
    """Rows that another thread adds to the graph before they are committed."""
    table, graph, rows = table_and_graph("ip", 4000)
    graph.add(np.array([9001]), rows[:1] * 100)
    labels, _ = search_table(table, rows[:3], 10, None, graph, 4000)
    assert 9001 not in labels
    # Nor are rows found twice that the graph has and the caller looks for itself.
    labels, _ = search_table(table, rows[:3], 10, None, graph, 3000)
    assert all(len(set(line)) == 10 for line in labels.tolist())


def test_the_graph_is_asked_where_that_is_cheaper() -> None:
    million = 1_000_000
    by_share = {share: candidates(10, int(share * million), million, share)
                for share in (0.9, 0.1, 0.03, 0.01, 0.001)}  # fmt: skip
    assert [by_share[share] is None for share in by_share] == [False, False, False, True, True]
    assert by_share[0.9] < by_share[0.1] < by_share[0.03]  # type: ignore[operator]
    # Eligible rows that are far from the query: so many are not worth asking for.
    assert candidates(10, million // 10, million, 0.0001) is None
    # Nor is the graph for all rows.
    assert candidates(million, million, million, 1.0) is None


def test_a_graph_gives_the_scores_of_damaged_rows_and_of_all_others(tmp_path: Path) -> None:
    """One of the file's blocks is damaged."""
    # Whole numbers: scores have no rounding.
    rows = np.random.default_rng(0).normal(0, 8, (1700, 240)).round().astype(np.float32)
    options: Any = {"index": "graph", "exact_below": 50}
    with Collection.create(tmp_path / "c", dim=240, metric="l2", **options) as c:
        c.add_vectors(range(1700), rows)
        c.prepare()
    (file,) = (tmp_path / "c").glob("vectors-*.f32")
    with file.open("r+b") as opened:
        opened.seek(HEADER_BYTES + 900 * 240 * 4 + 3)
        opened.write(b"\x41")
    with Collection.open(tmp_path / "c", **options) as c:
        c.prepare()
        assert c.info().mapped_bytes > 1700 * (240 * 4 + 356)  # vectors, and the graph's nodes
        for row in (900, 1690, 901):
            hit = c.search(rows[row], 1)[0]
            assert (hit.id, hit.score) == (row, 0.0)
        ids, scores = c.search_ids(rows[:50], 10)
        exact, right = c.search_ids(rows[:50], 10, exact=True)
        np.testing.assert_array_equal(np.array(scores)[:, 0], np.array(right)[:, 0])
        assert np.mean([a == b for a, b in zip(ids, exact, strict=True)]) > 0.5
