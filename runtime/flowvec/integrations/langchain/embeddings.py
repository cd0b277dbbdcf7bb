"""An Encoder as LangChain's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.integrations.late import LateEncoder
from flowvec.sequences import refuse_single

__all__ = ["FlowvecEmbeddings"]


class FlowvecEmbeddings(Embeddings):
    """Embeds texts with an Encoder: documents and queries with the prompts of its bundle.

    Texts of different asyncio tasks share batches.
    """

    def __init__(self, model: str | Path | Encoder = "mini", **options: Any) -> None:
        """Load a model.

        Args:
            model: what `Encoder.load` takes, or an Encoder, which `close` leaves open.
            **options: those of `Encoder.load`.

        Raises:
            FlowvecError: as `Encoder.load`.
        """
        self.late = LateEncoder(model, options)
        self.late.get()

    @property
    def encoder(self) -> Encoder:
        """The Encoder."""
        return self.late.get()

    @override
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        refuse_single("texts", texts)
        return self.encoder.encode_document(texts).tolist()  # type: ignore[no-any-return]

    @override
    def embed_query(self, text: str) -> list[float]:
        return self.encoder.encode_query(text).tolist()  # type: ignore[no-any-return]

    @override
    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        refuse_single("texts", texts)
        return (await self.late.asynchronous.encode_document(texts)).tolist()  # type: ignore[no-any-return]

    @override
    async def aembed_query(self, text: str) -> list[float]:
        return (await self.late.asynchronous.encode_query(text)).tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the queue, and close the model if it was loaded here; twice is harmless."""
        self.late.close()
