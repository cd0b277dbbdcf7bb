"""Scans of codes: what they find, and that scores do not depend on how they are asked."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from flowvec.hnsw import Codes, HnswError, Places
from flowvec.vectors import top_k

ALL = 1e9  # deviations: nothing is missed


def rows_of(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Clusters, as texts make them, in float32."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(1 + count // 20, dim))
    rows = centres[rng.integers(0, len(centres), count)] + 0.4 * rng.normal(size=(count, dim))
    return np.ascontiguousarray(rows, np.float32)


def codes_of(rows: np.ndarray, *, squared: bool = False, seed: int = 0) -> Codes:
    codes = Codes(rows.shape[1], squared=squared, seed=seed)
    assert codes.add(rows)
    return codes


def places_of(rows: np.ndarray, in_blocks: int = 0, size: int = 16) -> Places:
    """The first rows in blocks with something between them, the others behind each other."""
    blocks = -(-in_blocks // size)
    held = np.full((blocks, size + 3, rows.shape[1]), np.nan, np.float32)[:, :size]
    for i in range(in_blocks):
        held[i // size, i % size] = rows[i]
    return Places(held if blocks else None, in_blocks, np.ascontiguousarray(rows[in_blocks:]))


def search(codes: Codes, rows: np.ndarray, queries: np.ndarray, k: int, **options: Any) -> Any:
    options = {"places": places_of(rows), "last": len(rows), "reach": ALL} | options
    return codes.search(queries, k, **options)


def assert_nearest(
    found: Any, queries: np.ndarray, rows: np.ndarray, allowed: np.ndarray, *, squared: bool
) -> None:
    """The k nearest of the allowed rows, with their scores; nearly equal ones in any order."""
    metric = "l2" if squared else "ip"
    slots, scores = found
    assert allowed[slots].all()
    assert all(len(set(line)) == slots.shape[1] for line in slots.tolist())
    _, best = top_k(queries, rows[allowed], slots.shape[1], metric)
    np.testing.assert_allclose(scores, best, rtol=2e-5, atol=2e-5 * np.abs(best).max())
    of_rows = np.take_along_axis(
        -np.linalg.norm(queries[:, None] - rows, axis=-1) if squared else queries @ rows.T, slots, 1
    )
    np.testing.assert_allclose(scores, of_rows, rtol=2e-5, atol=2e-5 * np.abs(best).max())


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 20, 33, 384])
def test_a_scan_that_reaches_far_enough_misses_nothing(
    kernels: str, dim: int, squared: bool
) -> None:
    rows, queries = rows_of(1500, dim), rows_of(9, dim, 1)
    codes = codes_of(rows, squared=squared)
    everything = np.ones(len(rows), np.bool_)
    for k in (1, 10, 1500):
        found = search(codes, rows, queries, k)
        assert_nearest(found, queries, rows, everything, squared=squared)


def test_some_rows_in_any_part_of_memory(kernels: str) -> None:
    rows, queries = rows_of(1301, 24), rows_of(21, 24, 1)
    codes, rng = codes_of(rows), np.random.default_rng(2)
    for share in (0.003, 0.02, 0.5, 1.0):
        allowed = rng.random(len(rows)) < share
        allowed[[5, 700, 1299]] = True
        for first, last in ((0, 1301), (3, 1300), (517, 1301)):
            possible = allowed & (np.arange(len(rows)) >= first) & (np.arange(len(rows)) < last)
            k = min(10, int(possible.sum()))
            found = search(
                codes, rows, queries, k, first=first, last=last, allowed=allowed, threads=2,
                places=places_of(rows, int(rng.integers(0, 1301))),
            )  # fmt: skip
            assert_nearest(found, queries, rows, possible, squared=False)


def recall_of(rows: np.ndarray, queries: np.ndarray, reach: float, **options: Any) -> float:
    metric = "l2" if options.get("squared") else "ip"
    found, _ = search(codes_of(rows, **options), rows, queries, 10, reach=reach)
    best, _ = top_k(queries, rows, 10, metric)
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)]))


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("dim", [2, 5, 12, 64, 100, 384])
def test_three_deviations_find_nearly_all(kernels: str, dim: int, squared: bool) -> None:
    rows, queries = rows_of(4000, dim), rows_of(120, dim, 1)
    recall = recall_of(rows, queries, 3.0, squared=squared)
    assert recall > 0.998
    # Codes matter: without a margin many more are missed.
    assert recall_of(rows, queries, 0.0, squared=squared) < recall


@pytest.mark.parametrize("dim", [12, 100, 387])
def test_few_queries_find_as_much_as_many(kernels: str, dim: int) -> None:
    rows, queries = rows_of(3000, dim), rows_of(64, dim, 1)
    codes = codes_of(rows)
    best, _ = top_k(queries, rows, 10, "ip")
    for size in (1, 2, 3, 5, 8):
        parts = [
            search(codes, rows, queries[i : i + size], 10, reach=3.0)[0] for i in range(0, 64, size)
        ]
        found = np.concatenate(parts)
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, best, strict=True)]) > 0.99


@pytest.mark.parametrize(("dim", "noise"), [(384, 0.1), (384, 0.3), (768, 0.1)])
def test_queries_within_clusters(dim: int, noise: float) -> None:
    """Half of the numbers says less of a row's score the nearer it is."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(60, dim)) / np.sqrt(dim)
    near = rng.integers(0, 60, 6400)
    rows = centres[near] + noise * rng.normal(size=(6400, dim)) / np.sqrt(dim)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    assert recall_of(rows[:6000], rows[6000:], 3.0) > 0.9985


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("common", [0.0, 300.0])
def test_rows_of_which_very_many_are_nearly_the_best(squared: bool, common: float) -> None:
    """As those are that a filter leaves far from the query: the highest estimates are too high."""
    rng = np.random.default_rng(3)
    rows = (rng.normal(size=(60_000, 64)) + common).astype(np.float32)
    queries = (rng.normal(size=(6, 64)) + (common if squared else 0)).astype(np.float32)
    codes, found = codes_of(rows, squared=squared), []
    for query in queries.astype(np.float64):
        exact = -((rows - query) ** 2).sum(1) if squared else rows @ query
        allowed = exact <= np.median(exact)
        best = np.sort(exact[allowed])[-10]
        slots, _ = search(
            codes, rows, query[None].astype(np.float32), 10, allowed=allowed, reach=3.0
        )
        assert allowed[slots].all()
        found.append(np.mean(exact[slots[0]] >= best - 1e-5 * abs(best)))
    assert np.mean(found) > 0.98


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize(
    ("dim", "first", "last"),
    [(1000, 900, 1000), (511, 256, 511), (510, 255, 510), (250, 125, 250), (384, 0, 20)],
)
def test_vectors_most_of_whose_numbers_are_zeros(
    dim: int, first: int, last: int, squared: bool
) -> None:
    """The rotation spreads them, wherever they are."""
    rows = np.zeros((3200, dim), np.float32)
    rows[:, first:last] = rows_of(3200, last - first)
    assert recall_of(rows[:3000], rows[3000:], 3.0, squared=squared) > 0.9985


@pytest.mark.parametrize("squared", [False, True])
def test_vectors_with_much_in_common(squared: bool) -> None:
    """What all have in common says nothing, and is not in the codes."""
    rows = rows_of(4200, 96) + np.float32(50)
    assert recall_of(rows[:4000], rows[4000:], 3.0, squared=squared) > 0.998
    assert recall_of(rows[:4000], rows[4000:], 0.0, squared=squared) > 0.8


def test_tiny_numbers_lose_no_row(kernels: str) -> None:
    rows = rows_of(200, 4)
    rows[7] = [1e-39, 0, 2e-39, 0]
    rows[8] = [1e-45, 0, 0, 0]
    rows = np.concatenate([rows, -rows])  # their mean is zero
    for squared in (False, True):
        for query in (rows[0], rows[7], rows[8], 1e-30 * rows[0]):
            codes = codes_of(rows, squared=squared)
            found, _ = search(codes, rows, query[None].astype(np.float32), 400)
            assert sorted(found[0].tolist()) == list(range(400))


def test_answers_have_the_same_bits_however_they_are_asked(kernels: str) -> None:
    rows, queries = rows_of(9000, 40), rows_of(70, 40, 1)
    codes = codes_of(rows)
    expected = search(codes, rows, queries, 10)
    pieces = Codes(40, squared=False)
    for start, count in ((0, 1), (1, 6), (7, 1000), (1007, 7993)):
        assert pieces.add(rows[start : start + count], threads=3)
    assert len(pieces) == 9000
    for asked, threads in ((codes, 2), (codes, 5), (pieces, 1)):
        found = search(asked, rows, queries, 10, threads=threads)
        np.testing.assert_array_equal(found, expected)
    alone = [search(codes, rows, queries[i : i + 1], 10, threads=4) for i in range(len(queries))]
    np.testing.assert_array_equal(np.concatenate([one[0] for one in alone]), expected[0])
    np.testing.assert_array_equal(np.concatenate([one[1] for one in alone]), expected[1])
    narrow = search(codes, rows, queries, 10, reach=3.0)
    for slots, scores, slots_of_all, scores_of_all in zip(*narrow, *expected, strict=True):
        by_slot = dict(zip(slots_of_all.tolist(), scores_of_all.tolist(), strict=True))
        for slot, score in zip(slots.tolist(), scores.tolist(), strict=True):
            assert by_slot.get(slot, score) == score


def test_equal_rows_are_all_found_in_their_order(kernels: str) -> None:
    rows = np.repeat(rows_of(40, 16), 50, axis=0)
    for squared in (False, True):
        codes = codes_of(rows, squared=squared)
        for query in (rows[777], np.zeros(16, np.float32)):
            slots, scores = search(codes, rows, query[None], 120, reach=3.0)
            for score in np.unique(scores):
                same = slots[0][scores[0] == score]
                assert (np.diff(same) > 0).all()
    slots, scores = search(codes_of(rows, squared=True), rows, rows[777][None], 50, reach=3.0)
    assert slots[0].tolist() == list(range(750, 800))
    assert (scores == 0).all()


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e6, 1e15])
def test_numbers_of_any_size(kernels: str, scale: float, squared: bool) -> None:
    rows, queries = rows_of(1000, 30) * np.float32(scale), rows_of(4, 30, 1) * np.float32(scale)
    rows[::97] = 0
    found, scores = search(codes_of(rows, squared=squared), rows, queries, 10, reach=3.0)
    best, expected = top_k(queries, rows, 10, "l2" if squared else "ip")
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert np.mean(found == best) > 0.95


def test_numbers_that_are_too_large_have_no_estimates(kernels: str) -> None:
    rows = rows_of(100, 30)
    rows[50] *= np.float32(1e30)
    assert not Codes(30, squared=True).add(rows)
    assert Codes(30, squared=True).add(rows[:50])


def test_arguments_that_do_not_fit_are_refused() -> None:
    rows = rows_of(100, 8)
    codes = codes_of(rows)
    for wrong in (
        lambda: codes.add(rows[:, :7]),
        lambda: codes.add(rows[0]),
        lambda: search(codes, rows, rows[:, :7], 1),
        lambda: search(codes, rows, rows, 1, last=101),
        lambda: search(codes, rows, rows, 1, first=-1),
        lambda: search(codes, np.concatenate([rows, rows]), rows, 1),
        lambda: search(codes, rows, rows, 1, allowed=np.ones(99, np.bool_)),
        lambda: Codes(0, squared=False),
        lambda: Codes(1 << 21, squared=False),
    ):
        with pytest.raises(HnswError):
            wrong()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(codes)
    assert search(codes, rows, rows[:0], 5)[0].shape == (0, 5)
    assert (search(codes, rows, rows, 5, last=0)[0] == -1).all()
    for squared in (False, True):
        empty = Codes(8, squared=squared)
        assert empty.add(rows[:0])
        assert (search(empty, rows, rows, 5, last=0)[0] == -1).all()
    assert search(codes, rows, rows, 0)[0].shape == (100, 0)
    assert len(codes) == 100
    assert codes.nbytes > 100 * 4


def test_rows_are_added_while_others_search(kernels: str) -> None:
    rows, queries = rows_of(6000, 32), rows_of(8, 32, 1)
    codes = Codes(32, squared=False)
    codes.add(rows[:1000])
    is_done = threading.Event()
    wrong: list[str] = []

    def searching() -> None:
        everything = np.ones(1000, np.bool_)
        while not is_done.is_set():
            found = search(codes, rows, queries, 5, last=1000)
            try:
                assert_nearest(found, queries, rows[:1000], everything, squared=False)
            except AssertionError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=searching) for _ in range(2)]
    for thread in threads:
        thread.start()
    for start in range(1000, 6000, 250):
        assert codes.add(rows[start : start + 250], threads=2)
    is_done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_array_equal(
        search(codes, rows, queries, 5), search(codes_of(rows), rows, queries, 5)
    )
