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

__all__ = ["Bm25", "WordStatistics"]

# Those of SQLite's bm25().
_K1, _B = 1.2, 0.75
_LEAST_IDF = 1e-6
# Where FTS5 has the number of rows and of tokens: "The Averages Record" of its documentation.
_AVERAGES = 1

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

    def idf(self, place: int) -> float:
        """How telling a term is, by its place."""
        count = self.rows_with[place]
        ratio = (self.rows - count + 0.5) / (count + 0.5)
        return math.log(ratio) if ratio > 1.0 else _LEAST_IDF

    def length_term(self, sizes: Floats) -> Floats:
        """What the lengths of texts, in tokens, add to BM25's denominator, float64 (rows,)."""
        average = self.tokens / self.rows
        return _K1 * (1.0 - _B + _B * sizes / average)


class Bm25:
    """Ranks the texts of a store that has a full-text index; inside the store's `reading`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def statistics(self, terms: Sequence[str]) -> WordStatistics:
        """The store's own statistics for terms, each an FTS5 query of one phrase.

        Raises:
            CorruptCollectionError: the index is damaged.
        """
        with self._database.translated():
            connection = self._database.connection
            blocks = connection.execute(
                "SELECT block FROM words_data WHERE id = ?", (_AVERAGES,)
            ).fetchall()
            counts = {
                term: int(
                    connection.execute(
                        "SELECT count(*) FROM words WHERE words MATCH ?", (term,)
                    ).fetchone()[0]
                )
                for term in set(terms)
            }
        rows, tokens = (*_numbers(blocks[0][0] if blocks else b""), 0, 0)[:2]
        return WordStatistics(rows, tokens, tuple(counts[term] for term in terms))

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
        """How many characters the texts of rows have, by label."""
        with self._database.translated():
            rows = self._database.connection.execute(
                "SELECT label, length(text) FROM items "
                "WHERE label IN (SELECT value FROM json_each(?))",
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
    numbers = _numbers(blob)
    return numbers[0] if numbers else 0


def _numbers(blob: bytes) -> list[int]:
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
