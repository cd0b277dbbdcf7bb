"""Reading a checkpoint: a Hugging Face encoder, or a sentence-transformers directory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import normalizers
from torch import Tensor, nn

from flowvec.errors import ExportError
from flowvec_export.backbone import NAMES
from flowvec_export.transforms import ACTIVATIONS, Dense, Transform

__all__ = ["Source", "read_source"]

# MPNet's attention has a bias by distance, so it runs as transformers' module.
_ARCHITECTURES = (*NAMES, "mpnet")
# RoBERTa and MPNet count positions from their padding token's id on.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "mpnet")

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
_POOLING_FLAGS = {
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


@dataclass(slots=True)
class Source:
    """What a checkpoint says: everything an export needs.

    Attributes:
        name: last part of the path or hub name.
        origin: what was asked for.
        model: transformers' module, float32, in evaluation mode.
        tokenizer: a `tokenizers` tokenizer without truncation and padding.
        pad_id: the padding token's id.
        max_length: the most tokens of a text.
        pooler: the dense layer over the first token, where the checkpoint has one.
        pooling: the pooling it was made for; None for a plain encoder.
        transforms: Dense layers between pooling and normalisation.
        normalise: whether it normalises; None for a plain encoder.
        prompts: prefixes by name.
        default_prompt_name: the prompt used when none is asked for.
        similarity: how its vectors are compared.
        licence: from the model card, if it says.
    """

    name: str
    origin: str
    model: Any
    tokenizer: tokenizers.Tokenizer
    pad_id: int
    max_length: int
    pooler: nn.Linear | None
    pooling: str | None = None
    transforms: list[Transform] = field(default_factory=list)
    normalise: bool | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str = "cosine"
    licence: str | None = None


def read_source(source: str | Path) -> Source:
    """Read a local directory or a Hugging Face name.

    No code of a checkpoint is ever run.

    Raises:
        ExportError: it cannot be found or read, or is of a kind that is not supported.
    """
    root = _locate(source)
    modules = _read_json(root / "modules.json", missing_ok=True)
    if modules is None:
        return _read_encoder(root, root, str(source), {})
    return _read_sentence_transformers(root, modules, str(source))


def _locate(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists() or str(source).startswith((".", "/", "~")) or str(source).count("/") > 1:
        raise ExportError(f"{source} is no directory")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                str(source),
                allow_patterns=[
                    "*.json",
                    "*.txt",
                    "*.model",
                    "*.safetensors",
                    "README.md",
                    "*.bin",
                ],
                ignore_patterns=["onnx/*", "openvino/*", "*training_args.bin"],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ExportError(f"{source} is no directory, and no download: {reason}") from None


def _read_json(path: Path, *, missing_ok: bool = False) -> Any:
    if not path.is_file():
        if missing_ok:
            return None
        raise ExportError(f"{path} is missing")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"cannot read {path}: {error}") from None


def _read_encoder(root: Path, folder: Path, origin: str, settings: dict[str, Any]) -> Source:
    """The transformer of a checkpoint; `folder` holds it, `root` the whole."""
    config = _read_json(folder / "config.json")
    architecture = config.get("model_type")
    if architecture not in _ARCHITECTURES:
        raise ExportError(
            f"{origin} is of the architecture {architecture!r}; flowvec exports "
            f"{', '.join(_ARCHITECTURES)}"
        )
    with _quiet():
        try:
            model, loading = transformers.AutoModel.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
            fast = transformers.AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # transformers raises many kinds
            reason = str(error).strip().splitlines()[0]
            raise ExportError(f"transformers cannot load {origin}: {reason}") from error
    missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise ExportError(f"{origin} lacks weights: {', '.join(sorted(missing)[:3])}, ...")
    if not fast.is_fast:
        raise ExportError(f"{origin} has no tokenizer that `tokenizers` can read")
    positions = model.config.max_position_embeddings
    if architecture in _OFFSET_POSITIONS:
        positions -= model.config.pad_token_id + 1
    asked = settings.get("max_seq_length") or fast.model_max_length
    has_pooler = getattr(model, "pooler", None) is not None and not loading["missing_keys"]
    return Source(
        name=root.resolve().name
        if root.exists() and not _is_hub_cache(root)
        else origin.split("/")[-1],
        origin=origin,
        model=model.eval(),
        tokenizer=_plain_tokenizer(fast, lower_case=bool(settings.get("do_lower_case"))),
        pad_id=int(fast.pad_token_id or 0),
        max_length=int(min(asked, positions)),
        pooler=model.pooler.dense if has_pooler else None,
        licence=_licence(root),
    )


def _is_hub_cache(root: Path) -> bool:
    """A download lies under .../snapshots/<commit>: no name for a model."""
    return root.resolve().parent.name == "snapshots"


def _plain_tokenizer(fast: Any, *, lower_case: bool) -> tokenizers.Tokenizer:
    """A copy without truncation and padding, lower-casing first where asked."""
    tokenizer = tokenizers.Tokenizer.from_str(fast.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if lower_case:
        steps = [normalizers.Lowercase()]
        if tokenizer.normalizer is not None:
            steps.append(tokenizer.normalizer)
        tokenizer.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _licence(root: Path) -> str | None:
    """The `license:` line of a model card's front matter."""
    card = root / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    head = text.split("\n---", 1)[0] if text.startswith("---") else ""
    found = re.search(r"^license:\s*[\"']?([\w.+-]+)", head, re.MULTILINE)
    return found.group(1) if found else None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' loading report and progress bars off the terminal."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()  # type: ignore[no-untyped-call]


# --- sentence-transformers ------------------------------------------------------------------------


def _read_sentence_transformers(root: Path, modules: Any, origin: str) -> Source:
    """Follow modules.json: Transformer, Pooling, then Dense layers, then perhaps Normalize."""
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise ExportError(f"{origin} must begin with Transformer and Pooling, but is {kinds}")
    folders = [root / str(module.get("path", "")) for module in modules]
    settings: dict[str, Any] = next(
        (found for name in _SETTINGS if (found := _read_json(folders[0] / name, missing_ok=True))),
        {},
    )
    source = _read_encoder(root, folders[0], origin, settings)
    pooling = _read_json(folders[1] / "config.json")
    source.pooling = "+".join(_pooling_modes(pooling, origin))
    source.normalise = False
    for kind, folder in zip(kinds[2:], folders[2:], strict=True):
        if source.normalise:
            raise ExportError(f"{origin} has {kind} after Normalize, which is not supported")
        if kind == "Dense":
            source.transforms.append(_read_dense(folder))
        elif kind == "Normalize":
            source.normalise = True
        else:
            raise ExportError(f"{origin} has a module {kind}, which is not supported")
    config = _read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    # Newer versions write empty prompts for `query` and `document`: they say nothing.
    prompts = config.get("prompts") or {}
    source.prompts = {name: prompt for name, prompt in prompts.items() if prompt}
    default = config.get("default_prompt_name")
    source.default_prompt_name = default if default in source.prompts else None
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise ExportError(f"{origin} compares by {similarity!r}, which is not supported")
    source.similarity = _SIMILARITIES[similarity]
    if source.prompts and not pooling.get("include_prompt", True):
        raise ExportError(f"{origin} leaves its prompts out of pooling, which is not supported")
    return source


def _pooling_modes(config: dict[str, Any], origin: str) -> list[str]:
    """Our names of a Pooling module's modes, from either form of its file."""
    if "pooling_mode" in config:
        given = config["pooling_mode"]
        names = [given] if isinstance(given, str) else list(given)
        if unknown := [name for name in names if name not in _POOLING_NAMES]:
            raise ExportError(f"{origin} pools by {', '.join(unknown)}, which is not supported")
        return [_POOLING_NAMES[name] for name in names]
    known = set(_POOLING_FLAGS)
    on = {key for key, value in config.items() if key.startswith("pooling_mode_") and value is True}
    if on - known:
        raise ExportError(f"{origin} pools by {', '.join(on - known)}, which is not supported")
    return [mode for flag, mode in _POOLING_FLAGS.items() if flag in on] or ["mean"]


def _read_dense(folder: Path) -> Dense:
    config = _read_json(folder / "config.json")
    name = str(config.get("activation_function", "Tanh")).rsplit(".", 1)[-1].lower()
    if name not in ACTIVATIONS:
        raise ExportError(
            f"{folder} has the activation {name!r}; known are {', '.join(ACTIVATIONS)}"
        )
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise ExportError(
            f"{folder} works on {config['module_input_name']}, not on the pooled vector"
        )
    state = _read_weights(folder)
    residual: Tensor | None = None
    if config.get("use_residual"):
        residual = state.get("residual.weight", torch.empty(0))
    return Dense(state["linear.weight"], state.get("linear.bias"), name, residual)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Weights of a small module; an old .bin file is read without running any of its code."""
    try:
        if (folder / "model.safetensors").is_file():
            state = safetensors.torch.load_file(folder / "model.safetensors")
        else:
            state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    except Exception as error:
        raise ExportError(f"cannot read the weights in {folder}: {error}") from None
    return {name: tensor.float() for name, tensor in state.items()}
