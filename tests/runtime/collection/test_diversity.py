"""Maximal marginal relevance, and the vectors of hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Collection, Encoder, Hit, InputTypeError, InputValueError, Reranker
from flowvec.collection.diversity import most_diverse
from flowvec.vectors import METRICS
from tests.drawing import examples
from tests.makers import unit, vectors


def similarity(a: np.ndarray, b: np.ndarray, metric: str) -> float:
    if metric == "l2":
        return -float(np.linalg.norm(a - b))
    if metric == "cosine":
        a, b = unit(a[None])[0], unit(b[None])[0]
    return float(a @ b)


@examples(60)
@given(
    rows=st.integers(1, 12),
    k=st.integers(1, 14),
    weight=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 10**6),
)
@pytest.mark.parametrize("metric", METRICS)
def test_each_hit_is_the_best_by_the_definition(
    metric: Any, rows: int, k: int, weight: float, seed: int
) -> None:
    points, query = vectors(rows, 3, seed), vectors(1, 3, seed + 1)[0]
    relevance = np.array([similarity(query, point, metric) for point in points])
    chosen = most_diverse(points, relevance, k, weight, metric)
    assert len(set(chosen)) == len(chosen) == min(k, rows)
    for place, row in enumerate(chosen):
        before = chosen[:place]

        def value(i: int, before: list[int] = before) -> float:
            near = max((similarity(points[i], points[j], metric) for j in before), default=0.0)
            return weight * relevance[i] - (1 - weight) * near if before else relevance[i]

        best = max(value(i) for i in range(rows) if i not in before)
        assert value(row) == pytest.approx(best, abs=1e-5)


def test_diverse_hits_are_hits_of_a_search(tmp_path: Path) -> None:
    rows, query = vectors(60), vectors(1, seed=1)[0]
    with Collection.create(tmp_path / "c", dim=8) as c:
        assert c.search_mmr(query) == []
        c.add_vectors(range(60), rows, metadata=[{"even": i % 2 == 0} for i in range(60)])
        even = {"even": True}
        assert c.search_mmr(query, 7, lambda_mult=1, filter=even) == c.search(query, 7, filter=even)
        near = c.search(query, 20)
        hits = c.search_mmr(query, 5, fetch_k=20, lambda_mult=0.2, with_vectors=True)
        assert hits[0] == near[0]
        assert all(hit in near for hit in hits)
        assert hits != near[:5]
        for hit in hits:
            np.testing.assert_array_equal(hit.vector, rows[hit.id])
        assert all(hit.vector is None for hit in c.search_mmr(query, 5))
        assert len(c.search_mmr(query, 30, fetch_k=3)) == 30
        with pytest.raises(InputValueError, match="k must be at least 1"):
            c.search_mmr(query, 0)


def test_hits_have_vectors_on_request(tmp_path: Path, tiny: Encoder, reranker: Reranker) -> None:
    texts = ["the cat sleeps", "a dog runs", "the red house"]
    with Collection.create(tmp_path / "c", encoder=tiny, vector_dtype="float16") as c:
        c.add([0, 1, 2], texts)
        stored = {item.id: item.vector for item in c.rows()}

        def check(hits: list[Hit], expected: list[Hit]) -> None:
            assert hits == expected
            assert all(hit.vector is None for hit in expected)
            for hit in hits:
                np.testing.assert_array_equal(hit.vector, stored[hit.id])

        options: list[dict[str, Any]] = [{}, {"hybrid": True}, {"rerank": reranker}]
        for given_options in (*options, {"offset": 1, "group_by": "parent"}):
            check(
                c.search("a cat", with_vectors=True, **given_options),
                c.search("a cat", **given_options),
            )
        check(c.search_batch(["a cat"], with_vectors=True)[0], c.search_batch(["a cat"])[0])


def test_wrong_options_name_what_is_wrong(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        for weight in (-0.1, 1.5, float("nan")):
            with pytest.raises(InputValueError, match="lambda_mult"):
                c.search_mmr([1, 0], lambda_mult=weight)
        with pytest.raises(InputValueError, match="fetch_k"):
            c.search_mmr([1, 0], fetch_k=-1)
        with pytest.raises(InputTypeError, match="with_vectors"):
            c.search([1, 0], with_vectors=1)  # type: ignore[arg-type]
