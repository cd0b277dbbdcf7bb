"""Reads modules.json and the files that it names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvec.errors import ExportError
from flowvec_export.sources.base import Source
from flowvec_export.sources.files import inside, read_json
from flowvec_export.sources.sentence_transformers.layers import (
    check_names,
    read_dense,
    read_word_weights,
)
from flowvec_export.sources.sentence_transformers.settings import (
    pooling_modes,
    prompts_of,
    read_settings,
    refuse_foreign_modules,
)
from flowvec_export.trust import Trust

__all__ = ["Modules", "read_modules"]

# Modules that need no files.
_WITHOUT_FILES = ("Dropout", "Normalize")
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
            source.weigh_words(read_word_weights(self.word_weights, source, trust))
        if not source.is_finished:  # a graph with finished vectors contains its Dense layers
            source.transforms += [read_dense(folder, trust) for folder in self.dense]
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
    refuse_foreign_modules(modules, origin)
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    folders = [inside(root, str(module.get("path", ""))) for module in modules]
    for kind, folder in zip(kinds, folders, strict=True):
        # Neither hubs nor git keep an empty folder.
        if kind not in _WITHOUT_FILES and not folder.is_dir():
            raise ExportError(
                f"{origin} is a sentence-transformers model without the folder {folder.name} of "
                f"its module {kind}, which modules.json names: copy the whole model"
            )
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
        settings = read_settings(folders[0], origin)
        pooling = read_json(folders[1] / "config.json")
    later = list(zip(kinds, folders, strict=True))[1 if is_static else 2 :]
    dense, normalize = _layers(later, origin)
    config = read_json(root / "config_sentence_transformers.json", missing_ok=True) or {}
    if config.get("truncate_dim") is not None:
        raise ExportError(f"{origin} has a truncate_dim, which is not supported")
    prompts, default = prompts_of(config, origin)
    similarity = config.get("similarity_fn_name") or "cosine"
    if similarity not in _SIMILARITIES:
        raise ExportError(f"{origin} compares by {similarity!r}, which is not supported")
    return Modules(
        encoder=folders[0],
        is_static=is_static,
        settings=settings,
        pooling="+".join(pooling_modes(pooling, origin)),
        word_weights=weights,
        dense=dense,
        normalize=normalize,
        prompts=prompts,
        default_prompt_name=default,
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
            check_names(read_json(folder / "config.json", missing_ok=True) or {}, folder)
            normalize = True
        elif kind != "Dropout":  # dropout only acts in training
            raise ExportError(f"{origin} has a module {kind}, which is not supported")
    return tuple(dense), normalize
