"""Scores of pairs of texts: how well a document answers a query."""

from flowvec.reranker.async_reranker import AsyncReranker
from flowvec.reranker.reranker import Reranker, RerankerInfo
from flowvec.reranker.shared_reranker import SharedReranker

__all__ = ["AsyncReranker", "Reranker", "RerankerInfo", "SharedReranker"]
