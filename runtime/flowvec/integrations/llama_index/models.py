"""An Encoder as LlamaIndex' embedding, and a reranker as its postprocessor of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from flowvec.arguments import whole_number
from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.integrations.late import AnyReranker, LateEncoder, LateReranker

__all__ = ["FlowvecEmbedding", "FlowvecRerank"]

# The most that LlamaIndex allows: flowvec makes its own batches, by tokens.
_MOST_TEXTS = 2048


class FlowvecEmbedding(BaseEmbedding):
    """Embeds texts and queries with an Encoder, with the prompts of its bundle.

    Texts of different asyncio tasks share batches.
    """

    _late: LateEncoder = PrivateAttr()

    def __init__(
        self,
        model: str | Path | Encoder = "mini",
        *,
        load_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model: what `Encoder.load` takes, or an Encoder, which `close` leaves open.
            load_options: options of `Encoder.load`.
            **options: fields of LlamaIndex' BaseEmbedding.

        Raises:
            FlowvecError: as `Encoder.load`.
        """
        late = LateEncoder(model, load_options)
        super().__init__(**{"model_name": late.name, "embed_batch_size": _MOST_TEXTS, **options})
        self._late = late
        late.get()

    @classmethod
    @override
    def class_name(cls) -> str:
        return "FlowvecEmbedding"

    @property
    def encoder(self) -> Encoder:
        """The Encoder."""
        return self._late.get()

    @override
    def _get_query_embedding(self, query: str) -> list[float]:
        return self.encoder.encode_query(query).tolist()  # type: ignore[no-any-return]

    @override
    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._late.asynchronous.encode_query(query)).tolist()  # type: ignore[no-any-return]

    @override
    def _get_text_embedding(self, text: str) -> list[float]:
        return self.encoder.encode_document(text).tolist()  # type: ignore[no-any-return]

    @override
    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._late.asynchronous.encode_document(text)).tolist()  # type: ignore[no-any-return]

    @override
    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.encoder.encode_document(texts).tolist()  # type: ignore[no-any-return]

    @override
    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return (await self._late.asynchronous.encode_document(texts)).tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the queue, and close the model if it was loaded here; twice is harmless."""
        self._late.close()


class FlowvecRerank(BaseNodePostprocessor):
    """Sorts nodes by how well they answer a query, and keeps the best.

    A node is read as it is embedded: with the fields of its metadata that are meant for that.
    """

    top_n: int = 5
    _late: LateReranker = PrivateAttr()

    def __init__(
        self,
        model: str | Path | AnyReranker,
        *,
        top_n: int = 5,
        load_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load a reranker.

        Args:
            model: what `Reranker.load` or `MultiVectorEncoder.load` takes, or a loaded model,
                which `close` leaves open. The bundle says which of the two it is.
            top_n: most nodes that are kept.
            load_options: options of `Reranker.load`.
            **options: fields of LlamaIndex' BaseNodePostprocessor.

        Raises:
            FlowvecError: as `Reranker.load`.
        """
        super().__init__(top_n=whole_number("top_n", top_n), **options)
        self._late = LateReranker(model, load_options)
        self._late.get()

    @classmethod
    @override
    def class_name(cls) -> str:
        return "FlowvecRerank"

    @property
    def reranker(self) -> AnyReranker:
        """The Reranker or MultiVectorEncoder."""
        return self._late.get()

    @override
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputValueError("a reranker reads the query: give query_str or query_bundle")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        if not texts:
            return []
        ranked = self.reranker.rank(query_bundle.query_str, texts, top_k=self.top_n)
        return [
            NodeWithScore(node=nodes[row["corpus_id"]].node, score=row["score"]) for row in ranked
        ]

    def close(self) -> None:
        """Close the model if it was loaded here; twice is harmless."""
        self._late.close()
