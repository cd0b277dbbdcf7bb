"""A checked search: what it embeds, which hits it finds, and what sorts them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from flowvec.collection.query import SearchOptions
from flowvec.collection.reranking import DocumentTokens, Reranking
from flowvec.collection.results import Hit
from flowvec.collection.validation import check_vectors, texts_of, texts_of_vectors
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sparse.checking import checked_sparse
from flowvec.sparse.vectors import SparseVectors
from flowvec.spelled import argument, setting

__all__ = ["SearchPlan"]


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What the stages of one search need.

    Attributes:
        to_embed: queries that are texts; empty if the queries are vectors.
        vectors: queries that are vectors, float32 (queries, dim); None for texts.
        texts: what a hybrid search and a reranker read; None if there are only vectors.
        options: of the whole search.
        reranking: the second stage; None without one.
        sparse: sparse vectors of the queries; None without, or where the texts have to be encoded.
    """

    to_embed: list[str]
    vectors: npt.NDArray[np.float32] | None
    texts: list[str] | None
    options: SearchOptions
    reranking: Reranking | None
    sparse: SparseVectors | None = None

    @classmethod
    def checked(
        cls,
        queries: Sequence[Any] | npt.ArrayLike,
        given: list[Any] | None,
        options: SearchOptions,
        *,
        name: str,
        dim: int,
        rerank: object,
        rerank_from: int,
        sparse: object = None,
        sparse_dim: int | None = None,
    ) -> SearchPlan:
        """Check a caller's queries.

        Args:
            queries: texts, or vectors.
            given: the texts of queries that are vectors; None without.
            options: of the search.
            name: what messages call the queries: `query` or `queries`.
            dim: length of the collection's vectors.
            rerank: the caller's reranker; None without.
            rerank_from: how many hits it reads.
            sparse: the caller's sparse vectors of the queries; None without.
            sparse_dim: dimensions of the collection's sparse vectors; None without any.

        Raises:
            InputTypeError, InputValueError: one of them is not valid.
        """
        _check_kinds(queries, name)
        to_embed = texts_of(queries)
        if isinstance(queries, Sequence) and not queries:
            to_embed = []  # no queries are neither texts nor vectors
        texts = to_embed
        if given is not None:
            is_used = options.hybrid or rerank is not None
            texts = texts_of_vectors(given, to_embed, name, is_used=is_used)
        own = "text" if name == "query" else "texts"
        reranking = Reranking.checked(rerank, rerank_from, texts, own)
        given_sparse = None
        if sparse is not None:
            given_sparse = _checked_sparse(sparse, sparse_dim, options)
        if to_embed:
            _check_sparse_count(given_sparse, len(to_embed))
            return cls(to_embed, None, texts, options, reranking, given_sparse)
        vectors = check_vectors(cast(npt.ArrayLike, queries), dim, name)
        _check_sparse_count(given_sparse, len(vectors))
        needs_text = options.shares.words > 0 or (options.shares.sparse > 0 and sparse is None)
        if options.hybrid and needs_text and texts is None and len(vectors):
            raise InputValueError(
                "a hybrid search needs a text: a vector has no words. Give them as ", argument(own)
            )
        if texts is not None and len(texts) != len(vectors):
            raise InputValueError(f"{len(texts)} texts for {len(vectors)} queries")
        return cls([], vectors, texts, options, reranking, given_sparse)

    @property
    def first_stage(self) -> SearchOptions:
        """Options of the search before reranking."""
        return self.options if self.reranking is None else self.reranking.first_stage(self.options)

    def finished(self, hits: list[list[Hit]], document_tokens: DocumentTokens) -> list[list[Hit]]:
        """The hits of the search, from those of the first stage: reranked, and of its page.

        Raises:
            InputValueError: a reranker is to read a row that has no text.
        """
        if self.reranking is not None and self.texts is not None:
            hits = self.reranking(self.texts, hits, self.options, document_tokens)
        return self.page(hits)

    def page(self, hits: list[list[Hit]]) -> list[list[Hit]]:
        """The hits of each query without those that `offset` skips."""
        skipped = self.options.offset
        return [line[skipped:] for line in hits] if skipped else hits


def _check_kinds(queries: object, name: str) -> None:
    """Refuse what is neither a text nor a vector.

    Raises:
        InputTypeError: it is None or a number.
    """
    if name == "query" and isinstance(queries, list):
        (queries,) = queries
        wanted = "a text or a vector"
    else:
        wanted = "texts or vectors"
    if queries is None or isinstance(queries, int | float | np.number):
        raise InputTypeError(f"{name} must be {wanted}, not {type(queries).__name__}")
    if isinstance(queries, list | tuple) and any(query is None for query in queries):
        raise InputTypeError(f"{name} must be {wanted}, but holds None")


def _checked_sparse(sparse: object, dim: int | None, options: SearchOptions) -> SparseVectors:
    """A caller's sparse vectors of queries.

    Raises:
        InputTypeError, InputValueError: they are not valid, or have no use.
    """
    vectors = checked_sparse("sparse", sparse)
    if not options.hybrid:
        raise InputValueError(
            "sparse is for a hybrid search: add ",
            setting("hybrid", True),
            ", or search by sparse vectors alone with search_sparse",
        )
    if dim not in (None, vectors.dim):
        raise InputValueError(
            f"sparse must have {dim} dimensions, as the collection's sparse vectors, and not "
            f"{vectors.dim}"
        )
    return vectors


def _check_sparse_count(sparse: SparseVectors | None, queries: int) -> None:
    if sparse is not None and len(sparse) != queries:
        raise InputValueError(f"{len(sparse)} sparse vectors for {queries} queries")
