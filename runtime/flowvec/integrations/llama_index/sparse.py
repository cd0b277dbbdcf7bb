"""A SparseEncoder as LlamaIndex' sparse embedding."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base_sparse import BaseSparseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from flowvec.compat import override
from flowvec.integrations.late import LateModel
from flowvec.sparse.encoder import SparseEncoder

__all__ = ["FlowvecSparseEmbedding"]

# The most that LlamaIndex allows: flowvec makes its own batches, by tokens.
_MOST_TEXTS = 2048

Weights = dict[int, float]


class FlowvecSparseEmbedding(BaseSparseEmbedding):
    """Embeds texts and queries as weights of tokens, with the prompts of the model's bundle."""

    _late: LateModel[SparseEncoder] = PrivateAttr()

    def __init__(
        self,
        model: str | Path | SparseEncoder,
        *,
        load_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model: what `SparseEncoder.load` takes, or a SparseEncoder, which `close` leaves open.
            load_options: options of `SparseEncoder.load`.
            **options: fields of LlamaIndex' BaseSparseEmbedding.

        Raises:
            FlowvecError: as `SparseEncoder.load`.
        """
        late = LateModel(SparseEncoder, model=model, options=load_options)
        super().__init__(**{"model_name": late.name, "embed_batch_size": _MOST_TEXTS, **options})
        self._late = late
        late.get()

    @classmethod
    @override
    def class_name(cls) -> str:
        return "FlowvecSparseEmbedding"

    @property
    def encoder(self) -> SparseEncoder:
        """The SparseEncoder."""
        return self._late.get()

    @override
    def _get_query_embedding(self, query: str) -> Weights:
        (weights,) = self.encoder.encode_query(query).as_dicts()
        return weights

    @override
    async def _aget_query_embedding(self, query: str) -> Weights:
        return await asyncio.to_thread(self._get_query_embedding, query)

    @override
    def _get_text_embedding(self, text: str) -> Weights:
        (weights,) = self._get_text_embeddings([text])
        return weights

    @override
    async def _aget_text_embedding(self, text: str) -> Weights:
        return await asyncio.to_thread(self._get_text_embedding, text)

    @override
    def _get_text_embeddings(self, texts: list[str]) -> list[Weights]:
        return self.encoder.encode_document(texts).as_dicts()

    @override
    async def _aget_text_embeddings(self, texts: list[str]) -> list[Weights]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)

    def close(self) -> None:
        """Close the model if it was loaded here; twice is harmless."""
        self._late.close()
