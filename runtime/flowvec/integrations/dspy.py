"""DSPy: an embedder, and a retriever over a collection (extra `[dspy]`)."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
from flowvec.collection.collection import Collection
from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.options import EncodeOptions
from flowvec.errors import CollectionError
from flowvec.integrations.late import LateCollection, LateEncoder
from flowvec.optional import require

require("flowvec.integrations.dspy", "dspy", "dspy")

import dspy  # noqa: E402

__all__ = ["FlowvecEmbedder", "FlowvecRetriever"]


class FlowvecEmbedder(dspy.Embedder):
    """Embeds texts with an Encoder, for `dspy.Embeddings`, `KNN` and the like.

    DSPy embeds queries and passages alike, so both get the bundle's default prompt, or
    `prompt_name`. Where a model has a prompt for each, use a FlowvecRetriever. Nothing is cached:
    DSPy's cache cannot tell two models apart. Copies of a program share the model.
    """

    def __init__(
        self,
        model: str | Path | Encoder = "mini",
        *,
        load_options: Mapping[str, Any] | None = None,
        **options: Unpack[EncodeOptions],
    ) -> None:
        """Load a model.

        Args:
            model: what `Encoder.load` takes, or an Encoder, which `close` leaves open.
            load_options: options of `Encoder.load`.
            **options: those of `Encoder.encode`.

        Raises:
            FlowvecError: as `Encoder.load`.
        """
        self._late = LateEncoder(model, load_options)
        super().__init__(self._late.get().encode, caching=False, **options)

    @property
    def encoder(self) -> Encoder:
        """The Encoder."""
        return self._late.get()

    @override
    def __call__(
        self,
        inputs: str | list[str],
        batch_size: int | None = None,
        caching: bool | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[np.float32]:
        """Embed texts.

        Args:
            inputs: a text, or several.
            batch_size: has no effect: batches are made by tokens.
            caching: has no effect.
            **options: those of `Encoder.encode`, before those of the embedder.

        Returns:
            float32 (dim,) for a text, (texts, dim) for several.
        """
        return self.encoder.encode(inputs, **{**self.default_kwargs, **options})

    @override
    async def acall(
        self,
        inputs: str | list[str],
        batch_size: int | None = None,
        caching: bool | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[np.float32]:
        """As a call; texts of different asyncio tasks share batches."""
        return await self._late.asynchronous.encode(inputs, **{**self.default_kwargs, **options})

    def __deepcopy__(self, _: dict[int, Any]) -> FlowvecEmbedder:
        return self

    def close(self) -> None:
        """Stop the queue, and close the model if it was loaded here; twice is harmless."""
        self._late.close()


class FlowvecRetriever(dspy.Retrieve):
    """Passages of a collection for a query, found by any search that a Collection offers.

    The collection is opened at the first call. Copies of a program share it.
    """

    def __init__(
        self,
        collection: str | Path | Collection,
        model: str | Path | Encoder = "mini",
        k: int = 3,
        **options: Any,
    ) -> None:
        """Remember a collection; nothing is opened yet.

        Args:
            collection: its directory, or an open Collection, which `close` leaves open.
            model: what `Encoder.load` takes, or an Encoder: the model of the directory's
                collection. An open Collection has its own.
            k: most passages for a query.
            **options: those of `Collection.search`, for example `hybrid=True`.

        Raises:
            InputTypeError, InputValueError: an argument is not valid.
        """
        super().__init__(k=whole_number("k", k))
        self._encoder = LateEncoder(model)
        self._late = LateCollection(collection, self._encoder)
        self._options = options

    @property
    def collection(self) -> Collection:
        """The Collection.

        Raises:
            CollectionError: there is none in the directory.
        """
        collection = self._late.opened()
        if collection is None:
            raise CollectionError(
                f"{self._late.path} is not a collection: create it with flowvec.Collection.create"
            )
        return collection

    @override
    def forward(self, query: str, k: int | None = None, **options: Any) -> dspy.Prediction:
        """Search passages.

        Args:
            query: a text.
            k: most passages; None is the retriever's.
            **options: those of `Collection.search`, before those of the retriever.

        Returns:
            A Prediction with `passages` (the texts), `ids`, `scores` and `metadata`, best first.
        """
        hits = self.collection.search(
            query, self.k if k is None else k, **{**self._options, **options}
        )
        return dspy.Prediction(
            passages=[hit.text or "" for hit in hits],
            ids=[hit.id for hit in hits],
            scores=[hit.score for hit in hits],
            metadata=[hit.metadata for hit in hits],
        )

    async def acall(self, query: str, k: int | None = None, **options: Any) -> dspy.Prediction:
        """As a call, on a thread."""
        return await asyncio.to_thread(self, query, k, **options)

    @override
    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """What a saved program keeps of the retriever: `k`.

        Args:
            json_mode: has no effect. DSPy 3.4 passes it, and its own `Retrieve` refuses it.
        """
        return {"k": self.k}

    def __deepcopy__(self, _: dict[int, Any]) -> FlowvecRetriever:
        return copy.copy(self)

    def close(self) -> None:
        """Close the collection and the model if they were opened here; twice is harmless."""
        self._late.close()
        self._encoder.close()
