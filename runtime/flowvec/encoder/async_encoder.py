"""`SharedEncoder` for asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import numpy.typing as npt

from flowvec.encoder.async_model import AsyncModel
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.options import EncodeOptions
from flowvec.encoder.shared_encoder import SharedEncoder
from flowvec.encoder.shared_model import DEFAULT_MAX_WAITING

__all__ = ["AsyncEncoder"]


class AsyncEncoder(AsyncModel):
    """An Encoder for any number of asyncio tasks; texts of different tasks share batches.

    The event loop is never blocked: tokenizing and the model run on threads.

        >>> async def main() -> int:
        ...     async with AsyncEncoder(Encoder.load("mini")) as model:
        ...         vector = await model.encode("A man is eating.", timeout=10.0)
        ...     return len(vector)
        >>> asyncio.run(main())
        384
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_batch_tokens: int | None = None,
    ) -> None:
        """As `SharedEncoder`."""
        self._shared: SharedEncoder = SharedEncoder(
            encoder, max_waiting=max_waiting, max_batch_tokens=max_batch_tokens
        )
        self._shared.owner = type(self).__name__

    @property
    def encoder(self) -> Encoder:
        """The Encoder."""
        return self._shared.encoder

    @property
    def shared(self) -> SharedEncoder:
        """The same queue for threads."""
        return self._shared

    async def encode(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed texts, as `SharedEncoder.encode`; cancelling the task drops waiting texts."""
        return await self._within(timeout, self._shared.submit, texts, options)

    async def encode_query(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed queries: `encode` with the bundle's prompt `query`, if it has one."""
        options.setdefault("prompt_name", self.encoder.query_prompt)
        return await self.encode(texts, timeout=timeout, **options)

    async def encode_document(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed documents: `encode` with the prompt `document`, `passage` or `corpus`."""
        options.setdefault("prompt_name", self.encoder.document_prompt)
        return await self.encode(texts, timeout=timeout, **options)
