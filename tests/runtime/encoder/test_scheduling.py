"""Packing is a pure decision: no threads, no clock."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from flowvec.encoder.scheduling import LOOKAHEAD, pack

# A tokenizer without special tokens gives an empty text no token at all.
lengths_of = st.lists(st.integers(0, 300), min_size=1, max_size=120)
budgets = st.integers(1, 4096)


@given(lengths_of, budgets)
def test_a_batch_holds_the_oldest_and_keeps_the_budget(lengths: list[int], budget: int) -> None:
    batch = pack(lengths, budget, 300)
    assert batch.rows[0] == 0
    assert list(batch.rows) == sorted(set(batch.rows))
    assert max(lengths[row] for row in batch.rows) <= batch.length <= 300
    assert len(batch.rows) == 1 or batch.length * len(batch.rows) <= budget
    longest = max(lengths[row] for row in batch.rows)
    assert all(2 * lengths[row] >= longest for row in batch.rows)
    assert batch.length >= 1


@given(lengths_of, budgets)
def test_everything_is_computed_once_and_nothing_waits_for_ever(
    lengths: list[int], budget: int
) -> None:
    waiting = deque(enumerate(lengths))
    done: list[int] = []
    while waiting:
        oldest = waiting[0][0]
        batch = pack([length for _, length in waiting], budget, 300)
        taken = [waiting[row][0] for row in batch.rows]
        assert oldest in taken
        done += taken
        waiting = deque(item for i, item in enumerate(waiting) if i not in set(batch.rows))
    assert sorted(done) == list(range(len(lengths)))


def test_a_single_text_does_not_wait_for_company() -> None:
    assert pack([9], 1024, 256).rows == (0,)


def test_equal_texts_fill_the_budget_oldest_first() -> None:
    batch = pack([16] * 100, 1024, 256)
    assert (batch.rows, batch.length) == (tuple(range(64)), 16)


def test_a_long_text_does_not_make_short_ones_pay() -> None:
    # The long one waits longest: it goes alone, or with others of its length.
    assert pack([200, *[8] * 20], 1024, 256).rows == (0,)
    assert pack([200, 8, 196, 8, 190], 1024, 256).rows == (0, 2, 4)
    # A short one waits longest: the long ones stay behind.
    batch = pack([8, 200, 9, 200, 8], 1024, 256)
    assert 1 not in batch.rows
    assert 3 not in batch.rows
    assert batch.length <= 10


def test_the_oldest_is_served_however_many_fit_better() -> None:
    # 500 texts of one length would fill batch after batch; the odd one waits longest.
    batch = pack([40, *[8] * 500], 1024, 256)
    assert 0 in batch.rows


def test_of_equally_good_batches_the_older_texts_win() -> None:
    # The oldest text goes with shorter or longer ones, whichever have waited longer.
    for first, later in ((14, 18), (18, 14)):
        chosen = pack([16, *[first] * 40, *[later] * 40], 16 * 18, 256).rows
        assert sum(1 <= row <= 40 for row in chosen) > sum(row > 40 for row in chosen)


def test_only_the_oldest_are_looked_at() -> None:
    lengths = [8, *[200] * (LOOKAHEAD - 1), *[8] * 100]
    assert max(pack(lengths, 1024, 256).rows) < LOOKAHEAD


def test_a_text_above_the_budget_is_a_batch_of_one() -> None:
    batch = pack([250, 250], 100, 250)
    assert (batch.rows, batch.length) == ((0,), 250)
