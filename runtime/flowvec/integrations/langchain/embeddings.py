"""An Encoder as LangChain's embeddings."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings

from flowvec.compat import override
from flowvec.encoder.async_encoder import AsyncEncoder
from flowvec.encoder.encoder import Encoder
from flowvec.integrations.late import LateModel

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
        self.late = LateModel(Encoder, model, options)
        self._lock = threading.Lock()
        self._asynchronous: AsyncEncoder | None = None
        self.late.get()

    @property
    def encoder(self) -> Encoder:
        """The Encoder."""
        return self.late.get()

    @property
    def asynchronous(self) -> AsyncEncoder:
        """The queue that asyncio tasks share."""
        with self._lock:
            if self._asynchronous is None:
                self._asynchronous = AsyncEncoder(self.encoder)
            return self._asynchronous

    @override
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.encoder.encode_document(texts).tolist()  # type: ignore[no-any-return]

    @override
    def embed_query(self, text: str) -> list[float]:
        return self.encoder.encode_query(text).tolist()  # type: ignore[no-any-return]

    @override
    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return (await self.asynchronous.encode_document(texts)).tolist()  # type: ignore[no-any-return]

    @override
    async def aembed_query(self, text: str) -> list[float]:
        return (await self.asynchronous.encode_query(text)).tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the queue, and close the model if it was loaded here; twice is harmless."""
        with self._lock:
            if self._asynchronous is not None:
                self._asynchronous.shared.close()
        self.late.close()
