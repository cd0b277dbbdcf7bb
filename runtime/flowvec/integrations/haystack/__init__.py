"""Haystack: a document store, embedders, retrievers and a ranker (extra `[haystack]`)."""

from __future__ import annotations

from flowvec.optional import require

require("flowvec.integrations.haystack", "haystack", "haystack")

from flowvec.integrations.haystack.document_store import FlowvecDocumentStore  # noqa: E402
from flowvec.integrations.haystack.embedders import (  # noqa: E402
    FlowvecDocumentEmbedder,
    FlowvecTextEmbedder,
)
from flowvec.integrations.haystack.ranker import FlowvecRanker  # noqa: E402
from flowvec.integrations.haystack.retrievers import (  # noqa: E402
    FlowvecEmbeddingRetriever,
    FlowvecHybridRetriever,
)
from flowvec.integrations.haystack.sparse_embedders import (  # noqa: E402
    FlowvecSparseDocumentEmbedder,
    FlowvecSparseTextEmbedder,
)

__all__ = [
    "FlowvecDocumentEmbedder",
    "FlowvecDocumentStore",
    "FlowvecEmbeddingRetriever",
    "FlowvecHybridRetriever",
    "FlowvecRanker",
    "FlowvecSparseDocumentEmbedder",
    "FlowvecSparseTextEmbedder",
    "FlowvecTextEmbedder",
]
