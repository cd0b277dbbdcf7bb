"""The splitter, the samples and the seeded mix."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from flowvec_bench.texts import (
    natural_sentences,
    open_text,
    read_paragraphs,
    sample,
)


@pytest.mark.parametrize("suffix", [".txt", ".xz", ".gz"])
def test_compressed_files_read_as_plain_ones(tmp_path: Path, suffix: str) -> None:
    opener = {".txt": open, ".xz": lzma.open, ".gz": gzip.open}[suffix]
    path = tmp_path / f"a{suffix}"
    with opener(path, "wb") as file:
        file.write("é one\n\n  two \r\n".encode())
    assert list(open_text(path)) == ["é one", "", "  two "]
    assert list(read_paragraphs(path)) == ["é one", "two"]


def test_natural_sentences_have_the_requested_lengths(tmp_path: Path) -> None:
    path = tmp_path / "paragraphs.txt"
    path.write_text(
        "One two. One two three four. One two three four five.\n\nSix words are what this has."
    )
    assert list(natural_sentences(path, 3, 5)) == [
        "One two three four.",
        "One two three four five.",
    ]
    assert list(natural_sentences(path, 6, 6)) == ["Six words are what this has."]
    assert list(natural_sentences(path)) == []


def test_a_sample_is_seeded_and_bounded() -> None:
    texts = [str(i) for i in range(100)]
    assert sample(iter(texts), 10, seed=1) == sample(iter(texts), 10, seed=1)
    assert sample(iter(texts), 10, seed=1) != sample(iter(texts), 10, seed=2)
    assert set(sample(iter(texts), 5, seed=0, among=5)) == set(texts[:5])
    with pytest.raises(ValueError, match="only 100"):
        sample(iter(texts), 101, seed=0)


def test_the_mix_is_seeded_and_of_many_lengths() -> None:
    from flowvec_bench.speed.mixed_texts import mixed_lengths

    texts = mixed_lengths(500, seed=0)
    assert texts == mixed_lengths(500, seed=0)
    assert texts != mixed_lengths(500, seed=1)
    words = sorted(len(text.split()) for text in texts)
    assert 1 <= words[0] < 8
    assert 15 <= words[250] <= 26
    assert 60 <= words[480] <= 400
