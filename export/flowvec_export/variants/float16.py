"""The float16 variant, for GPUs: matrix products and attention in half precision.

Attention is one operator, ONNX Runtime's `MultiHeadAttention`. Texts are right-padded, so its mask
is their lengths: the mask's row sums, followed by the positions at which each text's queries and
keys begin. By ONNX Runtime's sources (`contrib_ops/cuda/bert/multihead_attention.cc`), this form of
a mask lets the memory-efficient kernel run on every GPU that has it; with the lengths alone only
some GPUs have a fast kernel, and a mask with a number for each position is slow everywhere.

LayerNormalization and the sums that it reads, which carry a token through the layers, stay in
float32, and so do pooling, transform and normalization: sums over hundreds of tokens, or over many
layers, and divisions by small numbers lose too much in half precision.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from flowvec.bundle.manifest import INPUTS
from flowvec.errors import ExportError
from flowvec_export.graph.proto import drop_unused

__all__ = ["fuse_attention", "half_precision_graph"]

_QKV = re.compile(r"(backbone\.layers\.\d+\.)qkv\.weight")
_LENGTHS = "float16.lengths"
_MASK = "float16.mask"
_LARGEST = float(np.finfo(np.float16).max)


def half_precision_graph(
    proto: onnx.ModelProto, heads: int, *, scale_folded: bool
) -> onnx.ModelProto:
    """Create the variant.

    Args:
        proto: the float32 graph, which is not changed.
        heads: the encoder's attention heads.
        scale_folded: whether 1/sqrt(head width) is in the query weights already.

    Raises:
        ExportError: the graph has no LayerNormalization, by which its encoder is found, or has
            operators that contain graphs.
    """
    half = onnx.ModelProto()
    half.CopyFrom(proto)
    # First, because a large model with unfolded weights exceeds protobuf's limit.
    floats = _float_tensors(half)
    _unfold_casts(half.graph)
    floats |= fuse_attention(half, heads, scale_folded=scale_folded)
    _halve(half.graph, floats)
    drop_unused(half.graph)
    onnx.checker.check_model(half)
    return half


def _unfold_casts(graph: onnx.GraphProto) -> None:
    """Weights stored as float16 with a Cast to float32 become float32, as in other bundles."""
    stored = {init.name: init for init in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in stored:
            values = numpy_helper.to_array(stored[node.input[0]]).astype(np.float32)
            name = node.output[0].removesuffix(".float32")
            graph.initializer.append(numpy_helper.from_array(values, name))
            graph.initializer.remove(stored[node.input[0]])
            for reader in graph.node:
                reader.input[:] = [name if i == node.output[0] else i for i in reader.input]
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)


def _float_tensors(proto: onnx.ModelProto) -> set[str]:
    """Names of nodes that compute in float32."""
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    values = (*inferred.value_info, *inferred.output)
    return {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}


def fuse_attention(proto: onnx.ModelProto, heads: int, *, scale_folded: bool) -> set[str]:
    """Replace each attention of our backbone by one operator, in place and in the same precision.

    Args:
        proto: a float32 graph. One without our backbone is not changed, nor one whose scores depend
            on distances.
        heads: the encoder's attention heads.
        scale_folded: whether 1/sqrt(head width) is in the query weights already.

    Returns:
        Names of float tensors that were added.
    """
    graph = proto.graph
    stored = {init.name for init in graph.initializer}
    readers = {name: node for node in graph.node for name in node.input}
    products = {
        node.input[1]: node for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in stored
    }  # fmt: skip
    if "backbone.relative" in stored:
        return set()
    fused: dict[str, list[onnx.NodeProto]] = {}
    added: set[str] = set()
    for matrix, node in products.items():
        match = _QKV.fullmatch(matrix)
        if match is None:
            continue
        # The product's only reader adds its bias.
        biased = readers[node.output[0]].output[0]
        joined = products[f"{match[1]}attention_out.weight"].input[0]
        parts = [f"{match[1]}{part}" for part in ("query", "key", "value")]
        added.update(parts)
        split = helper.make_node(
            "Split", [biased], parts, f"{match[1]}split", axis=-1, num_outputs=3
        )
        attention = helper.make_node(
            "MultiHeadAttention",
            [*parts, "", _MASK],
            [joined],
            f"{match[1]}attention",
            domain="com.microsoft",
            num_heads=heads,
            scale=1.0 if scale_folded else None,  # None is 1/sqrt(head width)
        )
        fused[joined] = [split, attention]
    if not fused:
        return added
    nodes = _mask_nodes(graph)
    for node in graph.node:
        nodes += fused.get(node.output[0], [node])
    del graph.node[:]
    graph.node.extend(nodes)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    drop_unused(graph)
    return added


def _mask_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes that make int32 (3 batch + 2,) of the mask: lengths, and twice where texts begin.

    They read the mask's values and not its shape, since a shape is computed on the CPU, and a CUDA
    graph cannot contain what is copied from there.
    """

    def constant(name: str, values: list[int], kind: type[np.integer[Any]] = np.int32) -> str:
        name = f"float16.{name}"
        graph.initializer.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(kind, inputs, [output], output, **attributes)

    zero, one = constant("zero", [0]), constant("one", [1])
    axis = constant("sequence_axis", [1], np.int64)
    first = numpy_helper.from_array(np.array(0, np.int64), "float16.batch_axis")
    graph.initializer.append(first)
    mask, nothing, ones = "float16.mask_int32", "float16.zeros", "float16.ones"
    rows, ends, starts = "float16.rows", "float16.ends", "float16.starts"
    return [
        node("Cast", [INPUTS[1]], mask, to=TensorProto.INT32),
        node("ReduceSum", [mask, axis], _LENGTHS, keepdims=0),
        node("Mul", [mask, zero], nothing),
        node("Add", [nothing, one], ones),
        node("ReduceSum", [ones, axis], rows, keepdims=0),
        node("CumSum", [rows, first.name], ends),
        node("Concat", [zero, ends], starts, axis=0),
        node("Concat", [_LENGTHS, starts, starts], _MASK, axis=0),
    ]


def _halve(graph: onnx.GraphProto, floats: set[str]) -> None:
    """Make the encoder's products compute in float16, and everything else in float32."""
    halved_nodes = _encoder(graph) - _residual(graph)
    stored = {init.name: init for init in graph.initializer if init.data_type == TensorProto.FLOAT}
    half: set[str] = set()  # names of float16 tensors
    cast: set[str] = set()
    nodes: list[onnx.NodeProto] = []

    def stored_half(name: str) -> str:
        new = f"{name}.float16"
        if new not in half:
            half.add(new)
            graph.initializer.append(_half(numpy_helper.to_array(stored[name]), new))
        return new

    def converted(name: str, kind: int, suffix: str) -> str:
        new = f"{name}.{suffix}"
        if new not in cast:
            cast.add(new)
            nodes.append(helper.make_node("Cast", [name], [new], new, to=kind))
        return new

    for i, node in enumerate(graph.node):
        if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
            raise ExportError(
                f"{node.op_type} contains a graph, which the float16 variant does not support"
            )
        for at, name in enumerate(node.input):
            if i not in halved_nodes:
                if name in half:
                    node.input[at] = converted(name, TensorProto.FLOAT, "float32")
            elif name in stored:
                node.input[at] = stored_half(name)
            elif name in floats and name not in half:
                node.input[at] = converted(name, TensorProto.FLOAT16, "float16")
        if i in halved_nodes:
            for attribute in node.attribute:
                _halve_attribute(node.op_type, attribute)
            half.update(floats.intersection(node.output))
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _residual(graph: onnx.GraphProto) -> set[int]:
    """Positions of all LayerNormalization nodes, and of the sums of two tensors that they read."""
    stored = {init.name for init in graph.initializer}
    norms = [node for node in graph.node if node.op_type == "LayerNormalization"]
    read = {node.input[0] for node in norms}
    return {
        i
        for i, node in enumerate(graph.node)
        if node.op_type == "LayerNormalization"
        or (node.op_type == "Add" and node.output[0] in read and stored.isdisjoint(node.input))
    }


def _encoder(graph: onnx.GraphProto) -> set[int]:
    """Positions of all LayerNormalization nodes, and of the nodes that they need.

    The rest comes after the last hidden state: pooling, transform, normalization.
    """
    wanted: set[str] = set()
    nodes: set[int] = set()
    for i in reversed(range(len(graph.node))):
        node = graph.node[i]
        if node.op_type == "LayerNormalization" or wanted.intersection(node.output):
            nodes.add(i)
            wanted.update(node.input)
    if not nodes:
        raise ExportError("the graph has no LayerNormalization: the end of its encoder is unknown")
    return nodes


def _halve_attribute(kind: str, attribute: onnx.AttributeProto) -> None:
    if kind == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
        attribute.i = TensorProto.FLOAT16
    elif attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
        attribute.t.CopyFrom(_half(numpy_helper.to_array(attribute.t), attribute.t.name))


def _half(values: npt.NDArray[np.float32], name: str) -> onnx.TensorProto:
    """Round to float16; the lowest float32, which some masks hold, becomes the lowest float16."""
    return numpy_helper.from_array(np.clip(values, -_LARGEST, _LARGEST).astype(np.float16), name)
