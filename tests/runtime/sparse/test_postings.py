"""An inverted file finds what comparing every row finds, however it was put together."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import SparseVectors
from flowvec.hnsw import HnswError, best_rows
from flowvec.sparse.postings import Postings
from tests.drawing import examples

ROWS = st.lists(
    st.dictionaries(st.integers(0, 30), st.integers(-2, 3).map(float), max_size=8), max_size=20
)


def _sparse(rows: list[dict[int, float]]) -> SparseVectors:
    ordered = [sorted(row.items()) for row in rows]
    indptr = np.cumsum([0, *map(len, ordered)]).astype(np.int64)
    pairs = [pair for row in ordered for pair in row]
    terms = np.array([term for term, _ in pairs], np.int32)
    return SparseVectors(indptr, terms, np.array([w for _, w in pairs], np.float32), 31)


def _found(
    inverted: Postings, query: SparseVectors, k: int, allowed: np.ndarray | None = None
) -> list[tuple[int, float]]:
    rows, scores = inverted.search(query.indices, query.values, k, allowed)
    return list(zip(rows.tolist(), scores.tolist(), strict=True))


def _expected(vectors: SparseVectors, query: SparseVectors, k: int) -> list[tuple[int, float]]:
    (hits,) = vectors.search(query, k)
    return [(hit["corpus_id"], hit["score"]) for hit in hits]


@examples(60)
@given(ROWS, st.dictionaries(st.integers(0, 30), st.just(1.5)), st.integers(1, 25))
def test_search_finds_the_best_rows_in_order(
    rows: list[dict[int, float]], query: dict[int, float], k: int
) -> None:
    vectors, asked = _sparse(rows), _sparse([query])
    inverted = Postings.of_rows(*vectors.arrays)
    assert inverted.count == len(rows)
    assert _found(inverted, asked, k) == _expected(vectors, asked, k)
    allowed = np.arange(len(rows)) % 2 == 0
    of_allowed = [hit for hit in _expected(vectors, asked, len(rows) + 1) if allowed[hit[0]]]
    assert _found(inverted, asked, k, allowed) == of_allowed[:k]


def postings_of(at_once: int) -> type[Postings]:
    """Postings that are joined by so many weights at once."""

    class InParts(Postings):
        weights_at_once = at_once

    return InParts


@examples(60)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0, 3), st.sampled_from([1, 3, 1 << 20]))
def test_joined_parts_are_the_postings_of_their_live_rows(
    parts: list[list[dict[int, float]]], dead: int, at_once: int
) -> None:
    masks = [None if dead == 0 else np.arange(len(part)) % (dead + 1) != 0 for part in parts]
    kept = [
        row
        for part, mask in zip(parts, masks, strict=True)
        for i, row in enumerate(part)
        if mask is None or mask[i]
    ]
    inverted = postings_of(at_once)
    joined = inverted.joined([inverted.of_rows(*_sparse(part).arrays) for part in parts], masks)
    wanted = Postings.of_rows(*_sparse(kept).arrays)
    assert joined.count == wanted.count
    for name in ("terms", "offsets", "rows", "weights"):
        mine, its = getattr(joined, name), getattr(wanted, name)
        assert mine.dtype == its.dtype, name
        np.testing.assert_array_equal(mine, its, name)


@examples(40)
@given(ROWS, st.randoms(use_true_random=False), st.sampled_from([1, 1 << 20]))
def test_rows_can_be_put_in_another_order(
    rows: list[dict[int, float]], random: Random, at_once: int
) -> None:
    numbers = list(range(len(rows)))
    random.shuffle(numbers)
    moved = [row for _, row in sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0])]
    inverted = postings_of(at_once).of_rows(*_sparse(rows).arrays)
    mine = inverted.renumbered(np.array(numbers, np.int32))
    wanted = Postings.of_rows(*_sparse(moved).arrays)
    np.testing.assert_array_equal(mine.rows, wanted.rows)
    np.testing.assert_array_equal(mine.weights, wanted.weights)


def test_rows_of_several_blocks_are_ranked_together() -> None:
    # The native search adds up 8,192 rows at a time.
    count = 20_000
    weights = np.random.default_rng(0).permutation(count).astype(np.float32) + 1
    inverted = Postings.of_rows(
        np.arange(count + 1, dtype=np.int64), np.full(count, 7, np.int32), weights
    )
    rows, scores = inverted.search(np.array([7]), np.ones(1, np.float32), 5)
    assert rows.tolist() == np.argsort(-weights)[:5].tolist()
    assert scores.tolist() == [20_000.0, 19_999.0, 19_998.0, 19_997.0, 19_996.0]


def test_terms_beyond_any_table_are_found() -> None:
    terms = np.array([5, 2_000_000_000], np.int32)
    inverted = Postings.of_rows(np.array([0, 2]), terms, np.ones(2, np.float32))
    assert inverted.terms.tolist() == terms.tolist()
    assert inverted.search(terms[1:], np.ones(1, np.float32), 1)[1].tolist() == [1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": np.ones(1)}, "a weight for each row"),
        ({"factors": np.ones(3)}, "a weight for each row"),
        ({"ends": np.array([1, 3])}, "outside"),
        ({"starts": np.array([-1, 1])}, "outside"),
        ({"starts": np.array([2, 1])}, "outside"),
        ({"count": -1}, "at most"),
        ({"count": 1 << 31}, "at most"),
        ({"allowed": np.ones(3, np.bool_)}, "3 marks for 2 rows"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "rows": np.array([0, 1]),
        "weights": np.ones(2),
        "starts": np.array([0, 1]),
        "ends": np.array([1, 2]),
        "factors": np.ones(2),
        "count": 2,
        "k": 1,
    }
    with pytest.raises(HnswError, match=message):
        best_rows(**(arguments | changes))
