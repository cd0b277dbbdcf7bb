"""Haystack's retrievers over a FlowvecDocumentStore."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy, apply_filter_policy

from flowvec.arguments import whole_number
from flowvec.errors import InputTypeError
from flowvec.integrations.haystack.document_store import FlowvecDocumentStore

__all__ = ["FlowvecEmbeddingRetriever", "FlowvecHybridRetriever"]

Filters = dict[str, Any] | None


class _Settings:
    """What the retrievers share: a store, and options that a run may replace."""

    def __init__(
        self,
        document_store: FlowvecDocumentStore,
        filters: Filters,
        top_k: int,
        return_embedding: bool,
        filter_policy: str | FilterPolicy,
    ) -> None:
        if not isinstance(document_store, FlowvecDocumentStore):
            raise InputTypeError(
                "document_store must be a FlowvecDocumentStore, not "
                f"{type(document_store).__name__}"
            )
        self.document_store = document_store
        self.filters = filters
        self.top_k = whole_number("top_k", top_k)
        self.return_embedding = return_embedding
        if isinstance(filter_policy, str):
            filter_policy = FilterPolicy.from_str(filter_policy)
        self.filter_policy: Any = filter_policy

    def as_dict(self) -> dict[str, Any]:
        return {
            "document_store": self.document_store.to_dict(),
            "filters": self.filters,
            "top_k": self.top_k,
            "return_embedding": self.return_embedding,
            "filter_policy": self.filter_policy.value,
        }

    def search(
        self, embedding: object, query: str | None, filters: Filters, top_k: int | None
    ) -> partial[list[Document]]:
        """The search of one run.

        Raises:
            InputTypeError: the embedding is a text.
        """
        if isinstance(embedding, str):
            raise InputTypeError(
                "query_embedding must be a list of numbers, not a text: a FlowvecTextEmbedder "
                "makes it"
            )
        return partial(
            self.document_store.search,
            cast(list[float], embedding),
            query,
            filters=apply_filter_policy(self.filter_policy, self.filters, filters),
            top_k=self.top_k if top_k is None else top_k,
            return_embedding=self.return_embedding,
        )


def _from_dict(cls: type, data: dict[str, Any]) -> Any:
    parameters = dict(data.get("init_parameters", {}))
    store = parameters.get("document_store")
    if isinstance(store, dict):
        parameters["document_store"] = FlowvecDocumentStore.from_dict(store)
    return default_from_dict(cls, {**data, "init_parameters": parameters})


@component
class FlowvecEmbeddingRetriever:
    """Finds the documents nearest to the embedding of a query."""

    def __init__(
        self,
        document_store: FlowvecDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        return_embedding: bool = False,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        """Options of all runs.

        Args:
            document_store: a FlowvecDocumentStore.
            filters: which documents are eligible.
            top_k: most documents.
            return_embedding: whether the documents have their embeddings.
            filter_policy: whether the filters of a run replace these, or are added (MERGE).
        """
        self._settings = _Settings(document_store, filters, top_k, return_embedding, filter_policy)

    def to_dict(self) -> dict[str, Any]:
        """The component as a dict, for pipelines."""
        data: dict[str, Any] = default_to_dict(self, **self._settings.as_dict())
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FlowvecEmbeddingRetriever:
        """A component of the dict that `to_dict` gives."""
        made: FlowvecEmbeddingRetriever = _from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Find documents.

        Args:
            query_embedding: of the query.
            filters: as `filter_policy` says.
            top_k: replaces the component's.

        Returns:
            `documents` with their scores, best first.
        """
        search = self._settings.search(query_embedding, None, filters, top_k)
        return {"documents": search()}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """As `run`."""
        search = self._settings.search(query_embedding, None, filters, top_k)
        return {"documents": await asyncio.to_thread(search)}


@component
class FlowvecHybridRetriever:
    """Finds documents by the embedding and the words of a query, in one search."""

    def __init__(
        self,
        document_store: FlowvecDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        vector_weight: float = 0.5,
        return_embedding: bool = False,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        """Options of all runs.

        Args:
            document_store: a FlowvecDocumentStore.
            filters: which documents are eligible.
            top_k: most documents.
            vector_weight: share of the embedding: 0 (words only) to 1.
            return_embedding: whether the documents have their embeddings.
            filter_policy: whether the filters of a run replace these, or are added (MERGE).
        """
        self._settings = _Settings(document_store, filters, top_k, return_embedding, filter_policy)
        self._weight = vector_weight

    def to_dict(self) -> dict[str, Any]:
        """The component as a dict, for pipelines."""
        data: dict[str, Any] = default_to_dict(
            self, vector_weight=self._weight, **self._settings.as_dict()
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FlowvecHybridRetriever:
        """A component of the dict that `to_dict` gives."""
        made: FlowvecHybridRetriever = _from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Find documents.

        Args:
            query: the text of the query.
            query_embedding: its embedding.
            filters: as `filter_policy` says.
            top_k: replaces the component's.

        Returns:
            `documents` with their scores, best first.
        """
        search = self._settings.search(query_embedding, query, filters, top_k)
        return {"documents": search(vector_weight=self._weight)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """As `run`."""
        search = self._settings.search(query_embedding, query, filters, top_k)
        return {"documents": await asyncio.to_thread(search, vector_weight=self._weight)}
