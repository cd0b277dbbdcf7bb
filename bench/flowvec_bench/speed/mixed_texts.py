"""A seeded mix of text lengths, from real sentences that ship with flowvec."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import islice

from flowvec.demo import load_passages
from flowvec_bench.texts import split_sentences

__all__ = ["mixed_lengths", "mixed_texts"]

# Lengths are log-normal: a median of 20 words, and one text in ten above 65, as in mixed traffic.
_MEDIAN_WORDS = 20
_SIGMA = 0.9
_MOST_WORDS = 400


def mixed_lengths(count: int, seed: int) -> list[str]:
    """Texts of 1 to 400 words of running English, with log-normal lengths.

    Args:
        count: number of texts.
        seed: equal seeds give equal texts.
    """
    return list(islice(mixed_texts(seed), count))


def mixed_texts(seed: int) -> Iterator[str]:
    """The same texts as an endless iterator."""
    rng = random.Random(seed)
    sentences = [s for p in load_passages() for s in split_sentences(p.text)]
    while True:
        wanted = min(_MOST_WORDS, max(1, round(_MEDIAN_WORDS * math.exp(rng.gauss(0, _SIGMA)))))
        words: list[str] = []
        while len(words) < wanted:
            words += rng.choice(sentences).split()
        yield " ".join(words[:wanted])
