"""Reads a graph as a source, with the tokenizer and the configuration beside it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import tokenizers

from flowvec.errors import ExportError
from flowvec_export.assembly.token_parity import OwnTokens, require_same_files
from flowvec_export.layers.names import OFFSET_POSITIONS
from flowvec_export.sources.base import bounded_length, model_name, read_licence
from flowvec_export.sources.cross_encoder import AboutPairs
from flowvec_export.sources.files import check_tokenizer, read_json
from flowvec_export.sources.onnx.checks import (
    check_inputs,
    check_logits,
    check_operators,
    output_widths,
)
from flowvec_export.sources.onnx.loading import load_graph
from flowvec_export.sources.onnx.names import IDS, MASK, POOLER, SENTENCE, TOKENS, TYPES
from flowvec_export.sources.onnx.source import OnnxPairs, OnnxSource
from flowvec_export.sources.token_types import gives_token_types
from flowvec_export.sources.tokenizer import plain_tokenizer, refuse_left
from flowvec_export.sources.tokenizer_settings import read_with_settings

__all__ = ["find_graph", "read_graph", "read_pair_graph"]


def find_graph(root: Path) -> Path | None:
    """The graph of a directory that Optimum or sentence-transformers wrote, if it has one."""
    return next(
        (root / name for name in ("model.onnx", "onnx/model.onnx") if (root / name).is_file()), None
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """A graph, and what the files beside it say.

    Attributes:
        proto: the graph, its weights inside.
        config: content of config.json.
        marks: content of tokenizer_config.json.
        tokenizer: without truncation and padding.
        pad_id: the padding token's id.
        max_length: most tokens; None if neither settings nor positions limit it.
        vocabulary: number of token ids.
        layers: transformer layers, if the configuration says so.
        own_tokens: how transformers reads a text or a pair; None if it is not installed.
    """

    proto: onnx.ModelProto
    config: dict[str, Any]
    marks: dict[str, Any]
    tokenizer: tokenizers.Tokenizer
    pad_id: int
    max_length: int | None
    vocabulary: int
    layers: int | None
    own_tokens: OwnTokens | None


def _read_files(graph: Path, folder: Path, origin: str, length: Any, *, lower_case: bool) -> _Files:
    """Read and check everything that graphs of both kinds need.

    Args:
        graph: the .onnx file.
        folder: the folder of its configuration and tokenizer.
        origin: name of the source, for messages.
        length: most tokens by other settings; None takes the tokenizer's.
        lower_case: whether texts are lower-cased first.

    Raises:
        ExportError: a file is missing or outside the directory, or the graph is not supported.
    """
    config = read_json(folder / "config.json")
    marks = check_tokenizer(folder)
    files = read_with_settings(folder, marks, config)
    loaded = files.tokenizer
    refuse_left(origin, marks.get("truncation_side"), (loaded.truncation or {}).get("direction"))
    tokenizer = plain_tokenizer(loaded, lower_case=lower_case)
    own = _own_tokens(folder, origin, marks, lower_case=lower_case)
    if own is not None:
        require_same_files(tokenizer, own, origin)
    proto = load_graph(graph)
    check_operators(proto, origin)
    check_inputs(proto, origin)
    pad_id = _pad_id(config, files.settings, tokenizer)
    vocabulary = _count(config, "vocab_size", 2, origin)
    limit = length or marks.get("model_max_length")
    return _Files(
        proto=proto,
        config=config,
        marks=marks,
        tokenizer=tokenizer,
        pad_id=pad_id,
        max_length=bounded_length(origin, limit, _positions(config, pad_id)),
        vocabulary=tokenizer.get_vocab_size() if vocabulary is None else vocabulary,
        layers=_count(config, "num_hidden_layers", 0, origin),
        own_tokens=own,
    )


def _own_tokens(
    folder: Path, origin: str, marks: dict[str, Any], *, lower_case: bool
) -> OwnTokens | None:
    """How transformers reads a text, which an ONNX graph needs for the comparison only."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from flowvec_export.sources.transformers_tokenizer import own_tokens_of

    return own_tokens_of(folder, origin, marks, lower_case=lower_case)


def read_graph(
    graph: Path, root: Path, folder: Path, origin: str, settings: dict[str, Any]
) -> OnnxSource:
    """Read an ONNX file; `folder` has its configuration and tokenizer, `root` the whole model.

    Raises:
        ExportError: a file is missing or outside the directory, or the graph is not supported.
    """
    files = _read_files(
        graph,
        folder,
        origin,
        settings.get("max_seq_length"),
        lower_case=bool(settings.get("do_lower_case")),
    )
    widths = output_widths(files.proto, origin, files.config)
    return OnnxSource(
        name=model_name(root, origin),
        origin=origin,
        tokenizer=files.tokenizer,
        pad_id=files.pad_id,
        max_length=files.max_length,
        vocabulary=files.vocabulary,
        layers=files.layers,
        own_tokens=files.own_tokens,
        licence=read_licence(root),
        proto=files.proto,
        tokens=next((name for name in TOKENS if name in widths), None),
        sentence=SENTENCE if SENTENCE in widths else None,
        pooler=POOLER if POOLER in widths else None,
        widths=widths,
    )


def read_pair_graph(graph: Path, root: Path, folder: Path, about: AboutPairs) -> OnnxPairs:
    """Read an ONNX file of a cross-encoder; arguments as `read_graph`.

    Raises:
        ExportError: a file is missing or outside the directory, or the graph is not supported.
    """
    origin = about.origin
    files = _read_files(graph, folder, origin, about.max_length, lower_case=about.lower_case)
    check_logits(files.proto, len(about.head.labels), origin)
    takes_types = any(value.name == TYPES for value in files.proto.graph.input)
    with_types = takes_types and gives_token_types(files.marks, files.config, origin)
    return OnnxPairs(
        name=model_name(root, origin),
        about=about,
        tokenizer=files.tokenizer,
        pad_id=files.pad_id,
        max_length=files.max_length,
        vocabulary=files.vocabulary,
        layers=files.layers,
        own_tokens=files.own_tokens,
        licence=read_licence(root),
        proto=files.proto,
        inputs=(IDS, MASK, TYPES) if with_types else (IDS, MASK),
    )


def _count(config: dict[str, Any], name: str, least: int, origin: str) -> int | None:
    """A number in the configuration; None if it is not there."""
    size = config.get(name)
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise ExportError(f"{origin} has the {name} {size!r}, which is not a whole number")
    if size is not None and size < least:
        raise ExportError(f"{origin} has the {name} {size}; it must be at least {least}")
    return size


def _pad_id(config: dict[str, Any], marks: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> int:
    """The padding token's id, from the tokenizer or the configuration."""
    token = marks.get("pad_token")
    if isinstance(token, dict):
        token = token.get("content")
    pad_id = tokenizer.token_to_id(token) if isinstance(token, str) else config.get("pad_token_id")
    return pad_id if isinstance(pad_id, int) and pad_id >= 0 else 0


def _positions(config: dict[str, Any], pad_id: int) -> int | None:
    """Most tokens of a text by the position table; None without such a table."""
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    return positions - (pad_id + 1 if config.get("model_type") in OFFSET_POSITIONS else 0)
