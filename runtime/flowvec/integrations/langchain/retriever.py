"""LangChain's retriever over a vector store, with `k` as a field."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStoreRetriever

from flowvec.compat import override

__all__ = ["FlowvecRetriever"]


class FlowvecRetriever(VectorStoreRetriever):
    """Documents of a vector store for a query.

    `search_type` is `similarity`, `mmr` or `similarity_score_threshold`, and `search_kwargs` are
    options of the search. `k`, how many documents, may also be given to `invoke`.
    """

    k: int = 4

    @override
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        documents: list[Document] = super()._get_relevant_documents(
            query, run_manager=run_manager, **self._with_k(options)
        )
        return documents

    @override
    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        documents: list[Document] = await super()._aget_relevant_documents(
            query, run_manager=run_manager, **self._with_k(options)
        )
        return documents

    def _with_k(self, options: dict[str, Any]) -> dict[str, Any]:
        return options if "k" in self.search_kwargs else {"k": self.k, **options}
