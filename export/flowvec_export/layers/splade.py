"""SPLADE: the logits of a masked language model, pooled over a text's tokens.

A weight is log(1 + relu(logit)), and the text's is the largest or the sum over its tokens. All of
it is inside the graph, so that logits, a number for each token and each entry of the vocabulary,
never leave it. For `max`, the logarithm is taken once a text instead of once a token, since it is
monotonic.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from flowvec.compat import override
from flowvec.errors import ExportError
from flowvec_export.layers.backbone import Backbone, known_backbone

__all__ = ["Splade", "SpladeReference", "splade_of"]


class SpladePool(nn.Module):
    """The logits' matrix and the pooling.

    Args:
        decoder: from a token's vector to its logits.
        pooling: `max` or `sum`.
        logs: how often log(1 + x) is taken.
    """

    def __init__(self, decoder: nn.Linear, pooling: str, logs: int) -> None:
        super().__init__()
        # Stored (in, out), as ONNX's MatMul takes it.
        self.weight = nn.Parameter(decoder.weight.detach().T.contiguous())
        bias = torch.zeros(decoder.out_features) if decoder.bias is None else decoder.bias.detach()
        self.bias = nn.Parameter(bias.clone())
        self.pooling = pooling
        self.logs = logs

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, sequence, width), int64 (batch, sequence) -> float32 (batch, vocabulary)."""
        mask = attention_mask.unsqueeze(-1)
        if self.pooling == "max":
            # In place of padding stands the first token, which changes no maximum. The bias is the
            # same for all tokens, so it is added to the largest logit.
            hidden = torch.where(mask > 0, hidden, hidden[:, :1])
            weights = self._weights((hidden @ self.weight).amax(1) + self.bias)
            # A text without any token has no weights.
            return weights * mask[:, 0].to(weights.dtype)
        weights = self._weights(hidden @ self.weight + self.bias)
        return (weights * mask.to(weights.dtype)).sum(1)

    def _weights(self, logits: Tensor) -> Tensor:
        weights = torch.relu(logits)
        for _ in range(self.logs):
            weights = torch.log(weights + 1.0)
        return weights


class Splade(nn.Module):
    """Our own backbone, the language model's head, and the pooling."""

    def __init__(self, backbone: Backbone, head: nn.Module, pool: SpladePool) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.pool = pool

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Int64 (batch, sequence), twice -> float32 (batch, vocabulary)."""
        out: Tensor = self.pool(
            self.head(self.backbone(input_ids, attention_mask)[-1]), attention_mask
        )
        return out


class TransformersSplade(nn.Module):
    """transformers' own module without its last matrix, and the pooling."""

    def __init__(self, model: Any, pool: SpladePool) -> None:
        super().__init__()
        self.model = model
        self.pool = pool

    @override
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        out: Tensor = self.pool(hidden, attention_mask)
        return out


class SpladeReference(nn.Module):
    """SPLADE by its definition, over transformers' own logits."""

    def __init__(self, model: Any, pooling: str, logs: int) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.logs = logs

    @override
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        weights = torch.relu(logits.float())
        for _ in range(self.logs):
            weights = torch.log1p(weights)
        weights = weights * attention_mask.unsqueeze(-1)
        return weights.amax(1) if self.pooling == "max" else weights.sum(1)


def splade_of(
    model: Any, *, pooling: str, logs: int, fold_scale: bool
) -> Splade | TransformersSplade:
    """The form to export of a masked language model of transformers.

    Raises:
        ExportError: the layer that gives its logits is not found.
    """
    decoder = model.get_output_embeddings()
    if not isinstance(decoder, nn.Linear):
        raise ExportError(f"{type(model).__name__} has no layer that gives its logits")
    pool = SpladePool(decoder, pooling, logs)
    head = _known_head(model)
    backbone = None if head is None else known_backbone(model.base_model, fold_scale)
    if head is not None and backbone is not None:
        return Splade(backbone, head, pool)
    # By its name: `set_output_embeddings` of some models needs a layer with a bias.
    name = next(name for name, module in model.named_modules() if module is decoder)
    parent, _, child = name.rpartition(".")
    copied = copy.deepcopy(model)
    setattr(copied.get_submodule(parent), child, nn.Identity())
    return TransformersSplade(copied, pool)


def _known_head(model: Any) -> nn.Module | None:
    """What is between the encoder and the logits' matrix; None if it is not known."""
    kind: str = model.config.model_type
    if kind == "bert":
        head: nn.Module = model.cls.predictions.transform
        return head
    if kind in ("roberta", "xlm-roberta", "camembert"):
        return nn.Sequential(model.lm_head.dense, nn.GELU(), model.lm_head.layer_norm)
    if kind == "distilbert":
        return nn.Sequential(model.vocab_transform, model.activation, model.vocab_layer_norm)
    return None
