"""Words beside vectors: SQLite's full-text index asked in plain text, and two rankings made one.

Both are pure decisions; `store.py` keeps the index.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

__all__ = ["HYBRID_BEST", "fuse", "match_expression"]

# Of a row that equals the query and matches its words best.
HYBRID_BEST = 1.0

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
    there is nothing else. Every word is in quotes, so that none is an operator of FTS5's, and that
    one which FTS5 cuts is found as a phrase. Case and accents are left to FTS5.
    """
    words = _words(unicodedata.normalize("NFC", text))
    telling = [word for word in words if word.lower() not in _STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in telling[:_MAX_WORDS]) or None


def _words(text: str) -> list[str]:
    """Runs of letters, digits, underscores, and the marks that combine with letters."""
    return "".join(
        c if c == "_" or unicodedata.category(c)[0] in "LMN" else " " for c in text
    ).split()


def fuse(
    near: Mapping[int, float],
    worded: Mapping[int, float],
    k: int,
    *,
    least: float,
    own: float,
    vector_weight: float,
) -> list[tuple[int, float]]:
    """The k best of the rows that are near or share words, by a convex combination of both.

    A row's nearness counts from that of the last row found (0) to that of a row equal to the query
    (1), so that it means the same whatever a model's cosines range over; its BM25 counts as a share
    of the best row's. Such combinations beat reciprocal ranks (Bruch, Gai and Ingber 2023, "An
    analysis of fusion functions for hybrid retrieval").

    Args:
        near: the vectors' score of each row that either ranking found, by label.
        worded: BM25 of those that share words with the query, from 0 up; 0 for the others.
        k: how many.
        least: score of the last row that the vectors' ranking found.
        own: the query's score with itself.
        vector_weight: share of nearness, 0 to 1; the rest is the words'.

    Returns:
        (label, score), best first; a score is at most 1, and below 0 for a row that is farther than
        all that the vectors' ranking found and has hardly a word. Ties as in `near`.
    """
    span = max(own, max(near.values(), default=own)) - least
    most = max(worded.values(), default=0.0)
    scores = {
        label: vector_weight * ((score - least) / span if span > 0.0 else 1.0)
        + (1.0 - vector_weight) * (worded.get(label, 0.0) / most if most > 0.0 else 0.0)
        for label, score in near.items()
    }
    return sorted(scores.items(), key=lambda pair: -pair[1])[:k]
