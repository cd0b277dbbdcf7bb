"""Reads a static embedder, as the library computes it that wrote it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import tokenizers

from flowvec.errors import ExportError
from flowvec_export.assembly.token_parity import OwnTokens
from flowvec_export.sources.base import (
    MOST_TOKENS,
    bounded_length,
    model_name,
    read_licence,
)
from flowvec_export.sources.files import check_tokenizer, read_json
from flowvec_export.sources.sentence_transformers import Modules
from flowvec_export.sources.static.source import StaticSource
from flowvec_export.sources.static.table import MODEL2VEC, read_arrays, table_of
from flowvec_export.sources.tokenizer import plain_tokenizer, read_tokenizer, refuse_left
from flowvec_export.trust import Trust

__all__ = ["read_static"]

# model2vec's own limit if the configuration names none.
_MODEL2VEC_LENGTH = 512
# Files of a classifier that was trained on a model2vec model.
_HEADS = ("head.safetensors", "pipeline.skops")
_PADDING = ("[PAD]", "<pad>")


def read_static(
    root: Path,
    folder: Path,
    origin: str,
    modules: Modules | None,
    trust: Trust,
    *,
    encoder_only: bool = False,
) -> StaticSource:
    """Read a static embedder; `folder` holds the table, `root` the whole model.

    Args:
        root: the directory.
        folder: the folder of the table and the tokenizer.
        origin: name of the source, for messages.
        modules: what its modules.json says, if it has one.
        trust: whether a pickle may be read.
        encoder_only: leave out a classifier that was trained on the vectors.

    Raises:
        ExportError: a file is missing or outside the directory, or the model is not supported.
    """
    arrays = read_arrays(folder, origin, trust)
    check_tokenizer(folder)
    loaded = read_tokenizer(folder / "tokenizer.json")
    refuse_left(origin, (loaded.truncation or {}).get("direction"))
    tokenizer = _without_template(loaded)
    vocabulary = max(tokenizer.get_vocab().values(), default=-1) + 1
    table = table_of(arrays, vocabulary, origin)
    source = StaticSource(
        name=model_name(root, origin),
        origin=origin,
        tokenizer=tokenizer,
        pad_id=_pad_id(loaded, vocabulary),
        max_length=bounded_length(origin, _own_length(loaded), MOST_TOKENS),
        vocabulary=vocabulary,
        layers=0,
        pooling="mean",
        normalize=False,
        licence=read_licence(root),
        table=table,
        own_tokens=_own_tokens(loaded),
    )
    if modules is not None:
        modules.complete(source, trust)
    if MODEL2VEC in arrays and (folder / "config.json").is_file() and folder == root:
        _complete_as_model2vec(source, root, modules, encoder_only=encoder_only)
    source.tuned = True
    return source


def _complete_as_model2vec(
    source: StaticSource, root: Path, modules: Modules | None, *, encoder_only: bool
) -> None:
    """Add what model2vec reads from its configuration and its tokenizer.

    Raises:
        ExportError: there is a trained head, another module follows, or a setting is not valid.
    """
    origin = source.origin
    config = read_json(root / "config.json")
    heads = [name for name in _HEADS if (root / name).is_file()]
    if not encoder_only and (heads or config.get("head_config")):
        raise ExportError(
            f"{origin} has a trained head ({', '.join(heads) or 'head_config'}): a classifier of "
            "model2vec, which gives labels, not vectors; --encoder-only exports the vectors under "
            "it"
        )
    if modules is not None and modules.dense:
        raise ExportError(
            f"{origin} has a Dense module after model2vec's table, which model2vec does not apply; "
            "load it with sentence-transformers, and export what that saves"
        )
    normalize = config.get("normalize", False)
    if not isinstance(normalize, bool):
        raise ExportError(f"{origin} sets normalize to {normalize!r}, which is not true or false")
    source.normalize = normalize
    source.table = replace(source.table, ignored=_unknown_id(source.tokenizer))
    length = config.get("max_length", _MODEL2VEC_LENGTH)
    if length is None:
        source.max_length = MOST_TOKENS
        return
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ExportError(f"{origin} has the max_length {length!r}, which is not a whole number")
    source.max_length = min(length, MOST_TOKENS)
    sizes = [len(token) for token in source.tokenizer.get_vocab()]
    source.characters = int(np.median(sizes)) or None


def _own_length(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Where the tokenizer's own file cuts texts; sentence-transformers keeps that setting."""
    truncation = tokenizer.truncation
    return None if truncation is None else int(truncation["max_length"])


def _own_tokens(loaded: tokenizers.Tokenizer) -> OwnTokens:
    """How model2vec and sentence-transformers read a text: by tokenizer.json alone."""
    own = plain_tokenizer(loaded, lower_case=False)

    def ids(text: str, second: str | None) -> list[int]:
        made: list[int] = own.encode(text, second, add_special_tokens=False).ids
        return made

    return ids


def _without_template(loaded: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy that adds no special tokens, since the table's libraries add none."""
    content = json.loads(plain_tokenizer(loaded, lower_case=False).to_str())
    content["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def _unknown_id(tokenizer: tokenizers.Tokenizer) -> int | None:
    """The id of the unknown token, which model2vec removes from texts; None without one."""
    model = json.loads(tokenizer.to_str())["model"]
    if "unk_id" in model:  # Unigram
        return None if model["unk_id"] is None else int(model["unk_id"])
    token = model.get("unk_token")
    return None if token is None else tokenizer.token_to_id(token)


def _pad_id(tokenizer: tokenizers.Tokenizer, vocabulary: int) -> int:
    """The padding token's id; any id will do, since the mask leaves it out."""
    named = [tokenizer.token_to_id(token) for token in _PADDING]
    ids = [(tokenizer.padding or {}).get("pad_id"), *named, 0]
    return next(i for i in ids if isinstance(i, int) and 0 <= i < max(1, vocabulary))
