"""The recall of a graph search, `ef`, `exact` and `exact_below`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    Collection,
)
from flowvec.vectors import Metric, top_k
from tests.makers import vectors


def test_a_large_collection_uses_its_graph_and_keeps_recall(tmp_path: Path) -> None:
    rows = vectors(400)
    queries = vectors(40, seed=9)
    with Collection.create(tmp_path / "c", dim=8, exact_below=50) as c:
        c.add_vectors(range(300), rows[:300])
        c.search(queries[0])  # builds the graph, which later adds must follow
        c.add_vectors(range(300, 400), rows[300:])
        c.delete(range(0, 400, 7))
        assert c.info().search == "hnsw"
        assert c.info().graph_rows == 400
        before = [[h.id for h in hits] for hits in c.search_batch(queries, k=5)]
    assert [p.name for p in (tmp_path / "c").glob("graph-*")] == ["graph-1.hnsw"]
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    live = [i for i in range(400) if i % 7]
    exact = [{live[j] for j in np.argsort(-(unit[live] @ q))[:5]} for q in queries]
    recall = np.mean([len(set(a) & b) / 5 for a, b in zip(before, exact, strict=True)])
    assert recall >= 0.99
    with Collection.open(tmp_path / "c", exact_below=50) as c:
        after = [[h.id for h in hits] for hits in c.search_batch(queries, k=5)]
        assert c.info().graph_rows == 400  # loaded, not rebuilt
        assert after == before


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_an_exact_search_misses_nothing(tmp_path: Path, metric: Metric) -> None:
    rng = np.random.default_rng(0)
    rows, queries = (rng.normal(size=(n, 24)).astype(np.float32) for n in (3000, 20))
    with Collection.create(tmp_path / "c", dim=24, metric=metric, exact_below=50) as c:
        c.add_vectors(range(3000), rows, metadata=[{"half": i % 2} for i in range(3000)])
        assert c.info().search == "hnsw"
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
    with Collection.create(tmp_path / "c", dim=24, metric="ip", exact_below=0) as c:
        c.add_vectors(range(4000), rows, metadata=[{"half": i % 2} for i in range(4000)])
        efs = (1, 10, 40, 400)
        alone = {ef: c.search_ids(queries, 10, ef=ef)[0] for ef in efs}
        true = c.search_ids(queries, 10, exact=True)[0]
        recalls = [np.mean([x == y for x, y in zip(alone[ef], true, strict=True)]) for ef in efs]
        assert recalls[0] == recalls[1] < recalls[2] < recalls[3]  # ten are always requested
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
    with Collection.create(tmp_path / "c", dim=8, exact_below=0) as c:
        c.add_vectors(range(20), vectors(20))
        c.delete(range(15))
        assert c.info().search == "hnsw"
        for k in (1, 5, 9):
            assert len(c.search(vectors(1)[0], k, ef=1000)) == min(k, 5)


def test_up_to_how_many_rows_a_search_is_exact_is_the_callers(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, exact_below=60) as c:
        c.add_vectors(range(60), vectors(60))
        assert c.info().search == "exact"
        c.add_vectors([60], vectors(1))
        assert c.info().search == "hnsw"
    with Collection.open(tmp_path / "c") as c:
        assert c.info().search == "exact"
    with Collection.open(tmp_path / "c", exact_below=0) as c:
        assert c.info().search == "hnsw"
    with Collection.open_or_create(tmp_path / "c", dim=8, exact_below=0) as c:
        assert c.info().search == "hnsw"


def test_an_exact_search_is_exact_however_much_another_handle_has_added(tmp_path: Path) -> None:
    rows, queries = vectors(3000, 24), vectors(20, 24, seed=1)
    with Collection.create(tmp_path / "c", dim=24, metric="ip", exact_below=50) as c:
        c.add_vectors(range(40), rows[:40])
        with Collection.open(tmp_path / "c", exact_below=50) as reader:
            assert reader.info().search == "exact"
            c.add_vectors(range(40, 3000), rows[40:])
            c.tune_recall(0.01)  # the graph is searched as little as can be from now on
            true = top_k(queries, rows, 10, "ip")[0].tolist()
            assert reader.search_ids(queries, 10, exact=True)[0] == true
            assert reader.search_ids(queries, 10)[0] != true


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("metric", ["ip", "l2", "cosine"])
def test_a_graph_keeps_recall_and_scores_at_any_scale(tmp_path: Path, metric, scale) -> None:
    rows, queries = vectors(400) * np.float32(scale), vectors(20, seed=3) * np.float32(scale)
    with Collection.create(tmp_path / "c", dim=8, metric=metric, exact_below=50) as c:
        c.add_vectors(range(400), rows)
        for _ in range(2):  # built, then loaded
            hit_lists = c.search_batch(queries, k=5)
            c.close()
            c = Collection.open(tmp_path / "c", exact_below=50)
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
    with Collection.create(tmp_path / "c", dim=8, exact_below=50) as c:
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
    with Collection.create(tmp_path / "c", dim=24, metric="ip", exact_below=100) as c:
        c.add_vectors(list(range(2000)), vectors)
        ids, scores = c.search_ids(queries, 10)
        exact, _ = c.search_ids(queries, 10, exact=True)
    shared = [len(set(hit_ids) & set(true)) for hit_ids, true in zip(ids, exact, strict=True)]
    assert np.mean(shared) > 8.5
    products = np.take_along_axis(queries @ vectors.T, np.asarray(ids), axis=1)
    np.testing.assert_allclose(scores, products, rtol=1e-4, atol=1e-5)
