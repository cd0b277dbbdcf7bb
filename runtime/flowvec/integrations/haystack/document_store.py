"""A Collection as Haystack's document store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from haystack import Document, default_from_dict, default_to_dict
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError

from flowvec.collection.collection import Collection
from flowvec.collection.store.filters import compile_filter
from flowvec.errors import InputTypeError, InputValueError
from flowvec.integrations.filters import from_haystack
from flowvec.integrations.haystack.documents import (
    EMBEDDED,
    document_of,
    has_embedding,
    rows_of,
)
from flowvec.integrations.haystack.metadata import MetadataMethods
from flowvec.integrations.late import LateCollection

__all__ = ["FlowvecDocumentStore"]

Filters = dict[str, Any] | None


class FlowvecDocumentStore(MetadataMethods):
    """A Collection of documents: a row's text is the content, its metadata the `meta`.

    The collection is opened at the first use, created by the first documents, and kept open until
    `close`. Embeddings are kept as float32. Documents without an embedding are never found by
    embedding, but by their words in a hybrid search.
    """

    def __init__(
        self,
        collection: str | Path | Collection,
        *,
        embedding_dim: int | None = None,
        **options: Any,
    ) -> None:
        """Remember a collection; nothing is opened yet.

        Args:
            collection: its directory, or an open Collection, which `close` leaves open.
            embedding_dim: length of the embeddings. None takes it from the first document that has
                one; it is needed if none of the first documents has.
            **options: those of `Collection.create`: `metric`, `vector_dtype`, `index`,
                `exact_below` and `write_timeout`.
        """
        self._dim = embedding_dim
        self._options = options
        self._late = LateCollection(collection, **options)

    def to_dict(self) -> dict[str, Any]:
        """The store as a dict, for pipelines."""
        data: dict[str, Any] = default_to_dict(
            self, collection=str(self._late.path), embedding_dim=self._dim, **self._options
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FlowvecDocumentStore:
        """A store of the dict that `to_dict` gives."""
        store: FlowvecDocumentStore = default_from_dict(cls, data)
        return store

    @property
    def collection(self) -> Collection | None:
        """The Collection, for all else that it can do; None before the first documents."""
        return self._late.opened()

    def close(self) -> None:
        """Close the collection if it was opened here; twice is harmless."""
        self._late.close()

    # --- documents ------------------------------------------------------------------------------

    def count_documents(self) -> int:
        """How many documents there are."""
        return self.count_documents_by_filter({})

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """How many documents meet a filter.

        Raises:
            FilterError: the filter is not valid, or cannot be asked.
        """
        wanted, collection = self._condition(filters), self.collection
        return 0 if collection is None else collection.count(wanted or None)

    def filter_documents(self, filters: Filters = None) -> list[Document]:
        """Documents that meet a filter, in the order in which they were written.

        Raises:
            FilterError: the filter is not valid, or cannot be asked.
        """
        return [document_of(row) for row in self._rows(filters)]

    def write_documents(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents, on disk when it returns.

        Args:
            documents: with or without embeddings.
            policy: what happens to documents with the id of another one, in the store or in the
                list: SKIP writes the first, OVERWRITE the last, FAIL and NONE raise an error.

        Returns:
            How many documents were written, counting those that were overwritten.

        Raises:
            DuplicateDocumentError: by FAIL and NONE; nothing was written.
            InputTypeError, InputValueError: an argument is not valid; nothing was written.
        """
        if not isinstance(documents, list) or not all(isinstance(d, Document) for d in documents):
            raise InputValueError("documents must be a list of Documents")
        kept = documents if policy == DuplicatePolicy.OVERWRITE else self._new(documents, policy)
        if kept:
            collection = self._late.created(self._dim_of(kept))
            rows = rows_of(kept, collection.info().dim)
            collection.add_vectors(rows.ids, rows.vectors, rows.texts, rows.metadata)
        return len(kept)

    def _new(self, documents: list[Document], policy: DuplicatePolicy) -> list[Document]:
        collection = self.collection
        ids = [document.id for document in documents]
        known = set() if collection is None else set(collection.ids({"$id": {"in": ids}}))
        kept: list[Document] = []
        for document in documents:
            if document.id not in known:
                known.add(document.id)
                kept.append(document)
            elif policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(f"there is a document with the id {document.id!r}")
        return kept

    def _dim_of(self, documents: Iterable[Document]) -> int:
        if self._dim is not None:
            return self._dim
        collection = self.collection
        if collection is not None:
            return collection.info().dim
        for document in documents:
            if document.embedding is not None:
                return len(document.embedding)
        raise InputValueError(
            "the length of the embeddings is not known yet: write documents with embeddings first, "
            "or give embedding_dim="
        )

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents by id; unknown ids are ignored."""
        collection = self.collection
        if collection is not None:
            collection.delete(document_ids)

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete all documents.

        Args:
            recreate_index: also build the indexes anew, and give the space back to the disk.
        """
        self.delete_by_filter({})
        collection = self.collection
        if recreate_index and collection is not None:
            collection.compact()

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that meet a filter, and return how many.

        Raises:
            FilterError: the filter is not valid, or cannot be asked.
        """
        wanted, collection = self._condition(filters), self.collection
        return 0 if collection is None else collection.delete(filter=wanted)

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set fields of the `meta` of the documents that meet a filter, and return how many.

        Other fields stay; None removes one.

        Raises:
            FilterError: the filter is not valid, or cannot be asked.
        """
        wanted, collection = self._condition(filters), self.collection
        if collection is None:
            return 0
        return collection.update_metadata(filter=wanted, changes=meta)

    # --- searches -------------------------------------------------------------------------------

    def search(
        self,
        query_embedding: list[float],
        query: str | None = None,
        *,
        filters: Filters = None,
        top_k: int = 10,
        return_embedding: bool = False,
        **options: Any,
    ) -> list[Document]:
        """The documents nearest to an embedding, or to an embedding and the words of a text.

        Args:
            query_embedding: of the query.
            query: the text of the query. With it the search is hybrid: by words, too.
            filters: which documents are eligible.
            top_k: most documents.
            return_embedding: whether the documents have their embeddings.
            **options: those of `Collection.search`.

        Returns:
            Documents with their scores, best first.

        Raises:
            FilterError: the filter is not valid, or cannot be asked.
            InputTypeError, InputValueError: another argument is not valid.
        """
        wanted, collection = self._condition(filters), self.collection
        if collection is None:
            return []
        options |= {"k": top_k, "with_vectors": return_embedding}
        if query is not None:
            options |= {"text": query, "hybrid": True}
        hits = collection.search(query_embedding, filter=wanted or None, **options)
        if query is None and not all(has_embedding(hit.metadata) for hit in hits):
            # Searching without this first is faster where all documents have embeddings.
            eligible = {"and": [wanted, EMBEDDED]}
            hits = collection.search(query_embedding, filter=eligible, **options)
        return [document_of(hit, score=hit.score, with_embedding=return_embedding) for hit in hits]

    @staticmethod
    def _condition(filters: Filters) -> dict[str, Any]:
        try:
            condition = from_haystack(filters)
            compile_filter(condition)
        except (InputTypeError, InputValueError) as error:
            raise FilterError(str(error)) from error
        return condition

    def _rows(self, filters: Filters) -> Iterable[Any]:
        wanted, collection = self._condition(filters), self.collection
        return () if collection is None else collection.rows(wanted or None)

    # --- for asyncio ----------------------------------------------------------------------------

    async def count_documents_async(self) -> int:
        """As `count_documents`."""
        return await asyncio.to_thread(self.count_documents)

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """As `count_documents_by_filter`."""
        return await asyncio.to_thread(self.count_documents_by_filter, filters)

    async def filter_documents_async(self, filters: Filters = None) -> list[Document]:
        """As `filter_documents`."""
        return await asyncio.to_thread(self.filter_documents, filters)

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """As `write_documents`."""
        return await asyncio.to_thread(self.write_documents, documents, policy)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """As `delete_documents`."""
        await asyncio.to_thread(self.delete_documents, document_ids)

    async def delete_all_documents_async(self, recreate_index: bool = False) -> None:
        """As `delete_all_documents`."""
        await asyncio.to_thread(self.delete_all_documents, recreate_index)

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """As `delete_by_filter`."""
        return await asyncio.to_thread(self.delete_by_filter, filters)

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """As `update_by_filter`."""
        return await asyncio.to_thread(self.update_by_filter, filters, meta)
