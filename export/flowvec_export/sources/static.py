"""Reads static embedders: sentence-transformers' StaticEmbedding and model2vec's directories.

Both are a tokenizer and a table with a vector for each token; a text's vector is the mean of its
tokens' vectors. They differ in what counts, and a directory is computed as by the library that
wrote it:

    sentence-transformers   every token counts; a text may have any length
    model2vec               unknown tokens do not count; a text is cut at 512 tokens, and before
                            that at 512 times the median length of a token in characters

Special tokens are not added. NumPy reads the table; torch is only needed for a pickle or a Dense
module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tokenizers

from flowvec.compat import override
from flowvec.errors import ExportError, first_line
from flowvec.optional import require
from flowvec_export.assembly.draft import Draft, Weights, check_steps
from flowvec_export.assembly.from_table import Table, draft_of_table
from flowvec_export.sources.base import (
    MOST_TOKENS,
    Source,
    bounded_length,
    model_name,
    plain_tokenizer,
    read_licence,
    read_tokenizer,
    require_torch,
)
from flowvec_export.sources.files import check_tokenizer, find_weights, read_json
from flowvec_export.sources.sentence_transformers import Modules
from flowvec_export.trust import Trust

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = ["StaticSource", "is_static", "may_be_static", "read_static"]

Arrays = dict[str, npt.NDArray[Any]]

# The table's name in model2vec's files, and in sentence-transformers'.
_MODEL2VEC, _BAG = "embeddings", "embedding.weight"
_KNOWN = {_MODEL2VEC, _BAG, "weights", "mapping"}
_TABLE_TYPES = ("F16", "F32", "F64", "I8")
_TYPES = {
    "weights": ("F16", "F32", "F64"),
    "mapping": ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"),
}
# model2vec's own limit if the configuration names none.
_MODEL2VEC_LENGTH = 512
# Files of a classifier that was trained on a model2vec model.
_HEADS = ("head.safetensors", "pipeline.skops")
_PADDING = ("[PAD]", "<pad>")


@dataclass(slots=True, kw_only=True)
class StaticSource(Source):
    """A table of token vectors.

    Attributes:
        table: the vectors, and how a text's tokens become one vector.
        characters: characters for each token of max_length at which a text is cut; None if a text
            is only cut by tokens.
    """

    table: Table
    characters: int | None = None

    @override
    def draft(
        self,
        length: int,
        pooling: str | None,
        added: Sequence[Transform],
        normalize: bool | None,
        weights: Weights,
    ) -> Draft:
        steps = [*self.transforms, *added]
        check_steps(steps, self.pooled_width(pooling))
        if normalize is None:
            normalize = True if self.normalize is None else self.normalize
        return draft_of_table(
            self.table, steps, normalize=normalize, weights=weights, origin=self.origin
        )

    @override
    def pooled_width(self, pooling: str | None) -> int:
        if pooling not in (None, "mean"):
            raise ExportError(
                f"{self.origin} is a static embedder, whose vectors are means of its tokens, so it "
                f"has no pooling {pooling}"
            )
        return self.table.width

    @override
    def max_characters(self, length: int) -> int | None:
        return None if self.characters is None else self.characters * length

    @override
    def sha256(self) -> str:
        """SHA-256 (hex) of the table and of the layers that follow it."""
        table = self.table
        digest = hashlib.sha256(f"static {table.ignored}".encode())
        for values in (table.rows, table.row_of, table.weights):
            digest.update(b"none" if values is None else f"{values.dtype}{values.shape}".encode())
            digest.update(b"" if values is None else np.ascontiguousarray(values).data)
        for place, module in enumerate(self.transforms):
            for name, tensor in sorted(module.state_dict().items()):
                digest.update(f"{place} {name} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().float().contiguous().numpy().tobytes())
        return digest.hexdigest()


def is_static(root: Path, modules: Modules | None) -> bool:
    """Whether a directory holds a static embedder.

    Args:
        root: the directory.
        modules: what its modules.json says, if it has one.

    Raises:
        MissingDependencyError: safetensors is not installed, and is needed to tell.
    """
    if modules is not None:
        return modules.is_static
    config = read_json(root / "config.json", missing_ok=True) or {}
    if "model_type" in config:
        return str(config["model_type"]) == "model2vec"
    # Older versions of model2vec do not name themselves.
    file = root / "model.safetensors"
    if not file.is_file():
        return False
    try:
        return _MODEL2VEC in _types_of(file, str(root))
    except ExportError:
        return False  # whoever reads the weights reports it


def may_be_static(root: Path) -> bool:
    """Whether a directory's configuration is that of a static embedder, as far as it says so.

    Its weights are not looked at, because they may not be downloaded yet.
    """
    modules = read_json(root / "modules.json", list, missing_ok=True)
    if modules:
        first = modules[0]
        return isinstance(first, dict) and str(first.get("type")).endswith("StaticEmbedding")
    config = read_json(root / "config.json", missing_ok=True) or {}
    return str(config.get("model_type", "model2vec")) == "model2vec"


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
    arrays = _read_arrays(folder, origin, trust)
    check_tokenizer(folder)
    loaded = read_tokenizer(folder / "tokenizer.json")
    if (loaded.truncation or {}).get("direction") == "left":
        raise ExportError(f"{origin} cuts long texts on the left, which is not supported")
    tokenizer = _without_template(loaded)
    vocabulary = max(tokenizer.get_vocab().values(), default=-1) + 1
    table = _table(arrays, vocabulary, origin)
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
    )
    if modules is not None:
        modules.complete(source, trust)
    if _MODEL2VEC in arrays and (folder / "config.json").is_file() and folder == root:
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


def _types_of(file: Path, origin: str) -> dict[str, str]:
    """The type of each tensor of a file, as safetensors names it."""
    require(f"{origin}, a static embedder,", "cpu,onnx", "safetensors")
    import safetensors

    try:
        with safetensors.safe_open(file, "np") as opened:
            return {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises its own types
        raise ExportError(f"cannot read {file}: {first_line(error)}") from None


def _read_arrays(folder: Path, origin: str, trust: Trust) -> Arrays:
    """The tensors of a static embedder, with types that are supported.

    Raises:
        ExportError: they cannot be read, one has another type, or there are others.
    """
    arrays: Arrays = {}
    for file in find_weights(folder, origin, trust):
        if file.suffix != ".safetensors":
            arrays |= _read_pickle(file)
            continue
        for name, kind in _types_of(file, origin).items():
            if kind not in _TYPES.get(name, _TABLE_TYPES):
                raise ExportError(
                    f"{origin} stores {name} as {kind}, which is not supported; save it as one of "
                    f"{', '.join(_TYPES.get(name, _TABLE_TYPES))}"
                )
        import safetensors.numpy

        arrays |= safetensors.numpy.load_file(file)
    if other := sorted(arrays.keys() - _KNOWN):
        raise ExportError(
            f"{origin} has weights such as {other[0]}, which a static embedder has not"
        )
    if len(arrays.keys() & {_MODEL2VEC, _BAG}) != 1:
        raise ExportError(f"{origin} must have one table, {_BAG} or {_MODEL2VEC}")
    return arrays


def _read_pickle(file: Path) -> Arrays:
    """The tensors of an allowed pickle; torch loads it without running code."""
    require_torch(f"{file}, a pickle,")
    import torch

    try:
        state = torch.load(file, weights_only=True, map_location="cpu")
        return {name: tensor.float().numpy() for name, tensor in state.items()}
    except Exception as error:  # torch raises many types
        raise ExportError(f"cannot read {file}: {first_line(error)}") from None


def _table(arrays: Arrays, vocabulary: int, origin: str) -> Table:
    """The table, with a row for each token of the vocabulary.

    Raises:
        ExportError: a token has no row or no weight, or a number is not finite.
    """
    rows = arrays.get(_MODEL2VEC, arrays.get(_BAG))
    assert rows is not None
    mapping, weights = arrays.get("mapping"), arrays.get("weights")
    tokens = len(rows if mapping is None else mapping)
    if rows.ndim != 2 or not rows.size:
        raise ExportError(f"{origin} has a table of shape {rows.shape}, not (rows, width)")
    if mapping is None:
        if len(rows) < vocabulary:
            raise ExportError(
                f"{origin} has {len(rows)} vectors for a vocabulary of {vocabulary} tokens"
            )
        rows = rows[:vocabulary]
    elif mapping.ndim != 1 or len(mapping) < vocabulary:
        raise ExportError(
            f"{origin} has a mapping of shape {mapping.shape} for a vocabulary of {vocabulary} "
            "tokens"
        )
    elif mapping.min() < 0 or mapping.max() >= len(rows):
        raise ExportError(
            f"{origin} has a mapping to rows {mapping.min()} to {mapping.max()} of a table of "
            f"{len(rows)} rows"
        )
    if weights is not None and weights.shape != (tokens,):
        raise ExportError(f"{origin} has weights of shape {weights.shape} for {tokens} tokens")
    if rows.dtype != np.int8:
        rows = _as_float32(rows, "vector", origin)
    return Table(
        rows,
        row_of=None if mapping is None else mapping[:vocabulary].astype(np.int32),
        weights=None if weights is None else _as_float32(weights[:vocabulary], "weight", origin),
    )


def _as_float32(values: npt.NDArray[Any], what: str, origin: str) -> npt.NDArray[np.float32]:
    """Values in float32.

    Raises:
        ExportError: one is NaN or infinite; the message names its row.
    """
    with np.errstate(over="ignore"):
        exact = values.astype(np.float32)
    is_finite = np.isfinite(exact).reshape(len(exact), -1).all(axis=1)
    if not is_finite.all():
        raise ExportError(
            f"{origin} has a {what} with NaN or infinity, in row {int(np.argmin(is_finite))}"
        )
    return exact


def _own_length(tokenizer: tokenizers.Tokenizer) -> int | None:
    """Where the tokenizer's own file cuts texts; sentence-transformers keeps that setting."""
    truncation = tokenizer.truncation
    return None if truncation is None else int(truncation["max_length"])


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
