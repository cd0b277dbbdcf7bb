"""Words beside vectors: SQLite's full-text index asked in plain text, and two rankings made one.

Both are pure decisions; `store.py` keeps the index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["HYBRID_BEST", "RANK_CONSTANT", "fuse", "match_expression"]

# Reciprocal rank fusion's constant (Cormack, Clarke and Buettcher 2009).
RANK_CONSTANT = 60
# Of a row that is first in both rankings.
HYBRID_BEST = 2 / (RANK_CONSTANT + 1)

_WORD = re.compile(r"\w+")
# Lucene's list for English: in half of all texts, so that they say little and cost much to look up.
# fmt: off
_STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they",
    "this", "to", "was", "will", "with",
))
# fmt: on
# A whole document as a query would be thousands of terms.
_MAX_WORDS = 64


def match_expression(text: str) -> str | None:
    """A query of SQLite's FTS5 for any of a text's words; None where it has none.

    A word that comes twice counts twice, as BM25 has it. English stop words are left out, unless
    there is nothing else. Every word is in quotes, so that none is an operator of FTS5's.
    """
    words = _WORD.findall(text.lower())
    telling = [word for word in words if word not in _STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in telling[:_MAX_WORDS]) or None


def fuse(rankings: Sequence[Sequence[int]], k: int) -> list[tuple[int, float]]:
    """The k best of several rankings by reciprocal rank fusion.

    Args:
        rankings: labels, best first, each at most once in one ranking.
        k: how many.

    Returns:
        (label, score), best first; a score is the sum over the rankings of 1 / (60 + rank), ranks
        counted from 1. Ties by where they first stood.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, label in enumerate(ranking, 1):
            scores[label] = scores.get(label, 0.0) + 1.0 / (RANK_CONSTANT + rank)
    return sorted(scores.items(), key=lambda pair: -pair[1])[:k]
