"""Hybrid search: plain text as a full-text query, and the fusion of two rankings.

Both are pure functions; `store/full_text.py` has the index.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

__all__ = ["HYBRID_BEST", "fuse", "match_expression", "trigram_query"]

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


def match_expression(text: str, *, prefix: bool = False) -> str | None:
    """An FTS5 query for any of a text's words; None if it has none.

    A word that occurs twice counts twice, as in BM25. English stop words are left out, unless there
    are no others. Every word is quoted: so it is never an FTS5 operator, and a word that FTS5
    splits is found as a phrase. FTS5 handles case and accents.

    Args:
        text: the query.
        prefix: also find words that begin with the last word, if the text ends with it.
    """
    words = _words(unicodedata.normalize("NFC", text))
    telling = _telling(words)
    terms = [f'"{word}"' for word in telling[:_MAX_WORDS]]
    if prefix and telling and telling[-1] is words[-1] and _is_in_word(text[-1]):
        terms[-1:] = _begun(telling[-1])
    return " OR ".join(terms) or None


def _begun(word: str) -> list[str]:
    """Terms for words that begin with one.

    The index holds words without their English endings: of `running` it holds `run`, which does not
    begin with `runni`. So an ending that has begun is completed: `running` is a term as well.
    """
    completed = {
        word + ending[typed:]
        for ending in _ENDINGS
        for typed in range(1, len(ending))
        if word.lower().endswith(ending[:typed]) and len(word) - typed >= _SHORTEST_STEM
    }
    if word[-2:-1] == word[-1:]:  # runn-ing
        completed.add(f"{word}ing")
    return [f'"{word}"*', *(f'"{term}"' for term in sorted(completed))]


def trigram_query(text: str) -> tuple[str | None, list[str]]:
    """An FTS5 query for an index by trigrams, and the words that are too short for it.

    A word is found as a part of texts. Of scripts that write no spaces every run of three
    characters is, so that a sentence finds texts that share a part of it.

    Returns:
        The query, or None if no word has three characters; and then the shorter words.
    """
    terms: list[str] = []
    words = _telling(_words(unicodedata.normalize("NFC", text)))
    for word in words:
        if _WITHOUT_SPACES.search(word):
            terms += [word[i : i + _TRIGRAM] for i in range(len(word) - _TRIGRAM + 1)]
        elif len(word) >= _TRIGRAM:
            terms.append(word)
    if terms:
        return " OR ".join(f'"{term}"' for term in terms[:_MAX_WORDS]), []
    return None, list(dict.fromkeys(words))[:_MAX_SHORT_WORDS]


def _telling(words: list[str]) -> list[str]:
    return [word for word in words if word.lower() not in _STOP_WORDS] or words


def _words(text: str) -> list[str]:
    """Runs of letters, digits, underscores and combining marks."""
    return "".join(c if _is_in_word(c) else " " for c in text).split()


def _is_in_word(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"


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
