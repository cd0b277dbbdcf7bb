"""BM25 of a collection's texts by the statistics of several collections together.

SQLite ranks by the statistics of its own index: how many rows there are, how long their texts are,
and how many rows have each word. Collections that each hold a part of the rows would rank by
different ones, and their scores could not be compared. So each gives its statistics, and then ranks
by their sum: the scores are those of one collection with all rows.

SQLite gives no occurrences of a word in a row. But the rank of a query of one word has only one
solution for them, and they are a whole number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.filters import Condition
from flowvec.collection.store.sqlite import Database
from flowvec.errors import CorruptCollectionError

__all__ = ["Bm25", "WordStatistics", "numbers_in"]

# Those of SQLite's bm25().
_K1, _B = 1.2, 0.75
_LEAST_IDF = 1e-6
# Where FTS5 has the number of rows and of tokens: "The Averages Record" of its documentation.
_AVERAGES = 1

# A word in more rows than a tenth is left out if the query has rarer words: it says little, and to
# rank its rows takes long. In small collections no word is.
_COMMON_ROWS, _COMMON_SHARE = 1 << 14, 10
# All words together find at most so many times as many, so that a document can be a query.
_ALL_WORDS = 5
_MOST_WORDS = 256
_FEW_WORDS = 64

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WordStatistics:
    """What BM25 knows of all rows.

    Attributes:
        rows: how many there are, with a text or without.
        tokens: how many tokens their texts have.
        rows_with: how many rows have each term.
    """

    rows: int
    tokens: int
    rows_with: tuple[int, ...]

    @classmethod
    def total(cls, parts: Sequence[WordStatistics]) -> WordStatistics:
        """The statistics of all rows of several collections, for the same terms."""
        counts = zip(*(part.rows_with for part in parts), strict=True)
        return cls(
            sum(part.rows for part in parts),
            sum(part.tokens for part in parts),
            tuple(map(sum, counts)),
        )

    def of(self, terms: Sequence[str], some: Iterable[str]) -> WordStatistics:
        """The statistics of some of the terms that these are for."""
        places = {term: place for place, term in enumerate(terms)}
        counts = tuple(self.rows_with[places[term]] for term in some)
        return WordStatistics(self.rows, self.tokens, counts)

    def telling(self, terms: Sequence[str]) -> list[str]:
        """The terms that find rows, of those that these statistics are for: the rarest.

        A term in more than 16,384 rows and more than a tenth of all is left out, unless there is
        none that is rarer; and the most frequent are, beyond 256 terms or 5 times as many rows.
        Up to 64 terms of up to 16,384 rows are used in any case.
        """
        count_by_term = dict(zip(terms, self.rows_with, strict=True))
        if are_few(terms, self.rows):
            return [term for term in terms if count_by_term[term]]
        common = most_of_a_word(self.rows)
        chosen, total = set[str](), 0
        for term in sorted(count_by_term, key=lambda term: (count_by_term[term], term)):
            total += count_by_term[term]
            is_little = count_by_term[term] > common or total > _ALL_WORDS * common
            if chosen and (is_little or len(chosen) == _MOST_WORDS):
                break
            if total:
                chosen.add(term)
        once = terms if len(terms) <= _MOST_WORDS else dict.fromkeys(terms)
        return [term for term in once if term in chosen]

    def idf(self, place: int) -> float:
        """How telling a term is, by its place."""
        count = self.rows_with[place]
        ratio = (self.rows - count + 0.5) / (count + 0.5)
        return math.log(ratio) if ratio > 1.0 else _LEAST_IDF

    def length_term(self, sizes: Floats) -> Floats:
        """What the lengths of texts, in tokens, add to BM25's denominator, float64 (rows,)."""
        average = self.tokens / self.rows
        return _K1 * (1.0 - _B + _B * sizes / average)


def most_of_a_word(rows: int) -> int:
    """In how many of the rows a word may be that counts beside rarer words."""
    return max(_COMMON_ROWS, rows // _COMMON_SHARE)


def are_few(terms: Sequence[str], rows: int) -> bool:
    """Whether terms can all be used, so that they need not be counted."""
    return len(terms) <= _FEW_WORDS and rows <= _COMMON_ROWS


class Bm25:
    """Ranks the texts of a store that has a full-text index; inside the store's `reading`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def telling(self, terms: Sequence[str], *, are_counted: bool = False) -> list[str]:
        """As `WordStatistics.telling`, by the store's own statistics.

        Args:
            terms: as for `statistics`.
            are_counted: whether terms that no row has are left out of few terms, too.
        """
        rows, _ = self._sums()
        if not are_counted and are_few(terms, rows):
            return list(terms)
        # More rows need not be counted, unless all terms have more.
        most = most_of_a_word(rows)
        counted = self.statistics(terms, most + 1)
        if terms and min(counted.rows_with) > most:
            counted = self.statistics(terms)
        return counted.telling(terms)

    def statistics(self, terms: Sequence[str], most: int = -1) -> WordStatistics:
        """The store's own statistics for terms, each an FTS5 query of one phrase.

        Args:
            terms: FTS5 queries.
            most: count the rows with a term only up to this; below 0, all.

        Raises:
            CorruptCollectionError: the index is damaged.
        """
        with self._database.translated():
            counts = {
                term: int(
                    self._database.connection.execute(
                        "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)",
                        (term, most),
                    ).fetchone()[0]
                )
                for term in set(terms)
            }
        rows, tokens = self._sums()
        return WordStatistics(rows, tokens, tuple(counts[term] for term in terms))

    def _sums(self) -> tuple[int, int]:
        """How many rows and tokens the index has."""
        with self._database.translated():
            blocks = self._database.connection.execute(
                "SELECT block FROM words_data WHERE id = ?", (_AVERAGES,)
            ).fetchall()
        rows, tokens = (*numbers_in(blocks[0][0] if blocks else b""), 0, 0)[:2]
        return rows, tokens

    def best(
        self,
        terms: Sequence[str],
        by: WordStatistics,
        limit: int,
        condition: Condition | None = None,
    ) -> dict[int, float]:
        """BM25 of the rows whose texts match best, by label; best first, then by label.

        Args:
            terms: each an FTS5 query of one phrase; one that occurs twice counts twice.
            by: the statistics of all rows, for the same terms.
            limit: most rows to return.
            condition: which rows are eligible.

        Raises:
            CorruptCollectionError: the index is damaged.
        """
        own = self.statistics(terms)
        labels, scores = list[Labels](), list[Floats]()
        # Sums in the order of the terms, as SQLite adds them.
        for place, term in enumerate(terms):
            if not own.rows_with[place]:
                continue
            found, ranks, sizes = self._ranked(term, condition)
            length = own.length_term(sizes)
            part = ranks / own.idf(place)
            occurrences = np.rint(part * length / (_K1 + 1.0 - part))
            labels.append(found)
            scores.append(
                by.idf(place)
                * ((occurrences * (_K1 + 1.0)) / (occurrences + by.length_term(sizes)))
            )
        if not labels:
            return {}
        rows, row_of = np.unique(np.concatenate(labels), return_inverse=True)
        sums = np.bincount(row_of, np.concatenate(scores), len(rows))
        order = np.lexsort((rows, -sums))[:limit]
        return dict(zip(rows[order].tolist(), sums[order].tolist(), strict=True))

    def sizes(self, labels: Iterable[int]) -> dict[int, int]:
        """How many characters the folded texts of rows have, by label."""
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT id, length(c0) FROM words_content "
                "WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(labels)),),
            ).fetchall()
        return {int(label): int(size) for label, size in rows}

    def _ranked(self, term: str, condition: Condition | None) -> tuple[Labels, Floats, Floats]:
        """Labels of the rows with a term, their BM25 by the own statistics, and their tokens."""
        rows_of, chosen = "", condition or Condition("1", ())
        if condition is not None:
            rows_of = "JOIN items ON items.label = words.rowid"
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT words.rowid, words.rank, words_docsize.sz FROM words "  # noqa: S608 - filter
                f"JOIN words_docsize ON words_docsize.id = words.rowid {rows_of} "
                f"WHERE words MATCH ? AND {chosen.sql}",
                (term, *chosen.parameters),
            ).fetchall()
        found = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        ranks = np.fromiter((-row[1] for row in rows), np.float64, len(rows))
        sizes = np.fromiter((_size(row[2]) for row in rows), np.float64, len(rows))
        return found, ranks, sizes


@lru_cache(1 << 12)
def _size(blob: bytes) -> int:
    numbers = numbers_in(blob)
    return numbers[0] if numbers else 0


def numbers_in(blob: bytes) -> list[int]:
    """Integers in SQLite's format of variable length: 7 bits of each byte, and the last below 128.

    Raises:
        CorruptCollectionError: the last one is cut off.
    """
    numbers, number, is_open = list[int](), 0, False
    for byte in blob:
        number = number << 7 | byte & 0x7F
        is_open = byte >= 0x80
        if not is_open:
            numbers.append(number)
            number = 0
    if is_open:
        raise CorruptCollectionError("the full-text index holds a number that is cut off")
    return numbers
