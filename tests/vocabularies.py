"""Vocabularies of small tokenizers, made of a few texts.

The trainers of `tokenizers` for WordPiece and Unigram go through words in an order that differs
between processes, so the vocabulary, and all that a random model computes with it, would too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, models

__all__ = ["fill_unigram", "fill_word_piece"]


def fill_word_piece(
    made: Tokenizer, texts: Iterable[str], special: Sequence[str], size: int, unknown: str
) -> None:
    """Give a tokenizer a WordPiece model: characters, then words and their halves by count."""
    words = _words_of(made, texts)
    letters = {word[0] for word in words} | {f"##{c}" for word in words for c in word[1:]}
    pieces = [*special, *sorted(letters - {*special})]
    counts: Counter[str] = Counter()
    for word, count in words.items():
        half = (len(word) + 1) // 2
        for piece in (word, word[:half], f"##{word[half:]}"):
            counts[piece] += count
    pieces += _by_count(counts, {*pieces, "##"})
    vocabulary = {piece: i for i, piece in enumerate(pieces[:size])}
    made.model = models.WordPiece(vocabulary, unk_token=unknown)
    made.add_special_tokens(list(special))


def fill_unigram(
    made: Tokenizer, texts: Iterable[str], special: Sequence[str], size: int, unknown: str
) -> None:
    """Give a tokenizer a Unigram model: characters, then words and their halves by count."""
    counts: Counter[str] = Counter()
    letters: set[str] = set()
    for word, count in _words_of(made, texts).items():
        letters.update(word)
        half = (len(word) + 1) // 2
        for piece in {word, word[:half], word[half:]} - {""}:
            counts[piece] += count
        for letter in word:
            counts[letter] += count
    pieces = sorted(letters) + _by_count(counts, letters)
    pieces = pieces[: size - len(special)]
    # A logarithm may differ in its last bit between machines.
    total = counts.total()
    scores = [(piece, round(math.log(counts[piece] / total), 6)) for piece in pieces]
    vocabulary = [*((token, 0.0) for token in special), *scores]
    made.model = models.Unigram(vocabulary, special.index(unknown), False)
    made.add_special_tokens(list(special))


def _words_of(made: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """How often each word comes, as the tokenizer normalizes and cuts texts."""
    words: Counter[str] = Counter()
    for text in texts:
        whole = made.normalizer.normalize_str(text) if made.normalizer is not None else text
        words.update(word for word, _ in made.pre_tokenizer.pre_tokenize_str(whole))
    return words


def _by_count(counts: Counter[str], known: set[str]) -> list[str]:
    """Pieces that are not known yet, the most frequent first; equally frequent ones by name."""
    return sorted(counts.keys() - known, key=lambda piece: (-counts[piece], piece))
