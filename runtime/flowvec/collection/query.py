"""Searches of a collection: the nearest rows and what they hold, from one state of the store."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flowvec.arguments import flag, text_or_none, whole_number
from flowvec.collection.grouping import best_of_groups, group_of
from flowvec.collection.hybrid import HYBRID_BEST, fuse, match_expression, trigram_query
from flowvec.collection.index.vector_index import Nearest, VectorIndex
from flowvec.collection.results import Hit
from flowvec.collection.store.filter_columns import COLUMNS
from flowvec.collection.store.filters import Condition, Filter, compile_filter
from flowvec.collection.store.json_field import field_names
from flowvec.collection.store.rows import Id, Item
from flowvec.collection.store.store import Store
from flowvec.collection.validation import check_k, check_score, check_weight
from flowvec.errors import CorruptCollectionError, InputValueError

__all__ = ["SearchOptions", "Searcher"]

Floats = npt.NDArray[np.float32]
# By label, the part of a fused score that the words gave.
Words = dict[int, float]

# A hybrid search fuses this many rows of each ranking. It does not depend on k, so that scores do
# not either, and pages fit together. More rows cost time (most of it reads texts' vectors).
_HYBRID_DEPTH = 500
_VECTOR_WEIGHT = 0.5


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Checked options of a search; `Collection.search` says what they mean.

    `k` counts the hits that `offset` skips, too.
    """

    k: int
    condition: Condition | None = None
    min_score: float | None = None
    hybrid: bool = False
    vector_weight: float = _VECTOR_WEIGHT
    exact: bool = False
    ef: int | None = None
    offset: int = 0
    group_by: str | None = None
    prefix: bool = False
    with_vectors: bool = False

    @classmethod
    def checked(
        cls,
        k: int,
        filter: Filter | None,
        *,
        min_score: float | None = None,
        hybrid: bool = False,
        vector_weight: float | None = None,
        exact: bool = False,
        ef: int | None = None,
        offset: int = 0,
        group_by: str | None = None,
        prefix: bool = False,
        with_vectors: bool = False,
        is_reranked: bool = False,
    ) -> SearchOptions:
        """Check a caller's options.

        With `is_reranked`, `min_score` is a score of a reranker.

        Raises:
            InputTypeError, InputValueError: one of them is not valid.
        """
        flag("exact", exact)
        flag("hybrid", hybrid)
        if flag("prefix", prefix) and not hybrid:
            raise InputValueError("prefix is for the words of a hybrid search: add hybrid=True")
        weight = _VECTOR_WEIGHT if vector_weight is None else check_weight(vector_weight)
        if vector_weight is not None and not hybrid:
            raise InputValueError("vector_weight is for a hybrid search: add hybrid=True")
        hits, skipped = check_k(k), check_k(offset, "offset")
        options = cls(
            k=hits and hits + skipped,
            offset=skipped,
            condition=None if filter is None else compile_filter(filter),
            min_score=check_score(min_score),
            hybrid=hybrid,
            vector_weight=weight,
            exact=exact,
            ef=None if ef is None else whole_number("ef", ef),
            group_by=_checked_field(group_by),
            prefix=prefix,
            with_vectors=flag("with_vectors", with_vectors),
        )
        too_high = options.min_score is not None and options.min_score > HYBRID_BEST
        if hybrid and not is_reranked and too_high:
            raise InputValueError(
                f"a hybrid search's scores are at most {HYBRID_BEST:g}, and min_score is "
                f"{min_score}"
            )
        return options


class Searcher:
    """Searches for any number of threads."""

    def __init__(
        self,
        store: Store,
        index: VectorIndex,
        reading: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Search a store.

        Args:
            store: the rows.
            index: finds the nearest rows.
            reading: makes all reads in its block see one state of the store.
        """
        self._store = store
        self._index = index
        self._reading = reading

    def hits(self, vectors: Floats, options: SearchOptions) -> list[list[Hit]]:
        """The k nearest rows of each vector, best first."""
        return self._hits(None, vectors, options)

    def hybrid_hits(
        self, texts: Sequence[str], vectors: Floats, options: SearchOptions
    ) -> list[list[Hit]]:
        """The k rows of each text that rank highest by its vector and its words together."""
        return self._hits(texts, vectors, options)

    def _hits(
        self, texts: Sequence[str] | None, vectors: Floats, options: SearchOptions
    ) -> list[list[Hit]]:
        words: list[Words] = [{} for _ in vectors]
        with self._reading():
            if options.group_by is None:
                ranked = self._ranked(texts, vectors, options, words)
            else:
                ranked = self._grouped(texts, vectors, options, words, options.group_by)
            items = self._items(sorted({label for line in ranked for label, _ in line}))
        given = [None] * len(words) if texts is None else words
        return [_hits(*line, items, options) for line in zip(ranked, given, strict=True)]

    def _ranked(
        self,
        texts: Sequence[str] | None,
        vectors: Floats,
        options: SearchOptions,
        words: Sequence[Words],
    ) -> list[list[tuple[int, float]]]:
        """Labels and scores of the k best rows of each query; hybrid searches have texts.

        What the words of each query gave is added to `words`.
        """
        if texts is None:
            nearest = self._nearest(vectors, options)
            lines = zip(nearest.labels.tolist(), nearest.scores.tolist(), strict=True)
            return [list(zip(*line, strict=True)) for line in lines]
        near = self._scores_by_label(vectors, replace(options, k=_HYBRID_DEPTH))
        further: list[dict[int, float]] = [{} for _ in near]
        if options.k > _HYBRID_DEPTH:
            # Exact: a graph may find other rows among the first if it is asked for more.
            further = self._scores_by_label(vectors, replace(options, exact=True))
        return [
            self._fused(*line, options)
            for line in zip(texts, vectors, near, further, words, strict=True)
        ]

    def _scores_by_label(self, vectors: Floats, options: SearchOptions) -> list[dict[int, float]]:
        nearest = self._nearest(vectors, options)
        lines = zip(nearest.labels.tolist(), nearest.scores.tolist(), strict=True)
        return [dict(zip(*line, strict=True)) for line in lines]

    def _grouped(
        self,
        texts: Sequence[str] | None,
        vectors: Floats,
        options: SearchOptions,
        words: Sequence[Words],
        field: str,
    ) -> list[list[tuple[int, float]]]:
        """`_ranked` with only the best row of each value of a field."""

        def find(queries: Sequence[int], depth: int) -> list[list[tuple[int, float]]]:
            some = None if texts is None else [texts[i] for i in queries]
            deeper = replace(options, k=depth)
            return self._ranked(some, vectors[list(queries)], deeper, [words[i] for i in queries])

        def groups_of(labels: set[int]) -> dict[int, Hashable]:
            items = self._items(sorted(labels))
            return {label: group_of(item, field) for label, item in items.items()}

        return best_of_groups(find, groups_of, len(vectors), options.k, options.min_score)

    def _fused(
        self,
        text: str,
        vector: Floats,
        score_by_label: dict[int, float],
        further: dict[int, float],
        words: Words,
        options: SearchOptions,
    ) -> list[tuple[int, float]]:
        """Labels and scores of one query, from the scores of its nearest rows.

        `further` has the scores of the k nearest rows if k is above the depth. A row's score is the
        same for every k: so is what it is scaled by, and rows from `further` come after the nearest
        rows even if a graph has missed them there.
        """
        least = min(score_by_label.values(), default=0.0)
        bm25_by_label = self._worded(text, options) if options.vector_weight < 1.0 else {}
        far = [label for label in bm25_by_label if label not in score_by_label]
        if far:
            score_by_label |= self._scores_of(vector, far)
        score_by_label |= {
            label: min(score, least)
            for label, score in further.items()
            if label not in score_by_label
        }
        best = max(bm25_by_label.values(), default=0.0)
        if best > 0.0:
            share = (1.0 - options.vector_weight) / best
            words.update({label: share * bm25 for label, bm25 in bm25_by_label.items()})
        return fuse(
            score_by_label,
            bm25_by_label,
            options.k,
            least=least,
            self_score=self._index.scores(vector, vector[None])[0],
            vector_weight=options.vector_weight,
        )

    def _worded(self, text: str, options: SearchOptions) -> dict[int, float]:
        """BM25 of the rows that share words with a text, by label."""
        full_text, depth = self._store.full_text, _HYBRID_DEPTH
        short: list[str] = []
        if full_text.tokenizer == "trigram":
            expression, short = trigram_query(text)
        else:
            expression = match_expression(text, prefix=options.prefix)
        if expression is not None:
            return full_text.search(expression, depth, options.condition)
        return full_text.scan(short, depth, options.condition) if short else {}

    def _scores_of(self, vector: Floats, labels: Sequence[int]) -> dict[int, float]:
        """Scores of a vector with rows, by label."""
        items = self._items(labels)
        scores = self._index.scores(vector, np.stack([items[label].vector for label in labels]))
        return dict(zip(labels, scores, strict=True))

    def ids(self, vectors: Floats, options: SearchOptions) -> tuple[list[list[Id]], Floats]:
        """Ids and scores of the k nearest rows of each vector; no row is read."""
        nearest = None
        if options.condition is None and not options.exact:
            nearest = self._index.search_in_memory(vectors, options.k, options.ef)
        if nearest is None:
            with self._reading():
                nearest = self._nearest(vectors, options, with_ids=True)
        assert nearest.ids is not None
        return nearest.ids, nearest.scores

    def _nearest(
        self, vectors: Floats, options: SearchOptions, *, with_ids: bool = False
    ) -> Nearest:
        return self._index.search(
            vectors,
            options.k,
            options.condition,
            with_ids=with_ids,
            exact=options.exact,
            ef=options.ef,
        )

    def _items(self, labels: Sequence[int]) -> dict[int, Item]:
        items = self._store.read(labels)
        if len(items) < len(labels):
            raise CorruptCollectionError("the collection's graph holds rows that its store lacks")
        return items


def _checked_field(group_by: object) -> str | None:
    field = text_or_none("group_by", group_by)
    if field is not None and (field in COLUMNS or not all(field_names(field))):
        raise InputValueError(f"group_by is a field of the metadata, not {field!r}")
    return field


def _hits(
    line: Iterable[tuple[int, float]],
    words: Words | None,
    items: dict[int, Item],
    options: SearchOptions,
) -> list[Hit]:
    return [
        Hit(
            item.id,
            score,
            item.text,
            item.metadata,
            vector=item.vector if options.with_vectors else None,
            word_score=None if words is None else words.get(label, 0.0),
        )
        for label, score in line
        for item in [items[label]]
        if options.min_score is None or score >= options.min_score
    ]
