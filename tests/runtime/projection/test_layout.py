"""A layout keeps neighbours together, by its seed alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowvec.projection.layout import edges_of, layouts
from tests.drawing import examples


@examples(50)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 30), k=st.integers(1, 5))
def test_each_pair_of_neighbours_is_one_edge(seed: int, rows: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    neighbours = rng.integers(-1, rows, (rows, k))
    distances = np.sort(rng.random((rows, k)).astype(np.float32), 1)
    edges = edges_of(rows, neighbours, distances)
    pairs = {
        frozenset((row, int(other)))
        for row, line in enumerate(neighbours)
        for other in line
        if other not in (-1, row)
    }
    assert len(edges.left) == len(pairs)
    assert {frozenset(pair) for pair in zip(edges.left.tolist(), edges.right.tolist())} == pairs  # noqa: B905
    assert ((edges.weights > 0) & (edges.weights <= 1)).all()


def test_two_rings_come_apart_and_the_seed_decides() -> None:
    rows = 60
    ring = np.arange(rows)
    half = rows // 2
    neighbours = np.stack([ring // half * half + (ring + step) % half for step in (1, 2, 3)], 1)
    edges = edges_of(rows, neighbours, np.tile(np.float32([1, 2, 3]), (rows, 1)))
    start = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    *_, first = layouts(start, edges, rounds=150, seed=1)
    *_, again = layouts(start, edges, rounds=150, seed=1)
    *_, other = layouts(start, edges, rounds=150, seed=2)
    assert (first == again).all()
    assert not np.allclose(first, other)
    assert np.isfinite(first).all()
    distances = np.linalg.norm(first[:, None] - first[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (distances.argmin(1) // half == ring // half).all()


def test_rows_without_neighbours_stay_finite() -> None:
    neighbours = np.full((4, 3), -1)
    edges = edges_of(4, neighbours, np.zeros((4, 3), np.float32))
    *_, last = layouts(np.zeros((4, 2), np.float32), edges, rounds=5, seed=0)
    assert np.isfinite(last).all()
