"""Graphs in ONNX's standard operators, one file each: what all ways of making one share."""

from __future__ import annotations

from pathlib import Path

import onnx

from flowvec.errors import ExportError

__all__ = ["MAX_BYTES", "OPSET", "OUTPUT", "clean", "drop_unused", "require_standard", "write_onnx"]

OUTPUT = "sentence_embedding"
# 20 is the first with Gelu as one operator; all engines of the last two years read it.
OPSET = 20
# Protobuf's 2 GiB, less room for the nodes beside the weights.
MAX_BYTES = (1 << 31) - (1 << 22)


def require_standard(proto: onnx.ModelProto) -> None:
    """Raise ExportError where a graph needs more than standard operators; check it as a whole."""
    foreign = {node.domain for node in proto.graph.node} - {"", "ai.onnx"}
    if foreign or proto.functions:
        raise ExportError(
            f"the graph uses operators of {', '.join(sorted(foreign)) or 'functions'}"
        )
    onnx.checker.check_model(proto, full_check=True)


def clean(proto: onnx.ModelProto) -> None:
    """Drop what differs from run to run or names local files: equal models, equal bytes."""
    proto.producer_name, proto.producer_version = "flowvec", ""
    proto.doc_string = ""
    del proto.metadata_props[:]
    graph = proto.graph
    graph.name = "sentence_encoder"
    graph.doc_string = ""
    del graph.metadata_props[:]
    del graph.value_info[:]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.doc_string = ""
        del value.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    # onnx's checker wants a used opset only.
    used = {node.domain for node in graph.node} | {""}
    kept = [entry for entry in proto.opset_import if entry.domain in used]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def write_onnx(proto: onnx.ModelProto, path: Path) -> None:
    """Write one file without external data, equal bytes for equal graphs."""
    path.write_bytes(proto.SerializeToString(deterministic=True))


def drop_unused(graph: onnx.GraphProto) -> None:
    """Take out nodes and weights that nothing reads, also those that only fed such."""
    used = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used.intersection(node.output):
            kept.append(node)
            used.update(node.input)
    left = [init for init in graph.initializer if init.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(left)
