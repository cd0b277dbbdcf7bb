"""The int8-native variant: weights in 8 bits for flowvec's own engine.

It is the same model in the same 8 bits as the other int8 variants (`gptq.py`), in the file that
`flowvec.native.weights` describes. The engine also rounds what the other engines do not: the
products of attention, and the table of words, which has a scale for each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from flowvec.bundle.manifest import Manifest
from flowvec.errors import ExportError
from flowvec.native.weights import MOST_OF_PAIRS, POOLINGS, Weights
from flowvec.tokenizer.token_ids import TokenIds
from flowvec_export.assembly.draft import Attention
from flowvec_export.variants.gptq import Rounded
from flowvec_export.variants.int8 import rounded_products

__all__ = ["native_weights"]

Floats = npt.NDArray[np.float32]

_TINY = 1e-12
_HEAD_WIDTHS = (32, 64)
_COLUMNS = 64  # hidden sizes are multiples of it


def native_weights(
    proto: onnx.ModelProto, ids: TokenIds, manifest: Manifest, attention: Attention | None
) -> Weights:
    """Round a model's weights for the native engine.

    Args:
        proto: the float32 graph, as the exporter makes it.
        ids: token ids of the texts that rounding is optimized for.
        manifest: of its bundle.
        attention: attention of the encoder; None for a given ONNX graph.

    Raises:
        ExportError: the native engine does not compute this model.
    """
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    layers = _supported(stored, proto, manifest, attention)
    assert attention is not None
    rounded, smoothings = rounded_products(
        proto, ids, manifest.max_length, manifest.pad_id, MOST_OF_PAIRS
    )

    def floats(name: str) -> Floats:
        values: Floats = numpy_helper.to_array(stored[f"backbone.{name}"]).astype(np.float32)
        return values

    hidden = len(floats("embedding_norm.weight"))
    first = attention.first_position
    tensors: dict[str, npt.NDArray[Any]] = {
        # The row before a text's first is that of tokens that are not counted.
        "positions": floats("positions")[max(first - 1, 0) :],
    }
    tensors["words.weight"], tensors["words.scale"] = _rounded_rows(floats("words"))

    def product(name: str) -> None:
        matrix: Rounded = rounded[f"backbone.{name}.weight"]
        tensors[f"{name}.weight"] = np.ascontiguousarray(matrix.values.T)
        tensors[f"{name}.scale"] = matrix.scales.copy()
        tensors[f"{name}.bias"] = floats(f"{name}.bias")

    def norm(name: str, reader: str | None) -> None:
        for part in ("weight", "bias"):
            tensors[f"{name}.{part}"] = floats(f"{name}.{part}")
        ones = np.ones(hidden, np.float32)
        factors = ones if reader is None else smoothings[f"backbone.{reader}.weight"]
        tensors[f"{name}.smoothing"] = factors

    norm("embedding_norm", "layers.0.qkv")
    for i in range(layers):
        layer, following = f"layers.{i}", f"layers.{i + 1}.qkv"
        for name in ("qkv", "attention_out", "up", "down"):
            product(f"{layer}.{name}")
        norm(f"{layer}.attention_norm", f"{layer}.up")
        norm(f"{layer}.output_norm", following if i + 1 < layers else None)
        if not attention.scale_folded:
            factor = np.float32((hidden // attention.heads) ** -0.5)
            for part in ("scale", "bias"):
                tensors[f"{layer}.qkv.{part}"][:hidden] *= factor
    return Weights(
        layers=layers,
        heads=attention.heads,
        epsilon=_epsilon(proto),
        poolings=tuple(manifest.pooling.split("+")),
        is_normalized=manifest.normalised,
        uncounted=first - 1 if first else None,
        tensors=tensors,
    )


def _supported(
    stored: Mapping[str, onnx.TensorProto],
    proto: onnx.ModelProto,
    manifest: Manifest,
    attention: Attention | None,
) -> int:
    """The number of layers of a model that the native engine computes.

    Raises:
        ExportError: it does not compute this one.
    """

    def refuse(reason: str) -> ExportError:
        return ExportError(f"the native engine does not compute {reason}")

    if attention is None:
        raise refuse("graphs that are given as ONNX")
    if "backbone.layers.0.qkv.weight" not in stored or "backbone.words" not in stored:
        raise refuse("this architecture; it has BERT, RoBERTa, XLM-R, CamemBERT and DistilBERT")
    if manifest.transform:
        raise refuse(f"transforms, such as {manifest.transform[0]}")
    modes = manifest.pooling.split("+")
    if others := [mode for mode in modes if mode not in POOLINGS]:
        raise refuse(f"the pooling {others[0]}; it has {', '.join(POOLINGS)}")
    if any(name.startswith("pooling.") for name in stored):
        raise refuse("weights of words in the mean")
    hidden = stored["backbone.embedding_norm.weight"].dims[0]
    if hidden % _COLUMNS or hidden // attention.heads not in _HEAD_WIDTHS:
        raise refuse(
            f"{attention.heads} heads of {hidden} channels; a head has 32 or 64 of a multiple of "
            f"{_COLUMNS}"
        )
    layers = sum(name.endswith(".qkv.weight") for name in stored)
    exact = [
        node
        for node in proto.graph.node
        if node.op_type == "Gelu" and all(a.s in (b"", b"none") for a in node.attribute)
    ]
    if len(exact) != layers:
        raise refuse("this activation; it has GELU in its exact form")
    return layers


def _epsilon(proto: onnx.ModelProto) -> float:
    for node in proto.graph.node:
        if node.op_type == "LayerNormalization":
            for attribute in node.attribute:
                if attribute.name == "epsilon":
                    return float(attribute.f)
    return 1e-5  # ONNX's default


def _rounded_rows(table: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """A table in 8 bits, with a scale for each row."""
    scales = np.maximum(np.abs(table).max(axis=1), _TINY) / np.float32(127)
    return np.rint(table / scales[:, None]).astype(np.int8), scales
