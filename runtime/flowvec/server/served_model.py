"""A model that is served: its queue, and what a text or a pair of texts costs."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal, Self

import numpy as np

from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.encoder.queue_reports import BatchReport
from flowvec.encoder.shared_encoder import SharedEncoder
from flowvec.encoder.shared_model import Call
from flowvec.encoder.text_model import TextModel
from flowvec.errors import InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.multi_vector.shared_encoder import SharedMultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.reranker.shared_reranker import SharedReranker
from flowvec.server.measures import ModelMeasures
from flowvec.server.model_queue import Costs, ModelQueue
from flowvec.server.rate import Rate
from flowvec.server.settings import Settings
from flowvec.sparse.encoder import SparseEncoder
from flowvec.sparse.shared_encoder import SharedSparseEncoder
from flowvec.tokenizer.given_ids import GivenIds

__all__ = [
    "ModelKind", "ServedEncoder", "ServedModel", "ServedMultiVector", "ServedReranker",
    "ServedSparse", "ServedTexts",
]  # fmt: skip

ModelKind = Literal["embedding", "reranker", "sparse", "multi_vector"]
_Shared = SharedEncoder | SharedReranker | SharedSparseEncoder | SharedMultiVectorEncoder

# A text counts as at least so many tokens, because its vector takes memory too; and a long one that
# is cut counts by its characters, which wait in memory.
_LEAST_COST = 16
_CHARACTERS_PER_TOKEN = 64
_FLOAT_BYTES = 4
# The queue in front of it has the bound.
_UNBOUNDED = (1 << 31) - 1
# Tokens per character before a model has been measured: English has about .25.
_FIRST_GUESS = 0.3
_WEIGHT = 0.1
# A text of the length of a sentence, for warming up.
_SENTENCE = (
    "A sentence of some twenty words is what most callers send, and so it is what a model " * 2
)


class ServedModel(ABC):
    """What all kinds of models share.

    Attributes:
        kind: as `/v1/models` names it.
    """

    kind: ClassVar[ModelKind]

    def __init__(
        self,
        name: str,
        model: LoadedModel,
        shared: _Shared,
        settings: Settings,
        *,
        is_shared: bool,
    ) -> None:
        """Start its queue; closing this does not close the model.

        Args:
            name: what requests call it.
            model: the model.
            shared: computes what the queue gives it.
            settings: limits of the server.
            is_shared: whether there are several API keys.
        """
        self.name = name
        self._model = model
        self._settings, self._is_shared = settings, is_shared
        self._shared = shared
        self._tokens_per_character = _FIRST_GUESS
        budget, streams = model.max_batch_tokens, model.engine.in_flight
        self.rate = Rate(streams, budget)
        self.measures = ModelMeasures()
        shared.on_batch = self._count
        self.queue = ModelQueue(
            shared,
            shared._call,
            self.rate,
            budget=budget,
            streams=streams,
            most=self._most_waiting_tokens(),
            is_shared=is_shared,
        )
        self.queue.on_part = self._learn

    @property
    def model(self) -> LoadedModel:
        """What computes."""
        return self._model

    def about(self) -> dict[str, Any]:
        """What `/v1/models` says of it."""
        model = self._model
        return {
            "kind": self.kind,
            "max_length": model.max_length,
            "fingerprint": model.fingerprint,
        }

    def _most_waiting_tokens(self) -> int:
        """Most tokens of calls that are not finished."""
        return self._settings.max_waiting_tokens

    def successor(self, model: Any) -> Self:
        """This, with the same name and counts, of another model of its kind."""
        kind: Any = type(self)  # whose constructor makes the queue's model itself
        new: Self = kind(self.name, model, self._settings, is_shared=self._is_shared)
        new.measures = self.measures
        new._tokens_per_character = self._tokens_per_character
        return new

    def _count(self, batch: BatchReport) -> None:
        self.rate.add(batch)
        self.measures.add_batch(batch)

    @abstractmethod
    def _characters(self, items: Sequence[Any]) -> Iterable[int]:
        """Characters of each item."""

    def costs(self, items: Sequence[Any]) -> Costs:
        """Tokens of each text or pair, as estimated from its characters."""
        characters = np.fromiter(self._characters(items), np.int64, len(items))
        costs = (characters * self._tokens_per_character).astype(np.int64) + 2
        costs = np.clip(costs, _LEAST_COST, max(_LEAST_COST, self._model.max_length))
        return np.maximum(costs, characters // _CHARACTERS_PER_TOKEN)

    def _learn(self, items: list[Any], call: Call) -> None:
        """Adjust the estimate by a call that is done; one that was cut says nothing."""
        characters = sum(self._characters(items))
        if characters and not call.truncated:
            ratio = min(4.0, call.tokens / characters)  # special tokens count in empty texts
            self._tokens_per_character += _WEIGHT * (ratio - self._tokens_per_character)

    @abstractmethod
    def _sample(self, count: int) -> list[Any]:
        """Items for warming up."""

    def warm_up(self) -> None:
        """Compute full batches on every stream, so that the rate is known before any request."""
        count = 4 * self._model.engine.in_flight * max(1, self._model.max_batch_tokens // 16)
        with suppress(InputValueError):  # the model has no row for a token of the samples
            self._shared._call(self._sample(min(count, 2048))).future.result()

    async def close(self) -> None:
        """Stop the queue; what runs ends, what waits does not begin."""
        await asyncio.to_thread(self._shared.close, drain=False)


class ServedTexts(ServedModel):
    """A model that reads single texts.

    Attributes:
        encoder: the model.
    """

    encoder: TextModel

    @override
    def about(self) -> dict[str, Any]:
        encoder = self.encoder
        prompts = sorted(encoder.bundle.manifest.prompts)
        return super().about() | {"dim": encoder.dim, "prompts": prompts}

    @override
    def _characters(self, items: Sequence[str | GivenIds]) -> Iterable[int]:
        # Token ids count as the characters of a text with as many tokens.
        each = max(self._tokens_per_character, 0.01)
        return (len(i) if isinstance(i, str) else int(len(i) / each) for i in items)

    @override
    def _sample(self, count: int) -> list[str]:
        return [_SENTENCE[i % 40 :] for i in range(count)]


class ServedEncoder(ServedTexts):
    """An Encoder that is served under a name."""

    kind = "embedding"
    encoder: Encoder

    def __init__(
        self, name: str, encoder: Encoder, settings: Settings, *, is_shared: bool = False
    ) -> None:
        """As `ServedModel`."""
        shared = SharedEncoder(encoder, max_waiting=_UNBOUNDED)
        super().__init__(name, encoder, shared, settings, is_shared=is_shared)
        self.encoder = encoder


class ServedSparse(ServedTexts):
    """A SparseEncoder that is served under a name."""

    kind = "sparse"
    encoder: SparseEncoder

    def __init__(
        self, name: str, encoder: SparseEncoder, settings: Settings, *, is_shared: bool = False
    ) -> None:
        """As `ServedModel`."""
        shared = SharedSparseEncoder(encoder, max_waiting=_UNBOUNDED)
        super().__init__(name, encoder, shared, settings, is_shared=is_shared)
        self.encoder = encoder


class ServedMultiVector(ServedTexts):
    """A MultiVectorEncoder that is served under a name."""

    kind = "multi_vector"
    encoder: MultiVectorEncoder

    def __init__(
        self, name: str, encoder: MultiVectorEncoder, settings: Settings, *, is_shared: bool = False
    ) -> None:
        """As `ServedModel`."""
        shared = SharedMultiVectorEncoder(encoder, max_waiting=_UNBOUNDED)
        super().__init__(name, encoder, shared, settings, is_shared=is_shared)
        self.encoder = encoder

    @override
    def _most_waiting_tokens(self) -> int:
        # Each token has a vector: those of all calls must not take more memory than answers may.
        most = self._settings.max_unsent_bytes // (_FLOAT_BYTES * self._model.dim)
        return max(1, min(super()._most_waiting_tokens(), most))


class ServedReranker(ServedModel):
    """A Reranker that is served under a name."""

    kind = "reranker"

    def __init__(
        self, name: str, reranker: Reranker, settings: Settings, *, is_shared: bool = False
    ) -> None:
        """As `ServedModel`."""
        shared = SharedReranker(reranker, max_waiting=_UNBOUNDED)
        super().__init__(name, reranker, shared, settings, is_shared=is_shared)
        self.reranker = reranker

    @override
    def about(self) -> dict[str, Any]:
        return super().about() | {"labels": list(self.reranker.head.labels)}

    @override
    def _characters(self, items: Sequence[tuple[str, str]]) -> Iterable[int]:
        return (len(query) + len(document) for query, document in items)

    @override
    def _sample(self, count: int) -> list[tuple[str, str]]:
        return [(_SENTENCE[:40], _SENTENCE[i % 40 :]) for i in range(count)]
