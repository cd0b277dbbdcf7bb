"""An Encoder as Haystack's embedders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from haystack import Document, component, default_from_dict, default_to_dict

from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputTypeError
from flowvec.integrations.haystack.documents import texts_to_embed
from flowvec.integrations.late import LateEncoder

__all__ = ["FlowvecDocumentEmbedder", "FlowvecTextEmbedder"]


@component
class FlowvecTextEmbedder:
    """Embeds a text, such as a query, with the query prompt of the model's bundle."""

    def __init__(
        self, model: str | Path | Encoder = "mini", load_options: dict[str, Any] | None = None
    ) -> None:
        """Remember a model, which is loaded by `warm_up` or the first run.

        Args:
            model: what `Encoder.load` takes, or an Encoder.
            load_options: options of `Encoder.load`.
        """
        self._late = LateEncoder(model, load_options)

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
    def from_dict(cls, data: dict[str, Any]) -> FlowvecTextEmbedder:
        """A component of the dict that `to_dict` gives."""
        made: FlowvecTextEmbedder = default_from_dict(cls, data)
        return made

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        """Embed a text.

        Returns:
            `embedding`, a list of floats, and `meta` with the model's name.
        """
        vector = self._late.get().encode_query(_checked(text))
        return {"embedding": vector.tolist(), "meta": {"model": self._late.name}}

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    async def run_async(self, text: str) -> dict[str, Any]:
        """As `run`; texts of different tasks share batches."""
        vector = await self._late.asynchronous.encode_query(_checked(text))
        return {"embedding": vector.tolist(), "meta": {"model": self._late.name}}


@component
class FlowvecDocumentEmbedder:
    """Embeds documents, with the document prompt of the model's bundle."""

    def __init__(
        self,
        model: str | Path | Encoder = "mini",
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        load_options: dict[str, Any] | None = None,
    ) -> None:
        """Remember a model, which is loaded by `warm_up` or the first run.

        Args:
            model: what `Encoder.load` takes, or an Encoder.
            meta_fields_to_embed: fields of the `meta` that are embedded before the content.
            embedding_separator: what stands between them.
            load_options: options of `Encoder.load`.
        """
        self._late = LateEncoder(model, load_options)
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
    def from_dict(cls, data: dict[str, Any]) -> FlowvecDocumentEmbedder:
        """A component of the dict that `to_dict` gives."""
        made: FlowvecDocumentEmbedder = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """Embed documents.

        Returns:
            `documents`, copies with their embeddings, and `meta` with the model's name.
        """
        texts = texts_to_embed(documents, self._fields, self._separator)
        return self._result(documents, self._late.get().encode_document(texts))

    @component.output_types(documents=list[Document], meta=dict[str, Any])
    async def run_async(self, documents: list[Document]) -> dict[str, Any]:
        """As `run`; texts of different tasks share batches."""
        texts = texts_to_embed(documents, self._fields, self._separator)
        return self._result(documents, await self._late.asynchronous.encode_document(texts))

    def _result(
        self, documents: list[Document], vectors: npt.NDArray[np.float32]
    ) -> dict[str, Any]:
        embedded = [
            replace(document, embedding=vector.tolist())
            for document, vector in zip(documents, vectors, strict=True)
        ]
        return {"documents": embedded, "meta": {"model": self._late.name}}


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise InputTypeError(
            f"text must be a text, not {type(text).__name__}; a FlowvecDocumentEmbedder embeds "
            "documents"
        )
    return text
