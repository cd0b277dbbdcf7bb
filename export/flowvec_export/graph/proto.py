"""Checks, cleans and writes graphs of ONNX's standard operators, one file each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from flowvec.errors import ExportError

__all__ = [
    "MAX_BYTES",
    "OPSET",
    "OUTPUT",
    "all_graphs",
    "all_nodes",
    "clean",
    "drop_unused",
    "normalize_domain",
    "require_standard",
    "write_onnx",
]

OUTPUT = "sentence_embedding"
# The first with Gelu as one operator; all engines of the last two years read it.
OPSET = 20
# Protobuf's 2 GiB, less room for the nodes beside the weights.
MAX_BYTES = (1 << 31) - (1 << 22)


def require_standard(proto: onnx.ModelProto) -> None:
    """Check a graph; raises ExportError if it needs other than standard operators."""
    foreign = {node.domain for node in all_nodes(proto)} - {"", "ai.onnx"}
    if foreign or proto.functions:
        raise ExportError(
            f"the graph uses operators of {', '.join(sorted(foreign)) or 'functions'}"
        )
    onnx.checker.check_model(proto, full_check=True)


def all_graphs(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    """The graph, its nested graphs, and those of local functions."""
    return [proto.graph, *(graph for node in all_nodes(proto) for graph in _graphs_of(node))]


def all_nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph, of its nested graphs, and of local functions."""
    yield from _nodes_of(proto.graph)
    for function in proto.functions:
        yield from _nodes_of(function)


def _nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    waiting = [iter(graph.node)]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += [iter(inner.node) for inner in _graphs_of(node)]


def _graphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    kinds = onnx.AttributeProto
    graphs = [a.g for a in node.attribute if a.type == kinds.GRAPH]
    return graphs + [g for a in node.attribute if a.type == kinds.GRAPHS for g in a.graphs]


def normalize_domain(proto: onnx.ModelProto) -> None:
    """Write the domain of ONNX's standard operators as "" instead of `ai.onnx`."""
    for node in all_nodes(proto):
        if node.domain == "ai.onnx":
            node.domain = ""
    for entry in proto.opset_import:
        if entry.domain == "ai.onnx":
            entry.domain = ""


def clean(proto: onnx.ModelProto) -> None:
    """Remove names and texts that differ between runs, so that equal models have equal bytes."""
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
    # onnx's checker accepts only opsets that are used.
    used = {node.domain for node in graph.node} | {""}
    kept = [entry for entry in proto.opset_import if entry.domain in used]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def write_onnx(proto: onnx.ModelProto, path: Path) -> None:
    """Write a file without external data; equal graphs have equal bytes."""
    path.write_bytes(proto.SerializeToString(deterministic=True))


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes and weights that no output depends on."""
    used = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used.intersection(node.output):
            kept.append(node)
            # A nested graph can read values of the outer graph.
            within = [node, *(n for g in _graphs_of(node) for n in _nodes_of(g))]
            used.update(name for n in within for name in n.input)
            used.update(v.name for n in within for g in _graphs_of(n) for v in g.output)
    weights = [init for init in graph.initializer if init.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)
