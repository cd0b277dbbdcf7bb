"""A graph before its comparison, with the reference that it must match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import onnx

from flowvec.errors import ExportError
from flowvec_export.assembly.parity import Reference

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = [
    "LOGITS",
    "TOKEN_VECTORS",
    "TOKEN_WEIGHTS",
    "WEIGHTS",
    "Attention",
    "Draft",
    "PairDraft",
    "Weights",
    "check_steps",
    "describe",
]

Weights = Literal["float32", "float16"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
# Name of the output of a reranker's graph.
LOGITS = "logits"
# Name of the output of a multi-vector encoder's graph.
TOKEN_VECTORS = "token_vectors"  # noqa: S105
# Name of the output of a sparse encoder's graph.
TOKEN_WEIGHTS = "token_weights"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Attention:
    """Facts about attention that the graph does not hold.

    Attributes:
        heads: number of attention heads.
        scale_folded: whether 1/sqrt(head width) is in the query weights.
        first_position: row of the position table that the first token uses.
    """

    heads: int
    scale_folded: bool
    first_position: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """The graph of a source, and facts for the manifest.

    Attributes:
        proto: the graph, in standard operators.
        dim: length of a vector.
        pooling: how token vectors become one vector, for the manifest.
        transform: names of the steps between pooling and normalization, for the manifest.
        normalized: whether the graph ends in L2 normalization.
        reference: computes the vectors that the graph must give.
        computed_by: name of the reference, for messages.
        original: the reference before weights were rounded to float16; None if they were not.
        attention: what variants need to know about attention; None for a given ONNX graph.
    """

    proto: onnx.ModelProto
    dim: int
    pooling: str
    transform: tuple[str, ...]
    normalized: bool
    reference: Reference
    computed_by: str
    original: Reference | None
    attention: Attention | None


@dataclass(frozen=True, slots=True)
class PairDraft:
    """The graph of a cross-encoder: pairs of texts to logits, float32 (batch, labels).

    Attributes:
        proto: the graph, in standard operators.
        inputs: names of its inputs.
        reference: computes the logits that the graph must give.
        computed_by: name of the reference, for messages.
        original: the reference before weights were rounded to float16; None if they were not.
        attention: what variants need to know about attention; None for a given ONNX graph.
    """

    proto: onnx.ModelProto
    inputs: tuple[str, ...]
    reference: Reference
    computed_by: str
    original: Reference | None
    attention: Attention | None


def check_steps(steps: Sequence[Transform], width: int) -> None:
    """Check that each step takes the dimensions that the one before it gives.

    Args:
        steps: the steps between pooling and normalization.
        width: length of a pooled vector.

    Raises:
        ExportError: their dimensions do not fit.
    """
    for step in steps:
        if step.in_dim != width:
            raise ExportError(
                f"{step.describe()} takes {step.in_dim} dimensions, but gets {width}; was it "
                "made for another pooling?"
            )
        width = step.out_dim


def describe(steps: Sequence[Transform]) -> tuple[str, ...]:
    """Names of the transforms other than the identity, with compositions split up."""
    if not steps:
        return ()
    from flowvec_export.transforms import Compose, Identity

    names: list[str] = []
    for step in steps:
        if isinstance(step, Compose):
            names += describe(step.transforms())
        elif not isinstance(step, Identity):
            names.append(step.describe())
    return tuple(names)
