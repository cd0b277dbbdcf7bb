"""Recognizes ColBERT-style models of sentence-transformers and PyLate, and reads their files."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowvec.errors import ExportError
from flowvec_export.sources.base import MOST_TOKENS
from flowvec_export.sources.files import inside, read_json
from flowvec_export.sources.sentence_transformers.layers import check_names, read_dense
from flowvec_export.sources.sentence_transformers.settings import (
    prompts_of,
    read_settings,
    refuse_foreign_modules,
)
from flowvec_export.trust import Trust

if TYPE_CHECKING:
    from flowvec_export.transforms import Dense

__all__ = [
    "AboutTokens",
    "Expansion",
    "is_late_interaction",
    "read_about_tokens",
]

_MODEL_TYPES = ("MultiVectorEncoder", "ColBERT")
_PYLATE_DENSE = "pylate.models.Dense.Dense"
# PyLate's name of the similarity; sentence-transformers writes it in small letters.
_PYLATE_SIMILARITY = "MaxSim"
# Settings of the Transformer module that are read here.
_OWN_SETTINGS = ("query_length", "document_length", "query_expansion")
# PyLate's lengths, where a file does not say.
_QUERY_LENGTH, _DOCUMENT_LENGTH = 32, 180
_MASK_SETTINGS = {"skiplist_words", "skiplist_tasks", "keep_only_token_ids"}


@dataclass(frozen=True, slots=True)
class Expansion:
    """How queries are filled up.

    Attributes:
        length: to how many tokens.
        token: the token they are filled with; None is the tokenizer's mask token.
        attended: whether the query's own tokens see the added ones.
        cuts: whether longer queries are cut to this length.
    """

    length: int
    token: str | None
    attended: bool
    cuts: bool


@dataclass(frozen=True, slots=True)
class AboutTokens:
    """What the files of a ColBERT-style model say, apart from the encoder itself.

    Attributes:
        origin: the path or name that the user gave.
        folder: of the encoder.
        settings: settings of the Transformer module, such as `max_seq_length`.
        dense: folders of the Dense layers after the encoder, in order.
        normalize: whether token vectors are normalized.
        query_length: most tokens of a query; None is the encoder's.
        document_length: most tokens of a document; None is the encoder's.
        expansion: how queries are filled up; None if they are not.
        skipped: tokens that get no vector.
        skips_in_queries: whether they get none in queries either.
        is_pylate: whether PyLate saved it, which reads texts in a few ways of its own.
        prompts: prefixes by name.
        markers: prefixes that are one token each, as PyLate inserts them.
    """

    origin: str
    folder: Path
    settings: dict[str, Any]
    dense: tuple[Path, ...]
    normalize: bool
    query_length: int | None
    document_length: int | None
    expansion: Expansion | None
    skipped: tuple[str, ...]
    skips_in_queries: bool
    is_pylate: bool
    prompts: dict[str, str]
    markers: tuple[str, ...]

    def read_dense(self, trust: Trust) -> list[Dense]:
        """The Dense layers.

        Raises:
            ExportError: one cannot be read.
        """
        for folder in self.dense:
            check_names(read_json(folder / "config.json"), folder, "token_embeddings")
        return [read_dense(folder, trust, check=False) for folder in self.dense]


def is_late_interaction(root: Path, modules: Any) -> bool:
    """Whether a directory holds a ColBERT-style model of sentence-transformers or PyLate.

    Args:
        root: the directory.
        modules: content of its modules.json, or None.
    """
    if modules is None:
        return False
    about = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    kinds = {_last(module) for module in modules if isinstance(module, dict)}
    is_named = about.get("model_type") in _MODEL_TYPES
    return is_named or "MultiVectorMask" in kinds or _is_pylate(about, modules)


def read_about_tokens(root: Path, modules: Any, origin: str) -> AboutTokens:
    """What a ColBERT-style model's files say.

    Raises:
        ExportError: it has modules or settings that are not supported.
    """
    refuse_foreign_modules(modules, origin, allowed=(_PYLATE_DENSE,))
    kinds = [_last(module) for module in modules]
    folders = [inside(root, str(module.get("path", ""))) for module in modules]
    unknown = [k for k in kinds[1:] if k not in ("Dense", "MultiVectorMask", "Normalize")]
    if kinds[:1] != ["Transformer"] or unknown:
        raise ExportError(
            f"{origin} must be a Transformer with Dense, MultiVectorMask and Normalize after it, "
            f"but is {kinds}"
        )
    config = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    if config.get("similarity_fn_name") == "meanmaxsim":
        raise ExportError(f"{origin} compares by meanmaxsim, which is not supported")
    settings = read_settings(folders[0], origin, others=_OWN_SETTINGS)
    is_pylate = _is_pylate(config, modules)
    if is_pylate:
        # PyLate sets it at each call, and so saves the limit of the texts that it read last. Its
        # lengths of queries and documents count, and the encoder's positions.
        settings["max_seq_length"] = MOST_TOKENS
    markers = _markers(config)
    prompts, _ = prompts_of(config, origin)
    for name, marker in markers.items():
        prompts[name] = marker + prompts.get(name, "").removeprefix(marker)
    mask: dict[str, Any] = {}
    for kind, folder in zip(kinds, folders, strict=True):
        if kind == "MultiVectorMask":
            mask = read_json(folder / "config.json", missing_ok=True) or {}
        if kind == "Normalize":
            content = read_json(folder / "config.json", missing_ok=True) or {}
            check_names(content, folder, "token_embeddings")
    skipped = config.get("skiplist_words") if is_pylate else mask.get("skiplist_words")
    lengths = [
        _count(config if is_pylate else settings, name, origin)
        for name in ("query_length", "document_length")
    ]
    if is_pylate:
        skipped = list(string.punctuation) if skipped is None else skipped
        lengths = [lengths[0] or _QUERY_LENGTH, lengths[1] or _DOCUMENT_LENGTH]
    if mask.keys() - _MASK_SETTINGS or mask.get("keep_only_token_ids"):
        raise ExportError(f"{origin} has a MultiVectorMask with {sorted(mask)}, not supported")
    tasks = mask.get("skiplist_tasks") or ["document"]
    return AboutTokens(
        origin=origin,
        folder=folders[0],
        settings=settings,
        dense=tuple(f for kind, f in zip(kinds, folders, strict=True) if kind == "Dense"),
        normalize=is_pylate or "Normalize" in kinds,
        query_length=lengths[0],
        document_length=lengths[1],
        expansion=_expansion(config, settings, is_pylate=is_pylate, origin=origin),
        skipped=tuple(_texts(skipped or [], "skiplist_words", origin)) if "document" in tasks
        else (),
        skips_in_queries="query" in tasks,
        is_pylate=is_pylate,
        prompts=prompts,
        markers=tuple(markers.values()),
    )  # fmt: skip


def _is_pylate(config: dict[str, Any], modules: Any) -> bool:
    """Whether PyLate saved a model.

    Saved with sentence-transformers 5, the model says its type. Older ones have no type: they have
    PyLate's own Dense layer, or its name of the similarity.
    """
    if config.get("model_type") is not None:
        return bool(config["model_type"] == "ColBERT")
    types = {module.get("type") for module in modules if isinstance(module, dict)}
    return _PYLATE_DENSE in types or config.get("similarity_fn_name") == _PYLATE_SIMILARITY


def _last(module: dict[str, Any]) -> str:
    return str(module.get("type")).rsplit(".", 1)[-1]


def _markers(config: dict[str, Any]) -> dict[str, str]:
    """PyLate's prefixes, by the name of the prompt that they become."""
    names = {"query": "query_prefix", "document": "document_prefix"}
    return {name: str(config[key] or "") for name, key in names.items() if key in config}


def _expansion(
    config: dict[str, Any], settings: dict[str, Any], *, is_pylate: bool, origin: str
) -> Expansion | None:
    if is_pylate:
        if config.get("do_query_expansion") is False:
            return None
        length = _count(config, "query_length", origin) or _QUERY_LENGTH
        return Expansion(length, None, bool(config.get("attend_to_expansion_tokens")), cuts=True)
    given = settings.get("query_expansion")
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("strategy") not in ("fixed", "min"):
        raise ExportError(f"{origin} has the query_expansion {given!r}, which is not supported")
    expansion_length = _count(given, "length", origin)
    if expansion_length is None:
        raise ExportError(f"{origin} has a query_expansion without length")
    return Expansion(
        expansion_length,
        given.get("token"),
        bool(given.get("attend")),
        cuts=given["strategy"] == "fixed",
    )


def _count(content: dict[str, Any], name: str, origin: str) -> int | None:
    value = content.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ExportError(f"{origin} has the {name} {value!r}, which is not a count")
    return value


def _texts(value: Any, name: str, origin: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ExportError(f"{origin} has {name} that are not texts")
    return value
