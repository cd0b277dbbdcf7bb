"""The int8-native variant: weights in 8 bits for flowvec's own engine.

It is the same model in the same 8 bits as the other int8 variants (`gptq.py`), in the file that
`flowvec.native.weights` describes. The engine also rounds what the other engines do not: the
products of attention, and the table of words, which has a scale for each row.
"""

from __future__ import annotations

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
    hidden = stored["backbone.words"].dims[1]
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

    parts = _Parts(proto)

    def product(name: str, matrix: str) -> None:
        tensors[f"{name}.weight"] = np.ascontiguousarray(rounded[matrix].values.T)
        tensors[f"{name}.scale"] = rounded[matrix].scales.copy()
        if name != "head.words":
            tensors[f"{name}.bias"] = parts.bias(matrix)

    def norm(name: str, number: int, reader: str) -> None:
        for part, values in parts.norm(number).items():
            tensors[f"{name}.{part}"] = values
        # Where nothing that is rounded reads it, its copy in 8 bits is not used.
        tensors[f"{name}.smoothing"] = smoothings.get(reader, np.ones(hidden, np.float32))

    head = parts.head() if manifest.kind == "sparse" else ""
    norm("embedding_norm", 0, "backbone.layers.0.qkv.weight")
    for i in range(layers):
        layer, following = f"layers.{i}", f"backbone.layers.{i + 1}.qkv.weight"
        for name in ("qkv", "attention_out", "up", "down"):
            product(f"{layer}.{name}", f"backbone.{layer}.{name}.weight")
        norm(f"{layer}.attention_norm", 2 * i + 1, f"backbone.{layer}.up.weight")
        norm(f"{layer}.output_norm", 2 * i + 2, following if i + 1 < layers else head)
        if not attention.scale_folded:
            factor = np.float32((hidden // attention.heads) ** -0.5)
            for part in ("scale", "bias"):
                tensors[f"{layer}.qkv.{part}"][:hidden] *= factor
    logs = None
    if head:
        product("head.dense", head)
        norm("head.norm", -1, "pool.weight")
        product("head.words", "pool.weight")
        tensors["head.words.bias"] = numpy_helper.to_array(stored["pool.bias"]).astype(np.float32)
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
    if manifest.weights != "float32":
        raise refuse(f"weights that are stored in {manifest.weights}")
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
    hidden = stored["backbone.words"].dims[1]
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


class _Parts:
    """Biases and normalizations by their place in the graph, where equal tensors have one name."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._graph = Graph(proto)
        self._norms = [node for node in proto.graph.node if node.op_type == "LayerNormalization"]
        self._readers = {name: node for node in proto.graph.node for name in node.input}

    def bias(self, matrix: str) -> Floats:
        """What is added to the product by a stored matrix, float32 (columns,)."""
        add = self._readers[self._readers[matrix].output[0]]
        values = [value for name in add.input if (value := self._graph.constant(name)) is not None]
        bias: Floats = values[0].astype(np.float32)
        return bias

    def norm(self, number: int) -> dict[str, Floats]:
        """Weight and bias of a normalization, float32 (hidden,) each."""
        values = [self._graph.constant(name) for name in self._norms[number].input[1:]]
        return {
            name: value.astype(np.float32)
            for name, value in zip(("weight", "bias"), values, strict=True)
            if value is not None
        }

    def head(self) -> str:
        """The stored matrix of the dense layer before the last normalization.

        Raises:
            ExportError: it is another head.
        """
        node = self._graph.makers.get(self._norms[-1].input[0])
        for operation in ("Gelu", "Add", "MatMul"):
            if node is None or node.op_type != operation:
                raise ExportError(
                    "the native engine does not compute this head; it has a dense layer with GELU"
                )
            if operation == "MatMul":
                break
            inputs = [name for name in node.input if self._graph.constant(name) is None]
            node = self._graph.makers.get(inputs[0])
        assert node is not None
        return str(node.input[1])


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
