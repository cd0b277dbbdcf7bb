"""The float16 variant, for GPUs: the encoder in half precision, with attention as one operator.

CUDA's fast attention kernels need attention as one operator in float16, with the length of each
text as its mask: ONNX Runtime's `Attention` with a one-dimensional `mask_index`. A mask with one
number per position is slow. Texts are right-padded, so their lengths are the mask's row sums.

Pooling, transform and normalization stay in float32: sums over hundreds of tokens and divisions by
small numbers lose too much in half precision.
"""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from flowvec.bundle.manifest import INPUTS
from flowvec.errors import ExportError
from flowvec_export.graph.proto import drop_unused

__all__ = ["half_precision_graph"]

_QKV = re.compile(r"(backbone\.layers\.\d+\.)qkv\.weight")
_LENGTHS = "float16.lengths"
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
    if _fuse_attention(half.graph, heads, scale_folded):
        half.opset_import.append(helper.make_opsetid("com.microsoft", 1))
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


def _fuse_attention(graph: onnx.GraphProto, heads: int, scale_folded: bool) -> bool:
    """Replace each attention of our backbone by one operator; returns whether there was any."""
    stored = {init.name: init for init in graph.initializer}
    readers = {name: node for node in graph.node for name in node.input}
    products = {
        node.input[1]: node for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in stored
    }  # fmt: skip
    fused: dict[str, onnx.NodeProto] = {}
    for matrix, node in products.items():
        match = _QKV.fullmatch(matrix)
        if match is None:
            continue
        # The product's only reader adds its bias.
        bias = next(name for name in readers[node.output[0]].input if name in stored)
        if scale_folded:
            _unscale_queries((stored[matrix], stored[bias]), heads)
        joined = products[f"{match[1]}attention_out.weight"].input[0]
        fused[joined] = helper.make_node(
            "Attention",
            [node.input[0], matrix, bias, _LENGTHS],
            [joined],
            f"{match[1]}attention",
            domain="com.microsoft",
            num_heads=heads,
        )
    if not fused:
        return False
    axis = numpy_helper.from_array(np.array([1], np.int64), "float16.sequence_axis")
    graph.initializer.append(axis)
    tokens = "float16.tokens"
    nodes = [
        helper.make_node("ReduceSum", [INPUTS[1], axis.name], [tokens], tokens, keepdims=0),
        helper.make_node("Cast", [tokens], [_LENGTHS], _LENGTHS, to=TensorProto.INT32),
        *(fused.get(node.output[0], node) for node in graph.node),
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    drop_unused(graph)
    return True


def _unscale_queries(tensors: tuple[onnx.TensorProto, onnx.TensorProto], heads: int) -> None:
    """Take 1/sqrt(head width) out of weights (width, 3 width) and bias; the operator applies it."""
    for tensor in tensors:
        values = numpy_helper.to_array(tensor).copy()
        width = values.shape[-1] // 3
        values[..., :width] *= np.float32(math.sqrt(width / heads))
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _halve(graph: onnx.GraphProto, floats: set[str]) -> None:
    """Make the encoder compute in float16, and the steps after it in float32."""
    encoder = _encoder(graph)
    stored = {init.name: init for init in graph.initializer if init.data_type == TensorProto.FLOAT}
    halved: set[str] = set()
    ready: set[str] = set()
    nodes: list[onnx.NodeProto] = []

    def stored_half(name: str) -> str:
        new = f"{name}.float16"
        if new not in halved:
            halved.add(new)
            graph.initializer.append(_half(numpy_helper.to_array(stored[name]), new))
        return new

    for i, node in enumerate(graph.node):
        if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
            raise ExportError(
                f"{node.op_type} contains a graph, which the float16 variant does not support"
            )
        if i in encoder:
            node.input[:] = [stored_half(name) if name in stored else name for name in node.input]
            for attribute in node.attribute:
                _halve_attribute(node.op_type, attribute)
            halved.update(floats.intersection(node.output))
        else:
            for name in halved.intersection(node.input):
                exact = f"{name}.float32"
                if exact not in ready:
                    ready.add(exact)
                    nodes.append(
                        helper.make_node("Cast", [name], [exact], exact, to=TensorProto.FLOAT)
                    )
                node.input[:] = [exact if other == name else other for other in node.input]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


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
