"""Searches of a collection: the nearest rows and what they hold, from one state of the store."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from flowvec.arguments import choice, flag, text_or_none, whole_number
from flowvec.collection.grouping import best_of_groups, group_of
from flowvec.collection.hybrid import (
    FUSIONS,
    HYBRID_BEST,
    HYBRID_DEPTH,
    VECTORS_ALONE,
    Fusion,
    Shares,
    fuse_ranks,
    fuse_scores,
    query_terms,
    rank_share,
    scaled,
)
from flowvec.collection.index.sparse_index import SparseIndex
from flowvec.collection.index.vector_index import Nearest, VectorIndex
from flowvec.collection.results import Hit
from flowvec.collection.store.bm25 import Bm25
from flowvec.collection.store.filter_columns import COLUMNS
from flowvec.collection.store.filters import Condition, Filter, compile_filter
from flowvec.collection.store.json_field import field_names
from flowvec.collection.store.rows import Id, Item
from flowvec.collection.store.store import Store
from flowvec.collection.validation import check_k, check_score, check_weight
from flowvec.errors import CorruptCollectionError, InputValueError
from flowvec.sparse.vectors import SparseVectors
from flowvec.spelled import setting

__all__ = ["Queries", "SearchKeywords", "SearchOptions", "Searcher"]

Floats = npt.NDArray[np.float32]
Ranked = list[tuple[int, float]]

# How often a search begins again after a change between its rankings.
_ATTEMPTS = 5


class SearchKeywords(TypedDict, total=False):
    """Options of a search that mean the same as those of `Collection.search`."""

    filter: Filter | None
    hybrid: bool
    vector_weight: float | None
    sparse_weight: float | None
    fusion: Fusion
    min_score: float | None
    exact: bool
    ef: int | None
    offset: int
    group_by: str | None
    prefix: bool
    with_vectors: bool


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Checked options of a search; `Collection.search` says what they mean.

    `k` counts the hits that `offset` skips, too.
    """

    k: int
    condition: Condition | None = None
    min_score: float | None = None
    hybrid: bool = False
    shares: Shares = VECTORS_ALONE
    fusion: Fusion = "weights"
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
        sparse_weight: float | None = None,
        has_sparse: bool = False,
        fusion: Fusion = "weights",
        exact: bool = False,
        ef: int | None = None,
        offset: int = 0,
        group_by: str | None = None,
        prefix: bool = False,
        with_vectors: bool = False,
        is_reranked: bool = False,
    ) -> SearchOptions:
        """Check a caller's options.

        With `is_reranked`, `min_score` is a score of a reranker. `has_sparse` says whether the
        search has sparse vectors of its queries, or can make them.

        Raises:
            InputTypeError, InputValueError: one of them is not valid.
        """
        flag("exact", exact)
        flag("hybrid", hybrid)
        if flag("prefix", prefix) and not hybrid:
            raise InputValueError(
                "prefix is for the words of a hybrid search: add ", setting("hybrid", True)
            )
        shares = _checked_shares(hybrid, vector_weight, sparse_weight, has_sparse)
        if choice("fusion", fusion, FUSIONS) != "weights" and not hybrid:
            raise InputValueError("fusion is for a hybrid search: add ", setting("hybrid", True))
        hits, skipped = check_k(k), check_k(offset, "offset")
        options = cls(
            k=hits and hits + skipped,
            offset=skipped,
            condition=None if filter is None else compile_filter(filter),
            min_score=check_score(min_score),
            hybrid=hybrid,
            shares=shares,
            fusion=fusion,
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


@dataclass(frozen=True, slots=True, eq=False)
class Queries:
    """What the rankings of a search compare rows with.

    Attributes:
        vectors: float32 (queries, dim).
        texts: whose words a hybrid search looks up; None without.
        sparse: a sparse vector for each query; None without.
    """

    vectors: Floats
    texts: Sequence[str] | None = None
    sparse: SparseVectors | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    def some(self, places: Sequence[int]) -> Queries:
        """The queries at some places, of which there is at least one."""
        return Queries(
            self.vectors[list(places)],
            None if self.texts is None else [self.texts[i] for i in places],
            None if self.sparse is None else SparseVectors.joined([self.sparse[i] for i in places]),
        )


@dataclass(slots=True)
class _Parts:
    """What the rankings besides the vectors gave to the scores of one query, by label."""

    words: dict[int, float] = field(default_factory=dict)
    sparse: dict[int, float] = field(default_factory=dict)


class Searcher:
    """Searches for any number of threads."""

    def __init__(
        self,
        store: Store,
        index: VectorIndex,
        sparse: SparseIndex,
        reading: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Search a store.

        Args:
            store: the rows.
            index: finds the nearest rows.
            sparse: finds rows by their sparse vectors.
            reading: makes all reads in its block see one state of the store.
        """
        self._store = store
        self._index = index
        self._sparse = sparse
        self._reading = reading

    def hits(self, queries: Queries, options: SearchOptions) -> list[list[Hit]]:
        """The k best rows of each query, best first: the nearest, or those of a hybrid search."""
        parts: list[_Parts] = []

        def rank() -> list[Ranked]:
            parts[:] = [_Parts() for _ in range(len(queries))]
            if options.group_by is None:
                return self._ranked(queries, options, parts)
            return self._grouped(queries, options, parts, options.group_by)

        # A search of the index may bring this thread's view of the store to a newer state.
        is_deep = options.hybrid and options.k > HYBRID_DEPTH
        has_steps = is_deep or options.group_by is not None or queries.sparse is not None
        with self._reading():
            ranked = self._of_one_state(rank) if has_steps else rank()
            items = self._items(sorted({label for line in ranked for label, _ in line}))
        given = parts if options.hybrid else [None] * len(ranked)
        return [_hits(*line, items, options) for line in zip(ranked, given, strict=True)]

    def sparse_hits(self, queries: SparseVectors, options: SearchOptions) -> list[list[Hit]]:
        """The k rows of each query with the largest dot product of sparse vectors, best first."""
        with self._reading():
            ranked = self._of_one_state(
                lambda: [list(line.items()) for line in self._by_sparse(queries, options)]
            )
            items = self._items(sorted({label for line in ranked for label, _ in line}))
        return [_hits(line, None, items, options) for line in ranked]

    def _of_one_state(self, rank: Callable[[], list[Ranked]]) -> list[Ranked]:
        """Rankings of several searches of memory, all of the state that is then read.

        Each may renew this thread's view of the store, where another thread has brought memory to a
        newer state.
        """
        for _ in range(_ATTEMPTS):
            before = self._store.meta.state()
            ranked = rank()
            if self._store.meta.state() == before:
                return ranked
        # Changes come faster than searches: the rows are of this state, and the rankings a little
        # older.
        labels = sorted({label for line in ranked for label, _ in line})
        there = set(self._store.existing(np.asarray(labels, np.int64)).tolist())
        return [[pair for pair in line if pair[0] in there] for line in ranked]

    def _ranked(
        self, queries: Queries, options: SearchOptions, parts: Sequence[_Parts]
    ) -> list[Ranked]:
        """Labels and scores of the k best rows of each query.

        What the rankings of each query gave is added to `parts`.
        """
        vectors = queries.vectors
        if not options.hybrid:
            nearest = self._nearest(vectors, options)
            lines = zip(nearest.labels.tolist(), nearest.scores.tolist(), strict=True)
            return [list(zip(*line, strict=True)) for line in lines]
        near = self._scores_by_label(vectors, replace(options, k=HYBRID_DEPTH))
        further: list[dict[int, float]] = [{} for _ in near]
        if options.k > HYBRID_DEPTH:
            # Exact: a scan or a graph may find other rows among the first if it is asked for more.
            further = self._scores_by_label(vectors, replace(options, exact=True))
        for part, ranking in zip(parts, self._further_rankings(queries, options), strict=True):
            part.words.update(ranking.words)
            part.sparse.update(ranking.sparse)
        fused = self._fused if options.fusion == "weights" else _fused_ranks
        return [fused(*line, options) for line in zip(vectors, near, further, parts, strict=True)]

    def _scores_by_label(self, vectors: Floats, options: SearchOptions) -> list[dict[int, float]]:
        nearest = self._nearest(vectors, options)
        lines = zip(nearest.labels.tolist(), nearest.scores.tolist(), strict=True)
        return [dict(zip(*line, strict=True)) for line in lines]

    def _grouped(
        self, queries: Queries, options: SearchOptions, parts: Sequence[_Parts], field: str
    ) -> list[Ranked]:
        """`_ranked` with only the best row of each value of a field."""

        def find(places: Sequence[int], depth: int) -> list[Ranked]:
            deeper = replace(options, k=depth)
            return self._ranked(queries.some(places), deeper, [parts[i] for i in places])

        def groups_of(labels: set[int]) -> dict[int, Hashable]:
            items = self._store.read(sorted(labels))
            return {label: group_of(item.metadata, label, field) for label, item in items.items()}

        return best_of_groups(find, groups_of, len(queries), options.k, options.min_score)

    def _further_rankings(self, queries: Queries, options: SearchOptions) -> Iterator[_Parts]:
        """What words and sparse vectors give to the rows of each query in a hybrid search."""
        shares = options.shares
        by_words: list[dict[int, float]] = [{} for _ in range(len(queries))]
        by_sparse = by_words
        if shares.words > 0.0 and queries.texts is not None:
            by_words = [self._worded(text, options) for text in queries.texts]
        if shares.sparse > 0.0 and queries.sparse is not None:
            by_sparse = self._by_sparse(queries.sparse, replace(options, k=HYBRID_DEPTH))
        give = scaled if options.fusion == "weights" else rank_share
        for words, sparse in zip(by_words, by_sparse, strict=True):
            yield _Parts(give(shares.words, words), give(shares.sparse, sparse))

    def _by_sparse(self, queries: SparseVectors, options: SearchOptions) -> list[dict[int, float]]:
        """Dot products of the k best rows of each query by their sparse vectors, by label."""
        condition = options.condition
        eligible = None if condition is None else self._index.eligible(condition)
        state = self._sparse.state()
        return [state.search(query, options.k, eligible) for query in queries]

    def _fused(
        self,
        vector: Floats,
        score_by_label: dict[int, float],
        further: dict[int, float],
        parts: _Parts,
        options: SearchOptions,
    ) -> Ranked:
        """Labels and scores of one query, from the scores of its nearest rows."""
        return fuse_scores(
            score_by_label,
            further,
            parts.words,
            parts.sparse,
            options.k,
            scores_of=lambda far: self._scores_of(vector, far),
            self_score=self._index.scores(vector, vector[None])[0],
            vector_weight=options.shares.vector,
        )

    def _worded(self, text: str, options: SearchOptions) -> dict[int, float]:
        """BM25 of the rows that share words with a text, by label."""
        full_text, depth = self._store.full_text, HYBRID_DEPTH
        terms, short = query_terms(text, full_text.tokenizer, prefix=options.prefix)
        if terms:
            terms = Bm25(self._store.database).telling(terms, are_counted=bool(short))
        if terms:
            return full_text.search(" OR ".join(terms), depth, options.condition)
        return full_text.scan(short, depth, options.condition) if short else {}

    def _scores_of(self, vector: Floats, labels: Sequence[int]) -> dict[int, float]:
        """Scores of a vector with rows, by label, without rows that were deleted meanwhile."""
        items = self._store.read(labels)
        there = [label for label in labels if label in items]
        if not there:
            return {}
        scores = self._index.scores(vector, np.stack([items[label].vector for label in there]))
        return dict(zip(there, scores, strict=True))

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
            raise CorruptCollectionError("the collection's index holds rows that its store lacks")
        return items


def _fused_ranks(
    _: Floats,
    near: dict[int, float],
    further: dict[int, float],
    parts: _Parts,
    options: SearchOptions,
) -> Ranked:
    """Labels and scores of one query, from the places of its rows in each ranking.

    Rows of `further` get nothing from their place, so that no score depends on k.
    """
    places = dict.fromkeys(further, 0.0) | rank_share(options.shares.vector, near)
    return fuse_ranks([places, parts.words, parts.sparse], options.k)


def _checked_shares(
    hybrid: bool, vector: float | None, sparse: float | None, has_sparse: bool
) -> Shares:
    """Shares of the rankings of a search, from what a caller gave.

    Raises:
        InputTypeError, InputValueError: they are not valid.
    """
    for name, weight in (("vector_weight", vector), ("sparse_weight", sparse)):
        if weight is not None and check_weight(weight, name) >= 0 and not hybrid:
            raise InputValueError(f"{name} is for a hybrid search: add ", setting("hybrid", True))
    if not hybrid:
        return VECTORS_ALONE
    if sparse and not has_sparse:
        raise InputValueError(
            "sparse_weight needs a sparse vector of the query: give it as sparse=, or open the "
            "collection with sparse_encoder="
        )
    try:
        return Shares.of(vector, sparse, has_sparse=has_sparse)
    except ValueError as error:
        raise InputValueError(
            f"vector_weight and sparse_weight are together at most 1, not {error}"
        ) from None


def _checked_field(group_by: object) -> str | None:
    field = text_or_none("group_by", group_by)
    if field is not None and (field in COLUMNS or not all(field_names(field))):
        raise InputValueError(f"group_by is a field of the metadata, not {field!r}")
    return field


def _hits(
    line: Iterable[tuple[int, float]],
    parts: _Parts | None,
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
            word_score=None if parts is None else parts.words.get(label, 0.0),
            sparse_score=_sparse_score(parts, label, options),
        )
        for label, score in line
        for item in [items[label]]
        if options.min_score is None or score >= options.min_score
    ]


def _sparse_score(parts: _Parts | None, label: int, options: SearchOptions) -> float | None:
    if parts is None or options.shares.sparse == 0.0:
        return None
    return parts.sparse.get(label, 0.0)
