"""Hybrid search: plain text as a full-text query, and the fusion of two or three rankings.

All of it are pure functions; `store/full_text.py` has the index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from flowvec.texts.folding import folded, words_of

__all__ = [
    "FUSIONS",
    "HYBRID_BEST",
    "HYBRID_DEPTH",
    "VECTORS_ALONE",
    "Fusion",
    "Shares",
    "fuse",
    "fuse_ranks",
    "fuse_scores",
    "query_terms",
    "rank_share",
    "scaled",
]

Fusion = Literal["weights", "ranks"]
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)
# What tells a row apart: its label, or in a search of several collections that and which one.
Key = TypeVar("Key", bound=Hashable)

# A hybrid search fuses this many rows of each ranking. It does not depend on k, so that scores do
# not either, and pages fit together. More rows cost time (most of it reads texts' vectors).
HYBRID_DEPTH = 500

# The score of a row that equals the query and matches its words and its sparse vector best.
HYBRID_BEST = 1.0
# Cormack, Clarke and Buettcher 2009, "Reciprocal rank fusion".
_RANK_OFFSET = 60
# Shares whose sum is so near to 1 leave nothing.
_ROUNDING = 1e-9

# A longer text as a query is cut: each of its words is looked up.
_MAX_WORDS = 10_000
_MAX_SHORT_WORDS = 8
_TRIGRAM = 3
# Characters of scripts that write no spaces: Thai, Lao, Tibetan, Burmese, Khmer, kana, Chinese.
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff]"
)
# Endings that the index strips from words, and which leave at least so much of them.
# fmt: off
_ENDINGS = (
    "s", "es", "ies", "ed", "ing", "ings", "ly", "ally", "y", "ity", "ities", "al", "als", "ic",
    "ical", "ial", "er", "ers", "or", "ors", "ize", "izes", "ized", "izing", "izer", "izers",
    "ization", "izations", "ate", "ates", "ated", "ating", "ator", "ators", "ation", "ations",
    "ational", "ion", "ions", "ional", "ive", "ives", "iveness", "ness", "nesses", "ful", "fully",
    "fulness", "ous", "ously", "ousness", "able", "ables", "ible", "ance", "ances", "ence", "ences",
    "ant", "ants", "ent", "ents", "ently", "ment", "ments", "ement", "ements", "ism", "isms",
    "alism", "icity", "ivity", "bility", "bilities",
)
# fmt: on
_SHORTEST_STEM = 2


def query_terms(
    text: str, tokenizer: str | None, *, prefix: bool = False
) -> tuple[list[str], list[str]]:
    """FTS5 queries of one phrase each, for the words of a text; and words that have none.

    Words are folded as the index is. One that occurs twice counts twice, as in BM25. Every word is
    quoted: so it is never an FTS5 operator, and a word that FTS5 splits is found as a phrase.

    By trigrams, a word is found as a part of texts. Of scripts that write no spaces every run of
    three characters is, so that a sentence finds texts that share a part of it.

    Args:
        text: the query.
        tokenizer: of the index, `unicode61` or `trigram`.
        prefix: also find words that begin with the last word, if the text ends with it.

    Returns:
        The queries, and the words that are too short for trigrams.
    """
    words = words_of(text)[:_MAX_WORDS]
    if tokenizer == "trigram":
        return _trigram_terms(words)
    terms = [f'"{word}"' for word in words]
    if prefix and words and folded(text).endswith(words[-1]):
        terms[-1:] = _begun(words[-1])
    return terms, []


def _begun(word: str) -> list[str]:
    """Terms for words that begin with one.

    The index holds words without their English endings: of `running` it holds `run`, which does not
    begin with `runni`. So an ending that has begun is completed: `running` is a term as well.
    """
    completed = {
        word + ending[typed:]
        for ending in _ENDINGS
        for typed in range(1, len(ending))
        if word.endswith(ending[:typed]) and len(word) - typed >= _SHORTEST_STEM
    }
    if word[-2:-1] == word[-1:]:  # runn-ing
        completed.add(f"{word}ing")
    return [f'"{word}"*', *(f'"{term}"' for term in sorted(completed))]


def _trigram_terms(words: list[str]) -> tuple[list[str], list[str]]:
    terms, short = list[str](), dict[str, None]()
    for word in words:
        if len(word) < _TRIGRAM:
            short[word] = None
        elif _WITHOUT_SPACES.search(word):
            terms += [word[i : i + _TRIGRAM] for i in range(len(word) - _TRIGRAM + 1)]
        else:
            terms.append(word)
    return [f'"{term}"' for term in terms[:_MAX_WORDS]], list(short)[:_MAX_SHORT_WORDS]


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of each ranking in a hybrid search. Their sum is 1.

    Attributes:
        vector: of the dense vectors.
        sparse: of the sparse vectors.
        words: of the words.
    """

    vector: float
    sparse: float
    words: float

    @classmethod
    def of(cls, vector: float | None, sparse: float | None, *, has_sparse: bool) -> Shares:
        """Shares of two that are given; those that are not share the rest equally with the words.

        Args:
            vector: 0 to 1; None is not given.
            sparse: 0 to 1; None is not given.
            has_sparse: whether the search has sparse vectors.

        Raises:
            ValueError: the sum of both is above 1.
        """
        if not has_sparse:
            sparse = 0.0
        rest = 1.0 - (vector or 0.0) - (sparse or 0.0)
        if rest < -_ROUNDING:
            raise ValueError(f"{vector:g} + {sparse:g}")
        rest = 0.0 if rest < _ROUNDING else rest
        each = rest / (1 + (vector is None) + (sparse is None))
        return cls(each if vector is None else vector, each if sparse is None else sparse, each)


VECTORS_ALONE = Shares(1.0, 0.0, 0.0)


def rank_share(weight: float, labels: Iterable[Key]) -> dict[Key, float]:
    """What a ranking gives to the fused score of each of its rows, by label.

    Args:
        weight: share of the ranking. The best row gets all of it.
        labels: rows, best first.
    """
    return {
        label: weight * (_RANK_OFFSET + 1) / (_RANK_OFFSET + rank)
        for rank, label in enumerate(labels, 1)
    }


def fuse_ranks(rankings: Sequence[Mapping[Key, float]], k: int) -> list[tuple[Key, float]]:
    """The k rows with the largest sum of what the rankings give to each.

    Args:
        rankings: as `rank_share` makes them.
        k: number of rows.

    Returns:
        (label, score), best first. A score is at most 1. Equal scores are in the order in which
        the rankings have them.
    """
    scores: dict[Key, float] = {}
    for ranking in rankings:
        for label, share in ranking.items():
            scores[label] = scores.get(label, 0.0) + share
    return sorted(scores.items(), key=lambda pair: -pair[1])[:k]


def fuse_scores(
    near: Mapping[Key, float],
    further: Mapping[Key, float],
    words: Mapping[Key, float],
    sparse: Mapping[Key, float],
    k: int,
    *,
    scores_of: Callable[[list[Key]], Mapping[Key, float]],
    self_score: float,
    vector_weight: float,
) -> list[tuple[Key, float]]:
    """The k best rows of the rankings of one query by a weighted sum, see `fuse`.

    A row's score is the same for every k: so is what it is scaled by, and rows from `further` come
    after the nearest rows even if a graph has missed them there.

    Args:
        near: vector scores of the nearest rows, `HYBRID_DEPTH` of them, best first.
        further: vector scores of the k nearest rows if k is above that; else none.
        words: what the words give to each row (`scaled`).
        sparse: what the sparse vectors give to each row (`scaled`).
        k: number of rows.
        scores_of: gives the vector scores of rows that are not among the nearest.
        self_score: vector score of the query with itself.
        vector_weight: share of the vector score, 0 to 1.
    """
    least = min(near.values(), default=0.0)
    scores = dict(near)
    if far := [key for key in dict(words) | dict(sparse) if key not in scores]:
        scores |= scores_of(far)
    scores |= {key: min(score, least) for key, score in further.items() if key not in scores}
    return fuse(
        scores,
        [words, sparse],
        k,
        least=least,
        self_score=self_score,
        vector_weight=vector_weight,
    )


def fuse(
    score_by_label: Mapping[Key, float],
    others: Sequence[Mapping[Key, float]],
    k: int,
    *,
    least: float,
    self_score: float,
    vector_weight: float,
) -> list[tuple[Key, float]]:
    """The k best rows by a weighted sum of their scores in several rankings.

    The vector score is scaled: 0 for the last row of the vector ranking, 1 for a row equal to the
    query. So it means the same for every model's range of cosines. Such a convex combination beats
    reciprocal ranks (Bruch, Gai and Ingber 2023, "An analysis of fusion functions for hybrid
    retrieval").

    Args:
        score_by_label: vector score of each row that any ranking found.
        others: what each further ranking gives to a row's score, by label: its share for the best
            row, 0 for rows that it did not find (`scaled`).
        k: number of rows.
        least: vector score of the last row of the vector ranking.
        self_score: vector score of the query with itself.
        vector_weight: share of the vector score, 0 to 1.

    Returns:
        (label, score), best first. A score is at most 1; it is below 0 for a row that is farther
        than all rows of the vector ranking and which the others hardly found. Equal scores keep the
        order of `score_by_label`.
    """
    span = max(self_score, max(score_by_label.values(), default=self_score)) - least

    def fused(label: Key, score: float) -> float:
        # Without a span, all rows of the vector ranking equal the query; others are farther.
        nearness = (score - least) / span if span > 0.0 else float(score >= least)
        return vector_weight * nearness + sum(other.get(label, 0.0) for other in others)

    scores = {label: fused(label, score) for label, score in score_by_label.items()}
    return sorted(scores.items(), key=lambda pair: -pair[1])[:k]


def scaled(weight: float, score_by_label: Mapping[Key, float]) -> dict[Key, float]:
    """Scores above zero as shares of the best row's, which gets all of a ranking's weight."""
    best = max(score_by_label.values(), default=0.0)
    if best <= 0.0:
        return {}
    return {label: weight * (score / best) for label, score in score_by_label.items()}
