"""Reads the prepared sentences as flat arrays of token ids, and draws pairs to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
# Concatenated texts: token ids, and where each text starts.
Texts = tuple[Ids, Ids]
Pairs = tuple[Texts, Texts]

SENTENCE, PASSAGE = 62, 190  # most tokens
# Every fiftieth paragraph is never trained on; retrieval is measured on it.
HELD_OUT, HELD_OUT_OF = 7, 50


def ragged(flat: npt.NDArray[np.integer], starts: Ids, lengths: Ids) -> Texts:
    """Pieces `flat[start : start + length]` as texts."""
    offsets = np.zeros(len(lengths), dtype=np.int64)
    np.cumsum(lengths[:-1], out=offsets[1:])
    positions = np.repeat(starts - offsets, lengths) + np.arange(lengths.sum())
    return flat[positions].astype(np.int64), offsets


@dataclass
class Corpus:
    """Token ids of all sentences, and the paragraph of each."""

    ids: npt.NDArray[np.uint16]
    offsets: Ids
    first: Ids  # the first sentence of each sentence's paragraph
    last: Ids  # one past the last
    held_out: npt.NDArray[np.bool_]

    @classmethod
    def load(cls, work: Path) -> Corpus:
        paragraph = np.load(work / "paragraph.npy")
        starts = np.flatnonzero(np.diff(paragraph, prepend=-1))
        counts = np.diff(starts, append=len(paragraph))
        return cls(
            np.load(work / "ids.npy"),
            np.load(work / "offsets.npy"),
            np.repeat(starts, counts),
            np.repeat(starts + counts, counts),
            paragraph % HELD_OUT_OF == HELD_OUT,
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def sentences(self, index: Ids) -> Texts:
        """Single sentences."""
        return self.spans(index, index + 1, SENTENCE)

    def spans(self, start: Ids, stop: Ids, limit: int) -> Texts:
        """Sentences start..stop as one text each, cut at `limit` tokens."""
        begin = self.offsets[start]
        return ragged(self.ids, begin, np.minimum(self.offsets[stop] - begin, limit))

    def rest_of_paragraph(self, index: Ids) -> Texts:
        """The part of its paragraph before a sentence or after it, whichever is longer."""
        first, last = self.first[index], self.last[index]
        before = index - first > last - index - 1
        return self.spans(
            np.where(before, first, index + 1), np.where(before, index, last), PASSAGE
        )


def without_some(texts: Texts, share: float, rng: np.random.Generator) -> Texts:
    """The texts without a random share of their tokens; the first token of each is kept."""
    ids, offsets = texts
    keep = rng.random(len(ids)) > share
    keep[offsets] = True
    return ids[keep], np.concatenate(([0], np.cumsum(keep)))[offsets].astype(np.int64)


@dataclass
class PairSource:
    """Draws pairs of related texts, of four kinds.

    neighbour: a sentence and the next or the one after; passage: a sentence and the rest of its
    paragraph; drop: a sentence twice, each time without 40 % of its tokens; wordnet: two words or
    terms that WordNet relates.
    """

    corpus: Corpus
    wordnet_ids: Ids
    wordnet_offsets: Ids
    wordnet_pairs: Ids  # (pairs, 2), indices of texts

    def draw(self, kind: str, count: int, rng: np.random.Generator) -> Pairs:
        """`count` pairs of the kind."""
        if kind == "wordnet":
            chosen = self.wordnet_pairs[rng.integers(len(self.wordnet_pairs), size=count)]
            left, right = (self._terms(chosen[:, side]) for side in (0, 1))
            return left, right
        corpus = self.corpus
        index = rng.integers(len(corpus), size=4 * count)
        index = index[~corpus.held_out[index]]
        if kind == "drop":
            texts = corpus.sentences(index[:count])
            return without_some(texts, 0.4, rng), without_some(texts, 0.4, rng)
        if kind == "neighbour":
            other = index + rng.integers(1, 3, size=len(index))
            together = np.flatnonzero(other < corpus.last[index])[:count]
            return corpus.sentences(index[together]), corpus.sentences(other[together])
        index = index[corpus.last[index] - corpus.first[index] >= 3][:count]
        return corpus.sentences(index), corpus.rest_of_paragraph(index)

    def _terms(self, index: Ids) -> Texts:
        start = self.wordnet_offsets[index]
        return ragged(self.wordnet_ids, start, self.wordnet_offsets[index + 1] - start)
