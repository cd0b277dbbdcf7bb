"""An Encoder and a reranker as models of MTEB."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mteb.models.model_meta import ModelMeta
from mteb.types import PromptType

from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.integrations.late import AnyReranker, LateEncoder, LateReranker
from flowvec.integrations.mteb.meta import meta_of
from flowvec.multi_vector.encoder import MultiVectorEncoder

__all__ = ["FlowvecCrossEncoder", "FlowvecEncoder"]

Batches = Iterable[Mapping[str, Any]]


class FlowvecEncoder:
    """An Encoder that MTEB evaluates: queries and documents with the prompts of the bundle."""

    def __init__(
        self,
        model_name: str | Path | Encoder = "mini",
        revision: str | None = None,
        *,
        device: str | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model_name: what `Encoder.load` takes, or an Encoder.
            revision: of a model on the hub.
            device: as for `Encoder.load`.
            **options: those of `Encoder.load`.

        Raises:
            FlowvecError: as `Encoder.load`.
        """
        self._late = LateEncoder(model_name, _given(options, revision, device))
        self._late.get()

    @property
    def encoder(self) -> Encoder:
        """The Encoder."""
        return self._late.get()

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name, fingerprint and figures of the model, which MTEB keeps with the results."""
        return meta_of(self.encoder, "dense", {})

    def encode(
        self,
        inputs: Batches,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
    ) -> npt.NDArray[np.float32]:
        """Embed the texts of a task.

        Args:
            inputs: batches with the texts as `text`.
            task_metadata: not used.
            hf_split: not used.
            hf_subset: not used.
            prompt_type: `query` or `document`: which prompt of the bundle is used; None is the
                bundle's default.
            batch_size: has no effect: texts are batched by their tokens.
            show_progress_bar: as for `Encoder.encode`.

        Returns:
            float32 (texts, dim).
        """
        texts, encoder = texts_of(inputs), self.encoder
        encode = encoder.encode
        if prompt_type is not None:
            is_query = prompt_type == PromptType.query
            encode = encoder.encode_query if is_query else encoder.encode_document
        vectors: npt.NDArray[np.float32] = encode(texts, show_progress_bar=show_progress_bar)
        return vectors

    def similarity(
        self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike
    ) -> npt.NDArray[np.float32]:
        """Similarity of every vector with every other, by the bundle's measure.

        Args:
            embeddings1: float32 (n, dim) or (dim,).
            embeddings2: float32 (m, dim) or (dim,).

        Returns:
            float32 (n, m).
        """
        return self.encoder.similarity(np.asarray(embeddings1), np.asarray(embeddings2))

    def similarity_pairwise(
        self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike
    ) -> npt.NDArray[np.float32]:
        """Similarity of corresponding vectors, by the bundle's measure.

        Args:
            embeddings1: float32 (n, dim).
            embeddings2: float32 (n, dim).

        Returns:
            float32 (n,).
        """
        pairs = zip(np.asarray(embeddings1), np.asarray(embeddings2), strict=True)
        scores = [self.encoder.similarity(left, right)[0, 0] for left, right in pairs]
        return np.array(scores, np.float32)

    def close(self) -> None:
        """Close the model if it was loaded here; twice is harmless."""
        self._late.close()


class FlowvecCrossEncoder:
    """A Reranker or a MultiVectorEncoder that MTEB evaluates by its scores of pairs."""

    def __init__(
        self,
        model_name: str | Path | AnyReranker,
        revision: str | None = None,
        *,
        device: str | None = None,
        **options: Any,
    ) -> None:
        """Load a model.

        Args:
            model_name: what `Reranker.load` or `MultiVectorEncoder.load` takes, or a loaded model.
                The bundle says which of the two it is.
            revision: of a model on the hub.
            device: as for `Reranker.load`.
            **options: those of `Reranker.load`.

        Raises:
            InputValueError: the reranker has several labels.
            FlowvecError: as `Reranker.load`.
        """
        self._late = LateReranker(model_name, _given(options, revision, device))
        labels = self._late.get().head.labels
        if len(labels) > 1:
            raise InputValueError(f"a reranker of one label is needed, not of {', '.join(labels)}")

    @property
    def reranker(self) -> AnyReranker:
        """The Reranker or MultiVectorEncoder."""
        return self._late.get()

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Name, fingerprint and figures of the model, which MTEB keeps with the results."""
        is_late = isinstance(self.reranker, MultiVectorEncoder)
        return meta_of(self.reranker, "late-interaction" if is_late else "cross-encoder", {})

    def predict(
        self,
        inputs1: Batches,
        inputs2: Batches,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
    ) -> npt.NDArray[np.float32]:
        """Score pairs of texts.

        Args:
            inputs1: batches with the first texts as `text`, such as queries.
            inputs2: batches with the second ones, such as documents.
            task_metadata: not used.
            hf_split: not used.
            hf_subset: not used.
            prompt_type: not used.
            batch_size: has no effect: pairs are batched by their tokens.
            show_progress_bar: has no effect.

        Returns:
            Logits or MaxSim, float32 (pairs,): a sigmoid makes ties of the best ones.
        """
        pairs = list(zip(texts_of(inputs1), texts_of(inputs2), strict=True))
        return self.reranker.predict(pairs, activation="identity")

    def close(self) -> None:
        """Close the model if it was loaded here; twice is harmless."""
        self._late.close()


def texts_of(inputs: Batches) -> list[str]:
    """The texts of batches.

    Raises:
        InputValueError: a batch has no texts, but images, for example.
    """
    texts: list[str] = []
    for batch in inputs:
        if "text" not in batch:
            raise InputValueError(f"flowvec embeds texts, and a batch has {', '.join(batch)}")
        texts += batch["text"]
    return texts


def _given(options: dict[str, Any], revision: str | None, device: str | None) -> dict[str, Any]:
    named = {"revision": revision, "device": device}
    return options | {name: value for name, value in named.items() if value is not None}
