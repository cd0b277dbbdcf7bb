"""Estimates of a job before it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowvec import Encoder
from flowvec.bulk import estimate_files
from tests.makers import texts_of, write_jsonl


def test_an_estimate_counts_rows_and_scales_a_sample(tmp_path: Path, tiny: Encoder) -> None:
    texts = texts_of(400)
    rows = [{"text": None if i % 4 == 0 else text} for i, text in enumerate(texts)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    estimate = estimate_files(tiny, file, rows_per_shard=50)
    assert (estimate.rows, estimate.shards) == (400, 8)
    assert estimate.dead_share == pytest.approx(0.25)
    tokens = sum(map(len, tiny.tokenize([r["text"] for r in rows if r["text"]]).ids))
    assert estimate.tokens == pytest.approx(tokens, rel=0.01)
    assert estimate.bytes == 300 * 16 * 4
    assert estimate.seconds > 0
    half = estimate_files(tiny, file, rows_per_shard=50, precision="float16")
    assert half.bytes == estimate.bytes // 2
