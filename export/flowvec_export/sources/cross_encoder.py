"""Recognizes cross-encoders, and reads what their files say about labels, activation and length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from flowvec.bundle.manifest import Activation, Head
from flowvec.errors import ExportError
from flowvec_export.sources.base import checked_length
from flowvec_export.sources.files import inside, read_json

if TYPE_CHECKING:
    from flowvec_export.assembly.draft import PairDraft, Weights
    from flowvec_export.assembly.token_parity import OwnTokens

__all__ = ["AboutPairs", "PairSource", "is_cross_encoder", "read_about"]

_CLASSIFIER = "ForSequenceClassification"
_SETTINGS = "sentence_bert_config.json"
# torch's activations, by the last part of the names that sentence-transformers stores.
_ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Tanh": "tanh",
}
# Settings of a Transformer module, with the values that a cross-encoder has.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("sequence-classification",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "logits"}},),
    "module_output_name": ("scores",),
    "unpad_inputs": (False, None),
    "tokenizer_name_or_path": (None,),
}
_LENGTHS = ("processor_kwargs", "tokenizer_args", "tokenizer_kwargs")


@dataclass(frozen=True, slots=True)
class AboutPairs:
    """What a cross-encoder's configuration says, apart from the encoder itself.

    Attributes:
        origin: the path or name that the user gave.
        head: its labels, and the activation that it was trained with.
        max_length: most tokens of a pair, if it says.
        lower_case: whether texts are lower-cased first.
    """

    origin: str
    head: Head
    max_length: int | None
    lower_case: bool


@dataclass(slots=True, kw_only=True)
class PairSource(ABC):
    """Everything that an export needs to know about a cross-encoder.

    Attributes:
        name: last part of the path or hub name.
        about: labels, activation and length.
        tokenizer: a `tokenizers` tokenizer without truncation and padding.
        pad_id: the padding token's id.
        max_length: most tokens of a pair; None if neither encoder nor tokenizer limits it.
        vocabulary: number of token ids that the encoder knows.
        layers: its transformer layers, if known.
        licence: from the model card, if it says.
        own_tokens: how the source's own library reads a pair; None if it is not installed.
    """

    name: str
    about: AboutPairs
    tokenizer: tokenizers.Tokenizer
    pad_id: int
    max_length: int | None
    vocabulary: int
    layers: int | None
    licence: str | None
    own_tokens: OwnTokens | None

    @property
    def origin(self) -> str:
        """The path or name that the user gave."""
        return self.about.origin

    def checked_length(self, requested: int | None) -> int:
        """Most tokens of a pair: the given number, or the source's own.

        Raises:
            ExportError: it is too small, larger than the encoder's positions, or unknown.
        """
        special = self.tokenizer.num_special_tokens_to_add(True)
        return checked_length(self.origin, self.max_length, requested, special + 2)

    @abstractmethod
    def draft(self, weights: Weights) -> PairDraft:
        """Make the graph from token ids to logits, with a reference to compare it with.

        Raises:
            ExportError: the graph cannot be made.
        """


def is_cross_encoder(root: Path, modules: Any) -> bool:
    """Whether a directory holds a cross-encoder or classifier, which gives scores.

    Args:
        root: the directory.
        modules: content of its modules.json, or None.
    """
    if modules is None:
        config = read_json(root / "config.json", missing_ok=True) or {}
        made_for = config.get("architectures")
        names = made_for if isinstance(made_for, list) else []
        return any(str(name).endswith(_CLASSIFIER) for name in names)
    about = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    return str(about.get("model_type")) == "CrossEncoder"


def read_about(root: Path, modules: Any, origin: str) -> tuple[AboutPairs, Path]:
    """What a cross-encoder's files say, and the folder of its weights.

    Raises:
        ExportError: it has modules or settings that are not supported.
    """
    folder = root
    settings: dict[str, Any] = {}
    about: dict[str, Any] = {}
    if modules is not None:
        folder = _only_folder(root, modules, origin)
        settings = read_json(folder / _SETTINGS, missing_ok=True) or {}
        about = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
        if any((about.get("prompts") or {}).values()):
            raise ExportError(f"{origin} puts prompts before its texts, which is not supported")
    config = read_json(folder / "config.json")
    labels = _labels(config, origin)
    return (
        AboutPairs(
            origin=origin,
            head=Head(labels, _activation(config, about, labels, origin)),
            max_length=_max_length(settings, origin),
            lower_case=bool(settings.get("do_lower_case")),
        ),
        folder,
    )


def _only_folder(root: Path, modules: Any, origin: str) -> Path:
    """The folder of the only module of a cross-encoder of sentence-transformers."""
    kinds = [str(module["type"]) for module in modules]
    if any(kind.endswith("LogitScore") for kind in kinds):
        raise ExportError(
            f"{origin} is a language model that answers yes or no to a prompt with the two texts. "
            "Rerankers of this kind need their prompt template and are not supported; use a "
            "conversion of it to sequence classification"
        )
    if len(kinds) != 1 or not kinds[0].startswith("sentence_transformers."):
        raise ExportError(f"{origin} has the modules {', '.join(kinds)}, which are not supported")
    return inside(root, str(modules[0].get("path", "")))


def _max_length(settings: dict[str, Any], origin: str) -> int | None:
    """Most tokens of a pair by the module's settings; refuses settings that change scores."""
    length = settings.get("max_seq_length")
    for key, value in settings.items():
        if key in _LENGTHS:
            given = dict(value or {})
            length = given.pop("model_max_length", None) or length
            if given:
                raise ExportError(f"{origin} sets {key} {sorted(given)}, which is not supported")
        elif (
            key not in ("max_seq_length", "do_lower_case")
            and value not in ({}, [])
            and value not in _NEUTRAL.get(key, ())
        ):
            raise ExportError(f"{origin} sets {key} to {value!r}, which is not supported")
    if length is not None and (isinstance(length, bool) or not isinstance(length, int)):
        raise ExportError(f"{origin} has the max_seq_length {length!r}, which is not a number")
    return length


def _labels(config: dict[str, Any], origin: str) -> tuple[str, ...]:
    """Names of the logits, in their order."""
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", 2)  # transformers' default
        return tuple(f"LABEL_{i}" for i in range(int(count)))
    by_number = {int(number): str(name) for number, name in names.items()}
    if sorted(by_number) != list(range(len(by_number))) or not by_number:
        raise ExportError(f"{origin} does not number its labels from 0: {names}")
    return tuple(by_number[i] for i in range(len(by_number)))


def _activation(
    config: dict[str, Any], about: Mapping[str, Any], labels: tuple[str, ...], origin: str
) -> Activation:
    """What turns logits into scores, as sentence-transformers chooses it."""
    named = (
        about.get("activation_fn")
        or (config.get("sentence_transformers") or {}).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    if named is None:
        return "sigmoid" if len(labels) == 1 else "identity"
    name = str(named).rsplit(".", 1)[-1]
    if not str(named).startswith("torch.") or name not in _ACTIVATIONS:
        raise ExportError(f"{origin} has the activation {named}, which is not supported")
    return _ACTIVATIONS[name]
