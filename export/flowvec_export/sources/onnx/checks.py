"""What a graph must be like: its operators, its inputs and its outputs."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto

from flowvec.errors import ExportError
from flowvec_export.assembly.draft import LOGITS
from flowvec_export.graph.proto import all_nodes
from flowvec_export.sources.onnx.names import IDS, MASK, POOLER, SENTENCE, TOKENS, TYPES

__all__ = ["check_inputs", "check_logits", "check_operators", "output_widths"]

# The first with every operator that pooling takes (CumSum).
_MIN_OPSET = 11


def check_operators(proto: onnx.ModelProto, origin: str) -> None:
    """Check that the graph is in standard operators of float32.

    Raises:
        ExportError: it is quantized, needs another library's operators, or is of an old opset.
    """
    foreign = {node.domain for node in all_nodes(proto)} - {""}
    if quantized := sorted({node.op_type for node in all_nodes(proto) if _is_quantized(node)}):
        raise ExportError(
            f"{origin} is quantized ({', '.join(quantized[:3])}); export the float32 graph, from "
            "which flowvec makes its own variants in 8 bits"
        )
    if foreign:
        raise ExportError(
            f"{origin} uses operators of {', '.join(sorted(foreign))}; export it without "
            "optimization or quantization, which are specific to one engine"
        )
    opset = max(entry.version for entry in proto.opset_import if entry.domain == "")
    if opset < _MIN_OPSET:
        raise ExportError(f"{origin} is of opset {opset}; at least {_MIN_OPSET} is needed")


def check_inputs(proto: onnx.ModelProto, origin: str) -> None:
    """Check that the graph takes token ids and a mask of any shape, and no unknown input.

    Raises:
        ExportError: it does not.
    """
    weights = {init.name for init in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in weights}
    if missing := [name for name in (IDS, MASK) if name not in inputs]:
        raise ExportError(f"{origin} has no input {', '.join(missing)}")
    if other := sorted(inputs.keys() - {IDS, MASK, TYPES}):
        raise ExportError(f"{origin} needs the input {', '.join(other)}, which is not supported")
    for name, value in inputs.items():
        tensor = value.type.tensor_type
        if tensor.elem_type not in (TensorProto.INT64, TensorProto.INT32):
            raise ExportError(f"{origin} takes {name} as another type than int32 or int64")
        dims = tensor.shape.dim
        if len(dims) != 2 or any(dim.HasField("dim_value") for dim in dims):
            shape = [dim.dim_value or dim.dim_param or "?" for dim in dims]
            raise ExportError(
                f"{origin} takes {name} of the shape {shape}; export it with free axes for batch "
                "and sequence"
            )


def _is_quantized(node: onnx.NodeProto) -> bool:
    return any(part in node.op_type for part in ("Quantize", "Integer", "QLinear", "MatMulNBits"))


def output_widths(proto: onnx.ModelProto, origin: str, config: dict[str, Any]) -> dict[str, int]:
    """Length of the vectors of each usable output.

    Args:
        proto: the graph.
        origin: name of the source, for messages.
        config: content of config.json, for graphs that do not say how long token vectors are.

    Raises:
        ExportError: it has no usable output, or does not say how long its vectors are.
    """
    widths: dict[str, int] = {}
    rank = dict.fromkeys(TOKENS, 3) | {SENTENCE: 2, POOLER: 2}
    for value in onnx.shape_inference.infer_shapes(proto).graph.output:
        dims = value.type.tensor_type.shape.dim
        if len(dims) != rank.get(value.name):
            continue
        # If the graph does not say, the configuration does; but only for token vectors, since later
        # layers may change the length.
        width = dims[-1].dim_value or (config.get("hidden_size") if len(dims) == 3 else None)
        if not isinstance(width, int) or width < 1:
            raise ExportError(f"{origin} does not say how long the vectors of {value.name} are")
        widths[value.name] = width
    if not widths:
        outputs = ", ".join(value.name for value in proto.graph.output)
        raise ExportError(
            f"{origin} gives {outputs}; it should give {', '.join(TOKENS)} or {SENTENCE}, as "
            "Optimum's task feature-extraction does"
        )
    return widths


def check_logits(proto: onnx.ModelProto, labels: int, origin: str) -> None:
    """Check that the graph gives as many logits as there are labels.

    Raises:
        ExportError: it does not.
    """
    outputs = {value.name: value for value in proto.graph.output}
    if LOGITS not in outputs:
        raise ExportError(
            f"{origin} gives {', '.join(outputs)}; it should give {LOGITS}, as Optimum's task "
            "text-classification does"
        )
    width = outputs[LOGITS].type.tensor_type.shape.dim[-1].dim_value
    if width not in (0, labels):  # 0: the graph does not say
        raise ExportError(f"{origin} gives {width} logits, and names {labels} labels")
