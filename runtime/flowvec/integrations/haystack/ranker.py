"""A Reranker or a MultiVectorEncoder as Haystack's ranker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from flowvec.arguments import whole_number
from flowvec.integrations.haystack.documents import texts_to_embed
from flowvec.integrations.late import AnyReranker, LateReranker

__all__ = ["FlowvecRanker"]


@component
class FlowvecRanker:
    """Sorts documents by how well they answer a query.

    A Reranker reads both together; a MultiVectorEncoder compares their token vectors.
    """

    def __init__(
        self,
        model: str | Path | AnyReranker,
        top_k: int = 10,
        meta_fields_to_embed: list[str] | None = None,
        embedding_separator: str = "\n",
        score_threshold: float | None = None,
        load_options: dict[str, Any] | None = None,
    ) -> None:
        """Remember a model, which is loaded by `warm_up` or the first run.

        Args:
            model: what `Reranker.load` or `MultiVectorEncoder.load` takes, or a loaded model. The
                bundle says which of the two it is.
            top_k: most documents.
            meta_fields_to_embed: fields of the `meta` that are read before the content.
            embedding_separator: what stands between them.
            score_threshold: drops documents with a lower score. Scores of a MultiVectorEncoder
                grow with the number of the query's tokens, so no threshold fits all queries.
            load_options: options of `Reranker.load`.
        """
        self._late = LateReranker(model, load_options)
        self._top_k = whole_number("top_k", top_k)
        self._fields = list(meta_fields_to_embed or [])
        self._separator = embedding_separator
        self._threshold = score_threshold

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
            top_k=self._top_k,
            meta_fields_to_embed=self._fields,
            embedding_separator=self._separator,
            score_threshold=self._threshold,
            load_options=self._late.options,
        )
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FlowvecRanker:
        """A component of the dict that `to_dict` gives."""
        made: FlowvecRanker = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Sort documents.

        Args:
            query: a text.
            documents: what to sort.
            top_k: replaces the component's.

        Returns:
            `documents`, copies with their scores, best first.
        """
        texts = texts_to_embed(documents, self._fields, self._separator)
        if not texts:
            return {"documents": []}
        most = self._top_k if top_k is None else whole_number("top_k", top_k)
        ranked = self._late.get().rank(query, texts, top_k=most)
        return {
            "documents": [
                replace(documents[row["corpus_id"]], score=row["score"])
                for row in ranked
                if self._threshold is None or row["score"] >= self._threshold
            ]
        }

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """As `run`."""
        result: dict[str, list[Document]] = await asyncio.to_thread(
            self.run, query, documents, top_k
        )
        return result
