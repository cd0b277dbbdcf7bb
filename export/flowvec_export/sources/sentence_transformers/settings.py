"""Settings of the Transformer and Pooling modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowvec.errors import ExportError
from flowvec_export.sources.files import read_json

__all__ = [
    "POOLING_FLAGS",
    "pooling_modes",
    "prompts_of",
    "read_settings",
    "refuse_foreign_modules",
]

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


def read_settings(
    folder: Path,
    origin: str,
    neutral: Mapping[str, tuple[Any, ...]] | None = None,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """The settings of a Transformer module, from the first file that has some.

    Args:
        folder: the module's folder.
        origin: name of the source, for messages.
        neutral: other settings, with the values that change nothing; None is those of an encoder.
        others: names of settings that the caller reads itself.

    Raises:
        ExportError: a setting is not supported.
    """
    found = (content for n in _SETTINGS if (content := read_json(folder / n, missing_ok=True)))
    settings: dict[str, Any] = next(found, {})
    own = {name: settings.pop(name) for name in others if name in settings}
    _check_settings(settings, origin, _NEUTRAL_SETTINGS if neutral is None else neutral)
    settings |= own
    return settings


def prompts_of(config: Mapping[str, Any], origin: str) -> tuple[dict[str, str], str | None]:
    """Prompts by name, and the one that is used by default, from the model's configuration.

    Raises:
        ExportError: a prompt is not a text.
    """
    prompts = {name: prompt or "" for name, prompt in (config.get("prompts") or {}).items()}
    if unfit := [name for name, prompt in prompts.items() if not isinstance(prompt, str)]:
        raise ExportError(f"{origin} has a prompt {unfit[0]!r} that is not a text")
    default = config.get("default_prompt_name")
    return prompts, default if default in prompts else None


def refuse_foreign_modules(modules: Any, origin: str, allowed: Sequence[str] = ()) -> None:
    """Refuse modules that are not sentence-transformers' own: their code is never imported.

    Raises:
        ExportError: there is one.
    """
    for module in modules:
        kind = str(module["type"])
        if not kind.startswith("sentence_transformers.") and kind not in allowed:
            raise ExportError(
                f"{origin} has the module {kind}, which is code of its own and is not run"
            )


def _check_settings(
    settings: dict[str, Any], origin: str, neutral: Mapping[str, tuple[Any, ...]]
) -> None:
    """Refuse settings of a Transformer module that change vectors and are not supported.

    A `model_max_length` of the tokenizer becomes `max_seq_length`, which means the same.

    Raises:
        ExportError: there is such a setting.
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
        if value not in neutral.get(key, ()):
            raise ExportError(f"{origin} sets {key} to {value!r}, which is not supported")


def pooling_modes(config: dict[str, Any], origin: str) -> list[str]:
    """flowvec's names of a Pooling module's modes, from an old or new file.

    Raises:
        ExportError: a mode is not supported.
    """
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
