"""A Reranker or a MultiVectorEncoder as LangChain's document compressor and cross-encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict, PrivateAttr

from flowvec.arguments import whole_number
from flowvec.compat import override
from flowvec.integrations.late import AnyReranker, LateReranker

__all__ = ["FlowvecReranker"]


class FlowvecReranker(BaseDocumentCompressor, BaseCrossEncoder):
    """Sorts documents by how well they answer a query, and keeps the best.

    Each document that is kept is a copy, with the score in its metadata as `relevance_score`.
    `score` gives the scores of pairs alone, as cross-encoders do. Those of a MultiVectorEncoder
    grow with the number of the query's tokens: compare them for one query only.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    top_n: int | None = 3
    _late: LateReranker = PrivateAttr()

    def __init__(
        self, model: str | Path | AnyReranker, *, top_n: int | None = 3, **options: Any
    ) -> None:
        """Load a reranker.

        Args:
            model: what `Reranker.load` or `MultiVectorEncoder.load` takes, or a loaded model,
                which `close` leaves open. The bundle says which of the two it is.
            top_n: most documents that are kept; None keeps all.
            **options: those of `Reranker.load`.

        Raises:
            FlowvecError: as `Reranker.load`.
        """
        if top_n is not None:
            whole_number("top_n", top_n)
        super().__init__(top_n=top_n)
        self._late = LateReranker(model, options)
        self._late.get()

    @property
    def reranker(self) -> AnyReranker:
        """The Reranker or MultiVectorEncoder."""
        return self._late.get()

    @override
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        texts = [document.page_content for document in documents]
        if not texts:
            return []
        ranked = self.reranker.rank(query, texts, top_k=self.top_n)
        return [_scored(documents[row["corpus_id"]], row["score"]) for row in ranked]

    @override
    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        return await asyncio.to_thread(self.compress_documents, documents, query)

    @override
    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        if not text_pairs:
            return []
        return self.reranker.predict(text_pairs).tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the model if it was loaded here; twice is harmless."""
        self._late.close()


def _scored(document: Document, score: float) -> Document:
    metadata = {**document.metadata, "relevance_score": score}
    return Document(id=document.id, page_content=document.page_content, metadata=metadata)
