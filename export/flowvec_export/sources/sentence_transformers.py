"""Reads a sentence-transformers directory: modules.json and the files that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvec.errors import ExportError, first_line
from flowvec_export.sources.base import Source, require_torch
from flowvec_export.sources.files import find_weights, inside, read_json
from flowvec_export.trust import Trust

if TYPE_CHECKING:
    from torch import Tensor

    from flowvec_export.transforms import Dense

__all__ = ["POOLING_FLAGS", "Modules", "read_modules"]

_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)

# sentence-transformers' pooling modes, in the order in which it concatenates them: first the
# booleans of older files, then the names of newer ones.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weighted_mean",
    "pooling_mode_lasttoken": "last_token",
}
_POOLING_NAMES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weighted_mean",
    "lasttoken": "last_token",
}
_SIMILARITIES = {"cosine": "cosine", "dot": "dot", "dot_score": "dot", "euclidean": "euclidean",
                 "manhattan": "manhattan"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Modules:
    """What modules.json and the files it names say, apart from the encoder itself.

    Attributes:
        encoder: folder of the Transformer or StaticEmbedding module.
        is_static: whether it is a StaticEmbedding, a table without an encoder.
        settings: settings of the Transformer module, such as `max_seq_length`.
        pooling: pooling modes, joined by "+".
        word_weights: folder of WordWeights, if any.
        dense: folders of Dense layers, in order.
        normalize: whether the vectors are normalized at the end.
        prompts: prefixes by name.
        default_prompt_name: the prompt that is used by default.
        prompts_are_pooled: whether a prompt's tokens count in the pooling.
        similarity: how vectors are compared.
    """

    encoder: Path
    is_static: bool
    settings: dict[str, Any]
    pooling: str
    word_weights: Path | None
    dense: tuple[Path, ...]
    normalize: bool
    prompts: dict[str, str]
    default_prompt_name: str | None
    prompts_are_pooled: bool
    similarity: str

    def complete(self, source: Source, trust: Trust) -> None:
        """Add the pooling, the layers and the prompts to a source that has its encoder.

        Raises:
            ExportError: a layer cannot be read.
        """
        source.tuned = True
        source.pooling = self.pooling
        if self.word_weights is not None:
            source.weigh_words(_read_word_weights(self.word_weights, source, trust))
        if not source.is_finished:  # a graph with finished vectors contains its Dense layers
            source.transforms += [_read_dense(folder, trust) for folder in self.dense]
        source.normalize = self.normalize
        source.prompts = dict(self.prompts)
        source.default_prompt_name = self.default_prompt_name
        source.prompts_are_pooled = self.prompts_are_pooled
        source.similarity = self.similarity


def read_modules(root: Path, modules: Any, origin: str) -> Modules:
    """Read modules.json and the files that it names.

    It lists a Transformer, optionally WordWeights, Pooling, Dense layers, and optionally Normalize;
    or a StaticEmbedding, which pools by itself, in place of the first three.

    Args:
        root: the directory.
        modules: content of its modules.json.
        origin: name of the source, for messages.

    Raises:
        ExportError: a module or a setting is not supported.
    """
    _check_code(root, modules, origin)
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    folders = [inside(root, str(module.get("path", ""))) for module in modules]
    weights: Path | None = None
    if kinds[1:2] == ["WordWeights"]:
        weights = folders.pop(1)
        del kinds[1]
    is_static = kinds[:1] == ["StaticEmbedding"]
    if not is_static and kinds[:2] != ["Transformer", "Pooling"]:
        raise ExportError(
            f"{origin} must begin with Transformer, optional WordWeights, and Pooling, or with "
            f"StaticEmbedding, but is {kinds}"
        )
    settings: dict[str, Any] = {}
    pooling: dict[str, Any] = {"pooling_mode": "mean"}
    if not is_static:
        settings = next(
            (
                content
                for name in _SETTINGS
                if (content := read_json(folders[0] / name, missing_ok=True))
            ),
            {},
        )
        _check_settings(settings, origin)
        pooling = read_json(folders[1] / "config.json")
    later = list(zip(kinds, folders, strict=True))[1 if is_static else 2 :]
    dense, normalize = _layers(later, origin)
    config = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    if config.get("truncate_dim") is not None:
        raise ExportError(f"{origin} has a truncate_dim, which is not supported")
    prompts = {name: prompt or "" for name, prompt in (config.get("prompts") or {}).items()}
    if unfit := [name for name, prompt in prompts.items() if not isinstance(prompt, str)]:
        raise ExportError(f"{origin} has a prompt {unfit[0]!r} that is not a text")
    default = config.get("default_prompt_name")
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise ExportError(f"{origin} compares by {similarity!r}, which is not supported")
    return Modules(
        encoder=folders[0],
        is_static=is_static,
        settings=settings,
        pooling="+".join(_pooling_modes(pooling, origin)),
        word_weights=weights,
        dense=dense,
        normalize=normalize,
        prompts=prompts,
        default_prompt_name=default if default in prompts else None,
        prompts_are_pooled=bool(pooling.get("include_prompt", True)),
        similarity=_SIMILARITIES[similarity],
    )


def _layers(modules: list[tuple[str, Path]], origin: str) -> tuple[tuple[Path, ...], bool]:
    """Folders of the Dense layers after the pooling, and whether Normalize follows."""
    dense: list[Path] = []
    normalize = False
    for kind, folder in modules:
        if normalize:
            raise ExportError(f"{origin} has {kind} after Normalize, which is not supported")
        if kind == "Dense":
            dense.append(folder)
        elif kind == "Normalize":
            _check_names(read_json(folder / "config.json", missing_ok=True) or {}, folder)
            normalize = True
        elif kind != "Dropout":  # dropout only acts in training
            raise ExportError(f"{origin} has a module {kind}, which is not supported")
    return tuple(dense), normalize


def _check_code(root: Path, modules: Any, origin: str) -> None:
    """Refuse modules that are not sentence-transformers' own: their code is never imported."""
    for module in modules:
        kind = str(module["type"])
        if not kind.startswith("sentence_transformers."):
            raise ExportError(
                f"{origin} has the module {kind}, which is code of its own and is not run"
            )


# Other settings of a Transformer module, each with the values that change nothing.
_NEUTRAL_SETTINGS: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": (
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
    "unpad_inputs": (False, None),
    "tokenizer_name_or_path": (None,),
}
_LENGTH_SETTINGS = ("processor_kwargs", "tokenizer_args", "tokenizer_kwargs")


def _check_settings(settings: dict[str, Any], origin: str) -> None:
    """Refuse settings of a Transformer module that change vectors and are not supported.

    A `model_max_length` of the tokenizer becomes `max_seq_length`, which means the same.
    """
    for key in _LENGTH_SETTINGS:
        arguments = settings.pop(key, None) or {}
        if not isinstance(arguments, dict):
            raise ExportError(f"{origin} sets {key} to {arguments!r}, which is not supported")
        arguments = dict(arguments)
        length = arguments.pop("model_max_length", None)
        if length is not None and not settings.get("max_seq_length"):
            settings["max_seq_length"] = length
        if arguments:
            raise ExportError(f"{origin} sets {key} {sorted(arguments)}, which is not supported")
    for key, value in settings.items():
        if key in ("max_seq_length", "do_lower_case") or value in ({}, []):
            continue
        if value not in _NEUTRAL_SETTINGS.get(key, ()):
            raise ExportError(f"{origin} sets {key} to {value!r}, which is not supported")


def _check_names(config: dict[str, Any], folder: Path) -> None:
    """Check that a module after Pooling reads and writes the sentence vector."""
    for key in ("module_input_name", "module_output_name"):
        if config.get(key, "sentence_embedding") != "sentence_embedding":
            raise ExportError(f"{folder} has the {key} {config[key]!r}, which is not supported")


def _pooling_modes(config: dict[str, Any], origin: str) -> list[str]:
    """flowvec's names of a Pooling module's modes, from an old or new file."""
    if "pooling_mode" in config:
        pooling = config["pooling_mode"]
        names = [pooling] if isinstance(pooling, str) else list(pooling)
        if not names:
            raise ExportError(f"{origin} names no pooling")
        if unknown := [name for name in names if name not in _POOLING_NAMES]:
            raise ExportError(f"{origin} pools by {', '.join(unknown)}, which is not supported")
        return [_POOLING_NAMES[name] for name in names]
    on = {key for key, value in config.items() if key.startswith("pooling_mode_") and value is True}
    if unknown := sorted(on - POOLING_FLAGS.keys()):
        raise ExportError(f"{origin} pools by {', '.join(unknown)}, which is not supported")
    return [mode for flag, mode in POOLING_FLAGS.items() if flag in on] or ["mean"]


def _read_dense(folder: Path, trust: Trust) -> Dense:
    require_torch(f"{folder}, a Dense layer,")
    import torch

    from flowvec_export.transforms import ACTIVATIONS, Dense

    config = read_json(folder / "config.json")
    name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1].lower()
    if name not in ACTIVATIONS:
        raise ExportError(
            f"{folder} has the activation {name!r}; known are {', '.join(ACTIVATIONS)}"
        )
    _check_names(config, folder)
    state = _read_weights(folder, "linear.weight", trust)
    residual: Tensor | None = None
    if config.get("use_residual"):
        residual = state.get("residual.weight", torch.empty(0))
    try:
        return Dense(state["linear.weight"], state.get("linear.bias"), name, residual)
    except (ValueError, RuntimeError) as error:
        raise ExportError(f"{folder} is not a Dense layer: {first_line(error)}") from None


def _read_word_weights(folder: Path, source: Source, trust: Trust) -> Tensor:
    """Weight of each token id in the mean, float32 (vocabulary,)."""
    weights = _read_weights(folder, "emb_layer.weight", trust)["emb_layer.weight"]
    if weights.shape != (len(weights), 1) or len(weights) < source.tokenizer.get_vocab_size():
        raise ExportError(f"{folder} has no weight for some tokens of the vocabulary")
    return weights[:, 0].clone()


def _read_weights(folder: Path, needed: str, trust: Trust) -> dict[str, Tensor]:
    """Weights of a small module; if it is an allowed pickle, torch loads it without running
    code."""
    require_torch(str(folder))
    import safetensors.torch
    import torch

    state: dict[str, Tensor] = {}
    try:
        for file in find_weights(folder, str(folder), trust):
            if file.suffix == ".safetensors":
                state |= safetensors.torch.load_file(file)
            else:
                state |= torch.load(file, weights_only=True, map_location="cpu")
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"cannot read the weights in {folder}: {error}") from None
    if needed not in state:
        raise ExportError(f"the weights in {folder} lack {needed}")
    return {name: tensor.float() for name, tensor in state.items()}
