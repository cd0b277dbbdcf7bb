"""`SharedReranker` for asyncio."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from flowvec.encoder.async_model import AsyncModel
from flowvec.encoder.shared_model import DEFAULT_MAX_WAITING
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.scores import Ranked, ScoreOptions
from flowvec.reranker.shared_reranker import SharedReranker

__all__ = ["AsyncReranker"]


class AsyncReranker(AsyncModel):
    """A Reranker for any number of asyncio tasks; pairs of different tasks share batches.

    The event loop is never blocked: tokenizing and the model run on threads.

        >>> async def main() -> int:
        ...     async with AsyncReranker(Reranker.load("my-reranker")) as model:
        ...         ranked = await model.rank("who swims?", ["Stocks.", "A dog."], timeout=10.0)
        ...     return len(ranked)
        >>> asyncio.run(main())
        2
    """

    def __init__(
        self,
        reranker: Reranker,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_batch_tokens: int | None = None,
    ) -> None:
        """As `SharedReranker`."""
        self._reranker = reranker
        self._shared: SharedReranker = SharedReranker(
            reranker, max_waiting=max_waiting, max_batch_tokens=max_batch_tokens
        )
        self._shared.owner = type(self).__name__

    @property
    def shared(self) -> SharedReranker:
        """The same queue for threads."""
        return self._shared

    async def predict(
        self,
        pairs: Iterable[Sequence[str]],
        *,
        timeout: float | None = None,
        **options: Unpack[ScoreOptions],
    ) -> npt.NDArray[np.float32]:
        """Score pairs, as `SharedReranker.predict`; cancelling the task drops waiting pairs."""
        return await self._within(timeout, self._shared.submit, pairs, options)

    async def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        timeout: float | None = None,
        top_k: int | None = None,
        return_documents: bool = False,
        label: str | None = None,
        **options: Unpack[ScoreOptions],
    ) -> list[Ranked]:
        """Sort documents, as `SharedReranker.rank`; cancelling the task drops waiting pairs."""
        ranking = self._reranker.ranking(
            query,
            documents,
            top_k=top_k,
            return_documents=return_documents,
            label=label,
            **options,
        )
        given: Any = ranking.options
        return ranking.of(await self._within(timeout, self._shared.submit, ranking.pairs, given))
