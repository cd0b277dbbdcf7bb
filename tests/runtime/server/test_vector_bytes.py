"""Vectors as JSON give back the same numbers."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.vector_bytes import base64_rows, number_rows, openai_data, pieces


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 384])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8])
def test_rows_come_back(dim: int, dtype: type) -> None:
    rng = np.random.default_rng(dim)
    whole = (rng.normal(size=(5, dim + 1)) * 50).astype(dtype)
    for vectors in (whole, whole[:, :dim], whole[::2]):  # also views
        rows = [base64.b64decode(row) for row in json.loads(base64_rows(vectors))]
        assert np.array_equal([np.frombuffer(row, dtype) for row in rows], vectors)
        assert np.array_equal(np.array(json.loads(number_rows(vectors)), dtype), vectors)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_pieces_of_openais_data_join_to_a_list(encoding: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(1000, 384)).astype(np.float32)
    blocks = [openai_data(part, first, encoding) for first, part in pieces(vectors)]
    assert len(blocks) > 1
    items = json.loads(b"[" + b",".join(blocks) + b"]")
    assert [item["index"] for item in items] == list(range(1000))
    rows = [item["embedding"] for item in items]
    if encoding == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    assert np.array_equal(np.array(rows, np.float32), vectors)


def test_big_endian_numbers_are_sent_little_endian() -> None:
    vectors = np.arange(6, dtype=">f4").reshape(2, 3)
    rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in json.loads(base64_rows(vectors))]
    assert np.array_equal(rows, vectors)
