"""Searches by text and vector: scores, order, k, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from flowvec import (
    Collection,
    Encoder,
    InputTypeError,
    InputValueError,
)
from tests.makers import vectors


def test_a_search_gives_min_k_n_hits_best_first(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        assert c.search(vectors(1)[0], k=5) == []
        c.add_vectors(range(30), vectors(30))
        for k in (1, 29, 30, 31, 1000):
            hits = c.search(vectors(1, seed=4)[0], k=k)
            assert len(hits) == min(k, 30)
            assert len({hit.id for hit in hits}) == len(hits)
            assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
        assert c.search_batch(np.empty((0, 8)), k=3) == []
        assert c.search_batch([], k=3) == []


def test_vectors_of_another_width_are_refused_with_both_widths(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        with pytest.raises(InputValueError, match=r"^query must have 2 dimensions, not 3$"):
            c.search([1, 2, 3])
        with pytest.raises(
            InputValueError, match=r"^queries must have the shape \(n, 2\), not \(2, 3\)"
        ):
            c.search_batch(np.ones((2, 3)))


def test_min_score_drops_the_rest(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["same", "half", "other"], [[1, 0], [1, 1], [0, 1]])
        assert [h.id for h in c.search([2, 0], k=3, min_score=0.5)] == ["same", "half"]
        assert c.search([1, 0], min_score=1.1) == []


@pytest.mark.parametrize(
    ("metric", "scores"),
    [
        ("cosine", {"a": 1.0, "b": 0.6, "c": 0.0}),
        ("ip", {"a": 2.0, "b": 3.0, "c": 0.0}),
        ("l2", {"a": -1.0, "b": -np.sqrt(20), "c": -np.sqrt(2)}),
    ],
)
def test_scores_are_the_metrics(tmp_path: Path, metric, scores) -> None:
    with Collection.create(tmp_path / "c", dim=2, metric=metric) as c:
        c.add_vectors(["a", "b", "c"], [[2, 0], [3, 4], [0, 1]])
        hits = c.search([1, 0], k=3)
        assert {hit.id: pytest.approx(hit.score, abs=1e-6) for hit in hits} == scores
        assert [hit.id for hit in hits] == sorted(scores, key=lambda i: -scores[i])
    with Collection.open(tmp_path / "c") as c:
        item = c.get(["b"])[0]
        assert item is not None
        assert item.vector.tolist() == [3, 4]  # kept as given


def test_a_zero_vector_scores_zero_under_cosine(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["zero", "one"], [[0, 0], [1, 0]])
        assert [(h.id, h.score) for h in c.search([1, 0])] == [("one", 1.0), ("zero", 0.0)]


@pytest.mark.parametrize(
    ("query", "k", "error"),
    [
        ([1.0], 1, InputValueError),
        ([[1.0, 2.0]], 1, InputValueError),
        ([1.0, float("nan")], 1, InputValueError),
        ([1.0, float("inf")], 1, InputValueError),
        ([1e30, 0.0], 1, InputValueError),
        (["a", None], 1, InputTypeError),
        ({"a": 1}, 1, InputTypeError),
        ([1.0, 2.0], -1, InputValueError),
        ([1.0, 2.0], 1.5, InputTypeError),
        ([1.0, 2.0], True, InputTypeError),
    ],
)
def test_a_query_that_cannot_be_served_is_refused(tmp_path: Path, query, k, error) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], [[1, 0]])
        with pytest.raises(error):
            c.search(query, k=k)
        assert len(c.search([1, 0])) == 1


def test_an_enormous_k_gives_all_rows_also_of_hybrid_and_filtered_searches(
    tmp_path: Path, mini: Encoder
) -> None:
    with Collection.create(tmp_path / "c", encoder=mini) as c:
        c.add(["a", "b"], ["a cat sleeps", "stocks fell"])
        for options in ({}, {"hybrid": True}, {"filter": {}}):
            assert len(c.search("cat", k=10**400, **options)) == 2  # type: ignore[arg-type]
        assert c.search("cat", min_score=float("inf")) == []
        c.delete(["a", "b"])
        assert c.search("cat", k=3, hybrid=True) == []


def test_an_enormous_k_gives_all_rows_of_a_graph(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=4, index="graph", exact_below=20) as c:
        c.add_vectors(range(30), vectors(30, dim=4))
        for wanted in (None, {}, {"n": {"exists": False}}):
            assert len(c.search(vectors(1, dim=4)[0], k=10**400, filter=wanted)) == 30


@pytest.mark.parametrize("rows", [40, 400])
def test_ids_alone_are_those_of_the_hits(tmp_path: Path, rows: int) -> None:
    queries = vectors(7, seed=5)
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(rows), vectors(rows), metadata=[{"n": i} for i in range(rows)])
        for options in ({}, {"filter": {"n": {"<": 20}}}):
            for _ in range(2):
                hits = c.search_batch(queries, 6, **options)
                ids, scores = c.search_ids(queries, 6, **options)
                assert ids == [[hit.id for hit in line] for line in hits]
                expected = [[hit.score for hit in line] for line in hits]
                np.testing.assert_allclose(scores, expected, atol=1e-6)
                c.add_vectors(["new"], queries[:1])
                assert c.search_ids(queries[:1], 1)[0] == [["new"]]
                c.delete(["new"])
        assert c.search_ids(np.empty((0, 8)), 3)[0] == []


def test_queries_and_vectors_that_are_none_are_refused_without_a_warning(tmp_path: Path) -> None:
    class NeedsGradient:
        """What a tensor of torch does that requires gradients."""

        def __array__(self, dtype: object = None, copy: object = None) -> None:
            raise RuntimeError("call detach() first")

    lazy = type(
        "LazyFrame", (), {"columns": property(lambda _: warnings.warn("slow", stacklevel=1))}
    )
    with Collection.create(tmp_path / "c", dim=2) as c, warnings.catch_warnings():
        warnings.simplefilter("error")
        for query in (None, 3, 2.5, np.float32(1)):
            with pytest.raises(InputTypeError, match="query must be a text"):
                c.search(cast(Any, query))
            with pytest.raises(InputTypeError, match="queries must be texts"):
                c.search_batch(cast(Any, query))
        with pytest.raises(InputTypeError, match=r"not texts: .*search_batch"):
            c.search(cast(Any, ["a cat"]))
        with pytest.raises(InputTypeError, match=r"queries must be .* None"):
            c.search_batch(cast(Any, [None]))
        for weight in (0.5, 0.2):
            with pytest.raises(InputValueError, match=r"vector_weight .*hybrid=True"):
                c.search([1, 0], vector_weight=weight)
        with pytest.raises(InputValueError, match=r"row 1 of vectors .* huge"):
            c.add_vectors([1, 2], [[1, 0], [1e300, 0]])
        with pytest.raises(InputTypeError, match="detach"):
            c.add_vectors([1], cast(Any, NeedsGradient()))
        with pytest.raises(InputTypeError, match=r"metadata .*\.collect\(\)"):
            c.add_vectors([1], [[1, 0]], metadata=lazy())
        with pytest.raises(InputTypeError, match=r"ids .*not a LazyFrame"):
            c.add_vectors(cast(Any, lazy()), [[1, 0]])
