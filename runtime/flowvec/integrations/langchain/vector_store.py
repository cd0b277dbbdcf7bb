"""A Collection as LangChain's vector store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from flowvec.collection.collection import Collection
from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputTypeError, InputValueError
from flowvec.integrations.filters import from_langchain
from flowvec.integrations.langchain.embeddings import FlowvecEmbeddings
from flowvec.integrations.langchain.retriever import FlowvecRetriever
from flowvec.integrations.late import LateCollection
from flowvec.sequences import refuse_single

__all__ = ["FlowvecVectorStore"]

Query = str | Sequence[float]
Filter = Mapping[str, Any]


class FlowvecVectorStore(VectorStore):
    """A Collection of documents: a row's text is the content, its metadata the metadata.

    The collection is opened at the first use, created by the first documents, and kept open until
    `close`. Searches take the options of `Collection.search`, such as `hybrid=True` and
    `rerank=reranker`. Filters may use LangChain's operators (`$gt`) and those of a Collection.
    """

    def __init__(
        self,
        collection: str | Path | Collection,
        embedding: Embeddings | Encoder | str | Path | None = None,
        **options: Any,
    ) -> None:
        """Remember a collection; nothing is opened yet.

        Args:
            collection: its directory, or an open Collection, which `close` leaves open.
            embedding: embeds documents and queries. With `FlowvecEmbeddings` the collection
                records the model, and refuses another one later; an Encoder, or the name of a
                model, stands for one. None embeds with the Encoder of an open Collection.
            **options: those of `Collection.create`: `metric`, `vector_dtype`, `index`,
                `exact_below` and `write_timeout`.

        Raises:
            InputTypeError: `embedding` is something else.
            InputValueError: there is nothing that embeds.
        """
        if embedding is None:
            encoder = collection.encoder if isinstance(collection, Collection) else None
            if encoder is None:
                raise InputValueError(
                    "give embedding=, for example FlowvecEmbeddings('mini'), or a Collection that "
                    "was opened with an Encoder"
                )
            embedding = encoder
        if isinstance(embedding, str | Path | Encoder):
            embedding = FlowvecEmbeddings(embedding)
        if not isinstance(embedding, Embeddings):
            raise InputTypeError(
                "embedding must be LangChain's Embeddings, an Encoder or the name of a model, not "
                f"{type(embedding).__name__}"
            )
        self._embedding = embedding
        model = embedding.late if isinstance(embedding, FlowvecEmbeddings) else None
        self._late = LateCollection(collection, model, **options)

    @property
    @override
    def embeddings(self) -> Embeddings:
        return self._embedding

    @property
    def collection(self) -> Collection | None:
        """The Collection, for all else that it can do; None before the first documents."""
        return self._late.opened()

    def close(self) -> None:
        """Close the collection if it was opened here; twice is harmless."""
        self._late.close()

    # --- documents ------------------------------------------------------------------------------

    @override
    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
    ) -> list[str]:
        """Embed texts and add them; documents with the same ids are replaced.

        Args:
            texts: the contents.
            metadatas: one dict for each text.
            ids: one for each text; None stands for a new one.
            batch_size: has no effect: texts are batched by their tokens.

        Returns:
            The ids.

        Raises:
            InputTypeError: the texts are a single text, or an id is not a text.
            InputValueError: there are more or fewer ids than texts.
        """
        refuse_single("texts", texts)
        items = list(texts)
        keys = _keys(ids, len(items))
        if items:
            if isinstance(self._embedding, FlowvecEmbeddings):
                self._add_own(keys, items, metadatas)
            else:
                self._add_vectors(keys, self._embedding.embed_documents(items), items, metadatas)
        return keys

    @override
    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        batch_size: int | None = None,
    ) -> list[str]:
        """As `add_texts`."""
        refuse_single("texts", texts)
        items = list(texts)
        keys = _keys(ids, len(items))
        if items:
            if isinstance(self._embedding, FlowvecEmbeddings):
                await asyncio.to_thread(self._add_own, keys, items, metadatas)
            else:
                vectors = await self._embedding.aembed_documents(items)
                await asyncio.to_thread(self._add_vectors, keys, vectors, items, metadatas)
        return keys

    def _add_own(self, ids: list[str], texts: list[str], metadatas: Any) -> None:
        assert isinstance(self._embedding, FlowvecEmbeddings)
        collection = self._late.created(self._embedding.encoder.dim)
        if collection.encoder is not None:
            collection.add(ids, texts, metadatas)
        else:  # a Collection that was opened without an Encoder
            vectors = self._embedding.encoder.encode_document(texts)
            collection.add_vectors(ids, vectors, texts, metadatas)

    def _add_vectors(self, ids: list[str], vectors: Any, texts: list[str], metadatas: Any) -> None:
        rows = np.asarray(vectors, np.float32)
        collection = self._late.created(rows.shape[-1])
        collection.add_vectors(ids, rows, texts, metadatas)

    @override
    def delete(self, ids: Sequence[str] | None = None, *, filter: Filter | None = None) -> bool:
        """Delete documents by id or by a filter; without either, all of them.

        Unknown ids are ignored.
        """
        collection = self.collection
        if collection is not None:
            if ids is not None:
                collection.delete(ids)
            if filter is not None or ids is None:
                collection.delete(filter=from_langchain(filter))
        return True

    @override
    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        collection = self.collection
        items = [] if collection is None else collection.get(ids)
        return [_document(item) for item in items if item is not None]

    # --- searches -------------------------------------------------------------------------------

    @override
    def similarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """Documents and their scores: higher is better.

        Args:
            query: a text.
            k: how many.
            filter: in LangChain's operators, or of a Collection.
            **options: those of `Collection.search`.
        """
        found, options = self._embedded(query, options)
        return self._pairs(found, k, filter, options)

    @override
    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, *, filter: Filter | None = None, **options: Any
    ) -> list[tuple[Document, float]]:
        """As `similarity_search_with_score`."""
        found, options = await self._aembedded(query, options)
        return await asyncio.to_thread(self._pairs, found, k, filter, options)

    @override
    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        return [document for document, _ in self.similarity_search_with_score(query, k, **options)]

    @override
    async def asimilarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        pairs = await self.asimilarity_search_with_score(query, k, **options)
        return [document for document, _ in pairs]

    @override
    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, *, filter: Filter | None = None, **options: Any
    ) -> list[Document]:
        return [document for document, _ in self._pairs(embedding, k, filter, options)]

    @override
    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        """Documents near to a text that differ from each other: `Collection.search_mmr`."""
        found, _ = self._embedded(query, {})
        return self._diverse(found, k, fetch_k, lambda_mult, **options)

    @override
    async def amax_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        """As `max_marginal_relevance_search`."""
        found, _ = await self._aembedded(query, {})
        return await asyncio.to_thread(self._diverse, found, k, fetch_k, lambda_mult, **options)

    @override
    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        return self._diverse(embedding, k, fetch_k, lambda_mult, **options)

    @override
    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **options: Any,
    ) -> list[Document]:
        return await asyncio.to_thread(self._diverse, embedding, k, fetch_k, lambda_mult, **options)

    def _pairs(
        self, query: Query, k: int, filter: Filter | None, options: dict[str, Any]
    ) -> list[tuple[Document, float]]:
        wanted, collection = from_langchain(filter), self.collection
        hits = (
            []
            if collection is None
            else collection.search(query, k, filter=wanted or None, **options)
        )
        return [(_document(hit), hit.score) for hit in hits]

    def _diverse(
        self,
        query: Query,
        k: int,
        fetch_k: int,
        lambda_mult: float,
        *,
        filter: Filter | None = None,
        **options: Any,
    ) -> list[Document]:
        wanted, collection = from_langchain(filter), self.collection
        hits = (
            []
            if collection is None
            else collection.search_mmr(
                query,
                k,
                fetch_k=fetch_k,
                lambda_mult=lambda_mult,
                filter=wanted or None,
                **options,
            )
        )
        return [_document(hit) for hit in hits]

    def _embedded(self, query: str, options: dict[str, Any]) -> tuple[Query, dict[str, Any]]:
        """What the collection is asked for, and the options of that search."""
        if self._embeds_itself():
            return query, options
        return self._embedding.embed_query(query), _with_text(query, options)

    async def _aembedded(self, query: str, options: dict[str, Any]) -> tuple[Query, dict[str, Any]]:
        own = isinstance(self._embedding, FlowvecEmbeddings)
        collection = await asyncio.to_thread(self._late.opened) if own else None
        if collection is not None and collection.encoder not in (None, self._embedding.encoder):
            return query, options  # its model in the compute type of the vectors
        return await self._embedding.aembed_query(query), _with_text(query, options)

    def _embeds_itself(self) -> bool:
        if not isinstance(self._embedding, FlowvecEmbeddings):
            return False
        collection = self.collection
        return collection is not None and collection.encoder is not None

    @override
    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        collection = self.collection
        metric = "cosine" if collection is None else collection.info().metric
        if metric == "ip":
            raise InputValueError(
                "relevance scores are from 0 to 1, and inner products have no bounds: use "
                "similarity_search_with_score, or a collection with the metric cosine"
            )
        return _of_distance if metric == "l2" else _of_cosine

    # --- constructors ---------------------------------------------------------------------------

    @classmethod
    @override
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        collection: str | Path | Collection,
        ids: list[str] | None = None,
        **options: Any,
    ) -> FlowvecVectorStore:
        """A store with these texts added.

        Args:
            texts: as for `add_texts`.
            embedding: as for the class.
            metadatas: as for `add_texts`.
            collection: as for the class; a collection that is there keeps its documents.
            ids: as for `add_texts`.
            **options: as for the class.
        """
        store = cls(collection, embedding, **options)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    @override
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        collection: str | Path | Collection,
        ids: list[str] | None = None,
        **options: Any,
    ) -> FlowvecVectorStore:
        """As `from_texts`."""
        store = cls(collection, embedding, **options)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @override
    def as_retriever(self, **options: Any) -> FlowvecRetriever:
        """A retriever; options are `k`, `search_type`, `search_kwargs` and `tags`."""
        tags = options.pop("tags", None) or self._get_retriever_tags()
        return FlowvecRetriever(vectorstore=self, tags=[*tags], **options)


def _keys(ids: Sequence[str | None] | None, count: int) -> list[str]:
    if ids is None:
        return [str(uuid.uuid4()) for _ in range(count)]
    if len(ids) != count:
        raise InputValueError(f"{len(ids)} ids for {count} texts")
    for key in ids:
        if key is not None and not isinstance(key, str):
            raise InputTypeError(f"ids of documents are texts, not {type(key).__name__}")
    return [str(uuid.uuid4()) if key is None else key for key in ids]


def _with_text(query: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a search for a vector, whose text a hybrid search and a reranker read."""
    needs_text = options.get("hybrid") or options.get("rerank") is not None
    return {**options, "text": query} if needs_text else options


def _document(row: Any) -> Document:
    """A document of a hit or an item."""
    return Document(id=str(row.id), page_content=row.text or "", metadata=row.metadata or {})


def _of_cosine(score: float) -> float:
    return min(max(score, 0.0), 1.0)


def _of_distance(score: float) -> float:
    return 1.0 / (1.0 - score)
