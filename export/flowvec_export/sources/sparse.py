"""Recognizes SPLADE models of sentence-transformers, and reads what their files say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import tokenizers

from flowvec.errors import ExportError
from flowvec_export.sources.base import checked_length
from flowvec_export.sources.files import inside, read_json
from flowvec_export.sources.sentence_transformers.settings import (
    prompts_of,
    read_settings,
    refuse_foreign_modules,
)

if TYPE_CHECKING:
    from flowvec_export.assembly.draft import Draft, Weights
    from flowvec_export.assembly.token_parity import OwnTokens

__all__ = ["AboutSparse", "SparseSource", "is_sparse", "read_about_sparse"]

SpladePoolingMode = Literal["max", "sum"]
SpladeActivation = Literal["relu", "log1p_relu"]

_PARTS = {"SpladePooling", "SparseAutoEncoder", "SparseStaticEmbedding"}
# Settings of the Transformer module of a masked language model, with the values that it has.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("fill-mask",),
    "module_output_name": ("token_embeddings",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "logits"}},),
    "unpad_inputs": (False, None),
    "tokenizer_name_or_path": (None,),
}
_POOLING_SETTINGS = {
    "pooling_strategy",
    "activation_function",
    "chunk_size",
    "embedding_dimension",
    "word_embedding_dimension",
}


@dataclass(frozen=True, slots=True)
class AboutSparse:
    """What the files of a SPLADE model say, apart from the language model itself.

    Attributes:
        origin: the path or name that the user gave.
        settings: settings of the Transformer module, such as `max_seq_length`.
        pooling: how the weights of a text's tokens become one.
        activation: `relu`, or `log1p_relu`, which takes the logarithm twice.
        max_active_dims: most weights of a vector; None keeps all.
        prompts: prefixes by name.
        default_prompt_name: the prompt that is used by default.
    """

    origin: str
    settings: dict[str, Any]
    pooling: SpladePoolingMode
    activation: SpladeActivation
    max_active_dims: int | None
    prompts: dict[str, str]
    default_prompt_name: str | None


@dataclass(slots=True, kw_only=True)
class SparseSource:
    """Everything that an export needs to know about a SPLADE model, which torch runs.

    Attributes:
        name: last part of the path or hub name.
        about: pooling, activation, prompts.
        model: transformers' masked language model, float32, in evaluation mode.
        tokenizer: a `tokenizers` tokenizer without truncation and padding.
        pad_id: the padding token's id.
        max_length: most tokens of a text; None if neither encoder nor tokenizer limits it.
        vocabulary: number of logits of a token.
        layers: its transformer layers.
        licence: from the model card, if it says.
        prompts: prefixes by name.
        default_prompt_name: the prompt that is used by default.
        own_tokens: how transformers reads a text.
    """

    name: str
    about: AboutSparse
    model: Any
    tokenizer: tokenizers.Tokenizer
    pad_id: int
    max_length: int | None
    vocabulary: int
    layers: int | None
    licence: str | None
    prompts: dict[str, str]
    default_prompt_name: str | None
    own_tokens: OwnTokens

    @property
    def origin(self) -> str:
        """The path or name that the user gave."""
        return self.about.origin

    def checked_length(self, requested: int | None) -> int:
        """Most tokens of a text: the given number, or the source's own.

        Raises:
            ExportError: it is too small, larger than the encoder's positions, or unknown.
        """
        special = self.tokenizer.num_special_tokens_to_add(False)
        return checked_length(self.origin, self.max_length, requested, special + 1)

    def draft(self, weights: Weights) -> Draft:
        """Make the graph from token ids to weights, with a reference to compare it with.

        Raises:
            ExportError: the graph cannot be made.
        """
        from flowvec_export.assembly.from_torch import draft_of_splade

        return draft_of_splade(
            self.model,
            pooling=self.about.pooling,
            activation=self.about.activation,
            weights=weights,
            pad_id=self.pad_id,
            origin=self.origin,
        )


def is_sparse(root: Path, modules: Any) -> bool:
    """Whether a directory holds a SparseEncoder of sentence-transformers.

    Args:
        root: the directory.
        modules: content of its modules.json, or None.
    """
    if modules is None:
        return False
    about = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    kinds = {str(m.get("type")).rsplit(".", 1)[-1] for m in modules if isinstance(m, dict)}
    return about.get("model_type") == "SparseEncoder" or not kinds.isdisjoint(_PARTS)


def read_about_sparse(root: Path, modules: Any, origin: str) -> tuple[AboutSparse, Path]:
    """What a SPLADE model's files say, and the folder of its weights.

    Raises:
        ExportError: it has modules or settings that are not supported.
    """
    refuse_foreign_modules(modules, origin)
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]):
        raise ExportError(
            f"{origin} is a sparse encoder of {', '.join(kinds)}; only SPLADE is supported: a "
            "masked language model (MLMTransformer, or Transformer) and SpladePooling"
        )
    folder, pooling_folder = (inside(root, str(module.get("path", ""))) for module in modules)
    pooling = read_json(pooling_folder / "config.json")
    if unknown := sorted(pooling.keys() - _POOLING_SETTINGS):
        raise ExportError(f"{origin} has a SpladePooling with {', '.join(unknown)}, not supported")
    config = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    prompts, default = prompts_of(config, origin)
    similarity = config.get("similarity_fn_name") or "dot"
    if similarity not in ("dot", "dot_score"):
        raise ExportError(
            f"{origin} compares by {similarity!r}; sparse vectors are compared by dot products"
        )
    return (
        AboutSparse(
            origin=origin,
            settings=read_settings(folder, origin, _NEUTRAL),
            pooling=_one_of(pooling, "pooling_strategy", get_args(SpladePoolingMode), origin),
            activation=_one_of(pooling, "activation_function", get_args(SpladeActivation), origin),
            max_active_dims=_active_dims(config.get("max_active_dims"), origin),
            prompts=prompts,
            default_prompt_name=default,
        ),
        folder,
    )


def _one_of(config: dict[str, Any], name: str, known: tuple[Any, ...], origin: str) -> Any:
    value = config.get(name) or known[0]
    if value not in known:
        raise ExportError(f"{origin} has the {name} {value!r}; known are {', '.join(known)}")
    return value


def _active_dims(value: Any, origin: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ExportError(f"{origin} has the max_active_dims {value!r}, which is not a count")
    return value
