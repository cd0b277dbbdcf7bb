"""Searches of a collection that holds a part of the rows of a larger one.

The rankings of a hybrid search are scaled by what all rows have: the best score, the 500th, the
places. So a part does not fuse: it gives its candidates, the caller merges those of all parts
ranking by ranking, and fuses them as one collection does. It takes three calls, since BM25 needs
the statistics of all parts: `rankings`, `words`, and `items` of the rows that became hits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flowvec.collection.collection import Collection
from flowvec.collection.hybrid import HYBRID_DEPTH, query_terms
from flowvec.collection.model import check_sparse_queries
from flowvec.collection.query import Floats, Queries, Searcher, SearchOptions
from flowvec.collection.store.bm25 import Bm25, WordStatistics
from flowvec.collection.store.full_text import TextTokenizer
from flowvec.collection.store.rows import Item
from flowvec.collection.validation import check_vectors
from flowvec.vectors import Metric

__all__ = ["Candidates", "PartSearcher", "Words"]

Scores = dict[int, float]
Result = TypeVar("Result")

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a part gives to one query, by label; each ranking best first.

    Attributes:
        near: vector scores of the nearest rows, `HYBRID_DEPTH` of them.
        further: vector scores of the k nearest rows, if k is above that.
        sparse: dot products of the best rows by sparse vectors.
        vector_scores: vector scores of the rows in `sparse`.
        self_score: vector score of the query with itself.
        statistics: of the query's words; None without words that are ranked by BM25.
        tokenizer: of the full-text index; None without words.
    """

    near: Scores
    further: Scores
    sparse: Scores
    vector_scores: Scores
    self_score: float
    statistics: WordStatistics | None
    tokenizer: TextTokenizer | None


@dataclass(frozen=True, slots=True)
class Words:
    """The best rows of a part by the words of one query.

    Attributes:
        scores: BM25 by label, best first.
        sizes: what comes before the label if scores are equal, by label: characters of the text for
            words that are shorter than a trigram, else nothing.
        vector_scores: vector scores of these rows, by label.
    """

    scores: Scores
    sizes: dict[int, int]
    vector_scores: Scores


class PartSearcher(Searcher):
    """Gives the rankings of one part; any number of threads may use it."""

    def __init__(self, collection: Collection) -> None:
        """Search an open collection."""
        super().__init__(
            collection._store,
            collection._index,
            collection._sparse_index,
            collection._access.reading,
        )
        self._collection = collection

    @property
    def sparse_fingerprint(self) -> str | None:
        """Of the model that made the sparse vectors; None if there are none, or it is not known."""
        return self._collection._sparse_fingerprint()

    @property
    def metric(self) -> Metric:
        """How vectors are compared."""
        return self._store.settings.metric

    def check_sparse_model(self, dim: int, fingerprint: str | None) -> None:
        """Check that sparse vectors of queries can be compared with those here.

        Args:
            dim: their dimensions.
            fingerprint: of the model that made them; None if it is not known.

        Raises:
            InputValueError: they have other dimensions.
            FingerprintMismatchError: another model made the sparse vectors here.
        """
        with self._reading():
            settings = self._store.meta.read_settings()
        check_sparse_queries(self._collection._path, settings, dim, fingerprint)

    def rankings(self, queries: Queries, options: SearchOptions) -> list[Candidates]:
        """What this part gives to each query, except its words.

        Raises:
            InputValueError: vectors of the queries have another length.
        """
        vectors = check_vectors(queries.vectors, self._collection._dim, "queries")
        has_words = options.shares.words > 0.0 and queries.texts is not None
        if has_words and not self._collection._has_full_text():
            self._collection.index_texts()
        return self._of_one(lambda: self._candidates(vectors, queries, options, has_words))

    def _candidates(
        self, vectors: Floats, queries: Queries, options: SearchOptions, has_words: bool
    ) -> list[Candidates]:
        near = self._scores_by_label(vectors, replace(options, k=HYBRID_DEPTH))
        further: list[Scores] = [{} for _ in near]
        if options.k > HYBRID_DEPTH:
            further = self._scores_by_label(vectors, replace(options, exact=True))
        sparse: list[Scores] = [{} for _ in near]
        if options.shares.sparse > 0.0 and queries.sparse is not None:
            sparse = self._by_sparse(queries.sparse, replace(options, k=HYBRID_DEPTH))
        tokenizer = self._store.full_text.tokenizer if has_words else None
        texts: Sequence[str | None] = [None] * len(near)
        if has_words and queries.texts is not None:
            texts = queries.texts
        return [
            Candidates(
                near[i],
                further[i],
                sparse[i],
                self._scores_of(vector, list(sparse[i])) if sparse[i] else {},
                self._index.scores(vector, vector[None])[0],
                self._statistics(texts[i], options),
                tokenizer,
            )
            for i, vector in enumerate(vectors)
        ]

    def _statistics(self, text: str | None, options: SearchOptions) -> WordStatistics | None:
        terms = [] if text is None else self._terms(text, options)[0]
        return Bm25(self._store.database).statistics(terms) if terms else None

    def words(
        self,
        queries: Queries,
        statistics: Sequence[WordStatistics | None],
        options: SearchOptions,
    ) -> list[Words]:
        """The best rows of this part by the words of each query.

        Args:
            queries: with texts.
            statistics: of all parts, for each query.
            options: of the search.
        """
        texts = queries.texts or []
        return self._of_one(
            lambda: [
                self._words(*one, options)
                for one in zip(queries.vectors, texts, statistics, strict=True)
            ]
        )

    def _words(
        self, vector: Floats, text: str, by: WordStatistics | None, options: SearchOptions
    ) -> Words:
        terms, short = self._terms(text, options)
        bm25, sizes = Bm25(self._store.database), dict[int, int]()
        scores: Scores = {}
        if by is not None and (telling := by.telling(terms)):
            statistics = by.of(terms, telling)
            scores = bm25.best(telling, statistics, HYBRID_DEPTH, options.condition)
        elif short:
            scores = self._store.full_text.scan(short, HYBRID_DEPTH, options.condition)
            sizes = bm25.sizes(scores)
        return Words(scores, sizes, self._scores_of(vector, list(scores)) if scores else {})

    def _terms(self, text: str, options: SearchOptions) -> tuple[list[str], list[str]]:
        """FTS5 queries for the words of a text; or words that are too short for the index."""
        return query_terms(text, self._store.full_text.tokenizer, prefix=options.prefix)

    def items(self, labels: Sequence[int]) -> dict[int, Item]:
        """Rows by label, without those that were deleted since they were found."""
        with self._reading():
            return self._store.read(labels)

    def _of_one(self, find: Callable[[], Result]) -> Result:
        """What is found in one state of the store; after many changes, in a few."""
        with self._reading():
            for _ in range(_ATTEMPTS):
                before = self._store.meta.state()
                found = find()
                if self._store.meta.state() == before:
                    break
            return found
