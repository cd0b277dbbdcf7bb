"""Exact search against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.errors import InputValueError
from flowvec.vectors import METRICS, scores, top_k


def by_definition(query: np.ndarray, rows: np.ndarray, metric: str) -> np.ndarray:
    if metric == "l2":
        return -np.sqrt(((rows.astype(np.float64) - query) ** 2).sum(1))
    return rows.astype(np.float64) @ query


@given(
    n=st.integers(0, 60),
    k=st.integers(0, 80),
    queries=st.integers(0, 5),
    metric=st.sampled_from(METRICS),
    seed=st.integers(0, 2**32 - 1),
)
def test_top_k_is_the_sorted_definition(
    n: int, k: int, queries: int, metric: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    # Few distinct values, so that ties happen.
    rows = rng.integers(-2, 3, size=(n, 3)).astype(np.float32)
    query_vectors = rng.integers(-2, 3, size=(queries, 3)).astype(np.float32)
    labels, values = top_k(query_vectors, rows, k, metric)
    assert labels.shape == values.shape == (queries, min(k, n))
    for i in range(queries):
        expected = by_definition(query_vectors[i], rows, metric)
        order = sorted(range(n), key=lambda j: (-expected[j], j))[:k]
        assert labels[i].tolist() == order
        np.testing.assert_allclose(values[i], expected[order], atol=1e-6)


def test_blocks_give_the_same_as_one_product() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((500, 8), dtype=np.float32)
    queries = rng.standard_normal((37, 8), dtype=np.float32)
    whole = top_k(queries, rows, 7, "ip")
    parts = top_k(queries, rows, 7, "ip", scores_at_once=1500)
    np.testing.assert_array_equal(whole[0], parts[0])


def test_distances_of_equal_vectors_are_zero_not_nan() -> None:
    rows = np.full((1, 64), 0.1, dtype=np.float32)
    assert np.isfinite(scores(rows, rows, "l2")).all()


def test_distances_far_from_the_origin_are_exact() -> None:
    rng = np.random.default_rng(0)
    rows = (1000 + 0.1 * rng.standard_normal((200, 8))).astype(np.float32)
    labels, values = top_k(rows, rows, 1, "l2")
    assert labels[:, 0].tolist() == list(range(200))
    assert values.min() > -1e-3
    huge = np.full((2, 4), 9e18, dtype=np.float32)
    assert np.isfinite(scores(huge, -huge, "l2")).all()


def test_negative_k_is_refused() -> None:
    with pytest.raises(InputValueError, match="-1"):
        top_k(np.ones((1, 2), np.float32), np.ones((3, 2), np.float32), -1, "ip")
