"""Chroma: an embedding function (extra `[chroma]`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.errors import FingerprintMismatchError, InputTypeError
from flowvec.integrations.late import LateEncoder
from flowvec.optional import require
from flowvec.vectors import METRIC_OF_SIMILARITY

require("flowvec.integrations.chroma", "chroma", "chromadb")

from chromadb.api.types import Documents, EmbeddingFunction  # noqa: E402
from chromadb.utils.embedding_functions import register_embedding_function  # noqa: E402

__all__ = ["FlowvecEmbeddingFunction"]

Vectors = list[npt.NDArray[np.float32]]


@register_embedding_function
class FlowvecEmbeddingFunction(EmbeddingFunction[Documents]):
    """Embeds documents and queries of a Chroma collection, with the prompts of its bundle.

    Chroma stores its configuration with the collection: the model's name, options and fingerprint.
    A process that imports this module opens the collection without naming the model again. Another
    model of that name is refused.
    """

    def __init__(
        self,
        model: str | Path | Encoder = "mini",
        *,
        load_options: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Remember a model, which is loaded at its first use.

        Args:
            model: what `Encoder.load` takes, or an Encoder, which `close` leaves open. Chroma
                stores its name, and a directory's as it is given.
            load_options: options of `Encoder.load`, which JSON can hold.
            fingerprint: `Encoder.fingerprint` of the only model to accept; None accepts any.

        Raises:
            InputTypeError: JSON cannot hold the options.
        """
        try:
            json.dumps(dict(load_options or {}))
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"Chroma cannot store load_options: {error}") from None
        self._late = LateEncoder(model, load_options)
        self._expected = fingerprint

    @property
    def encoder(self) -> Encoder:
        """The Encoder.

        Raises:
            FlowvecError: as `Encoder.load`.
            FingerprintMismatchError: it is not the model that the collection was made with.
        """
        encoder = self._late.get()
        if self._expected not in (None, encoder.fingerprint):
            raise FingerprintMismatchError(
                f"the model {self._late.name!r} has the fingerprint {encoder.fingerprint}, but the "
                f"collection was made with {self._expected}: their vectors cannot be compared"
            )
        return encoder

    def close(self) -> None:
        """Close the model if it was loaded here; twice is harmless."""
        self._late.close()

    @override
    def __call__(self, input: Documents) -> Vectors:
        """Embed documents: float32 (dim,) for each."""
        return list(self.encoder.encode_document(input))

    @override
    def embed_query(self, input: Documents) -> Vectors:
        """Embed queries: float32 (dim,) for each."""
        return list(self.encoder.encode_query(input))

    @override
    def default_space(self) -> str:
        """The space of new collections: that of the model's similarity."""
        return METRIC_OF_SIMILARITY.get(self.encoder.info().similarity, "cosine")

    # --- the configuration that Chroma stores ---------------------------------------------------

    @staticmethod
    @override
    def name() -> str:
        """The name under which Chroma knows this class."""
        return "flowvec"

    @override
    def get_config(self) -> dict[str, Any]:
        """What Chroma stores with a collection."""
        return {
            "model": self._late.name,
            "load_options": self._late.options,
            "fingerprint": self.encoder.fingerprint,
        }

    @staticmethod
    @override
    def build_from_config(config: dict[str, Any]) -> FlowvecEmbeddingFunction:
        """The function of a stored configuration; its model is loaded at the first use."""
        return FlowvecEmbeddingFunction(
            config["model"],
            load_options=config.get("load_options"),
            fingerprint=config.get("fingerprint"),
        )

    @override
    def validate_config_update(
        self, old_config: dict[str, Any], new_config: dict[str, Any]
    ) -> None:
        """Refuse another model for vectors that are there.

        A model may move: its name may change, its fingerprint may not.

        Raises:
            FingerprintMismatchError: the fingerprints differ.
        """
        if old_config.get("fingerprint") != new_config.get("fingerprint", self._expected):
            raise FingerprintMismatchError(
                "the vectors of a collection are of one model: create another collection for "
                f"{new_config.get('model')!r}"
            )
