"""The best pairs of a scan are those of comparing all pairs, with the same scores."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from flowvec.encoder.postprocess import normalize
from flowvec.hnsw import HnswError, PairScan

ALL = 1 << 40  # products: no limit


def unit_rows(count: int, dim: int, seed: int = 0, noise: float = 0.4) -> np.ndarray:
    """Clusters of rows of length 1."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(1 + count // 20, dim))
    rows = centres[rng.integers(0, len(centres), count)] + noise * rng.normal(size=(count, dim))
    return normalize(np.ascontiguousarray(rows, np.float32))


def products_of(rows: np.ndarray) -> np.ndarray:
    return rows.astype(np.float64) @ rows.astype(np.float64).T


def assert_best(
    rows: np.ndarray, k: int, floor: float = -np.inf, *, threads: int = 2, products: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """A scan finds the k best pairs; those whose scores differ by rounding may be exchanged."""
    found = PairScan(rows, threads).best(0, len(rows), k, floor, ALL)
    assert found is not None
    scores, pairs = found
    products = products_of(rows) if products is None else products
    exact = products[np.triu_indices(len(rows), 1)]
    expected = np.sort(exact[exact >= floor + 1e-6])[::-1][:k]
    assert len(expected) <= len(scores) <= min(k, int((exact >= floor - 1e-6).sum()))
    np.testing.assert_allclose(scores[: len(expected)], expected, atol=2e-6)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    is_found = np.zeros(products.shape, bool)
    is_found[pairs[:, 0], pairs[:, 1]] = True
    assert is_found.sum() == len(pairs)
    np.testing.assert_allclose(scores, products[pairs[:, 0], pairs[:, 1]], atol=2e-6)
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -scores))
    np.testing.assert_array_equal(order, np.arange(len(order)))
    return found


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 9, 31, 64, 159, 160, 161, 255, 384, 400])
def test_a_scan_finds_the_best_pairs(kernels: str, dim: int) -> None:
    for count, noise in ((2, 0.4), (9, 0.4), (513, 0.05), (530, 3.0)):
        rows = unit_rows(count, dim, seed=count, noise=noise)
        products = products_of(rows)
        for k, floor in ((1, -np.inf), (1000, -1.5), (count * count, -np.inf)):
            assert_best(rows, k, floor, products=products)
        for floor in (0.0, 0.9, 1.5):
            assert_best(rows, 700, floor, products=products)


@pytest.mark.parametrize("shift", [0.3, 3.0, 100.0])
def test_rows_with_much_in_common(kernels: str, shift: float) -> None:
    rng = np.random.default_rng(1)
    rows = normalize((rng.normal(size=(600, 200)) + shift).astype(np.float32))
    for k in (5, 800):
        assert_best(rows, k)


@pytest.mark.parametrize("dim", [384, 512, 511])
def test_a_few_numbers_that_are_not_zero(kernels: str, dim: int) -> None:
    """The rotation spreads them. Bounds hold without it, too."""
    rows = np.zeros((600, dim), np.float32)
    rows[:, dim - 3 :] = unit_rows(600, 3)
    assert_best(rows, 500)
    single = np.eye(dim, dtype=np.float32)
    assert_best(np.concatenate([single, single[:40]]), 60)


def test_pairs_just_below_a_floor_and_just_above_it(kernels: str) -> None:
    """Bounds are not too narrow: pairs at any angle, of which each is the best one."""
    rng = np.random.default_rng(2)
    one, other = (normalize(rng.normal(size=(300, 300)).astype(np.float32)) for _ in range(2))
    other = normalize(other - (one * other).sum(1, keepdims=True) * one)
    for cosine in (0.2, 0.5, 0.8, 0.99):
        near = normalize(np.float32(cosine) * one + np.float32(np.sqrt(1 - cosine**2)) * other)
        rows = np.concatenate([one, near])
        found = PairScan(rows).best(0, 600, 300, cosine - 1e-6, ALL)
        assert found is not None
        if cosine > 0.4:  # other pairs are farther
            assert {tuple(p) for p in found[1].tolist()} == {(i, 300 + i) for i in range(300)}


def test_equal_rows_and_zeros(kernels: str) -> None:
    rows = np.repeat(unit_rows(40, 180), 12, axis=0)
    rows[100:120] = 0
    for k in (1, 50, 2000):
        _, pairs = assert_best(rows, k)
    same = np.full((600, 4), 0.5, np.float32)
    scores, pairs = assert_best(same, 700)
    assert (scores == 1).all()
    left, right = np.triu_indices(600, 1)
    assert pairs.tolist() == np.stack([left, right], 1)[:700].tolist()
    assert_best(np.zeros((50, 5), np.float32), 40)


def test_answers_do_not_depend_on_threads_or_steps(kernels: str) -> None:
    rows = unit_rows(1100, 70)
    expected = assert_best(rows, 300, threads=1)
    for threads in (2, 5):
        found = PairScan(rows, threads).best(0, 1100, 300, -np.inf, ALL)
        assert found is not None
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
    scan = PairScan(rows)
    parts = [scan.best(a, b, 300, -np.inf, ALL) for a, b in ((0, 1), (1, 700), (700, 1100))]
    pairs = {tuple(pair) for part in parts if part for pair in part[1].tolist()}
    assert pairs >= {tuple(pair) for pair in expected[1].tolist()}


def test_too_many_products_are_no_answer(kernels: str) -> None:
    rows = unit_rows(600, 40)
    scan = PairScan(rows, 2)
    pairs = 600 * 599 // 2
    assert scan.best(0, 600, pairs, -np.inf, pairs - 1) is None
    found = scan.best(0, 600, pairs, -np.inf, pairs)
    assert found is not None
    assert len(found[0]) == pairs
    few = scan.best(0, 600, 1000, 0.999, 20_000)
    assert few is not None


def test_what_does_not_fit_is_refused() -> None:
    scan = PairScan(unit_rows(20, 4))
    for first, last in ((-1, 3), (5, 4), (0, 21)):
        with pytest.raises(HnswError):
            scan.best(first, last, 1, 0.0, ALL)
    with pytest.raises(HnswError):
        PairScan(np.zeros((3, 0), np.float32))
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(scan)
    for first, last in ((3, 3), (19, 20)):
        found = scan.best(first, last, 5, -np.inf, ALL)
        assert found is not None
        assert found[0].shape == (0,)
        assert found[1].shape == (0, 2)
    nothing = PairScan(np.zeros((0, 4), np.float32)).best(0, 0, 5, -np.inf, ALL)
    assert nothing is not None


def test_as_many_pairs_as_may_be_computed_do_not_hide_others(kernels: str) -> None:
    """A better pair that is found first must not rule out one that reaches the floor, too."""
    rows = normalize(np.random.default_rng(0).normal(size=(40, 256)).astype(np.float32))
    rows[1] = normalize(rows[:1] + 0.1 * rows[1:2])[0]
    rows[39] = normalize(rows[38:39] + 0.5 * rows[39:40])[0]
    scan = PairScan(rows, 1)
    found = scan.best(0, 40, 1000, 0.8, 2)
    assert found is not None
    assert found[1].tolist() == [[0, 1], [38, 39]]
    assert scan.best(0, 40, 1000, 0.8, 1) is None
