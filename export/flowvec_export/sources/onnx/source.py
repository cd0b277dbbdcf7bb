"""A graph with its tokenizer and configuration: what it gives, and how that is pooled."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from flowvec.compat import override
from flowvec.errors import ExportError
from flowvec_export.assembly.draft import Draft, PairDraft, Weights, check_steps
from flowvec_export.assembly.from_onnx import PooledOutput, draft_of_graph, draft_of_pair_graph
from flowvec_export.layers.names import parse_pooling
from flowvec_export.sources.base import AS_EXPORTED, Source, add_weights
from flowvec_export.sources.cross_encoder import PairSource
from flowvec_export.sources.onnx.names import POOLER, SENTENCE

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = ["OnnxPairs", "OnnxSource"]

# Poolings of the last layer's vectors.
_OF_TOKENS = ("mean", "cls", "max", "mean_sqrt_len", "weighted_mean", "last_token")


@dataclass(slots=True, kw_only=True)
class OnnxSource(Source):
    """An ONNX graph with its tokenizer and configuration.

    Attributes:
        proto: the graph, its weights inside.
        tokens: name of its output of token vectors, float (batch, sequence, width), if any.
        sentence: name of its output of sentence vectors, float (batch, dim), if any.
        pooler: name of its output of the checkpoint's pooler, if any.
        widths: length of the vectors of each of these outputs.
    """

    proto: onnx.ModelProto
    tokens: str | None
    sentence: str | None
    pooler: str | None
    widths: dict[str, int]

    def modes(self, pooling: str | None) -> tuple[str, ...] | None:
        """The pooling modes to attach; None if the graph's own sentence vector is used.

        Raises:
            ExportError: the graph does not give what this pooling needs.
        """
        name = pooling or self.pooling
        if self.sentence is not None and (name is None or (pooling is None and not self.tokens)):
            return None
        modes = parse_pooling(name or "mean")
        for mode in modes:
            if mode == "pooler":
                if self.pooler is None:
                    raise ExportError(f"{self.origin} gives no {POOLER}; choose another pooling")
            elif mode not in _OF_TOKENS:
                raise ExportError(
                    f"{self.origin} gives the vectors of its last layer alone, and {mode} needs "
                    "others; export its checkpoint"
                )
            elif self.tokens is None:
                raise ExportError(
                    f"{self.origin} gives {SENTENCE} and no token vectors, so it is pooled "
                    "already: leave the pooling out"
                )
        return modes

    @property
    @override
    def is_finished(self) -> bool:
        return self.tokens is None and self.sentence is not None

    def outputs(self, pooling: str | None) -> list[PooledOutput]:
        """The outputs of the graph that a pooling uses.

        Raises:
            ExportError: as for `modes`.
        """
        modes = self.modes(pooling)
        if modes is None:
            return [self._output(self.sentence, None)]
        return [
            self._output(self.pooler, None) if mode == "pooler" else self._output(self.tokens, mode)
            for mode in modes
        ]

    def _output(self, name: str | None, mode: str | None) -> PooledOutput:
        assert name is not None, "`modes` takes only outputs that the graph has"
        return PooledOutput(name, self.widths[name], mode)

    @override
    def draft(
        self,
        length: int,
        pooling: str | None,
        added: Sequence[Transform],
        normalize: bool | None,
        weights: Weights,
    ) -> Draft:
        steps = [*self.transforms, *added]
        check_steps(steps, self.pooled_width(pooling))
        if normalize is None:
            # A finished sentence vector stays as it is.
            plain = self.modes(pooling) is not None or bool(steps)
            normalize = plain if self.normalize is None else self.normalize
        return draft_of_graph(
            self.proto,
            self.outputs(pooling),
            steps,
            normalize=normalize,
            weights=weights,
            pooling=self.pooling_name(pooling),
            vocabulary=self.vocabulary,
            length=length,
            origin=self.origin,
        )

    @override
    def pooled_width(self, pooling: str | None) -> int:
        return sum(output.width for output in self.outputs(pooling))

    @override
    def pooling_name(self, pooling: str | None) -> str:
        modes = self.modes(pooling)
        return AS_EXPORTED if modes is None else "+".join(modes)

    @override
    def keep_encoder_only(self) -> None:
        Source.keep_encoder_only(self)
        if self.tokens is not None:
            self.sentence = None

    @override
    def sha256(self) -> str:
        """SHA-256 (hex) of the graph and of the layers that follow it."""
        digest = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        add_weights(digest, self.transforms)
        return digest.hexdigest()


@dataclass(slots=True, kw_only=True)
class OnnxPairs(PairSource):
    """An ONNX graph of a cross-encoder, as Optimum exports it.

    Attributes:
        proto: the graph, its weights inside.
        inputs: names of the inputs that it keeps; token types become zeros if the tokenizer
            does not give them.
    """

    proto: onnx.ModelProto
    inputs: tuple[str, ...]

    @override
    def draft(self, weights: Weights) -> PairDraft:
        return draft_of_pair_graph(
            self.proto,
            self.inputs,
            len(self.about.head.labels),
            weights=weights,
            origin=self.origin,
        )
