"""A Collection as LlamaIndex' vector store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from flowvec.collection.collection import Collection
from flowvec.collection.diversity import FETCH_K, LAMBDA_MULT
from flowvec.collection.results import Hit
from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec.integrations.filters import from_llama_index
from flowvec.integrations.late import LateCollection

__all__ = ["FlowvecVectorStore"]

# Rows without any word of the query have the score 0 in a search by words.
_ANY_WORD = 1e-9


class FlowvecVectorStore(BasePydanticVectorStore):
    """A Collection of nodes: a row's text is the content, its metadata the node's.

    The collection is opened at the first use, created by the first nodes, and kept open until
    `close`. Queries may be of the modes `default`, `hybrid` (`alpha` is the share of the vectors),
    `mmr` (`mmr_threshold` is lambda), `text_search` and `sparse` (words only).
    """

    stores_text: bool = True
    is_embedding_query: bool = True
    _late: LateCollection = PrivateAttr()

    def __init__(self, collection: str | Path | Collection, **options: Any) -> None:
        """Remember a collection; nothing is opened yet.

        Args:
            collection: its directory, or an open Collection, which `close` leaves open.
            **options: those of `Collection.create`: `metric`, `vector_dtype`, `index`,
                `exact_below` and `write_timeout`.
        """
        super().__init__(stores_text=True)
        self._late = LateCollection(collection, **options)

    @classmethod
    @override
    def class_name(cls) -> str:
        return "FlowvecVectorStore"

    @property
    @override
    def client(self) -> Collection | None:
        """The Collection, for all else that it can do; None before the first nodes."""
        return self._late.opened()

    def close(self) -> None:
        """Close the collection if it was opened here; twice is harmless."""
        self._late.close()

    # --- nodes ----------------------------------------------------------------------------------

    @override
    def add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        """Add nodes with their embeddings; nodes with the same ids are replaced.

        Returns:
            The ids.
        """
        if not nodes:
            return []
        vectors = np.asarray([node.get_embedding() for node in nodes], np.float32)
        collection = self._late.created(vectors.shape[-1])
        ids = [node.node_id for node in nodes]
        texts = [node.get_content(metadata_mode=MetadataMode.NONE) for node in nodes]
        metadata = [node_to_metadata_dict(node, remove_text=True) for node in nodes]
        collection.add_vectors(ids, vectors, texts, metadata)
        return ids

    @override
    def delete(self, ref_doc_id: str, **_: Any) -> None:
        """Delete the nodes of a document."""
        self._delete({"ref_doc_id": ref_doc_id})

    @override
    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **_: Any,
    ) -> None:
        """Delete nodes by id and by filters.

        Raises:
            InputValueError: neither is given; `clear` deletes all nodes.
        """
        if node_ids is None and filters is None:
            raise InputValueError("give node_ids or filters; clear() deletes all nodes")
        self._delete(_wanted(filters, node_ids))

    @override
    def clear(self) -> None:
        """Delete all nodes."""
        self._delete({})

    def _delete(self, wanted: dict[str, Any]) -> None:
        collection = self.client
        if collection is not None:
            collection.delete(filter=wanted)

    @override
    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """Nodes that have one of these ids and meet the filters, in the order of their adding."""
        collection = self.client
        if collection is None:
            return []
        return [_node(row) for row in collection.rows(_wanted(filters, node_ids))]

    # --- searches -------------------------------------------------------------------------------

    @override
    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        """Search nodes.

        Args:
            query: a query of LlamaIndex.
            **options: those of `Collection.search` (of `Collection.search_mmr` in the mode `mmr`).

        Raises:
            InputValueError: the mode is not supported, or the query lacks what it needs.
        """
        # An index gives an empty list of nodes where it means all.
        wanted = _wanted(query.filters, query.node_ids or None, query.doc_ids or None)
        collection = self.client
        hits: list[Hit] = []
        if collection is not None:
            hits = _hits(collection, query, options | {"filter": wanted or None})
        return VectorStoreQueryResult(
            nodes=[_node(hit) for hit in hits],
            similarities=[hit.score for hit in hits],
            ids=[str(hit.id) for hit in hits],
        )

    # --- for asyncio ----------------------------------------------------------------------------

    @override
    async def async_add(self, nodes: Sequence[BaseNode], **_: Any) -> list[str]:
        return await asyncio.to_thread(self.add, nodes)

    @override
    async def adelete(self, ref_doc_id: str, **_: Any) -> None:
        await asyncio.to_thread(self.delete, ref_doc_id)

    @override
    async def adelete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **_: Any,
    ) -> None:
        await asyncio.to_thread(self.delete_nodes, node_ids, filters)

    @override
    async def aclear(self) -> None:
        await asyncio.to_thread(self.clear)

    @override
    async def aget_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        return await asyncio.to_thread(self.get_nodes, node_ids, filters)

    @override
    async def aquery(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        return await asyncio.to_thread(self.query, query, **options)


def _hits(collection: Collection, query: VectorStoreQuery, options: dict[str, Any]) -> list[Hit]:
    """What a query finds, by its mode."""
    mode, k = VectorStoreQueryMode(query.mode), query.similarity_top_k
    if mode in (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE):
        nowhere = np.zeros(collection.info().dim, np.float32)
        words = {"hybrid": True, "vector_weight": 0.0, "min_score": _ANY_WORD}
        return collection.search(
            nowhere, query.sparse_top_k or k, text=_text(query), **{**words, **options}
        )
    if query.query_embedding is None:
        raise InputValueError(f"a query of the mode {mode.value!r} needs query_embedding")
    if mode == VectorStoreQueryMode.DEFAULT:
        return collection.search(query.query_embedding, k, **options)
    if mode == VectorStoreQueryMode.HYBRID:
        weight = {} if query.alpha is None else {"vector_weight": query.alpha}
        return collection.search(
            query.query_embedding,
            query.hybrid_top_k or k,
            text=_text(query),
            hybrid=True,
            **{**weight, **options},
        )
    if mode == VectorStoreQueryMode.MMR:
        share = LAMBDA_MULT if query.mmr_threshold is None else query.mmr_threshold
        given = {"lambda_mult": options.pop("mmr_threshold", share), "fetch_k": max(FETCH_K, 4 * k)}
        return collection.search_mmr(query.query_embedding, k, **{**given, **options})
    raise InputValueError(
        f"queries of the mode {mode.value!r} are not supported; choose from default, hybrid, mmr, "
        "text_search, sparse"
    )


def _text(query: VectorStoreQuery) -> str:
    if not query.query_str:
        raise InputValueError(f"a query of the mode {query.mode!r} needs query_str")
    return str(query.query_str)


def _wanted(
    filters: MetadataFilters | None,
    node_ids: Iterable[str] | None,
    doc_ids: Iterable[str] | None = None,
) -> dict[str, Any]:
    parts = [from_llama_index(filters)]
    if node_ids is not None:
        parts.append({"$id": {"in": list(node_ids)}})
    if doc_ids is not None:
        parts.append({"ref_doc_id": {"in": list(doc_ids)}})
    kept = [part for part in parts if part]
    return {"and": kept} if len(kept) > 1 else (kept or [{}])[0]


def _node(row: Any) -> BaseNode:
    """The node of an item or a hit; rows that LlamaIndex did not write have only a text."""
    metadata = dict(row.metadata or {})
    if "_node_content" not in metadata:
        return TextNode(id_=str(row.id), text=row.text or "", metadata=metadata)
    return metadata_dict_to_node(metadata, text=row.text)
