"""Estimates of a job before it runs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import flowvec.bulk.estimate as estimate_module
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


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_sample_comes_from_all_parts_of_the_inputs(
    tmp_path: Path, tiny: Encoder, suffix: str
) -> None:
    # The second half has three times the words. A sample of the beginning would not know.
    lines = ["the cat"] * 2000 + ["the cat sat on the mat"] * 2000
    file = tmp_path / f"a.txt{suffix}"
    with gzip.open(file, "wt") if suffix else file.open("w") as out:
        out.write("\n".join(lines))
    estimate = estimate_files(tiny, file, rows_per_shard=300, out_format="npy")
    assert estimate.rows == 4000
    tokens = sum(tally.tokens for tally in tiny.windows(iter([lines]), tiny.job()))
    assert estimate.tokens == pytest.approx(tokens, rel=0.1)


def test_the_sample_is_as_large_as_the_time_allows(
    tmp_path: Path, tiny: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(1800)
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    estimates = []
    for seconds in (0.0, 1e6):
        monkeypatch.setattr(estimate_module, "_MEASURED_SECONDS", seconds)
        estimates.append(estimate_files(tiny, file, rows_per_shard=600, out_format="npy"))
    hurried, patient = estimates
    assert 512 <= hurried.sampled < 600
    assert patient.sampled == 1800
    assert patient.tokens == sum(tally.tokens for tally in tiny.windows(iter([texts]), tiny.job()))


def test_blank_lines_are_not_in_the_sample(tmp_path: Path, tiny: Encoder) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "the cat"}\n\n' * 100)
    estimate = estimate_files(tiny, file)
    assert (estimate.sampled, estimate.dead_share) == (100, 0)
    assert estimate.bytes == 100 * 16 * 4


def test_kept_fields_are_written_and_the_files_removed(
    tmp_path: Path, tiny: Encoder, temporary: Path
) -> None:
    rows = [{"text": "the cat", "n": 1 if i % 3 else "one"} for i in range(1000)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    estimate = estimate_files(tiny, file, keep=["n"], rows_per_shard=100)
    assert 0.3 < estimate.dead_share < 0.4  # the type of `n` is that of most rows
    assert list(temporary.iterdir()) == []


def test_no_rows_take_no_time(tmp_path: Path, tiny: Encoder) -> None:
    (tmp_path / "empty.txt").write_text("")
    estimate = estimate_files(tiny, tmp_path / "empty.txt")
    assert (estimate.rows, estimate.sampled, estimate.tokens, estimate.bytes) == (0, 0, 0, 0)
