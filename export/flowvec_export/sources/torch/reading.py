"""Reads a checkpoint as a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor, nn

from flowvec.bundle.manifest import TOKEN_TYPES
from flowvec.errors import ExportError
from flowvec_export.layers.names import OFFSET_POSITIONS
from flowvec_export.sources.base import bounded_length, model_name, read_licence
from flowvec_export.sources.cross_encoder import AboutPairs
from flowvec_export.sources.files import check_config, check_tokenizer, find_weights, read_json
from flowvec_export.sources.late_interaction import (
    AboutTokens,
    MultiVectorSource,
    read_as_pylate,
    register_markers,
)
from flowvec_export.sources.sparse import AboutSparse, SparseSource
from flowvec_export.sources.tokenizer import plain_tokenizer
from flowvec_export.sources.torch.checks import (
    check_code,
    check_loaded,
    refuse_classifier,
    unused_heads,
)
from flowvec_export.sources.torch.loading import load_checkpoint
from flowvec_export.sources.torch.source import TorchPairs, TorchSource
from flowvec_export.sources.transformers_tokenizer import own_tokens
from flowvec_export.trust import Trust

__all__ = ["read_colbert", "read_cross_encoder", "read_encoder", "read_masked_lm"]

# Only the encoder of an encoder-decoder model gives vectors.
_ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
# SimCSE's own training saves the head over the first token under this name.
_SIMCSE_HEAD = "mlp.dense"


def read_encoder(
    root: Path,
    folder: Path,
    origin: str,
    settings: dict[str, Any],
    trust: Trust,
    *,
    encoder_only: bool = False,
) -> TorchSource:
    """Read the transformer of a checkpoint; `folder` holds it, `root` the whole model."""
    config = read_json(folder / "config.json")
    check_config(folder / "config.json", config)
    files = find_weights(folder, origin, trust)
    marks = check_tokenizer(folder)
    check_code(folder, origin, config, trust)
    kind = _ENCODER_CLASSES.get(str(config.get("model_type")), "AutoModel")
    model, loading, fast = load_checkpoint(folder, origin, kind, files, marks, trust)
    head = _take_simcse_head(model, loading, files)
    check_loaded(origin, config, model, loading, fast)
    if not encoder_only:
        refuse_classifier(origin, config, loading)
    pooler = _pooler(model) if head or not loading["missing_keys"] else None
    lower_case = bool(settings.get("do_lower_case"))
    return TorchSource(
        name=model_name(root, origin),
        origin=origin,
        model=model.eval(),
        tokenizer=plain_tokenizer(fast.backend_tokenizer, lower_case=lower_case),
        pad_id=int(fast.pad_token_id or 0),
        max_length=bounded_length(
            origin,
            settings.get("max_seq_length") or fast.model_max_length,
            _positions(model.config),
        ),
        vocabulary=_whole_number(model.config, "vocab_size", origin),
        layers=_whole_number(model.config, "num_hidden_layers", origin),
        pooler=pooler,
        licence=read_licence(root),
        must_pool=f"{origin} was saved by SimCSE's training: choose pooling cls if it was trained "
        "without labels (its head is for training only), or pooler if with labels"
        if head
        else None,
        unused=unused_heads(loading),
        own_tokens=own_tokens(fast, lower_case=lower_case),
    )


def read_cross_encoder(root: Path, folder: Path, about: AboutPairs, trust: Trust) -> TorchPairs:
    """Read a cross-encoder; `folder` holds its weights, `root` the whole model."""
    origin = about.origin
    config = read_json(folder / "config.json")
    check_config(folder / "config.json", config)
    files = find_weights(folder, origin, trust)
    marks = check_tokenizer(folder)
    check_code(folder, origin, config, trust)
    kind = "AutoModelForSequenceClassification"
    model, loading, fast = load_checkpoint(folder, origin, kind, files, marks, trust)
    check_loaded(origin, config, model, loading, fast)
    if model.config.num_labels != len(about.head.labels):
        raise ExportError(
            f"{origin} gives {model.config.num_labels} logits, and names "
            f"{len(about.head.labels)} labels"
        )
    return TorchPairs(
        name=model_name(root, origin),
        about=about,
        model=model.eval(),
        tokenizer=plain_tokenizer(fast.backend_tokenizer, lower_case=about.lower_case),
        pad_id=int(fast.pad_token_id or 0),
        max_length=bounded_length(
            origin, about.max_length or fast.model_max_length, _positions(model.config)
        ),
        vocabulary=_whole_number(model.config, "vocab_size", origin),
        layers=_whole_number(model.config, "num_hidden_layers", origin),
        licence=read_licence(root),
        with_types=TOKEN_TYPES in fast.model_input_names,
        own_tokens=own_tokens(fast, lower_case=about.lower_case),
    )


def read_masked_lm(root: Path, folder: Path, about: AboutSparse, trust: Trust) -> SparseSource:
    """Read a SPLADE model; `folder` holds its weights, `root` the whole model."""
    origin = about.origin
    config = read_json(folder / "config.json")
    check_config(folder / "config.json", config)
    files = find_weights(folder, origin, trust)
    marks = check_tokenizer(folder)
    check_code(folder, origin, config, trust)
    kind = "AutoModelForMaskedLM"
    model, loading, fast = load_checkpoint(folder, origin, kind, files, marks, trust)
    lower_case = bool(about.settings.get("do_lower_case"))
    check_loaded(origin, config, model, loading, fast)
    return SparseSource(
        name=model_name(root, origin),
        about=about,
        model=model.eval(),
        tokenizer=plain_tokenizer(fast.backend_tokenizer, lower_case=lower_case),
        pad_id=int(fast.pad_token_id or 0),
        max_length=bounded_length(
            origin,
            about.settings.get("max_seq_length") or fast.model_max_length,
            _positions(model.config),
        ),
        vocabulary=_whole_number(model.config, "vocab_size", origin),
        layers=_whole_number(model.config, "num_hidden_layers", origin),
        licence=read_licence(root),
        prompts=dict(about.prompts),
        default_prompt_name=about.default_prompt_name,
        own_tokens=own_tokens(fast, lower_case=lower_case),
    )


def read_colbert(root: Path, about: AboutTokens, trust: Trust) -> MultiVectorSource:
    """Read a ColBERT-style model; `root` holds the whole model."""
    encoder = read_encoder(root, about.folder, about.origin, about.settings, trust)
    if about.is_pylate:
        read_as_pylate(encoder.tokenizer, about.markers, about.origin)
    else:
        register_markers(encoder.tokenizer, about.markers)
    token: int | None = None
    if about.expansion is not None:
        # The tokenizer's mask token, or, if it has none, the one that ends a text.
        name = about.expansion.token or _named_token(about.folder, "mask_token", "eos_token")
        token = None if name is None else encoder.tokenizer.token_to_id(name)
        if token is None:
            raise ExportError(
                f"{about.origin} fills queries up with a token that its tokenizer does not have"
            )
    unknown = _named_token(about.folder, "unk_token")
    return MultiVectorSource(
        about=about,
        encoder=encoder,
        dense=about.read_dense(trust),
        expansion_token=token,
        unknown_token=None if unknown is None else encoder.tokenizer.token_to_id(unknown),
    )


def _named_token(folder: Path, *names: str) -> str | None:
    """The first token of a tokenizer that its files name so."""
    config = read_json(folder / "tokenizer_config.json", missing_ok=True) or {}
    named = read_json(folder / "special_tokens_map.json", missing_ok=True) or {}
    for name in names:
        token = named.get(name) or config.get(name)
        if token:
            return str(token["content"] if isinstance(token, dict) else token)
    return None


def _take_simcse_head(model: Any, loading: dict[str, Any], files: list[Path]) -> bool:
    """Use the head that SimCSE's training saved as BERT's pooler; returns whether there is one."""
    names = {f"{_SIMCSE_HEAD}.weight": "weight", f"{_SIMCSE_HEAD}.bias": "bias"}
    pooler = _pooler(model)
    if pooler is None or not names.keys() <= set(loading["unexpected_keys"]):
        return False
    head: dict[str, Tensor] = {}
    for file in files:
        if file.suffix == ".safetensors":
            with safetensors.safe_open(file, framework="pt") as opened:
                head |= {n: opened.get_tensor(n) for n in names if n in opened.keys()}  # noqa: SIM118
        else:
            state = torch.load(file, weights_only=True, map_location="cpu")
            head |= {n: state[n] for n in names if n in state}
    pooler.load_state_dict({names[name]: tensor.float() for name, tensor in head.items()})
    loading["unexpected_keys"] = set(loading["unexpected_keys"]) - names.keys()
    loading["missing_keys"] = {k for k in loading["missing_keys"] if not k.startswith("pooler.")}
    return True


def _pooler(model: Any) -> nn.Linear | None:
    """The dense layer before the tanh over the first token."""
    pooler = getattr(model, "pooler", None)
    dense = getattr(pooler, "dense", pooler)  # ALBERT's pooler is the layer itself
    return dense if isinstance(dense, nn.Linear) else None


def _positions(config: Any) -> int | None:
    """Most tokens of a text by the position table; None without such a table."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        return None
    if config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    return positions


def _whole_number(config: Any, name: str, origin: str) -> int:
    size = getattr(config, name, None)
    if isinstance(size, bool) or not isinstance(size, int):
        raise ExportError(
            f"{origin} is not a text encoder: the configuration of "
            f"{config.model_type!r} has no {name}"
        )
    return size
