"""LangChain: embeddings, a vector store, its retriever, and a reranker (extra `[langchain]`)."""

from __future__ import annotations

from flowvec.optional import require

require("flowvec.integrations.langchain", "langchain", "langchain_core")

from flowvec.integrations.langchain.embeddings import FlowvecEmbeddings  # noqa: E402
from flowvec.integrations.langchain.reranker import FlowvecReranker  # noqa: E402
from flowvec.integrations.langchain.retriever import FlowvecRetriever  # noqa: E402
from flowvec.integrations.langchain.vector_store import FlowvecVectorStore  # noqa: E402

__all__ = ["FlowvecEmbeddings", "FlowvecReranker", "FlowvecRetriever", "FlowvecVectorStore"]
