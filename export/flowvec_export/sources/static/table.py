"""Reads and checks the table of a static embedder. NumPy is enough, except for a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import ExportError, first_line
from flowvec.optional import require
from flowvec_export.assembly.from_table import Table
from flowvec_export.sources.base import require_torch
from flowvec_export.sources.files import find_weights
from flowvec_export.trust import Trust

__all__ = ["MODEL2VEC", "read_arrays", "table_of", "types_of"]

Arrays = dict[str, npt.NDArray[Any]]

# The table's name in model2vec's files, and in sentence-transformers'.
MODEL2VEC, _BAG = "embeddings", "embedding.weight"
_KNOWN = {MODEL2VEC, _BAG, "weights", "mapping"}
_TABLE_TYPES = ("F16", "F32", "F64", "I8")
_TYPES = {
    "weights": ("F16", "F32", "F64"),
    "mapping": ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64"),
}


def types_of(file: Path, origin: str) -> dict[str, str]:
    """The type of each tensor of a file, as safetensors names it.

    Raises:
        ExportError: it cannot be read.
        MissingDependencyError: safetensors is not installed.
    """
    require(f"{origin}, a static embedder,", "cpu,onnx", "safetensors")
    import safetensors

    try:
        with safetensors.safe_open(file, "np") as opened:
            return {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors raises its own types
        raise ExportError(f"cannot read {file}: {first_line(error)}") from None


def read_arrays(folder: Path, origin: str, trust: Trust) -> Arrays:
    """The tensors of a static embedder, with types that are supported.

    Raises:
        ExportError: they cannot be read, one has another type, or there are others.
    """
    arrays: Arrays = {}
    for file in find_weights(folder, origin, trust):
        if file.suffix != ".safetensors":
            arrays |= _read_pickle(file)
            continue
        for name, kind in types_of(file, origin).items():
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
    if len(arrays.keys() & {MODEL2VEC, _BAG}) != 1:
        raise ExportError(f"{origin} must have one table, {_BAG} or {MODEL2VEC}")
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


def table_of(arrays: Arrays, vocabulary: int, origin: str) -> Table:
    """The table, with a row for each token of the vocabulary.

    Raises:
        ExportError: a token has no row or no weight, or a number is not finite.
    """
    rows = arrays.get(MODEL2VEC, arrays.get(_BAG))
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
