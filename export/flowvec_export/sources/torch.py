"""Reads a checkpoint as a source: transformers' module, its tokenizer and its limits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
import transformers
from torch import Tensor, nn

from flowvec.bundle.manifest import TOKEN_TYPES
from flowvec.compat import override
from flowvec.errors import ExportError, first_line
from flowvec_export.assembly.draft import Draft, PairDraft, Weights, check_steps
from flowvec_export.assembly.from_torch import draft_of_checkpoint, draft_of_cross_encoder
from flowvec_export.layers.cross_encoder import takes_types
from flowvec_export.layers.names import OFFSET_POSITIONS, parse_pooling
from flowvec_export.layers.pooling import Pooling
from flowvec_export.sources.base import (
    Source,
    bounded_length,
    model_name,
    plain_tokenizer,
    read_licence,
)
from flowvec_export.sources.cross_encoder import AboutPairs, PairSource
from flowvec_export.sources.files import check_config, check_tokenizer, find_weights, read_json
from flowvec_export.transforms import Transform
from flowvec_export.trust import Trust

__all__ = [
    "TorchPairs",
    "TorchSource",
    "quiet_transformers",
    "read_cross_encoder",
    "read_encoder",
]

# Only the encoder of an encoder-decoder model gives vectors.
_ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
# transformers also builds heads that the checkpoint lacks; small models have few weights.
_MOST_MISSING = 1.5
_FEW_WEIGHTS = 1_000_000
# Fewest bytes of a tensor in a pickle.
_LEAST_PICKLED = 50
# SimCSE's own training saves the head over the first token under this name.
_SIMCSE_HEAD = "mlp.dense"


@dataclass(slots=True, kw_only=True)
class TorchSource(Source):
    """A checkpoint that torch runs.

    Attributes:
        model: transformers' module, float32, in evaluation mode.
        pooler: the dense layer over the first token, if the checkpoint has one.
        word_weights: weight of each token id in the mean, float32 (vocabulary,); None weighs all
            equally.
        must_pool: why the user must name the pooling; None if a default is known.
    """

    model: Any
    pooler: nn.Linear | None
    word_weights: Tensor | None = None
    must_pool: str | None = None

    def pool(self, pooling: str | None) -> Pooling:
        """The named pooling, or the source's own; `mean` for a plain encoder.

        Raises:
            ExportError: there is no such pooling for this source.
        """
        if pooling is None and self.pooling is None and self.must_pool is not None:
            raise ExportError(self.must_pool)
        modes = parse_pooling(pooling or self.pooling or "mean")
        return Pooling(modes, self.pooler, self.word_weights)

    @override
    def draft(
        self,
        length: int,
        pooling: str | None,
        added: Sequence[Transform],
        normalize: bool | None,
        weights: Weights,
    ) -> Draft:
        check_steps([*self.transforms, *added], self.pooled_width(pooling))
        if normalize is None:
            normalize = True if self.normalize is None else self.normalize
        return draft_of_checkpoint(
            self.model,
            self.pool(pooling),
            self.transforms,
            added,
            normalize=normalize,
            weights=weights,
            pad_id=self.pad_id,
            origin=self.origin,
        )

    @override
    def pooled_width(self, pooling: str | None) -> int:
        return self.pool(pooling).out_dim(self.model.config.hidden_size)

    @override
    def weigh_words(self, weights: Tensor) -> None:
        self.word_weights = weights

    @override
    def keep_encoder_only(self) -> None:
        # Not super(): with slots, the dataclass decorator makes a new class.
        Source.keep_encoder_only(self)
        self.word_weights = None

    @override
    def sha256(self) -> str:
        """SHA-256 (hex) of all weights that a pooled vector depends on, in float32.

        The same checkpoint under another name, or stored in another file format, has the same.
        """
        digest = hashlib.sha256()
        modules: list[nn.Module] = [self.model, *self.transforms]
        for place, module in enumerate(modules):
            for name, tensor in sorted(module.state_dict().items()):
                if name.startswith("pooler.") and self.pooler is None:
                    continue  # not in the checkpoint: transformers fills it with random numbers
                digest.update(f"{place} {name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().float().contiguous().numpy().tobytes())
        if self.word_weights is not None:
            digest.update(b"word weights" + self.word_weights.contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(slots=True, kw_only=True)
class TorchPairs(PairSource):
    """A cross-encoder that torch runs.

    Attributes:
        model: transformers' module for sequence classification, float32, in evaluation mode.
        with_types: whether its tokenizer gives the token types of a pair.
    """

    model: Any
    with_types: bool

    @override
    def draft(self, weights: Weights) -> PairDraft:
        return draft_of_cross_encoder(
            self.model,
            with_types=self.with_types and takes_types(self.model),
            weights=weights,
            pad_id=self.pad_id,
            origin=self.about.origin,
        )


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
    _check_code(folder, origin, config, trust)
    kind = _ENCODER_CLASSES.get(str(config.get("model_type")), "AutoModel")
    model, loading, fast = _load(folder, origin, kind, files, marks, trust)
    head = _take_simcse_head(model, loading, files)
    _check_loaded(origin, config, loading, fast)
    if not encoder_only:
        _refuse_classifier(origin, config, loading)
    pooler = _pooler(model) if head or not loading["missing_keys"] else None
    return TorchSource(
        name=model_name(root, origin),
        origin=origin,
        model=model.eval(),
        tokenizer=plain_tokenizer(
            fast.backend_tokenizer, lower_case=bool(settings.get("do_lower_case"))
        ),
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
        unused=_heads(loading),
    )


def read_cross_encoder(root: Path, folder: Path, about: AboutPairs, trust: Trust) -> TorchPairs:
    """Read a cross-encoder; `folder` holds its weights, `root` the whole model."""
    origin = about.origin
    config = read_json(folder / "config.json")
    check_config(folder / "config.json", config)
    files = find_weights(folder, origin, trust)
    marks = check_tokenizer(folder)
    _check_code(folder, origin, config, trust)
    kind = "AutoModelForSequenceClassification"
    model, loading, fast = _load(folder, origin, kind, files, marks, trust)
    _check_loaded(origin, config, loading, fast)
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
    )


def _load(
    folder: Path, origin: str, kind: str, files: list[Path], marks: dict[str, Any], trust: Trust
) -> tuple[Any, dict[str, Any], Any]:
    """transformers' model of a class, what it says about loading, and the tokenizer."""
    with quiet_transformers():
        _check_size(folder, origin, kind, files, trust)
        try:
            model, loading = getattr(transformers, kind).from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
                use_safetensors=files[0].suffix == ".safetensors",
                trust_remote_code=trust.remote_code,
                local_files_only=True,
            )
            fast = _tokenizer_class(marks).from_pretrained(
                folder, trust_remote_code=trust.remote_code, local_files_only=True
            )
        except Exception as error:  # transformers raises many types
            reason = first_line(error)
            raise ExportError(f"transformers cannot load {origin}: {reason}") from error
    return model, loading, fast


def _check_size(folder: Path, origin: str, kind: str, files: list[Path], trust: Trust) -> None:
    """Refuse a configuration that is far larger than its files, before the model is built.

    The model is first built without memory. Its layers are at most the tensors in the files.
    """
    stored = sum(file.stat().st_size for file in files)
    tensors = sum(_count_tensors(file) for file in files)
    try:
        config = transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=trust.remote_code, local_files_only=True
        )
        layers = getattr(config, "num_hidden_layers", 0)
        if isinstance(layers, int) and layers > tensors:
            raise ExportError(
                f"{origin} asks for {layers} layers, but its files hold only {tensors} tensors"
            )
        if trust.remote_code:
            return  # such code may build anything
        with torch.device("meta"):
            build: Any = getattr(transformers, kind)
            model = (build.from_config if kind.startswith("AutoModel") else build)(config)
        weights = sum(weight.numel() for weight in model.parameters())
    except ExportError:
        raise
    except Exception as error:  # transformers raises many types
        raise ExportError(f"transformers cannot load {origin}: {first_line(error)}") from error
    # Each weight takes at least a byte.
    if weights > _MOST_MISSING * stored + _FEW_WEIGHTS:
        raise ExportError(
            f"{origin} asks for {weights:,} weights, but its files have only {stored:,} bytes"
        )


def _count_tensors(file: Path) -> int:
    """The number of tensors of a file, or an upper bound."""
    if file.suffix != ".safetensors":
        return file.stat().st_size // _LEAST_PICKLED
    try:
        with safetensors.safe_open(file, "pt") as tensors:
            return len(tensors.keys())
    except Exception:  # loading the file reports the error
        return _FEW_WEIGHTS


def _tokenizer_class(marks: dict[str, Any]) -> Any:
    """The class that reads the tokenizer: only tokenizer.json if transformers lacks its class.

    Transformers 5 writes a class name that transformers 4 does not have.
    """
    name = str(marks.get("tokenizer_class"))
    if name == "TokenizersBackend" and not hasattr(transformers, name):
        return transformers.PreTrainedTokenizerFast
    return transformers.AutoTokenizer


def _check_code(folder: Path, origin: str, config: dict[str, Any], trust: Trust) -> None:
    """Refuse a checkpoint with Python code, unless the user allows it."""
    if not config.get("auto_map") or trust.remote_code:
        return
    if str(config.get("model_type")) in transformers.CONFIG_MAPPING:
        return  # transformers has this model type, and uses its own code
    files = sorted(path.name for path in folder.glob("*.py"))
    raise ExportError(
        f"{origin} needs Python code of its own ({', '.join(files[:3]) or 'from elsewhere'}); read "
        "it, and if you trust it export with --trust-remote-code (trust_remote_code=True in Python)"
    )


def _check_loaded(
    origin: str, config: dict[str, Any], loading: dict[str, Any], tokenizer: Any
) -> None:
    """Refuse what transformers loads without an error but does not compute as it was trained."""
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
    if not tokenizer.is_fast:
        raise ExportError(f"{origin} has no tokenizer that `tokenizers` can read")
    if tokenizer.truncation_side != "right":
        raise ExportError(f"{origin} cuts long texts on the left, which is not supported")


def _refuse_classifier(origin: str, config: dict[str, Any], loading: dict[str, Any]) -> None:
    """Refuse a model that was trained to give scores: its vectors mean nothing without its head."""
    made_for = [str(name) for name in config.get("architectures") or ()]
    kind = next((name for name in made_for if name.endswith("ForSequenceClassification")), None)
    if kind is not None and (heads := _heads(loading)):
        raise ExportError(
            f"{origin} is a {kind}: a classifier or cross-encoder, which gives scores, not "
            f"vectors, and its {', '.join(heads)} would be dropped; --encoder-only exports the "
            "encoder without them"
        )


def _heads(loading: dict[str, Any]) -> tuple[str, ...]:
    """Parts of a checkpoint that its encoder does not use, by the first part of their names."""
    # Buffers that older versions of transformers saved.
    keys = [key for key in loading["unexpected_keys"] if not key.endswith("position_ids")]
    return tuple(sorted({key.partition(".")[0] for key in keys}))


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


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' loading report and progress bars off the terminal."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        transformers.logging.enable_progress_bar()  # type: ignore[no-untyped-call]
