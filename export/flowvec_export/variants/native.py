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
from flowvec_export.variants.native_tail import Graph, Tail, tail_of

__all__ = ["check_supported", "native_weights"]

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
    layers, tail = check_supported(proto, manifest, attention)
    assert attention is not None
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    hidden = stored["backbone.embedding_norm.weight"].dims[0]
    rounded, smoothings = rounded_products(
        proto, ids, manifest.max_length, manifest.pad_id, MOST_OF_PAIRS
    )

    def floats(name: str) -> Floats:
        values: Floats = numpy_helper.to_array(stored[f"backbone.{name}"]).astype(np.float32)
        return values

    first = attention.first_position
    tensors: dict[str, npt.NDArray[Any]] = {
        # The row before a text's first is that of tokens that are not counted.
        "positions": floats("positions")[max(first - 1, 0) :],
        **tail.tensors,
    }
    for name in ("relative", "second_type"):
        if f"backbone.{name}" in stored:
            tensors[name] = floats(name)
    tensors["words.weight"], tensors["words.scale"] = _rounded_rows(floats("words"))

    def product(name: str, matrix_name: str = "", bias: Floats | None = None) -> None:
        matrix: Rounded = rounded[matrix_name or f"backbone.{name}.weight"]
        tensors[f"{name}.weight"] = np.ascontiguousarray(matrix.values.T)
        tensors[f"{name}.scale"] = matrix.scales.copy()
        tensors[f"{name}.bias"] = floats(f"{name}.bias") if bias is None else bias

    def norm(name: str, reader: str, parts: Mapping[str, Floats] | None = None) -> None:
        for part in ("weight", "bias"):
            tensors[f"{name}.{part}"] = floats(f"{name}.{part}") if parts is None else parts[part]
        # Where nothing that is rounded reads it, its copy in 8 bits is not used.
        factors = smoothings.get(reader, np.ones(hidden, np.float32))
        tensors[f"{name}.smoothing"] = factors

    head = _Head(proto) if manifest.kind == "sparse" else None

    norm("embedding_norm", "backbone.layers.0.qkv.weight")
    for i in range(layers):
        layer, following = f"layers.{i}", f"backbone.layers.{i + 1}.qkv.weight"
        if head is not None and i + 1 == layers:
            following = head.matrix
        for name in ("qkv", "attention_out", "up", "down"):
            product(f"{layer}.{name}")
        norm(f"{layer}.attention_norm", f"backbone.{layer}.up.weight")
        norm(f"{layer}.output_norm", following)
        if not attention.scale_folded:
            factor = np.float32((hidden // attention.heads) ** -0.5)
            for part in ("scale", "bias"):
                tensors[f"{layer}.qkv.{part}"][:hidden] *= factor
    logs = None
    if head is not None:
        product("head.dense", head.matrix, head.bias)
        norm("head.norm", "pool.weight", head.norm)
        product("head.words", "pool.weight", numpy_helper.to_array(stored["pool.bias"]))
        logs = manifest.transform.count("log1p")
    return Weights(
        layers=layers,
        heads=attention.heads,
        epsilon=_epsilon(proto),
        poolings=_poolings(manifest),
        steps=tuple(tail.steps),
        is_normalized=tail.is_normalized,
        uncounted=first - 1 if first else None,
        logs=logs,
        tensors=tensors,
    )


def check_supported(
    proto: onnx.ModelProto, manifest: Manifest, attention: Attention | None
) -> tuple[int, Tail]:
    """The layers of a model that the native engine computes, and what follows the pooling.

    Args:
        proto: as for `native_weights`, and the others too.
        manifest: of its bundle.
        attention: attention of the encoder.

    Raises:
        ExportError: it does not compute this one.
    """
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}

    def refuse(reason: str) -> ExportError:
        return ExportError(f"the native engine does not compute {reason}")

    if attention is None:
        raise refuse("graphs that are given as ONNX, or encoders that transformers computes")
    if "backbone.layers.0.qkv.weight" not in stored or "backbone.words" not in stored:
        raise refuse("this architecture; it has BERT and those that are alike")
    is_sparse = manifest.kind == "sparse"
    if is_sparse and manifest.pooling != "max":
        raise refuse(f"the pooling {manifest.pooling} of a sparse encoder; it has max")
    modes = _poolings(manifest)
    if others := [mode for mode in modes if mode not in POOLINGS]:
        raise refuse(f"the pooling {others[0]}; it has {', '.join(POOLINGS)}")
    if "pooling.word_weights" in stored:
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
    if len(exact) < layers:
        raise refuse("this activation; it has GELU in its exact form")
    norms = sum(node.op_type == "LayerNormalization" for node in proto.graph.node)
    if norms != 2 * layers + 1 + is_sparse:
        raise refuse("layer normalization behind the pooling")
    if is_sparse:
        return layers, Tail()
    tail = tail_of(proto, len(modes) * hidden, of_tokens=manifest.kind == "multi_vector")
    return layers, tail


class _Head:
    """The dense layer and the normalization before the product for words.

    Attributes:
        matrix: name of the dense layer's matrix.
        bias: of the dense layer, float32 (hidden,).
        norm: weight and bias of the normalization, float32 (hidden,) each.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        """Find them.

        Raises:
            ExportError: it is another head.
        """
        graph = Graph(proto)
        norms = [node for node in proto.graph.node if node.op_type == "LayerNormalization"]
        found = [graph.makers.get(norms[-1].input[0])]
        for operation in ("Gelu", "Add", "MatMul"):
            node = found[-1]
            if node is None or node.op_type != operation:
                raise ExportError(
                    "the native engine does not compute this head; it has a dense layer with GELU"
                )
            inputs = [name for name in node.input if graph.constant(name) is None]
            found.append(graph.makers.get(inputs[0]))
        add, product = found[1], found[2]
        assert add is not None
        assert product is not None
        self.matrix = product.input[1]
        biases = [value for name in add.input if (value := graph.constant(name)) is not None]
        self.bias: Floats = biases[0].astype(np.float32)
        values = [graph.constant(name) for name in norms[-1].input[1:]]
        self.norm: dict[str, Floats] = {
            name: value.astype(np.float32)
            for name, value in zip(("weight", "bias"), values, strict=True)
            if value is not None
        }


def _poolings(manifest: Manifest) -> tuple[str, ...]:
    """The parts of a pooled vector; one of a token is its own state.

    BERT's pooler and the heads of rerankers are steps behind the first token.
    """
    if manifest.kind != "embedder" or manifest.pooling == "pooler":
        return ("cls",)
    return tuple(manifest.pooling.split("+"))


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
