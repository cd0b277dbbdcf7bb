"""Turns a torch checkpoint into a graph, by tracing an export-friendly form of the encoder."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flowvec.bundle.manifest import INPUTS, TOKEN_TYPES
from flowvec.errors import ExportError, first_line
from flowvec_export.assembly.draft import (
    LOGITS,
    TOKEN_VECTORS,
    TOKEN_WEIGHTS,
    Attention,
    Draft,
    PairDraft,
    Weights,
    check_steps,
    describe,
)
from flowvec_export.assembly.parity import Reference
from flowvec_export.assembly.tracing import SentenceEncoder, TokenEncoder, to_onnx
from flowvec_export.layers.backbone import (
    TransformersBackbone,
    first_position,
    from_transformers,
)
from flowvec_export.layers.cross_encoder import (
    CrossEncoder,
    TransformersCrossEncoder,
    cross_encoder_of,
)
from flowvec_export.layers.pooling import Pooling
from flowvec_export.layers.splade import SpladeReference, splade_of
from flowvec_export.transforms import Transform

__all__ = ["draft_of_checkpoint", "draft_of_cross_encoder", "draft_of_splade", "draft_of_tokens"]


def draft_of_checkpoint(
    encoder: Any,
    pooling: Pooling,
    source_transforms: Sequence[Transform],
    added: Sequence[Transform],
    *,
    normalize: bool,
    weights: Weights,
    pad_id: int,
    origin: str,
) -> Draft:
    """Trace an encoder, its pooling and the transforms after it.

    Args:
        encoder: transformers' module, float32; its weights are changed if they are rounded.
        pooling: from token vectors to one vector.
        source_transforms: transforms of the checkpoint itself; rounded with the encoder.
        added: transforms that were fitted on its vectors; always stored in float32.
        normalize: whether the graph ends in L2 normalization.
        weights: storage of the weight matrices.
        pad_id: the padding token's id.
        origin: name of the checkpoint, for messages.

    Raises:
        ExportError: torch cannot run or trace them.
    """
    steps = [*source_transforms, *added]
    config = encoder.config
    heads = getattr(config, "num_attention_heads", None) or 1
    # A factor that is not a power of two would round the stored query weights a second time.
    exact = math.frexp(math.sqrt(config.hidden_size // heads))[0] == 0.5
    attention = Attention(
        heads,
        scale_folded=weights == "float32" or exact,
        first_position=first_position(config),
    )
    reference = SentenceEncoder(TransformersBackbone(encoder), pooling, steps, normalize).eval()
    original = None
    if weights == "float16":
        original = copy.deepcopy(reference)
        _round_matrices(encoder, [pooling, *source_transforms])
    backbone = from_transformers(encoder, fold_scale=attention.scale_folded)
    folded = [step.fold() for step in steps]
    model = SentenceEncoder(backbone, pooling, folded, normalize).eval()
    run = _run(reference, origin)
    # Before tracing, whose errors have hundreds of lines.
    run(np.full((2, 5), pad_id, np.int64), np.ones((2, 5), np.int64))
    fitted = range(len(source_transforms), len(steps))
    return Draft(
        proto=to_onnx(model, pad_id, weights, [f"transforms.{i}." for i in fitted]),
        dim=steps[-1].out_dim if steps else pooling.out_dim(config.hidden_size),
        pooling="+".join(pooling.modes),
        transform=describe(steps),
        normalized=normalize,
        reference=run,
        computed_by="torch",
        original=None if original is None else _run(original, origin),
        attention=attention,
    )


def draft_of_cross_encoder(
    model: Any, *, with_types: bool, weights: Weights, pad_id: int, origin: str
) -> PairDraft:
    """Trace a model of transformers for sequence classification.

    Args:
        model: transformers' module, float32; its weights are changed if they are rounded.
        with_types: whether it takes token types.
        weights: storage of the weight matrices.
        pad_id: the padding token's id.
        origin: name of the checkpoint, for messages.

    Raises:
        ExportError: torch cannot run or trace it.
    """
    inputs = (*INPUTS, TOKEN_TYPES) if with_types else INPUTS
    config = model.config
    heads = getattr(config, "num_attention_heads", None) or 1
    exact = math.frexp(math.sqrt(config.hidden_size // heads))[0] == 0.5
    attention = Attention(
        heads,
        scale_folded=weights == "float32" or exact,
        first_position=first_position(config),
    )
    original = None
    if weights == "float16":
        original = copy.deepcopy(TransformersCrossEncoder(model))
        _round_matrices(model.base_model, [model])
    reference = TransformersCrossEncoder(model).eval()
    run = _run(reference, origin)
    zeros = np.zeros((2, 5), np.int64)
    # Before tracing, whose errors have hundreds of lines.
    run(np.full((2, 5), pad_id, np.int64), np.ones((2, 5), np.int64), *([zeros] * with_types))
    exported = cross_encoder_of(
        model, with_types=with_types, fold_scale=attention.scale_folded
    ).eval()
    is_ours = isinstance(exported, CrossEncoder)
    return PairDraft(
        proto=to_onnx(exported, pad_id, weights, inputs=inputs, output=LOGITS),
        inputs=inputs,
        reference=run,
        computed_by="torch",
        original=None if original is None else _run(original, origin),
        attention=attention if is_ours else None,
    )


def draft_of_splade(
    model: Any,
    *,
    pooling: str,
    activation: str,
    weights: Weights,
    pad_id: int,
    origin: str,
) -> Draft:
    """Trace a masked language model of transformers, with SPLADE's pooling.

    Args:
        model: transformers' module, float32; its weights are changed if they are rounded.
        pooling: `max` or `sum`.
        activation: `relu` or `log1p_relu`.
        weights: storage of the weight matrices.
        pad_id: the padding token's id.
        origin: name of the checkpoint, for messages.

    Raises:
        ExportError: torch cannot run or trace it.
    """
    logs = 2 if activation == "log1p_relu" else 1
    config = model.config
    heads = getattr(config, "num_attention_heads", None) or 1
    exact = math.frexp(math.sqrt(config.hidden_size // heads))[0] == 0.5
    attention = Attention(
        heads,
        scale_folded=weights == "float32" or exact,
        first_position=first_position(config),
    )
    original = None
    if weights == "float16":
        kept = copy.deepcopy(model).eval()
        original = _run(SpladeReference(kept, pooling, logs), origin)
        _round_matrices(model.base_model, [model])
    run = _run(SpladeReference(model, pooling, logs).eval(), origin)
    # Before tracing, whose errors have hundreds of lines.
    run(np.full((2, 5), pad_id, np.int64), np.ones((2, 5), np.int64))
    exported = splade_of(
        model,
        pooling=pooling,
        logs=logs,
        fold_scale=attention.scale_folded,
    ).eval()
    return Draft(
        proto=to_onnx(exported, pad_id, weights, output=TOKEN_WEIGHTS),
        dim=model.get_output_embeddings().out_features,
        pooling=pooling,
        transform=("relu", *["log1p"] * logs),
        normalized=False,
        reference=run,
        computed_by="torch",
        original=original,
        attention=attention,
    )


def draft_of_tokens(
    encoder: Any,
    dense: Sequence[Transform],
    *,
    normalize: bool,
    weights: Weights,
    pad_id: int,
    origin: str,
) -> Draft:
    """Trace an encoder and the layers over each of its token vectors.

    Args:
        encoder: transformers' module, float32; its weights are changed if they are rounded.
        dense: layers after it; rounded with it.
        normalize: whether token vectors are normalized.
        weights: storage of the weight matrices.
        pad_id: the padding token's id.
        origin: name of the checkpoint, for messages.

    Raises:
        ExportError: torch cannot run or trace them.
    """
    check_steps(dense, encoder.config.hidden_size)
    config = encoder.config
    heads = getattr(config, "num_attention_heads", None) or 1
    exact = math.frexp(math.sqrt(config.hidden_size // heads))[0] == 0.5
    attention = Attention(
        heads,
        scale_folded=weights == "float32" or exact,
        first_position=first_position(config),
    )
    reference = TokenEncoder(TransformersBackbone(encoder), dense, normalize).eval()
    original = None
    if weights == "float16":
        original = _run(copy.deepcopy(reference), origin)
        _round_matrices(encoder, dense)
    run = _run(reference, origin)
    # Before tracing, whose errors have hundreds of lines.
    run(np.full((2, 5), pad_id, np.int64), np.ones((2, 5), np.int64))
    backbone = from_transformers(encoder, fold_scale=attention.scale_folded)
    model = TokenEncoder(backbone, dense, normalize).eval()
    return Draft(
        proto=to_onnx(model, pad_id, weights, output=TOKEN_VECTORS),
        dim=dense[-1].out_dim if dense else config.hidden_size,
        pooling="none",
        transform=describe(dense),
        normalized=normalize,
        reference=run,
        computed_by="torch",
        original=original,
        attention=attention,
    )


def _run(module: torch.nn.Module, origin: str) -> Reference:
    def run(*feeds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            try:
                output = module(*map(torch.from_numpy, feeds))
            except Exception as error:  # foreign code raises anything
                reason = first_line(error)
                raise ExportError(
                    f"{origin} is not an encoder that goes from token ids and a mask to one vector "
                    f"per token, or per pair: {reason}"
                ) from error
        vectors: npt.NDArray[np.float32] = output.float().numpy()
        return vectors

    return run


def _round_matrices(model: torch.nn.Module, parts: Sequence[torch.nn.Module]) -> None:
    """Round weight matrices to float16 values, so that storing them loses nothing more.

    The token-type embedding of a single text goes into the positions first, as in the backbone.
    """
    with torch.no_grad():
        embeddings = getattr(model, "embeddings", None)
        types = getattr(embeddings, "token_type_embeddings", None)
        positions = getattr(embeddings, "position_embeddings", None)
        if types is not None and positions is not None:
            positions.weight += types.weight[0]
            types.weight -= types.weight[0].clone()
        for module in (model, *parts):
            for parameter in module.parameters():
                if parameter.ndim >= 2:
                    parameter.copy_(parameter.half().float())
