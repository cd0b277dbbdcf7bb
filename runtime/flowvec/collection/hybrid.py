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
    near: Mapping[int, float],
    worded: Mapping[int, float],
    k: int,
    *,
    least: float,
    perfect: float,
    vector_weight: float,
) -> list[tuple[int, float]]:
    """The k best rows by a convex combination of their nearness and their words.

    A row's nearness counts from 0 for the last row that was found to 1 for a row equal to the
    query, so that it means the same for every model's range of cosines. Its BM25 counts as a share
    of the best row's. Such combinations beat reciprocal ranks (Bruch, Gai and Ingber 2023, "An
    analysis of fusion functions for hybrid retrieval").

    Args:
        near: vector score of each row that either ranking found, by label.
        worded: BM25 of the rows that share words with the query, by label; missing rows count as 0.
        k: number of rows.
        least: score of the last row that the vector ranking found.
        perfect: the query's score with itself.
        vector_weight: share of nearness, 0 to 1; the rest is the share of the words.

    Returns:
        (label, score), best first. A score is at most 1; it is below 0 for a row that is farther
        than all rows of the vector ranking and shares few words. Equal scores keep the order of
        `near`.
    """
    span = max(perfect, max(near.values(), default=perfect)) - least
    most = max(worded.values(), default=0.0)
    scores = {
        label: vector_weight * ((score - least) / span if span > 0.0 else 1.0)
        + (1.0 - vector_weight) * (worded.get(label, 0.0) / most if most > 0.0 else 0.0)
        for label, score in near.items()
    }
    return sorted(scores.items(), key=lambda pair: -pair[1])[:k]
