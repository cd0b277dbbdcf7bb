"""The sparse vectors of a store in memory, as inverted files that follow the rows.

A `SparseState` is what one state of the store holds; it does not change, so searches need no lock.
A search makes the next one from the last, by what was written and deleted since. New rows are a
part of their own, and parts are joined as they grow: so there are few, and a row is moved only a
few times.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flowvec.collection.store.sparse_table import SparsePage
from flowvec.collection.store.store import Store
from flowvec.sparse.postings import Postings
from flowvec.sparse.vectors import SparseVectors

__all__ = ["SparseIndex", "SparseState"]

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# A part is joined with the one before it when that is at most so many times as large.
_GROWTH = 2
# Parts are built of so many weights, which bounds the memory that building takes besides.
_WEIGHTS_AT_ONCE = 1 << 22
# States that are kept for searches that began before the last changes, and how much memory each may
# take that the newest one does not use.
_KEPT_STATES = 4
_MOST_BESIDES = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows that were written together.

    Attributes:
        labels: distinct, ascending, int64 (rows,).
        postings: their weights; row i is the one of `labels[i]`.
        live: which rows are still there, bool (rows,); None is all.
    """

    labels: Labels
    postings: Postings
    live: Mask | None = None

    @classmethod
    def of(cls, pages: Sequence[SparsePage]) -> _Part:
        """A part of the rows of pages, whose labels are distinct."""
        vectors = SparseVectors.joined([page.vectors for page in pages])
        labels = np.concatenate([page.labels for page in pages])
        return cls._sorted(labels, Postings.of_rows(*vectors.arrays))

    @classmethod
    def joined(cls, parts: Sequence[_Part]) -> _Part:
        """The live rows of parts that have no live row in common."""
        labels = np.concatenate([part.live_labels for part in parts])
        postings = Postings.joined([part.postings for part in parts], [part.live for part in parts])
        return cls._sorted(labels, postings)

    @classmethod
    def _sorted(cls, labels: Labels, postings: Postings) -> _Part:
        if (np.diff(labels) > 0).all():
            return cls(labels, postings)
        order = np.argsort(labels)
        ranks = np.empty(len(labels), np.int32)
        ranks[order] = np.arange(len(labels), dtype=np.int32)
        return cls(labels[order], postings.renumbered(ranks))

    @property
    def count(self) -> int:
        """How many rows are live."""
        return len(self.labels) if self.live is None else int(np.count_nonzero(self.live))

    @property
    def live_labels(self) -> Labels:
        """Labels of the live rows, ascending."""
        return self.labels if self.live is None else self.labels[self.live]

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        marks = 0 if self.live is None else self.live.nbytes
        return self.labels.nbytes + self.postings.nbytes + marks

    def among(self, labels: Labels) -> Mask:
        """Which rows have one of some labels, which are distinct and ascend."""
        if len(labels) == len(self.labels) and np.array_equal(labels, self.labels):
            return np.ones(len(labels), np.bool_)
        marks = np.zeros(len(self.labels), np.bool_)
        places = np.searchsorted(self.labels, labels)
        known = places < len(self.labels)
        known[known] = self.labels[places[known]] == labels[known]
        marks[places[known]] = True
        return marks

    def without(self, labels: Labels) -> _Part:
        """The part with the rows of some labels dead."""
        dead = self.among(labels)
        if not dead.any():
            return self
        return replace(self, live=~dead if self.live is None else self.live & ~dead)

    def search(
        self, query: SparseVectors, k: int, eligible: Labels | None
    ) -> tuple[Labels, npt.NDArray[np.float64]]:
        """Labels and scores of the k best rows, as `Postings.search`."""
        allowed = self.live
        if eligible is not None:
            marks = self.among(eligible)
            allowed = marks if allowed is None else allowed & marks
        rows, scores = self.postings.search(query.indices, query.values, k, allowed)
        return self.labels[rows], scores


@dataclass(frozen=True, slots=True, eq=False)
class SparseState:
    """The sparse vectors of one state of a store.

    Attributes:
        number: the state's number.
        newest: the highest `n` of a sparse vector.
        deletions: how many deletions the store had counted.
        parts: the rows.
    """

    number: int
    newest: int
    deletions: int
    parts: tuple[_Part, ...]

    @property
    def count(self) -> int:
        """How many rows have a sparse vector."""
        return sum(part.count for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return sum(part.nbytes for part in self.parts)

    def besides(self, other: SparseState) -> int:
        """Memory that this state takes and another one does not use, in bytes."""
        held = {id(part.postings) for part in other.parts}
        return sum(part.nbytes for part in self.parts if id(part.postings) not in held)

    def search(
        self, query: SparseVectors, k: int, eligible: Labels | None = None
    ) -> dict[int, float]:
        """The k rows with the largest dot product above zero, best first; then by label.

        Args:
            query: one sparse vector.
            k: most rows.
            eligible: labels of the rows that may be found, ascending; None is all.

        Returns:
            Scores by label.
        """
        found = [part.search(query, k, eligible) for part in self.parts]
        if not found:
            return {}
        labels = np.concatenate([labels for labels, _ in found])
        scores = np.concatenate([scores for _, scores in found])
        order = np.lexsort((labels, -scores))[:k]
        return dict(zip(labels[order].tolist(), scores[order].tolist(), strict=True))


class SparseIndex:
    """Searches a store's sparse vectors, from any number of threads."""

    def __init__(
        self,
        store: Store,
        *,
        weights_at_once: int = _WEIGHTS_AT_ONCE,
        most_besides: int = _MOST_BESIDES,
    ) -> None:
        self._store = store
        self._weights_at_once, self._most_besides = weights_at_once, most_besides
        self._states: OrderedDict[int, SparseState] = OrderedDict()
        self._newest: SparseState | None = None
        self._following = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        """Memory of the rows here; 0 before the first search."""
        newest = self._newest
        return 0 if newest is None else newest.nbytes

    def clear(self) -> None:
        """Forget what is in memory; after the store's `close`."""
        with self._following:
            self._states.clear()
            self._newest = None

    def state(self) -> SparseState:
        """The sparse vectors of the state that this thread reads; inside the store's `reading`.

        If memory is further than what this thread reads, its view is renewed: the caller compares
        the state's number before and after.

        Raises:
            CorruptCollectionError: a sparse vector does not match its checksum, or one is missing.
        """
        number = self._store.meta.state()
        kept = self._states.get(number)
        if kept is not None:
            return kept
        with self._following:
            last = self._newest
            if last is not None and last.number > number:
                if number in self._states:
                    return self._states[number]
                self._store.database.renew()
                number = self._store.meta.state()
            if last is None or last.number != number:
                last = self._followed(last, number)
                self._states[number] = self._newest = last
                self._forget(last)
            return last

    def _forget(self, newest: SparseState) -> None:
        """Forget old states; a search that still needs one renews its view of the store."""
        for number, state in list(self._states.items()):
            too_old = len(self._states) > _KEPT_STATES
            if state is not newest and (too_old or state.besides(newest) > self._most_besides):
                del self._states[number]

    def _followed(self, last: SparseState | None, number: int) -> SparseState:
        """The state that this thread reads, from an earlier one if there is one."""
        if last is not None:
            state = self._next(last, number)
            if state.count == self._store.sparse.count:
                return state
            logger.warning("the sparse vectors are read again: the record of changes has a gap")
        state = self._next(SparseState(number, 0, 0, ()), number)
        self._store.sparse.require(state.count)
        return state

    def _next(self, last: SparseState, number: int) -> SparseState:
        """`last` with the changes since then."""
        deletions = self._store.meta.counts().deletions
        parts = list(last.parts)
        if parts and deletions != last.deletions:
            gone = self._store.deletions.since(last.deletions)
            if gone is None:
                held = self._store.sparse.labels()
                parts = [part.without(part.labels[~part.among(held)]) for part in parts]
            else:
                gone = np.unique(gone)
                parts = [part.without(gone) for part in parts]
        newest = last.newest
        for pages in _in_blocks(self._store.sparse.pages(last.newest), self._weights_at_once):
            part = _Part.of(pages)
            # A row that got another sparse vector.
            parts = [older.without(part.labels) for older in parts]
            parts.append(part)
            _tidy(parts)
            newest = pages[-1].last
        _tidy(parts)
        return SparseState(number, newest, deletions, tuple(parts))


def _in_blocks(pages: Iterable[SparsePage], least: int) -> Iterator[list[SparsePage]]:
    """Pages in lists of at least this many weights, but for the last."""
    block, weights = list[SparsePage](), 0
    for page in pages:
        block.append(page)
        weights += len(page.vectors.values)
        if weights >= least:
            yield block
            block, weights = [], 0
    if block:
        yield block


def _tidy(parts: list[_Part]) -> None:
    """Join parts of similar size, and drop dead rows where they are the most."""
    for i, part in enumerate(parts):
        if part.live is not None and 2 * part.count < len(part.labels):
            parts[i] = _Part.joined([part])
    parts[:] = [part for part in parts if len(part.labels)]
    while len(parts) > 1 and parts[-2].nbytes <= _GROWTH * parts[-1].nbytes:
        parts[-2:] = [_Part.joined(parts[-2:])]
