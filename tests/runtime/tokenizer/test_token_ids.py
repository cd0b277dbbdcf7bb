"""Ids of many texts in one array: what goes in comes out, text by text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowvec.encoder.batching import Batch, pad
from flowvec.tokenizer.token_ids import TokenIds

ROWS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), max_size=9)


@given(ROWS)
def test_rows_come_out_as_they_went_in(rows: list[list[int]]) -> None:
    token_ids = TokenIds.from_rows(rows)
    assert token_ids.to_lists() == rows
    assert [token_ids[i].tolist() for i in range(len(token_ids))] == rows
    assert token_ids.lengths.tolist() == [len(row) for row in rows]
    assert (token_ids.flat.dtype, token_ids.offsets.dtype) == (np.int32, np.int64)


@given(ROWS.filter(len), st.data())
def test_padding_from_one_array_is_padding_row_by_row(
    rows: list[list[int]], data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    length = max(1, *(len(rows[i]) for i in chosen)) + data.draw(st.integers(0, 3))
    batch = Batch(tuple(chosen), length)
    for fast, slow in zip(
        pad(TokenIds.from_rows(rows), batch, pad_id=7), pad(rows, batch, pad_id=7), strict=True
    ):
        assert fast.dtype == slow.dtype == np.int64
        np.testing.assert_array_equal(fast, slow)
