"""Laws of the plan: every row once, within the budget, few shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.encoder.batching import Batch, bucket_length, pad, padded_tokens, plan, plan_in_order

LENGTHS = st.lists(st.integers(1, 600), max_size=300)


@given(lengths=LENGTHS, budget=st.integers(1, 4096))
def test_plan_holds_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan(lengths, budget)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(len(lengths)))
    for batch in batches:
        assert batch.length >= max(lengths[row] for row in batch.rows)
        assert batch.length * len(batch.rows) <= budget or len(batch.rows) == 1


@given(lengths=LENGTHS, budget=st.integers(1, 4096))
def test_plan_goes_from_long_to_short(lengths: list[int], budget: int) -> None:
    order = [lengths[row] for batch in plan(lengths, budget) for row in batch.rows]
    assert order == sorted(lengths, reverse=True)


@given(lengths=st.lists(st.integers(1, 256), min_size=1), budget=st.integers(1, 4096))
def test_plan_never_pads_beyond_the_positions_of_the_model(lengths: list[int], budget: int) -> None:
    longest = max(lengths)
    assert all(batch.length <= longest for batch in plan(lengths, budget, max_length=longest))


def test_plan_is_deterministic_and_stable() -> None:
    assert plan([3, 5, 3, 5], 12) == plan([3, 5, 3, 5], 12)
    assert plan([4] * 5, 8)[0].rows == (0, 1)


@given(
    lengths=LENGTHS,
    budget=st.integers(1, 1 << 17),
    most=st.integers(1, 5000),
    enough=st.integers(1, 1 << 15),
)
def test_a_plan_for_a_gpu_obeys_the_same_laws(
    lengths: list[int], budget: int, most: int, enough: int
) -> None:
    batches = plan(lengths, budget, most_rows=most, enough=enough)
    order = [lengths[row] for batch in batches for row in batch.rows]
    assert order == sorted(lengths, reverse=True)
    for batch in batches:
        cost = batch.length * len(batch.rows)
        assert len(batch.rows) <= most
        assert cost <= budget or len(batch.rows) == 1
        shortest, longest = (choose(lengths[row] for row in batch.rows) for choose in (min, max))
        assert cost <= enough or len(batch.rows) == 1 or shortest >= 0.75 * longest


def test_a_large_budget_is_used_for_texts_of_similar_length() -> None:
    for budget in (1 << 14, 1 << 15, 1 << 16, 1 << 17):
        first, *_ = plan([32] * 4096, budget, most_rows=4096, enough=1 << 14)
        assert len(first.rows) * first.length == budget
    mixed = [512] * 32 + [32] * 4064
    first, *_ = plan(mixed, 1 << 17, most_rows=4096, enough=1 << 14)
    assert (len(first.rows), first.length) == (32, 512)


def test_plan_meets_few_shapes() -> None:
    rng = np.random.default_rng(0)
    shapes = set()
    for _ in range(200):
        lengths = rng.integers(1, 513, size=500).tolist()
        shapes |= {(len(b.rows), b.length) for b in plan(lengths, 2048)}
    assert len({length for _, length in shapes}) <= 130
    assert len({rows for rows, _ in shapes}) <= 16


def test_plan_wastes_little_on_natural_lengths() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.3, 0.6, size=4096), 3, 256).astype(int).tolist()
    batches = plan(lengths, 1024)
    assert 1 - sum(lengths) / padded_tokens(batches) < 0.04


@given(st.integers(1, 100_000))
def test_bucket_holds_the_length_and_adds_little(length: int) -> None:
    bucket = bucket_length(length)
    assert length <= bucket <= length + max(1, length // 8)


@given(lengths=st.lists(st.integers(1, 60), min_size=1), size=st.integers(1, 40))
def test_plan_in_order_keeps_the_order_given(lengths: list[int], size: int) -> None:
    order = list(range(len(lengths)))[::-1]
    batches = plan_in_order(lengths, order, size)
    assert [row for batch in batches for row in batch.rows] == order
    assert all(batch.length == max(lengths[r] for r in batch.rows) for batch in batches)


def test_pad_fills_on_the_right() -> None:
    ids, mask = pad([[5, 6, 7], [8], [9, 9]], Batch((2, 0), 4), pad_id=1)
    assert ids.tolist() == [[9, 9, 1, 1], [5, 6, 7, 1]]
    assert mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert ids.dtype == mask.dtype == np.int64


@pytest.mark.parametrize("budget", [1, 7])
def test_a_text_above_the_budget_is_a_batch_of_one(budget: int) -> None:
    assert [len(batch.rows) for batch in plan([50, 60], budget)] == [1, 1]
