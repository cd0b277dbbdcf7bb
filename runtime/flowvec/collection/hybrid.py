"""Hybrid search: plain text as a full-text query, and the fusion of two rankings.

Both are pure functions; `store/full_text.py` has the index.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

__all__ = ["HYBRID_BEST", "fuse", "match_expression"]

# The score of a row that equals the query and matches its words best.
HYBRID_BEST = 1.0

# Lucene's list for English: words in half of all texts, which say little and are slow to look up.
# fmt: off
_STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they",
    "this", "to", "was", "will", "with",
))
# fmt: on
# A whole document as a query would have thousands of terms.
_MAX_WORDS = 64


def match_expression(text: str) -> str | None:
    """An FTS5 query for any of a text's words; None if it has none.

    A word that occurs twice counts twice, as in BM25. English stop words are left out, unless there
    are no others. Every word is quoted: so it is never an FTS5 operator, and a word that FTS5
    splits is found as a phrase. FTS5 handles case and accents.
    """
    words = _words(unicodedata.normalize("NFC", text))
    telling = [word for word in words if word.lower() not in _STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in telling[:_MAX_WORDS]) or None


def _words(text: str) -> list[str]:
    """Runs of letters, digits, underscores and combining marks."""
    return "".join(
        c if c == "_" or unicodedata.category(c)[0] in "LMN" else " " for c in text
    ).split()


def fuse(
    score_by_label: Mapping[int, float],
    bm25_by_label: Mapping[int, float],
    k: int,
    *,
    least: float,
    self_score: float,
    vector_weight: float,
) -> list[tuple[int, float]]:
    """The k best rows by a weighted sum of their vector score and their BM25.

    The vector score is scaled: 0 for the last row of the vector ranking, 1 for a row equal to the
    query. So it means the same for every model's range of cosines. BM25 is divided by the best
    row's. Such a convex combination beats reciprocal ranks (Bruch, Gai and Ingber 2023, "An
    analysis of fusion functions for hybrid retrieval").

    Args:
        score_by_label: vector score of each row that either ranking found.
        bm25_by_label: BM25 of each row that shares words with the query; 0 for other rows.
        k: number of rows.
        least: vector score of the last row of the vector ranking.
        self_score: vector score of the query with itself.
        vector_weight: weight of the vector score, 0 to 1; the rest is the weight of BM25.

    Returns:
        (label, score), best first. A score is at most 1; it is below 0 for a row that is farther
        than all rows of the vector ranking and shares few words. Equal scores keep the order of
        `score_by_label`.
    """
    span = max(self_score, max(score_by_label.values(), default=self_score)) - least
    best_bm25 = max(bm25_by_label.values(), default=0.0)

    def fused(label: int, score: float) -> float:
        nearness = (score - least) / span if span > 0.0 else 1.0
        words = bm25_by_label.get(label, 0.0) / best_bm25 if best_bm25 > 0.0 else 0.0
        return vector_weight * nearness + (1.0 - vector_weight) * words

    scores = {label: fused(label, score) for label, score in score_by_label.items()}
    return sorted(scores.items(), key=lambda pair: -pair[1])[:k]
