"""From a torch checkpoint to a graph, by tracing an export-friendly form of the encoder."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from flowvec.errors import ExportError, first_line
from flowvec_export.assembly.draft import Attention, Draft, Weights, checked_steps, describe
from flowvec_export.assembly.parity import Reference
from flowvec_export.assembly.tracing import SentenceEncoder, to_onnx
from flowvec_export.layers.backbone import TransformersBackbone, from_transformers
from flowvec_export.sources.torch import TorchSource
from flowvec_export.transforms import Transform

__all__ = ["draft_of_checkpoint"]


def draft_of_checkpoint(
    source: TorchSource,
    pooling: str | None,
    transform: Transform | None,
    normalize: bool | None,
    weights: Weights,
) -> Draft:
    """Trace a checkpoint, its pooling, its own transforms and an added one.

    Raises:
        ExportError: they do not fit, or torch cannot trace them.
    """
    steps = checked_steps(source, pooling, transform)
    config = source.model.config
    heads = getattr(config, "num_attention_heads", None) or 1
    # A factor that is not a power of two would round the stored query weights a second time.
    exact = math.frexp(math.sqrt(config.hidden_size // heads))[0] == 0.5
    attention = Attention(heads, scale_folded=weights == "float32" or exact)
    model, reference, original = _assemble(
        source, pooling, steps, normalize, weights, attention.scale_folded
    )
    run = _run(reference, source.origin)
    # Before tracing, whose errors have hundreds of lines.
    run(np.full((2, 5), source.pad_id, np.int64), np.ones((2, 5), np.int64))
    fitted = range(len(source.transforms), len(steps))
    return Draft(
        proto=to_onnx(model, source.pad_id, weights, [f"transforms.{i}." for i in fitted]),
        dim=steps[-1].out_dim if steps else source.width(pooling),
        pooling="+".join(model.pooling.modes),
        transform=describe(steps),
        normalised=model.normalise,
        reference=run,
        computed_by="torch",
        original=None if original is None else _run(original, source.origin),
        attention=attention,
    )


def _run(module: SentenceEncoder, origin: str) -> Reference:
    def run(
        input_ids: npt.NDArray[np.int64], attention_mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            try:
                found = module(torch.from_numpy(input_ids), torch.from_numpy(attention_mask))
            except Exception as error:  # foreign modules may fail in any way
                reason = first_line(error)
                raise ExportError(
                    f"{origin} is not an encoder that goes from token ids and a mask to one vector "
                    f"per token: {reason}"
                ) from error
        vectors: npt.NDArray[np.float32] = found.float().numpy()
        return vectors

    return run


def _assemble(
    source: TorchSource,
    pooling: str | None,
    steps: Sequence[Transform],
    normalize: bool | None,
    weights: Weights,
    fold_scale: bool,
) -> tuple[SentenceEncoder, SentenceEncoder, SentenceEncoder | None]:
    """The module to export, transformers' own as the reference for it, and, where weights are
    rounded, a reference with the weights before that.
    """
    pool = source.pool(pooling)
    if normalize is None:
        normalize = True if source.normalise is None else source.normalise
    reference = SentenceEncoder(TransformersBackbone(source.model), pool, steps, normalize).eval()
    original = None
    if weights == "float16":
        original = copy.deepcopy(reference)
        _round_matrices(source.model, [pool, *source.transforms])
    backbone = from_transformers(source.model, fold_scale=fold_scale)
    folded = [step.fold() for step in steps]
    model = SentenceEncoder(backbone, pool, folded, normalize).eval()
    return model, reference, original


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
