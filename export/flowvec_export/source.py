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
    modules = _read_json(root / "modules.json", list, missing_ok=True)
    try:
        if modules is None:
            return _read_encoder(root, root, str(source), {})
        return _read_sentence_transformers(root, modules, str(source))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        # A JSON file of the right kind with something else in it than it should have.
        raise ExportError(f"{source} has a file that cannot be followed: {error!r}") from error


def _locate(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if path.exists() or str(source).startswith((".", "/", "~")) or str(source).count("/") > 1:
        raise ExportError(f"{source} is no directory")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md"]
    unwanted = ["onnx/*", "openvino/*", "*training_args.bin"]
    try:
        root = Path(
            snapshot_download(str(source), allow_patterns=patterns, ignore_patterns=unwanted)
        )
        if not list(root.rglob("*.safetensors")):
            # Many repositories hold the weights twice; only the older ones need this.
            snapshot_download(str(source), allow_patterns=["*.bin"], ignore_patterns=unwanted)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = _first_line(error)
        raise ExportError(f"{source} is no directory, and no download: {reason}") from None
    return root


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _read_json(path: Path, kind: type = dict, *, missing_ok: bool = False) -> Any:
    if not path.is_file():
        if missing_ok:
            return None
        raise ExportError(f"{path} is missing")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"cannot read {path}: {error}") from None
    if not isinstance(found, kind):
        raise ExportError(f"{path} must hold a JSON {'object' if kind is dict else 'array'}")
    return found


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
            reason = _first_line(error)
            raise ExportError(f"transformers cannot load {origin}: {reason}") from error
    _check_loaded(origin, config, loading, fast)
    positions = model.config.max_position_embeddings
    if architecture in _OFFSET_POSITIONS:
        positions -= model.config.pad_token_id + 1
    asked = settings.get("max_seq_length") or fast.model_max_length
    if isinstance(asked, bool) or not isinstance(asked, int):
        raise ExportError(f"{origin} has the max_seq_length {asked!r}, which is no whole number")
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


def _check_loaded(
    origin: str, config: dict[str, Any], loading: dict[str, Any], tokenizer: Any
) -> None:
    """Refuse what transformers loads without a word but cannot compute as it was trained."""
    missing = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise ExportError(f"{origin} lacks weights: {', '.join(sorted(missing)[:3])}, ...")
    # transformers 5 dropped attention with relative keys, and ignores their weights.
    positions = config.get("position_embedding_type") or "absolute"
    unused = [key for key in loading["unexpected_keys"] if ".layer." in key]
    if positions != "absolute" or unused:
        what = f"{positions} positions" if positions != "absolute" else f"weights as {unused[0]}"
        raise ExportError(f"{origin} has {what}, which transformers would ignore")
    if not tokenizer.is_fast:
        raise ExportError(f"{origin} has no tokenizer that `tokenizers` can read")
    if tokenizer.truncation_side != "right":
        raise ExportError(f"{origin} cuts long texts on the left, which is not supported")


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
    _check_settings(settings, origin)
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
            _check_names(_read_json(folder / "config.json", missing_ok=True) or {}, folder)
            source.normalise = True
        elif kind == "Dropout":
            continue  # nothing, outside training
        else:
            raise ExportError(f"{origin} has a module {kind}, which is not supported")
    config = _read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    if config.get("truncate_dim") is not None:
        raise ExportError(f"{origin} has a truncate_dim, which is not supported")
    source.prompts = {name: prompt or "" for name, prompt in (config.get("prompts") or {}).items()}
    default = config.get("default_prompt_name")
    source.default_prompt_name = default if default in source.prompts else None
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise ExportError(f"{origin} compares by {similarity!r}, which is not supported")
    source.similarity = _SIMILARITIES[similarity]
    if any(source.prompts.values()) and not pooling.get("include_prompt", True):
        raise ExportError(f"{origin} leaves its prompts out of pooling, which is not supported")
    return source


# What a Transformer module may say beyond max_seq_length and do_lower_case, each with the one value
# that changes nothing.
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
    """Refuse settings of a Transformer module that would change vectors and are not followed.

    A `model_max_length` given for the tokenizer becomes `max_seq_length`, which it means.
    """
    for key in _LENGTH_SETTINGS:
        given = dict(settings.pop(key, None) or {})
        length = given.pop("model_max_length", None)
        if length is not None and not settings.get("max_seq_length"):
            settings["max_seq_length"] = length
        if given:
            raise ExportError(f"{origin} sets {key} {sorted(given)}, which is not supported")
    for key, value in settings.items():
        if key in ("max_seq_length", "do_lower_case") or value in ({}, []):
            continue
        if value not in _NEUTRAL_SETTINGS.get(key, ()):
            raise ExportError(f"{origin} sets {key} to {value!r}, which is not supported")


def _check_names(config: dict[str, Any], folder: Path) -> None:
    """Modules after Pooling must pass the one vector on."""
    for key in ("module_input_name", "module_output_name"):
        if config.get(key, "sentence_embedding") != "sentence_embedding":
            raise ExportError(f"{folder} has the {key} {config[key]!r}, which is not supported")


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
    _check_names(config, folder)
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
    if "linear.weight" not in state:
        raise ExportError(f"the weights in {folder} lack linear.weight")
    return {name: tensor.float() for name, tensor in state.items()}
