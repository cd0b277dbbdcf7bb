"""What a checkpoint must not be like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from flowvec.errors import ExportError
from flowvec_export.sources.tokenizer import refuse_left
from flowvec_export.trust import Trust

__all__ = ["check_code", "check_loaded", "refuse_classifier", "unused_heads"]


def check_code(folder: Path, origin: str, config: dict[str, Any], trust: Trust) -> None:
    """Refuse a checkpoint with Python code, unless the user allows it.

    Raises:
        ExportError: it has code.
    """
    if not config.get("auto_map") or trust.remote_code:
        return
    if str(config.get("model_type")) in transformers.CONFIG_MAPPING:
        return  # transformers has this model type, and uses its own code
    files = sorted(path.name for path in folder.glob("*.py"))
    raise ExportError(
        f"{origin} needs Python code of its own ({', '.join(files[:3]) or 'from elsewhere'}); read "
        "it, and if you trust it export with --trust-remote-code (trust_remote_code=True in Python)"
    )


def check_loaded(
    origin: str, config: dict[str, Any], model: Any, loading: dict[str, Any], tokenizer: Any
) -> None:
    """Refuse what transformers loads without an error but does not compute as it was trained.

    Raises:
        ExportError: weights are missing or ignored, or the tokenizer or its padding token cannot be
            used.
    """
    # transformers 5 dropped attention with relative keys, and ignores their weights.
    positions = config.get("position_embedding_type") or "absolute"
    if positions not in ("absolute", "rotary"):
        raise ExportError(f"{origin} has {positions} positions, which are not supported")
    missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise ExportError(f"{origin} lacks weights: {', '.join(sorted(missing)[:3])}, ...")
    if unused := [key for key in loading["unexpected_keys"] if ".layer." in key]:
        raise ExportError(
            f"{origin} has weights such as {unused[0]}, which transformers would ignore"
        )
    refuse_left(origin, tokenizer.truncation_side)
    _check_padding(origin, model, tokenizer)


def _check_padding(origin: str, model: Any, tokenizer: Any) -> None:
    """Refuse a padding token without a row, as GPT's checkpoints often have one."""
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # code of its own, which does not say
        return
    pad_id = tokenizer.pad_token_id
    if rows is not None and pad_id is not None and pad_id >= rows:
        raise ExportError(
            f"{origin} pads with {tokenizer.pad_token!r} (id {pad_id}), and its embedding table "
            f"has only {rows} rows, for ids from 0 to {rows - 1}: give its tokenizer a padding "
            "token that has a row, such as the one that ends a text, or resize the table and save "
            "the model again"
        )


def refuse_classifier(origin: str, config: dict[str, Any], loading: dict[str, Any]) -> None:
    """Refuse a model that was trained to give scores: its vectors mean nothing without its head.

    Raises:
        ExportError: it has such a head.
    """
    made_for = [str(name) for name in config.get("architectures") or ()]
    kind = next((name for name in made_for if name.endswith("ForSequenceClassification")), None)
    if kind is not None and (heads := unused_heads(loading)):
        raise ExportError(
            f"{origin} is a {kind}: a classifier or cross-encoder, which gives scores, not "
            f"vectors, and its {', '.join(heads)} would be dropped; --encoder-only exports the "
            "encoder without them"
        )


def unused_heads(loading: dict[str, Any]) -> tuple[str, ...]:
    """Parts of a checkpoint that its encoder does not use, by the first part of their names."""
    # Buffers that older versions of transformers saved.
    keys = [key for key in loading["unexpected_keys"] if not key.endswith("position_ids")]
    return tuple(sorted({key.partition(".")[0] for key in keys}))
