"""Measures norms and neighbourhoods of input word embeddings by word frequency.

Li et al. (2020), "On the sentence embeddings from pre-trained language models", Table 1: frequent
words are near the origin and dense, rare words are far from it and sparse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from flowvec.errors import InputValueError

__all__ = [
    "NEIGHBOURS",
    "RANKS",
    "FrequencyBand",
    "WordFrequency",
    "count_tokens",
    "frequency_table",
    "measure_word_frequency",
    "nearest_neighbours",
]

# First ranks of the bands; the most frequent token has rank 0, and the last band is open.
RANKS = (0, 100, 500, 5000)
NEIGHBOURS = (3, 5, 7)
_COUNT_WINDOW = 2048
_BLOCK_ELEMENTS = 1 << 23  # distances in memory at once: 32 MiB of float32

Matrix = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FrequencyBand:
    """Means over the words of one band of ranks; None if the band has no words.

    Attributes:
        first: the lowest rank, 0 being the most frequent word.
        last: the first rank above the band; None for the open one.
        words: number of words.
        norm: mean L2 norm.
        distance: mean L2 distance to the k nearest words, by k.
        dot: mean dot product with the same k words, by k.
    """

    first: int
    last: int | None
    words: int
    norm: float | None
    distance: dict[int, float | None]
    dot: dict[int, float | None]


@dataclass(frozen=True, slots=True)
class WordFrequency:
    """The table of one checkpoint.

    Attributes:
        source: the checkpoint's name.
        tokens: tokens counted in the corpus.
        vocabulary: entries of the tokenizer that have an embedding.
        special: special tokens, which are not ranked and not neighbours.
        unused: entries that the corpus never uses; they are neighbours, but not ranked.
        bands: by rank.
    """

    source: str
    tokens: int
    vocabulary: int
    special: int
    unused: int
    bands: list[FrequencyBand]


def count_tokens(
    tokenizer: tokenizers.Tokenizer, texts: Sequence[str], *, texts_at_once: int = _COUNT_WINDOW
) -> Ids:
    """Count of each token id in texts, without added special tokens; int64 (ids,)."""
    counts = np.zeros(1 + max(tokenizer.get_vocab().values(), default=0), dtype=np.int64)
    for start in range(0, len(texts), texts_at_once):
        window = list(texts[start : start + texts_at_once])
        encodings = tokenizer.encode_batch_fast(window, add_special_tokens=False)
        ids = [i for encoding in encodings for i in encoding.ids]
        counts += np.bincount(np.array(ids, dtype=np.int64), minlength=len(counts))
    return counts


def nearest_neighbours(
    embeddings: Matrix, rows: Ids, k: int, *, distances_at_once: int = _BLOCK_ELEMENTS
) -> Ids:
    """The k nearest other rows by L2 distance, exact, blockwise at bounded memory.

    Args:
        embeddings: (words, width).
        rows: rows whose neighbours to find, int64 (queries,).
        k: number of neighbours; less than the number of words.
        distances_at_once: distances in memory.

    Returns:
        int64 (queries, k), nearest first, equal distances by row.

    Raises:
        InputValueError: there are not k other rows.
    """
    if not 0 < k < len(embeddings):
        raise InputValueError(f"{k} neighbours need more than {k} words; got {len(embeddings)}")
    exact = np.asarray(embeddings, dtype=np.float64)
    # Distances do not depend on the origin; with the mean as origin, float32 loses least.
    centred = (exact - exact.mean(0)).astype(np.float32)
    squares = np.square(centred).sum(1)
    # float32 may order near ties wrongly, so a few more are kept and ordered in float64.
    candidates = min(k + 4, len(exact) - 1)
    neighbours = np.empty((len(rows), k), dtype=np.int64)
    step = max(1, distances_at_once // len(exact))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        scores = squares - 2.0 * (centred[block] @ centred.T)
        scores[np.arange(len(block)), block] = np.inf
        nearest = np.sort(np.argpartition(scores, candidates - 1, axis=1)[:, :candidates], axis=1)
        for i, (row, others) in enumerate(zip(block, nearest, strict=True), start):
            distances = np.square(exact[others] - exact[row]).sum(1)
            neighbours[i] = others[np.argsort(distances, kind="stable")[:k]]
    return neighbours


def frequency_table(
    embeddings: Matrix, ranked: Ids, bands: Sequence[int] = RANKS
) -> list[FrequencyBand]:
    """Norms and neighbourhoods by band of ranks.

    Args:
        embeddings: (words, width); any of them may be a neighbour.
        ranked: int64 (ranked words,), rows of `embeddings`, the most frequent first.
        bands: the first rank of each band, ascending.
    """
    words = np.asarray(embeddings, dtype=np.float64)
    nearest = nearest_neighbours(words, ranked, max(NEIGHBOURS))
    table = []
    for first, last in zip(bands, (*bands[1:], None), strict=True):
        rows, neighbours = ranked[first:last], nearest[first:last]
        vectors = words[rows]
        distance: dict[int, float | None] = dict.fromkeys(NEIGHBOURS)
        dot: dict[int, float | None] = dict.fromkeys(NEIGHBOURS)
        if len(rows):
            # One neighbour at a time: all at once would need seven copies of the vocabulary.
            distances, dots = np.empty(neighbours.shape), np.empty(neighbours.shape)
            for j, column in enumerate(neighbours.T):
                distances[:, j] = np.linalg.norm(words[column] - vectors, axis=1)
                dots[:, j] = np.einsum("ij,ij->i", words[column], vectors)
            distance = {k: float(distances[:, :k].mean()) for k in NEIGHBOURS}
            dot = {k: float(dots[:, :k].mean()) for k in NEIGHBOURS}
        norm = float(np.linalg.norm(vectors, axis=1).mean()) if len(rows) else None
        table.append(FrequencyBand(first, last, len(rows), norm, distance, dot))
    return table


def measure_word_frequency(
    embeddings: Matrix, tokenizer: tokenizers.Tokenizer, counts: Ids, source: str
) -> WordFrequency:
    """Rank the vocabulary by its frequency in a corpus, and compute the table.

    Args:
        embeddings: (ids, width), a checkpoint's input word embeddings by token id.
        tokenizer: its tokenizer.
        counts: int64 (ids,), as `count_tokens` gives; equal ones are ranked by token id.
        source: the checkpoint's name, for the result.

    Raises:
        InputValueError: the vocabulary is too small to have 7 neighbours.
    """
    added = tokenizer.get_added_tokens_decoder()
    special = {i for i, token in added.items() if token.special}
    ids = sorted(i for i in tokenizer.get_vocab().values() if i < len(embeddings))
    words = np.array([i for i in ids if i not in special], dtype=np.int64)
    used = counts[words]
    ranked = np.argsort(-used, kind="stable")[: np.count_nonzero(used)]
    return WordFrequency(
        source=source,
        tokens=int(used.sum()),
        vocabulary=len(ids),
        special=len(ids) - len(words),
        unused=len(words) - len(ranked),
        bands=frequency_table(embeddings[words], ranked.astype(np.int64)),
    )
