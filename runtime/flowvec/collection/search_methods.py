"""Methods of a Collection that search it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.arguments import explaining, text_or_none
from flowvec.collection.diversity import FETCH_K, LAMBDA_MULT, Diversity
from flowvec.collection.foreign import OF_SEARCH
from flowvec.collection.hybrid import Fusion
from flowvec.collection.query import Queries, Searcher, SearchOptions
from flowvec.collection.reranking import RERANK_FROM
from flowvec.collection.results import Hit
from flowvec.collection.search_plan import SearchPlan
from flowvec.collection.sparse_methods import SparseMethods
from flowvec.collection.store.filters import Filter
from flowvec.collection.store.rows import Id
from flowvec.collection.token_methods import TokenMethods
from flowvec.collection.upkeep_methods import UpkeepMethods
from flowvec.collection.validation import check_vectors
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.shared_reranker import SharedReranker
from flowvec.sequences import as_list, refuse_single
from flowvec.sparse.vectors import SparseVectors

__all__ = ["SearchMethods"]

Floats = npt.NDArray[np.float32]


class SearchMethods(UpkeepMethods, SparseMethods, TokenMethods):
    """The rows nearest to texts and vectors."""

    _searcher: Searcher

    @explaining(OF_SEARCH)
    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        text: str | None = None,
        filter: Filter | None = None,
        hybrid: bool = False,
        vector_weight: float | None = None,
        sparse: SparseVectors | Any | None = None,
        sparse_weight: float | None = None,
        fusion: Fusion = "weights",
        min_score: float | None = None,
        exact: bool = False,
        ef: int | None = None,
        rerank: Reranker | SharedReranker | MultiVectorEncoder | None = None,
        rerank_from: int = RERANK_FROM,
        offset: int = 0,
        group_by: str | None = None,
        prefix: bool = False,
        with_vectors: bool = False,
    ) -> list[Hit]:
        """The rows nearest to a text or a vector.

        Args:
            query: a text, embedded by `Encoder.encode_query`, or a float32 vector (dim,).
            k: how many hits. You get min(k, eligible rows), or fewer with `min_score`.
            text: the text of a query that is a vector: `hybrid` searches its words, and `rerank`
                reads it. Nothing is embedded then.
            filter: which rows are eligible by their metadata, id (`$id`) or text (`$text`), for
                example `{"lang": "en", "year": {">=": 2020}, "$text": {"contains": "cat"}}`; see
                `flowvec.collection.store.filters`.
            hybrid: rank by words as well as by vectors. A hit's score is `vector_weight` times its
                nearness (1 for a row equal to the query, 0 for the last of the 500 nearest) plus
                the rest times its BM25 (1 for the row that matches best, 0 for rows that are not
                among the 500 best). It does not depend on k and `offset`. Needs a text, in
                `query` or `text`, and the full-text index of `index_texts`, which the first hybrid
                search creates. With sparse vectors there are three rankings: see `sparse`.
            vector_weight: share of the vectors in a hybrid search: 0 (words only) to 1 (vectors
                only). Shares that are not given are equal: without sparse vectors 0.5.
            sparse: the query's sparse vector, for a hybrid search that ranks by sparse vectors
                too: a row's dot product, divided by that of the best row, times `sparse_weight`.
                A collection that was opened with `sparse_encoder` makes it from the text.
            sparse_weight: share of the sparse vectors, 0 to 1; the words have what is left of 1.
                Where it is not given it is as large as that of the words.
            fusion: how a hybrid search makes one ranking of several. `weights` adds up scores as
                above. `ranks` adds up places: a row gets share x 61 / (60 + place) from each
                ranking in which it is among the 500 best (reciprocal rank fusion).
            min_score: drop hits with a lower score; with `rerank`, with a lower score of the
                reranker.
            exact: compare every eligible row, instead of a scan or the graph, which may miss some
                (`tune_recall`). Small collections always do. It reads all rows.
            ef: search depth in the graph; a scan has none. A larger one finds more of the true
                neighbours and takes longer. None is the collection's own (`info().ef_search`).
            rerank: a reranker or multi-vector encoder that reads the query and the text of each of
                the best hits, and sorts them again. A hit's `score` is then the reranker's, and
                `search_score` the one before. Needs a text, in `query` or `text`, and rows with
                texts.
            rerank_from: how many hits the reranker reads; at least offset + k.
            offset: skip this many of the best hits: the next page of k hits has `offset=k`. A page
                takes as long as one search for offset + k hits. Pages of one query fit together
                while nothing is written, but a scan or a graph may find others as offset + k
                grows. Those of a hybrid search always do; above 500 hits it compares every row.
            group_by: a field of the metadata, such as the parent of `Encoder.split_texts`: of the
                rows with the same value only the best is a hit, so k hits have k values. More rows
                are looked at until there are k, or no others. Rows without the field are hits of
                their own. A reranker reads only the hits that are left.
            prefix: in a hybrid search, the last word of the text is the beginning of a word, as
                while a user types it; unless something follows it, such as a space. With the
                tokenizer `trigram` every word is found as a part of words anyway.
            with_vectors: whether hits have their vectors.

        Returns:
            Hits, best first.

        Raises:
            InputValueError: k is below 1; the vector has another length, NaN or infinity; the
                filter is not valid; `text` with a query that is a text, or without use.
            CollectionError: the query is a text, and the collection was opened without an Encoder.
        """
        options = SearchOptions.checked(
            k,
            filter,
            hybrid=hybrid,
            vector_weight=vector_weight,
            sparse_weight=sparse_weight,
            has_sparse=self._has_sparse(sparse),
            fusion=fusion,
            min_score=min_score,
            exact=exact,
            ef=ef,
            offset=offset,
            group_by=group_by,
            prefix=prefix,
            with_vectors=with_vectors,
            is_reranked=rerank is not None,
        )
        plan = SearchPlan.checked(
            [query],
            None if text_or_none("text", text) is None else [text],
            options,
            name="query",
            dim=self._dim,
            rerank=rerank,
            rerank_from=rerank_from,
            sparse=sparse,
            sparse_dim=None if sparse is None else self._sparse_dim(),
        )
        return self._search(plan)[0]

    @explaining(OF_SEARCH)
    def search_batch(
        self,
        queries: Sequence[str] | npt.ArrayLike,
        k: int = 10,
        *,
        texts: Sequence[str] | None = None,
        filter: Filter | None = None,
        hybrid: bool = False,
        vector_weight: float | None = None,
        sparse: SparseVectors | Any | None = None,
        sparse_weight: float | None = None,
        fusion: Fusion = "weights",
        min_score: float | None = None,
        exact: bool = False,
        ef: int | None = None,
        rerank: Reranker | SharedReranker | MultiVectorEncoder | None = None,
        rerank_from: int = RERANK_FROM,
        offset: int = 0,
        group_by: str | None = None,
        prefix: bool = False,
        with_vectors: bool = False,
    ) -> list[list[Hit]]:
        """`search` for many texts, or vectors float32 (queries, dim), at once.

        `texts` has the text of each vector, as `text` of `search`, and `sparse` a sparse vector for
        each query.
        """
        refuse_single("queries", queries)
        options = SearchOptions.checked(
            k,
            filter,
            hybrid=hybrid,
            vector_weight=vector_weight,
            sparse_weight=sparse_weight,
            has_sparse=self._has_sparse(sparse),
            fusion=fusion,
            min_score=min_score,
            exact=exact,
            ef=ef,
            offset=offset,
            group_by=group_by,
            prefix=prefix,
            with_vectors=with_vectors,
            is_reranked=rerank is not None,
        )
        plan = SearchPlan.checked(
            queries,
            None if texts is None else as_list("texts", texts),
            options,
            name="queries",
            dim=self._dim,
            rerank=rerank,
            rerank_from=rerank_from,
            sparse=sparse,
            sparse_dim=None if sparse is None else self._sparse_dim(),
        )
        return self._search(plan)

    @explaining(OF_SEARCH)
    def search_mmr(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        fetch_k: int = FETCH_K,
        lambda_mult: float = LAMBDA_MULT,
        filter: Filter | None = None,
        exact: bool = False,
        ef: int | None = None,
        with_vectors: bool = False,
    ) -> list[Hit]:
        """Rows near to a text or a vector that differ from each other: maximal marginal relevance.

            >>> with Collection.create("diverse", dim=2) as collection:
            ...     collection.add_vectors(["a", "same as a", "b"], [[1, 0], [1, 0], [2, 1]])
            ...     [hit.id for hit in collection.search_mmr([1, 0], k=2, lambda_mult=0.3)]
            Added(rows=3, replaced=0, truncated=0)
            ['a', 'b']

        Of the `fetch_k` nearest rows, the nearest is the first hit. The next is always the row with
        the largest `lambda_mult` x score - (1 - `lambda_mult`) x similarity, where the similarity
        is the row's largest with a hit before it, by the collection's metric.

        Args:
            query: as for `search`.
            k: how many hits. You get min(k, eligible rows).
            fetch_k: how many of the nearest rows to choose from; at least k are.
            lambda_mult: 1 is the order of `search`; 0 looks only at how hits differ from each
                other.
            filter: as for `search`.
            exact: as for `search`.
            ef: as for `search`.
            with_vectors: as for `search`.

        Returns:
            Hits in the order of choice, with the scores of `search`.

        Raises:
            InputTypeError, InputValueError, CollectionError: as for `search`.
        """
        diversity = Diversity.checked(k, fetch_k, lambda_mult, with_vectors)
        plan = diversity.plan(query, self._dim, filter, exact=exact, ef=ef)
        return diversity(self._search(plan)[0], self._store.settings.metric)

    def _search(self, plan: SearchPlan) -> list[list[Hit]]:
        vectors = plan.vectors
        if vectors is None:
            vectors = self._checked_encoder().encode_query(plan.to_embed)
        return plan.finished(self._first_stage(vectors, plan), self._document_tokens)

    def _first_stage(self, vectors: Floats, plan: SearchPlan) -> list[list[Hit]]:
        """The hits before reranking, from vectors of the queries, float32 (queries, dim)."""
        options = plan.first_stage
        if not options.hybrid or not len(vectors):
            return self._told(options, self._searcher.hits(Queries(vectors), options))
        sparse = plan.sparse
        if options.shares.sparse > 0 and sparse is None and plan.texts is not None:
            sparse = self._checked_sparse_encoder().encode_query(plan.texts)
        if options.shares.words > 0 and not self._has_full_text():
            self.index_texts()
        return self._told(
            options, self._searcher.hits(Queries(vectors, plan.texts, sparse), options)
        )

    def _told(self, options: SearchOptions, hits: list[list[Hit]]) -> list[list[Hit]]:
        """The hits; if there are none, a field that a filter misspells is named in a warning."""
        if not any(hits) and options.min_score is None:
            self._store.field_hints.after_nothing(options.condition)
        return hits

    def _has_sparse(self, sparse: object) -> bool:
        """Whether a search has sparse vectors of its queries, or can make them."""
        return sparse is not None or self._sparse_encoder is not None

    def search_ids(
        self,
        queries: npt.ArrayLike,
        k: int = 10,
        *,
        filter: Filter | None = None,
        exact: bool = False,
        ef: int | None = None,
    ) -> tuple[list[list[Id]], Floats]:
        """Only ids and scores of the nearest rows. Faster than `search`: no row is read from disk.

        Args:
            queries: float32 (queries, dim).
            k: as for `search`.
            filter: as for `search`.
            exact: as for `search`.
            ef: as for `search`.

        Returns:
            For each query min(k, eligible rows) ids, best first, and scores, float32 (queries,
            min(k, eligible rows)).
        """
        self._access.check()
        options = SearchOptions.checked(k, filter, exact=exact, ef=ef)
        ids, scores = self._searcher.ids(check_vectors(queries, self._dim, "queries"), options)
        if not any(ids):
            self._store.field_hints.after_nothing(options.condition)
        return ids, scores
