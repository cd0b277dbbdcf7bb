"""Cross-encoders in a form that exports well: a backbone, and a head that stays in float32.

Engines compute matrix products in bfloat16 where the processor has it, and eight bits of a logit
would give the best documents equal scores. So the head's last product, of one vector with a few
rows, is written as a sum of products, which engines keep in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flowvec.compat import override
from flowvec.errors import ExportError
from flowvec_export.layers.backbone import Backbone, known_backbone

__all__ = ["CrossEncoder", "TransformersCrossEncoder", "cross_encoder_of", "takes_types"]

# With more labels, a matrix product is much faster.
_MOST_EXACT = 16


class _ExactLinear(nn.Module):
    """x W^T + b as a sum of products: x (batch, width) -> (batch, labels)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().clone())
        labels = layer.out_features
        bias = torch.zeros(labels) if layer.bias is None else layer.bias.detach().clone()
        self.bias = nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(1) * self.weight).sum(dim=2) + self.bias


class CrossEncoder(nn.Module):
    """Our own backbone, a dense layer over the first token, and the labels' weights."""

    def __init__(
        self,
        backbone: Backbone,
        dense: nn.Linear,
        activation: Callable[[Tensor], Tensor],
        out: nn.Linear,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.dense = dense
        self.activation = activation
        self.out = _exact(out)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Int64 (batch, sequence) each -> logits, float32 (batch, labels)."""
        first = self.backbone(input_ids, attention_mask, token_type_ids)[-1][:, 0]
        out: Tensor = self.out(self.activation(self.dense(first)))
        return out


class TransformersCrossEncoder(nn.Module):
    """transformers' own module with `CrossEncoder`'s signature, as reference and as fallback."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @override
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        logits: Tensor = output.logits
        return logits.float()


def takes_types(model: Any) -> bool:
    """Whether a model of transformers can tell the two texts of a pair apart by token types."""
    table = getattr(getattr(model.base_model, "embeddings", None), "token_type_embeddings", None)
    return isinstance(table, nn.Embedding) and table.num_embeddings > 1


def cross_encoder_of(
    model: Any, *, with_types: bool, fold_scale: bool
) -> CrossEncoder | TransformersCrossEncoder:
    """The form to export of a model of transformers for sequence classification.

    Raises:
        ExportError: its head is not found.
    """
    parts = _head_of(model)
    if parts is not None:
        backbone = known_backbone(model.base_model, fold_scale, with_types=with_types)
        if backbone is not None:
            return CrossEncoder(backbone, *parts)
    copied = copy.deepcopy(model)
    _make_last_layer_exact(copied)
    return TransformersCrossEncoder(copied)


def _head_of(model: Any) -> tuple[nn.Linear, Callable[[Tensor], Tensor], nn.Linear] | None:
    """The two layers of a head over the first token, and what is between them; None if another."""
    kind: str = model.config.model_type
    head: Any = getattr(model, "classifier", None)
    if kind == "bert" and isinstance(head, nn.Linear) and model.base_model.pooler is not None:
        return model.base_model.pooler.dense, torch.tanh, head
    if kind in ("roberta", "xlm-roberta", "camembert", "mpnet") and hasattr(head, "out_proj"):
        return head.dense, torch.tanh, head.out_proj
    if kind == "distilbert" and isinstance(head, nn.Linear):
        return model.pre_classifier, torch.relu, head
    return None


def _exact(layer: nn.Linear) -> nn.Module:
    return _ExactLinear(layer) if layer.out_features <= _MOST_EXACT else layer


def _make_last_layer_exact(model: Any) -> None:
    """Replace the layer that gives the logits.

    Raises:
        ExportError: the model has none outside its encoder.
    """
    inner = {id(module) for module in model.base_model.modules()}
    last = None
    for name, module in model.named_modules():
        fits = isinstance(module, nn.Linear) and module.out_features == model.config.num_labels
        if fits and id(module) not in inner:
            last = name
    if last is None:
        raise ExportError(f"{type(model).__name__} has no layer that gives its logits")
    parent, _, child = last.rpartition(".")
    owner = model.get_submodule(parent)
    setattr(owner, child, _exact(getattr(owner, child)))
