"""Encoders in a form that exports well.

BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA and MPNet are one architecture under several
names; MPNet adds a number to each score, by the distance of the tokens. `Backbone` is this
architecture with one fused product for query, key and value, which includes 1/sqrt(head width). The
mask is computed once, the token type of a single text is added to the positions, and
weights are stored as a matrix product reads them. All other encoders run as transformers' own
module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from flowvec.compat import override
from flowvec_export.layers.names import OFFSET_POSITIONS

__all__ = [
    "NAMES",
    "Backbone",
    "Shape",
    "TransformersBackbone",
    "first_position",
    "from_transformers",
    "known_backbone",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a BERT-like encoder.

    Attributes:
        layers: transformer layers.
        width: length of a token vector.
        heads: attention heads.
        epsilon: LayerNorm's addition to the variance.
        activation: transformers' name of the feed-forward activation.
        first_position: row of the position table that the first token uses.
    """

    layers: int
    width: int
    heads: int
    epsilon: float
    activation: str
    first_position: int


# Names of weights in each architecture: flowvec's name -> its name. `{i}` is the layer.
_BERT = {
    "words": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "types": "embeddings.token_type_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "attention_out": "encoder.layer.{i}.attention.output.dense",
    "attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "up": "encoder.layer.{i}.intermediate.dense",
    "down": "encoder.layer.{i}.output.dense",
    "output_norm": "encoder.layer.{i}.output.LayerNorm",
}
_DISTILBERT = {
    "words": "embeddings.word_embeddings.weight",
    "positions": "embeddings.position_embeddings.weight",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "transformer.layer.{i}.attention.q_lin",
    "key": "transformer.layer.{i}.attention.k_lin",
    "value": "transformer.layer.{i}.attention.v_lin",
    "attention_out": "transformer.layer.{i}.attention.out_lin",
    "attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "up": "transformer.layer.{i}.ffn.lin1",
    "down": "transformer.layer.{i}.ffn.lin2",
    "output_norm": "transformer.layer.{i}.output_layer_norm",
}
_MPNET = {
    **_BERT,
    "relative": "encoder.relative_attention_bias.weight",
    **{
        name: f"encoder.layer.{{i}}.attention.attn.{their_name}"
        for name, their_name in zip(("query", "key", "value", "attention_out"), "qkvo", strict=True)
    },
    "attention_norm": "encoder.layer.{i}.attention.LayerNorm",
}
del _MPNET["types"]
NAMES: dict[str, dict[str, str]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "distilbert": _DISTILBERT,
    "electra": _BERT,
    "mpnet": _MPNET,
}


class _Linear(nn.Module):
    """x W + b with W stored (in, out), as ONNX's MatMul takes it."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.T.contiguous())
        self.bias = nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class _Layer(nn.Module):
    """One post-LayerNorm transformer layer."""

    def __init__(self, shape: Shape, state: dict[str, Tensor], fold_scale: bool) -> None:
        super().__init__()
        self.heads = shape.heads
        self.head_width = shape.width // shape.heads
        scale = 1.0 / math.sqrt(self.head_width)
        self.scale = 1.0 if fold_scale else scale
        query_scale = scale if fold_scale else 1.0
        weights, biases = (
            [state[f"query.{part}"] * query_scale, state[f"key.{part}"], state[f"value.{part}"]]
            for part in ("weight", "bias")
        )
        self.qkv = _Linear(torch.cat(weights), torch.cat(biases))
        self.attention_out = _Linear(state["attention_out.weight"], state["attention_out.bias"])
        self.attention_norm = _norm(state, "attention_norm", shape)
        self.up = _Linear(state["up.weight"], state["up.bias"])
        self.down = _Linear(state["down.weight"], state["down.bias"])
        self.output_norm = _norm(state, "output_norm", shape)
        self.activation = ACT2FN[shape.activation]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (batch, sequence, width), and what is added to scores, (batch, 1 or heads, 1 or
        sequence, sequence) -> like x.
        """
        batch, sequence, width = x.shape
        # One transpose for all three: (3, batch, heads, sequence, head width).
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, self.head_width)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(2, 3)
        if self.scale != 1.0:
            scores = scores * self.scale
        context = torch.softmax(scores + mask, dim=-1) @ value
        joined = context.transpose(1, 2).reshape(batch, sequence, width)
        x = self.attention_norm(x + self.attention_out(joined))
        out: Tensor = self.output_norm(x + self.down(self.activation(self.up(x))))
        return out


class Backbone(nn.Module):
    """A BERT-like encoder.

    Args:
        shape: its sizes.
        state: weights by flowvec's names: `words`, `positions`, `types`, `layer.<i>.<name>`, ...
            `relative` (heads, 2 n - 1) is added to the scores of tokens by their distance, which is
            between 1 - n and n - 1.
        fold_scale: fold 1/sqrt(head width) into the query weights. Do not do so if they are stored
            in float16 and the factor is not a power of two, because they would be rounded twice.
        with_types: take the token types of pairs; otherwise all tokens have type 0.
    """

    def __init__(
        self,
        shape: Shape,
        state: dict[str, Tensor],
        fold_scale: bool = True,
        *,
        with_types: bool = False,
    ) -> None:
        super().__init__()
        positions = state["positions"]
        self.first_position = shape.first_position
        if "types" in state:
            positions = positions + state["types"][0]
        # What a token of the second text of a pair has in addition.
        self.second_type = (
            nn.Parameter(state["types"][1] - state["types"][0]) if with_types else None
        )
        self.relative = nn.Parameter(state["relative"].clone()) if "relative" in state else None
        self.words = nn.Parameter(state["words"].clone())
        self.positions = nn.Parameter(positions.clone())
        self.embedding_norm = _norm(state, "embedding_norm", shape)
        self.layers = nn.ModuleList(
            _Layer(shape, _below(state, f"layer.{i}."), fold_scale) for i in range(shape.layers)
        )

    @property
    def max_positions(self) -> int:
        """Most tokens of a text."""
        return len(self.positions) - self.first_position

    def _position_vectors(self, input_ids: Tensor) -> Tensor:
        """Position embeddings, (sequence, width) or (batch, sequence, width)."""
        if self.first_position == 0:
            return self.positions[: input_ids.shape[1]]
        # RoBERTa does not count padding tokens, even literal ones in a text, and gives them the
        # padding's row.
        pad_id = self.first_position - 1
        counted = (input_ids != pad_id).to(torch.int64)
        return nn.functional.embedding(counted.cumsum(1) * counted + pad_id, self.positions)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> list[Tensor]:
        """Run the encoder over right-padded texts.

        Args:
            input_ids: int64 (batch, sequence).
            attention_mask: int64 (batch, sequence), 1 for tokens.
            token_type_ids: int64 (batch, sequence), 1 for tokens of a pair's second text.

        Returns:
            The embedding output and each layer's, float32 (batch, sequence, width).
        """
        x = nn.functional.embedding(input_ids, self.words)
        x = x + self._position_vectors(input_ids)
        if token_type_ids is not None and self.second_type is not None:
            x = x + token_type_ids.to(x.dtype)[:, :, None] * self.second_type
        x = self.embedding_norm(x)
        # Low enough that a softmax gives zero, and within the range of float16.
        mask = (1.0 - attention_mask.to(x.dtype))[:, None, None, :] * -3e4
        if self.relative is not None:
            place = torch.arange(input_ids.shape[1], device=input_ids.device)
            distance = place[None, :] - place[:, None]
            mask = mask + self.relative[:, distance + self.max_positions - 1]
        hidden_states = [x]
        for layer in self.layers:
            x = layer(x, mask)
            hidden_states.append(x)
        return hidden_states


class TransformersBackbone(nn.Module):
    """transformers' own module with `Backbone`'s signature, as reference and as fallback."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @override
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        output = self.model(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True
        )
        # The last one may lack the norm after all layers (ModernBERT). Without layers, transformers
        # returns no hidden states.
        return [*output.hidden_states[:-1], output.last_hidden_state]


def from_transformers(model: Any, fold_scale: bool = True) -> Backbone | TransformersBackbone:
    """A `Backbone` if the architecture is known, else a wrapper of the model itself."""
    return known_backbone(model, fold_scale) or TransformersBackbone(model)


def known_backbone(
    model: Any, fold_scale: bool = True, *, with_types: bool = False
) -> Backbone | None:
    """A `Backbone` if the architecture is known."""
    config = model.config
    names = NAMES.get(config.model_type)
    if names is None or getattr(config, "is_decoder", False):
        return None
    if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
        return None  # an ELECTRA that projects its embeddings
    # transformers has the common names as aliases of DistilBERT's (dim, n_layers, ...).
    shape = Shape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        epsilon=getattr(config, "layer_norm_eps", 1e-12),
        activation=getattr(config, "hidden_act", None) or config.activation,
        first_position=first_position(config),
    )
    state = _rename(model.state_dict(), names, shape.layers)
    if "relative" in state:
        most = len(state["positions"]) - shape.first_position - 1
        distances = torch.arange(-most, most + 1)
        buckets = model.encoder.relative_position_bucket(distances, len(state["relative"]))
        state["relative"] = state["relative"][buckets].T.contiguous()
    return Backbone(shape, state, fold_scale, with_types=with_types)


def first_position(config: Any) -> int:
    """Row of the position table that a text's first token uses.

    RoBERTa counts positions from its padding token's id.
    """
    return config.pad_token_id + 1 if config.model_type in OFFSET_POSITIONS else 0


def _rename(theirs: dict[str, Tensor], names: dict[str, str], layers: int) -> dict[str, Tensor]:
    """A checkpoint's weights by flowvec's names."""
    ours: dict[str, Tensor] = {}
    for name, their_name in names.items():
        if "{i}" in their_name:
            for i in range(layers):
                for part in ("weight", "bias"):
                    ours[f"layer.{i}.{name}.{part}"] = theirs[f"{their_name.format(i=i)}.{part}"]
        elif their_name.endswith(".weight"):
            ours[name] = theirs[their_name]
        else:
            for part in ("weight", "bias"):
                ours[f"{name}.{part}"] = theirs[f"{their_name}.{part}"]
    return ours


def _below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _norm(state: dict[str, Tensor], name: str, shape: Shape) -> nn.LayerNorm:
    norm = nn.LayerNorm(shape.width, eps=shape.epsilon)
    with torch.no_grad():
        norm.weight.copy_(state[f"{name}.weight"])
        norm.bias.copy_(state[f"{name}.bias"])
    return norm
