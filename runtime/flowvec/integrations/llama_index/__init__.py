"""LlamaIndex: embeddings, a vector store, and a reranker (extra `[llama-index]`)."""

from __future__ import annotations

from flowvec.optional import require

require("flowvec.integrations.llama_index", "llama-index", "llama_index")

from flowvec.integrations.llama_index.models import FlowvecEmbedding, FlowvecRerank  # noqa: E402
from flowvec.integrations.llama_index.sparse import FlowvecSparseEmbedding  # noqa: E402
from flowvec.integrations.llama_index.vector_store import FlowvecVectorStore  # noqa: E402

__all__ = [
    "FlowvecEmbedding",
    "FlowvecRerank",
    "FlowvecSparseEmbedding",
    "FlowvecVectorStore",
]
