"""The word-frequency table, against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers

from flowvec.errors import InputValueError
from flowvec_bench.quality.word_frequency import (
    NEIGHBOURS,
    count_tokens,
    frequency_table,
    measure_word_frequency,
    nearest_neighbours,
)


def brute_force(words: np.ndarray, row: int, k: int) -> np.ndarray:
    distances = np.linalg.norm(words - words[row], axis=1)
    distances[row] = np.inf
    return np.argsort(distances, kind="stable")[:k]


def word_tokenizer(words: list[str]):
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[CLS]", *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 1)]
    )
    made.add_special_tokens(["[UNK]", "[CLS]"])
    return made


@pytest.mark.parametrize("block", [1 << 23, 700])
def test_neighbours_are_exact_whatever_the_block(block: int) -> None:
    # Far from the origin: float32 distances from it would drown in rounding.
    words = np.random.default_rng(0).normal(size=(300, 12)) + 500.0
    rows = np.random.default_rng(1).permutation(300)[:123]
    neighbours = nearest_neighbours(words, rows, 7, distances_at_once=block)
    for row, nearest in zip(rows, neighbours, strict=True):
        np.testing.assert_array_equal(nearest, brute_force(words, row, 7))


def test_a_word_is_not_its_own_neighbour_but_its_twin_is() -> None:
    words = np.repeat(np.random.default_rng(0).normal(size=(10, 4)), 2, axis=0)
    neighbours = nearest_neighbours(words, np.arange(20), 1)[:, 0]
    np.testing.assert_array_equal(neighbours, np.arange(20) ^ 1)


def test_neighbours_need_enough_words() -> None:
    with pytest.raises(InputValueError, match="neighbours"):
        nearest_neighbours(np.eye(7), np.arange(7), 7)
    assert nearest_neighbours(np.eye(8), np.arange(8), 7).shape == (8, 7)


def test_the_table_is_that_of_brute_force() -> None:
    rng = np.random.default_rng(0)
    words = rng.normal(size=(200, 8)) * rng.uniform(0.5, 3, (200, 1))
    ranked = rng.permutation(200)[:120]
    table = frequency_table(words, ranked, bands=(0, 30, 100, 150))
    assert [(b.first, b.last, b.words) for b in table] == [
        (0, 30, 30),
        (30, 100, 70),
        (100, 150, 20),
        (150, None, 0),
    ]
    for band in table[:3]:
        rows = ranked[band.first : band.last]
        assert band.norm == pytest.approx(np.linalg.norm(words[rows], axis=1).mean())
        for k in NEIGHBOURS:
            pairs = [(row, other) for row in rows for other in brute_force(words, row, k)]
            distances = [np.linalg.norm(words[a] - words[b]) for a, b in pairs]
            assert band.distance[k] == pytest.approx(np.mean(distances))
            assert band.dot[k] == pytest.approx(np.mean([words[a] @ words[b] for a, b in pairs]))
    assert (table[3].norm, set(table[3].distance.values())) == (None, {None})


def test_tokens_are_counted_without_special_ones() -> None:
    tokenizer = word_tokenizer(["a", "b", "c"])
    counts = count_tokens(tokenizer, ["a b a", "", "zzz b", "a"], texts_at_once=2)
    assert counts.tolist() == [1, 0, 3, 2, 0]  # [UNK], [CLS], a, b, c
    assert count_tokens(tokenizer, []).tolist() == [0] * 5


def test_special_and_unused_words_are_not_ranked() -> None:
    words = [f"w{i}" for i in range(20)]
    tokenizer = word_tokenizer(words)
    embeddings = np.random.default_rng(0).normal(size=(30, 4))  # more rows than words
    embeddings[:2] = 1000.0
    # w9 is the most frequent of ten used ones.
    texts = [" ".join(words[i] for i in range(9, -1, -1) for _ in range(i + 1)), "zzz zzz"]
    counts = count_tokens(tokenizer, texts)
    measured = measure_word_frequency(embeddings, tokenizer, counts, "checkpoint")
    assert (measured.vocabulary, measured.special, measured.unused) == (22, 2, 10)
    assert measured.tokens == 55
    assert [band.words for band in measured.bands] == [10, 0, 0, 0]
    used, everything = embeddings[2:12], embeddings[2:22]
    assert measured.bands[0].norm == pytest.approx(np.linalg.norm(used, axis=1).mean())
    # Unused words are also neighbours; special ones are not.
    nearest = [everything[brute_force(everything, i, 3)] for i in range(10)]
    distances = [np.linalg.norm(n - everything[i], axis=1) for i, n in enumerate(nearest)]
    assert measured.bands[0].distance[3] == pytest.approx(np.mean(distances))


def test_the_most_frequent_words_come_first() -> None:
    words = [f"w{i}" for i in range(150)]
    embeddings = np.random.default_rng(0).normal(size=(152, 4))
    embeddings[2:] *= np.linspace(1, 9, 150)[:, None]
    embeddings[2 + 149] *= 1000
    rare_last = [" ".join(words[:100]), " ".join(words)]
    tokenizer = word_tokenizer(words)
    counts = count_tokens(tokenizer, rare_last)
    measured = measure_word_frequency(embeddings, tokenizer, counts, "checkpoint")
    first, second = measured.bands[0], measured.bands[1]
    assert (first.words, second.words) == (100, 50)
    assert first.norm is not None
    assert second.norm is not None
    assert second.norm > 100 > first.norm
