"""An inverted file of sparse rows: for each term the rows that have it, and their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from flowvec.hnsw import best_rows

__all__ = ["Postings"]

Terms = npt.NDArray[np.int32]
Weights = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# numpy sorts numbers of 16 bits by radix, ten times as fast as larger ones.
_MOST_RADIX = 1 << 16
# Up to this term, a table of all terms is faster than sorting those that occur.
_MOST_TABLE = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """Sparse rows by term. Nothing in it changes, so any number of threads may search it.

    Attributes:
        count: how many rows there are; some may have no terms.
        terms: the terms of all rows, each once, ascending, int32 (terms,).
        offsets: where the list of each term begins, and where the last one ends, int64
            (terms + 1,).
        rows: the rows of each list, ascending, int32 (weights,).
        weights: float32 (weights,).
    """

    count: int
    terms: Terms
    offsets: Offsets
    rows: Numbers
    weights: Weights
    # Weights that `joined` and `renumbered` move at once.
    weights_at_once: ClassVar[int] = 1 << 22

    @classmethod
    def of(cls, count: int, rows: Numbers, terms: Terms, weights: Weights) -> Postings:
        """Postings of weights, of which those of one term come in ascending order of rows.

        Args:
            count: how many rows there are.
            rows: the row of each weight, int32 (weights,).
            terms: its term, int32 (weights,).
            weights: float32 (weights,).
        """
        distinct, ranks = _ranked(terms)
        order = np.argsort(ranks, kind="stable")
        offsets = np.zeros(len(distinct) + 1, np.int64)
        np.cumsum(np.bincount(ranks, minlength=len(distinct)), out=offsets[1:])
        return cls(count, distinct, offsets, rows[order], weights[order])

    @classmethod
    def of_rows(cls, indptr: Offsets, terms: Terms, weights: Weights) -> Postings:
        """Postings of compressed sparse rows, such as those of `SparseVectors`."""
        numbers = np.arange(len(indptr) - 1, dtype=np.int32)
        return cls.of(len(numbers), np.repeat(numbers, np.diff(indptr)), terms, weights)

    @classmethod
    def joined(cls, parts: Sequence[Postings], live: Sequence[Mask | None]) -> Postings:
        """The rows of several parts, one after another, without those that are not live.

        Beside the result it needs memory for a few million weights.

        Args:
            parts: at least one.
            live: which rows of each part stay, bool (rows of the part,); None is all.
        """
        first, numbers, counts = 0, list[Numbers](), list[Offsets]()
        for part, mask in zip(parts, live, strict=True):
            kept = np.ones(part.count, np.bool_) if mask is None else mask
            numbers.append(np.cumsum(kept, dtype=np.int32) + np.int32(first - 1))
            counts.append(np.diff(part.offsets) if mask is None else part.counted(mask))
            first += int(np.count_nonzero(kept))
        terms = np.unique(np.concatenate([part.terms for part in parts]))
        places = [np.searchsorted(terms, part.terms) for part in parts]
        lengths = np.zeros(len(terms), np.int64)
        for place, count in zip(places, counts, strict=True):
            lengths[place] += count
        occurs = lengths > 0
        ends = np.cumsum(lengths)
        rows, weights = np.empty(ends[-1:].sum(), np.int32), np.empty(ends[-1:].sum(), np.float32)
        free = ends - lengths  # where the next rows of each term are written
        for part, mask, number, place, count in zip(
            parts, live, numbers, places, counts, strict=True
        ):
            part._write(rows, weights, free[place], count, number, mask)
            free[place] += count
        offsets = np.concatenate([np.zeros(1, np.int64), ends[occurs]])
        return cls(first, terms[occurs], offsets, rows, weights)

    def renumbered(self, numbers: Numbers) -> Postings:
        """The same rows in another order.

        Args:
            numbers: the new number of each row, int32 (count,), each once.
        """
        rows, weights = np.empty_like(self.rows), np.empty_like(self.weights)
        for first, last in self._blocks():
            part = slice(self.offsets[first], self.offsets[last])
            new = numbers[self.rows[part]]
            lengths = np.diff(self.offsets[first : last + 1])
            keys = np.repeat(np.arange(last - first) * self.count, lengths) + new
            order = np.argsort(keys)
            rows[part], weights[part] = new[order], self.weights[part][order]
        return Postings(self.count, self.terms, self.offsets, rows, weights)

    def counted(self, live: Mask) -> Offsets:
        """How many live rows each term has, int64 (terms,)."""
        counts = np.zeros(len(self.terms), np.int64)
        for first, last in self._blocks():
            bounds = self.offsets[first : last + 1] - self.offsets[first]
            stays = live[self.rows[self.offsets[first] : self.offsets[last]]]
            total = np.concatenate([np.zeros(1, np.int64), np.cumsum(stays, dtype=np.int64)])
            counts[first:last] = np.diff(total[bounds])
        return counts

    def _write(
        self,
        rows: Numbers,
        weights: Weights,
        starts: Offsets,
        counts: Offsets,
        numbers: Numbers,
        live: Mask | None,
    ) -> None:
        """Write the lists of each term to where they begin in other arrays.

        Args:
            rows: is written to.
            weights: is written to.
            starts: where each list begins there.
            counts: how many rows of each list are live.
            numbers: the new number of each row.
            live: which rows are written; None is all.
        """
        for first, last in self._blocks():
            part = slice(self.offsets[first], self.offsets[last])
            old, new_weights = self.rows[part], self.weights[part]
            if live is not None:
                stays = live[old]
                old, new_weights = old[stays], new_weights[stays]
            length = counts[first:last]
            shift = starts[first:last] - (np.cumsum(length) - length)
            to = np.repeat(shift, length) + np.arange(len(old))
            rows[to], weights[to] = numbers[old], new_weights

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of terms, each of a few million weights at most or of a single term."""
        first, terms = 0, len(self.terms)
        while first < terms:
            most = self.offsets[first] + self.weights_at_once
            last = max(first + 1, int(np.searchsorted(self.offsets, most, "right")) - 1)
            yield first, last
            first = last

    @property
    def nbytes(self) -> int:
        """Memory of its arrays, in bytes."""
        return sum(a.nbytes for a in (self.terms, self.offsets, self.rows, self.weights))

    def search(
        self, terms: npt.NDArray[np.integer], weights: Weights, k: int, allowed: Mask | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """The k rows with the largest dot product above zero; equal ones by ascending row.

        Args:
            terms: the query's terms, ascending, (terms,).
            weights: their weights, float32 (terms,).
            k: most rows to return.
            allowed: which rows may be returned, bool (count,); None is all.

        Returns:
            Rows, int32, and scores, float64, best first.
        """
        places = np.searchsorted(self.terms, terms)
        known = places < len(self.terms)
        known[known] = self.terms[places[known]] == terms[known]
        places = places[known]
        return best_rows(
            self.rows,
            self.weights,
            self.offsets[places],
            self.offsets[places + 1],
            weights[known],
            self.count,
            k,
            allowed,
        )


def _ranked(terms: Terms) -> tuple[Terms, npt.NDArray[np.integer]]:
    """The distinct terms, ascending, and the place of each term among them."""
    if len(terms) and int(terms.max()) < min(_MOST_TABLE, 64 * len(terms)):
        occurs = np.zeros(int(terms.max()) + 1, np.bool_)
        occurs[terms] = True
        distinct = np.flatnonzero(occurs).astype(np.int32)
        places = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
        return distinct, places.astype(_kind_of_ranks(len(distinct)))[terms]
    distinct, ranks = np.unique(terms, return_inverse=True)
    return distinct, np.asarray(ranks, _kind_of_ranks(len(distinct)))


def _kind_of_ranks(count: int) -> npt.DTypeLike:
    return np.uint16 if count <= _MOST_RADIX else np.int32
