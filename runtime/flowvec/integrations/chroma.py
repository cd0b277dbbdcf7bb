"""Chroma: embedding functions, dense and sparse (extra `[chroma]`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.errors import FingerprintMismatchError, InputTypeError
from flowvec.integrations.late import LateEncoder, LateModel, weights_of
from flowvec.optional import require
from flowvec.sparse.encoder import SparseEncoder
from flowvec.sparse.vectors import SparseVectors
from flowvec.vectors import METRIC_OF_SIMILARITY

require("flowvec.integrations.chroma", "chroma", "chromadb")

from chromadb.api.types import (  # noqa: E402
    Documents,
    EmbeddingFunction,
    SparseEmbeddingFunction,
    SparseVector,
)
from chromadb.utils.embedding_functions import (  # noqa: E402
    register_embedding_function,
    register_sparse_embedding_function,
)

__all__ = ["FlowvecEmbeddingFunction", "FlowvecSparseEmbeddingFunction"]

Vectors = list[npt.NDArray[np.float32]]

M = TypeVar("M", bound=LoadedModel)


class _Stored(Generic[M]):
    """A model that loads late, and the configuration that Chroma stores of it."""

    def __init__(self, late: LateModel[M], fingerprint: str | None) -> None:
        """Remember a model.

        Args:
            late: the model.
            fingerprint: of the only model to accept; None accepts any.

        Raises:
            InputTypeError: JSON cannot hold the options of its loading.
        """
        try:
            json.dumps(late.options)
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"Chroma cannot store load_options: {error}") from None
        self._late = late
        self._expected = fingerprint

    @property
    def encoder(self) -> M:
        """The model.

        Raises:
            FlowvecError: as its `load`.
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

    def get_config(self) -> dict[str, Any]:
        """What Chroma stores with a collection."""
        return {
            "model": self._late.name,
            "load_options": self._late.options,
            "fingerprint": self.encoder.fingerprint,
        }

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


@register_embedding_function
class FlowvecEmbeddingFunction(_Stored[Encoder], EmbeddingFunction[Documents]):
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
        _Stored.__init__(self, LateEncoder(model, load_options), fingerprint)

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

    @staticmethod
    @override
    def name() -> str:
        """The name under which Chroma knows this class."""
        return "flowvec"

    @staticmethod
    @override
    def build_from_config(config: dict[str, Any]) -> FlowvecEmbeddingFunction:
        """The function of a stored configuration; its model is loaded at the first use."""
        return FlowvecEmbeddingFunction(**_arguments(config))


@register_sparse_embedding_function
class FlowvecSparseEmbeddingFunction(_Stored[SparseEncoder], SparseEmbeddingFunction[Documents]):
    """Embeds documents and queries as weights of tokens, for a sparse index of Chroma's schema.

    Its configuration is stored and checked as that of a `FlowvecEmbeddingFunction`.
    """

    def __init__(
        self,
        model: str | Path | SparseEncoder,
        *,
        load_options: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Remember a model, which is loaded at its first use.

        Args:
            model: what `SparseEncoder.load` takes, or a SparseEncoder, which `close` leaves open.
            load_options: options of `SparseEncoder.load`, which JSON can hold.
            fingerprint: `SparseEncoder.fingerprint` of the only model to accept; None accepts any.

        Raises:
            InputTypeError: JSON cannot hold the options.
        """
        late = LateModel(SparseEncoder, model=model, options=load_options)
        _Stored.__init__(self, late, fingerprint)

    @override
    def __call__(self, input: Documents) -> list[SparseVector]:
        """Embed documents: for each its token ids, which ascend, and their weights."""
        return _sparse(self.encoder.encode_document(input))

    @override
    def embed_query(self, input: Documents) -> list[SparseVector]:
        """Embed queries, as documents are embedded."""
        return _sparse(self.encoder.encode_query(input))

    @staticmethod
    @override
    def name() -> str:
        """The name under which Chroma knows this class."""
        return "flowvec-sparse"

    @staticmethod
    @override
    def build_from_config(config: dict[str, Any]) -> FlowvecSparseEmbeddingFunction:
        """The function of a stored configuration; its model is loaded at the first use."""
        return FlowvecSparseEmbeddingFunction(**_arguments(config))


def _arguments(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function whose configuration Chroma stored."""
    return {"model": config["model"]} | {
        name: config.get(name) for name in ("load_options", "fingerprint")
    }


def _sparse(vectors: SparseVectors) -> list[SparseVector]:
    return [SparseVector(indices=ids, values=weights) for ids, weights in weights_of(vectors)]
