"""Haystack's documents as rows of a collection, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from haystack import Document
from haystack.dataclasses import ByteStream, SparseEmbedding

from flowvec.collection.store.rows import Rows
from flowvec.errors import InputTypeError, InputValueError

__all__ = ["EMBEDDED", "document_of", "has_embedding", "rows_of", "texts_to_embed"]

# What a row cannot hold elsewhere, in a field of the metadata. Most documents need none.
_EXTRA = "_haystack"
# Rows whose documents have an embedding: the others have a vector of zeros.
EMBEDDED = {f"{_EXTRA}.no_embedding": {"exists": False}}


def rows_of(documents: Sequence[Document], dim: int) -> Rows:
    """Rows that hold documents; the vectors are float32 (documents, dim).

    Raises:
        InputTypeError: an id is not a text.
        InputValueError: an embedding has another length, or a document's `meta` has the field
            `_haystack`.
    """
    vectors: npt.NDArray[np.float32] = np.zeros((len(documents), dim), np.float32)
    for vector, document in zip(vectors, documents, strict=True):
        if document.embedding is None:
            continue
        if len(document.embedding) != dim:
            raise InputValueError(
                f"the document {document.id!r} has an embedding of {len(document.embedding)} "
                f"dimensions; the collection has {dim}"
            )
        vector[:] = document.embedding
    return Rows(
        [_id(document) for document in documents],
        vectors,
        [document.content for document in documents],
        [_metadata(document) for document in documents],
    )


def _id(document: Document) -> str:
    if not isinstance(document.id, str):
        raise InputTypeError(f"ids of documents are texts, not {type(document.id).__name__}")
    return document.id


def _metadata(document: Document) -> dict[str, Any] | None:
    meta: dict[str, Any] = dict(document.meta)
    if _EXTRA in meta:
        raise InputValueError(f"the document {document.id!r} has the field {_EXTRA!r} in its meta")
    extra: dict[str, Any] = {}
    if document.embedding is None:
        extra["no_embedding"] = True
    if document.blob is not None:
        extra["blob"] = document.blob.to_dict()
    if document.sparse_embedding is not None:
        extra["sparse_embedding"] = document.sparse_embedding.to_dict()
    return (meta | {_EXTRA: extra} if extra else meta) or None


def has_embedding(metadata: dict[str, Any] | None) -> bool:
    """Whether the document of a row has an embedding."""
    return "no_embedding" not in (metadata or {}).get(_EXTRA, {})


def document_of(row: Any, *, score: float | None = None, with_embedding: bool = True) -> Document:
    """The document of an item or a hit."""
    meta: dict[str, Any] = dict(row.metadata or {})
    extra = meta.pop(_EXTRA, {})
    blob, sparse = extra.get("blob"), extra.get("sparse_embedding")
    embedded = with_embedding and row.vector is not None and has_embedding(row.metadata)
    return Document(
        id=str(row.id),
        content=row.text,
        meta=meta,
        score=score,
        embedding=row.vector.tolist() if embedded else None,
        blob=None if blob is None else ByteStream.from_dict(blob),
        sparse_embedding=None if sparse is None else SparseEmbedding.from_dict(sparse),
    )


def texts_to_embed(documents: Any, meta_fields: Sequence[str], separator: str) -> list[str]:
    """What a model reads of documents: some fields of their `meta`, and the content.

    Raises:
        InputTypeError: it is not a list of documents.
    """
    if not isinstance(documents, list) or not all(isinstance(d, Document) for d in documents):
        raise InputTypeError("documents must be a list of Documents")
    return [
        separator.join(
            [
                *(str(d.meta[name]) for name in meta_fields if d.meta.get(name) is not None),
                d.content or "",
            ]
        )
        for d in documents
    ]
