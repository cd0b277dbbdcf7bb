"""Searches of a collection: what is near, and what it is, both of one state of the store."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import numpy.typing as npt

from flowvec.collection.hybrid import fuse, match_expression
from flowvec.collection.index.vector_index import Found, Neighbours
from flowvec.collection.results import Hit
from flowvec.collection.store.filters import Condition
from flowvec.collection.store.rows import Id, Item
from flowvec.collection.store.store import Store
from flowvec.errors import CorruptCollectionError

__all__ = ["Searcher"]

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

# A hybrid search fuses so many times more of each ranking than it returns.
_HYBRID_DEPTH = 5
_HYBRID_LEAST = 100
_MOST_HYBRID = 1 << 31
# Rows that the filters asked last leave: 16 MiB at most.
_KEPT_FILTERS = 32
_KEPT_LABELS = 1 << 21


class Searcher:
    """Searches for any number of threads."""

    def __init__(
        self,
        store: Store,
        neighbours: Neighbours,
        reading: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Search a store by its neighbours.

        Args:
            store: the rows.
            neighbours: what is near.
            reading: gives one state of the store for a block.
        """
        self._store = store
        self._neighbours = neighbours
        self._reading = reading
        self._eligible: OrderedDict[Condition, tuple[int, Labels]] = OrderedDict()
        self._eligible_lock = threading.Lock()

    def hits(
        self,
        vectors: Floats,
        k: int,
        condition: Condition | None,
        min_score: float | None,
        *,
        exact: bool = False,
        ef: int | None = None,
    ) -> list[list[Hit]]:
        """The k nearest rows of each vector, best first."""
        with self._reading():
            found = self._nearest(vectors, k, condition, exact=exact, ef=ef)
            items = self._items(np.unique(found.labels).tolist())
        ranked = zip(found.labels.tolist(), found.scores.tolist(), strict=True)
        return [_hits(zip(*line, strict=True), items, min_score) for line in ranked]

    def hybrid_hits(
        self,
        texts: Sequence[str],
        vectors: Floats,
        k: int,
        condition: Condition | None,
        min_score: float | None,
        *,
        vector_weight: float,
        exact: bool = False,
        ef: int | None = None,
    ) -> list[list[Hit]]:
        """The k rows of each text that rank highest by its vector and by its words together."""
        with self._reading():
            # More than there are rows is no deeper, and would be no number to SQLite.
            depth = min(max(_HYBRID_LEAST, _HYBRID_DEPTH * k), _MOST_HYBRID)
            found = self._nearest(vectors, depth, condition, exact=exact, ef=ef)
            fused = []
            for text, vector, labels, scores in zip(
                texts, vectors, found.labels.tolist(), found.scores.tolist(), strict=True
            ):
                near = dict(zip(labels, scores, strict=True))
                worded = self._with_words(match_expression(text), depth, condition)
                far = [label for label in worded if label not in near]
                if far:
                    near |= self._scores_of(vector, far)
                least = min(scores, default=0.0)
                own = self._neighbours.scores(vector, vector[None])[0]
                fused.append(
                    fuse(near, worded, k, least=least, own=own, vector_weight=vector_weight)
                )
            items = self._items(sorted({label for line in fused for label, _ in line}))
        return [_hits(line, items, min_score) for line in fused]

    def _scores_of(self, vector: Floats, labels: Sequence[int]) -> dict[int, float]:
        """The score of a vector with each of these rows."""
        rows = self._items(labels)
        scores = self._neighbours.scores(vector, np.stack([rows[label].vector for label in labels]))
        return dict(zip(labels, scores, strict=True))

    def ids(
        self,
        vectors: Floats,
        k: int,
        condition: Condition | None,
        *,
        exact: bool = False,
        ef: int | None = None,
    ) -> tuple[list[list[Id]], Floats]:
        """Ids and scores of the k nearest rows of each vector; no row is read."""
        found = None
        if condition is None and not exact:
            found = self._neighbours.search_held(vectors, k, ef)
        if found is None:
            with self._reading():
                found = self._nearest(vectors, k, condition, with_ids=True, exact=exact, ef=ef)
        assert found.ids is not None
        return found.ids, found.scores

    def _nearest(
        self,
        vectors: Floats,
        k: int,
        condition: Condition | None,
        *,
        with_ids: bool = False,
        exact: bool = False,
        ef: int | None = None,
    ) -> Found:
        eligible: Callable[[int], Labels] | None = None
        if condition is not None:
            eligible = partial(self._eligible_rows, condition)
        return self._neighbours.search(vectors, k, eligible, with_ids=with_ids, exact=exact, ef=ef)

    def _eligible_rows(self, condition: Condition, state: int) -> Labels:
        """Labels of a state's rows that meet a condition; services ask the same ones again."""
        with self._eligible_lock:
            kept = self._eligible.get(condition)
            if kept is not None and kept[0] == state:
                self._eligible.move_to_end(condition)
                return kept[1]
        labels = self._store.labels(condition)
        with self._eligible_lock:
            self._eligible[condition] = (state, labels)
            self._eligible.move_to_end(condition)
            held = sum(len(found) for _, found in self._eligible.values())
            while held > _KEPT_LABELS or len(self._eligible) > _KEPT_FILTERS:
                _, (_, dropped) = self._eligible.popitem(last=False)
                held -= len(dropped)
        return labels

    def _with_words(
        self, expression: str | None, depth: int, condition: Condition | None
    ) -> dict[int, float]:
        return {} if expression is None else self._store.find_words(expression, depth, condition)

    def _items(self, labels: Sequence[int]) -> dict[int, Item]:
        items = self._store.read(labels)
        if len(items) < len(labels):
            raise CorruptCollectionError(
                "the collection's graph holds rows that its store does not"
            )
        return items


def _hits(
    line: Iterable[tuple[int, float]], items: dict[int, Item], min_score: float | None
) -> list[Hit]:
    return [
        Hit(items[label].id, score, items[label].text, items[label].metadata)
        for label, score in line
        if min_score is None or score >= min_score
    ]
