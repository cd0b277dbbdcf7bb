"""A checkpoint that torch runs, as an encoder or as a cross-encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from flowvec.compat import override
from flowvec.errors import ExportError
from flowvec_export.assembly.draft import Draft, PairDraft, Weights, check_steps
from flowvec_export.assembly.from_torch import draft_of_checkpoint, draft_of_cross_encoder
from flowvec_export.layers.cross_encoder import takes_types
from flowvec_export.layers.names import parse_pooling
from flowvec_export.layers.pooling import Pooling
from flowvec_export.sources.base import Source, add_weights
from flowvec_export.sources.cross_encoder import PairSource
from flowvec_export.transforms import Transform

__all__ = ["TorchPairs", "TorchSource"]


@dataclass(slots=True, kw_only=True)
class TorchSource(Source):
    """A checkpoint that torch runs.

    Attributes:
        model: transformers' module, float32, in evaluation mode.
        pooler: the dense layer over the first token, if the checkpoint has one.
        word_weights: weight of each token id in the mean, float32 (vocabulary,); None weighs all
            equally.
        must_pool: why the user must name the pooling; None if a default is known.
    """

    model: Any
    pooler: nn.Linear | None
    word_weights: Tensor | None = None
    must_pool: str | None = None

    def pool(self, pooling: str | None) -> Pooling:
        """The named pooling, or the source's own; `mean` for a plain encoder.

        Raises:
            ExportError: there is no such pooling for this source.
        """
        if pooling is None and self.pooling is None and self.must_pool is not None:
            raise ExportError(self.must_pool)
        modes = parse_pooling(pooling or self.pooling or "mean")
        return Pooling(modes, self.pooler, self.word_weights)

    @override
    def draft(
        self,
        length: int,
        pooling: str | None,
        added: Sequence[Transform],
        normalize: bool | None,
        weights: Weights,
    ) -> Draft:
        check_steps([*self.transforms, *added], self.pooled_width(pooling))
        if normalize is None:
            normalize = True if self.normalize is None else self.normalize
        return draft_of_checkpoint(
            self.model,
            self.pool(pooling),
            self.transforms,
            added,
            normalize=normalize,
            weights=weights,
            pad_id=self.pad_id,
            origin=self.origin,
        )

    @override
    def pooled_width(self, pooling: str | None) -> int:
        return self.pool(pooling).out_dim(self.model.config.hidden_size)

    @override
    def weigh_words(self, weights: Tensor) -> None:
        self.word_weights = weights

    @override
    def keep_encoder_only(self) -> None:
        # Not super(): with slots, the dataclass decorator makes a new class.
        Source.keep_encoder_only(self)
        self.word_weights = None

    @override
    def sha256(self) -> str:
        """SHA-256 (hex) of all weights that a pooled vector depends on, in float32.

        The same checkpoint under another name, or stored in another file format, has the same.
        """
        digest = hashlib.sha256()
        # A pooler that is not in the checkpoint has random numbers of transformers.
        leave_out = "pooler." if self.pooler is None else None
        add_weights(digest, [self.model, *self.transforms], leave_out=leave_out)
        if self.word_weights is not None:
            digest.update(b"word weights" + self.word_weights.contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(slots=True, kw_only=True)
class TorchPairs(PairSource):
    """A cross-encoder that torch runs.

    Attributes:
        model: transformers' module for sequence classification, float32, in evaluation mode.
        with_types: whether its tokenizer gives the token types of a pair.
    """

    model: Any
    with_types: bool

    @override
    def draft(self, weights: Weights) -> PairDraft:
        return draft_of_cross_encoder(
            self.model,
            with_types=self.with_types and takes_types(self.model),
            weights=weights,
            pad_id=self.pad_id,
            origin=self.about.origin,
        )
