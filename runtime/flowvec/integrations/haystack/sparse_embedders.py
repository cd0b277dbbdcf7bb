"""A SparseEncoder as Haystack's sparse embedders."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.dataclasses import SparseEmbedding

from flowvec.errors import InputTypeError
from flowvec.integrations.haystack.documents import texts_to_embed
from flowvec.integrations.late import LateModel, weights_of
from flowvec.sparse.encoder import SparseEncoder

__all__ = ["FlowvecSparseDocumentEmbedder", "FlowvecSparseTextEmbedder"]


@component
class FlowvecSparseTextEmbedder:
    """Embeds a text, such as a query, as weights of tokens, with the bundle's query prompt."""

    def __init__(
        self, model: str | Path | SparseEncoder, load_options: dict[str, Any] | None = None
    ) -> None:
        """Remember a model, which is loaded by `warm_up` or the first run.

        Args:
            model: what `SparseEncoder.load` takes, or a SparseEncoder.
            load_options: options of `SparseEncoder.load`.
        """
        self._late = LateModel(SparseEncoder, model=model, options=load_options)

    def warm_up(self) -> None:
        """Load the model."""
        self._late.get()

    def close(self) -> None:
        """Close the model if it was loaded here."""
        self._late.close()

    def to_dict(self) -> dict[str, Any]:
        """The component as a dict, for pipelines."""
        data: dict[str, Any] = default_to_dict(
            self, model=self._late.name, load_options=self._late.options
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FlowvecSparseTextEmbedder:
        """A component of the dict that `to_dict` gives."""
        made: FlowvecSparseTextEmbedder = default_from_dict(cls, data)
        return made

    @component.output_types(sparse_embedding=SparseEmbedding, meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """Embed a text.

        Returns:
            `sparse_embedding`, with ascending token ids as indices, and `meta` with the model's
            name.
        """
        if not isinstance(text, str):
            raise InputTypeError(
                f"text must be a text, not {type(text).__name__}; a FlowvecSparseDocumentEmbedder "
                "embeds documents"
            )
        ((ids, weights),) = weights_of(self._late.get().encode_query(text))
        embedding = SparseEmbedding(indices=ids, values=weights)
        return {"sparse_embedding": embedding, "meta": {"model": self._late.name}}

    @component.output_types(sparse_embedding=SparseEmbedding, meta=dict[str, Any])
    async def run_async(self, text: str) -> dict[str, Any]:
        """As `run`."""
        result: dict[str, Any] = await asyncio.to_thread(self.run, text)
        return result


@component
class FlowvecSparseDocumentEmbedder:
    """Embeds documents as weights of tokens, with the bundle's document prompt."""

    def __init__(
        self,
        model: str | Path | SparseEncoder,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        load_options: dict[str, Any] | None = None,
    ) -> None:
        """Remember a model, which is loaded by `warm_up` or the first run.

        Args:
            model: what `SparseEncoder.load` takes, or a SparseEncoder.
            meta_fields_to_embed: fields of the `meta` that are embedded before the content.
            embedding_separator: what stands between them.
            load_options: options of `SparseEncoder.load`.
        """
        self._late = LateModel(SparseEncoder, model=model, options=load_options)
        self._fields = list(meta_fields_to_embed or [])
        self._separator = embedding_separator

    def warm_up(self) -> None:
        """Load the model."""
        self._late.get()

    def close(self) -> None:
        """Close the model if it was loaded here."""
        self._late.close()

    def to_dict(self) -> dict[str, Any]:
        """The component as a dict, for pipelines."""
        data: dict[str, Any] = default_to_dict(
            self,
            model=self._late.name,
            meta_fields_to_embed=self._fields,
            embedding_separator=self._separator,
            load_options=self._late.options,
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FlowvecSparseDocumentEmbedder:
        """A component of the dict that `to_dict` gives."""
        made: FlowvecSparseDocumentEmbedder = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embed documents.

        Returns:
            `documents`, copies with their sparse embeddings, and `meta` with the model's name.
        """
        texts = texts_to_embed(documents, self._fields, self._separator)
        rows = weights_of(self._late.get().encode_document(texts))
        embedded = [
            replace(document, sparse_embedding=SparseEmbedding(indices=ids, values=weights))
            for document, (ids, weights) in zip(documents, rows, strict=True)
        ]
        return {"documents": embedded, "meta": {"model": self._late.name}}

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """As `run`."""
        result: dict[str, Any] = await asyncio.to_thread(self.run, documents)
        return result
