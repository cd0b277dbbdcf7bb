"""Reads a graph's file, and the weights that it keeps beside it, within limits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import TensorProto, inliner
from onnx.external_data_helper import load_external_data_for_model

from flowvec.errors import ExportError, first_line
from flowvec_export.graph.proto import all_graphs, all_nodes, normalize_domain
from flowvec_export.sources.files import inside, require_content

__all__ = ["load_graph"]

# The limit of Protobuf, and so of a graph in one file.
_MAX_BYTES = (1 << 31) - 1
# A model of 48 layers has about 5,000.
_MOST_NODES = 500_000
_DEEPEST_CALLS = 100


def load_graph(path: Path) -> onnx.ModelProto:
    """Read a graph, with the weights that it keeps in other files of its directory.

    Raises:
        ExportError: it cannot be read, is too large, or is not a valid graph.
    """
    require_content(path)
    if (size := path.stat().st_size) > _MAX_BYTES:
        raise ExportError(f"{path} has {size / 1e9:.1f} GB; a graph holds 2 GiB")
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises its own types
        raise ExportError(f"cannot read {path}: {first_line(error)}") from None
    for tensor in _external(proto):
        fields = {entry.key: entry.value for entry in tensor.external_data}
        if not all(fields.get(key, "0").isdecimal() for key in ("offset", "length")):
            raise ExportError(f"{path} does not say where the weights of {tensor.name} are")
        data = inside(path.parent, fields.get("location", ""))
        if not data.is_file():
            raise ExportError(f"{data} is missing; it holds weights of {path.name}")
        require_content(data)
        # Without a length, the rest of the file is read.
        stored = fields.get("length") or data.stat().st_size - int(fields.get("offset") or 0)
        size += max(_bytes_of(tensor), int(stored))
        if size > _MAX_BYTES:
            raise ExportError(f"{path} has more weights than the 2 GiB that a graph holds")
    try:
        load_external_data_for_model(proto, str(path.parent))
        if proto.functions:
            _check_functions(proto)
            proto = inliner.inline_local_functions(proto)
        normalize_domain(proto)
        onnx.checker.check_model(proto)
    except Exception as error:  # onnx raises many types
        raise ExportError(f"{path} is not a valid graph: {first_line(error)}") from None
    if any(graph.sparse_initializer for graph in all_graphs(proto)):
        raise ExportError(f"{path} has sparse weights, which are not supported")
    return proto


def _check_functions(proto: onnx.ModelProto) -> None:
    """Refuse functions whose expansion has too many nodes.

    Raises:
        ExportError: there would be more nodes than any model has, or a function calls itself.
    """
    functions = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], int] = {}

    def nodes_of(nodes: Iterable[onnx.NodeProto], calling: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in calling:
                raise ExportError(f"the function {node.op_type} calls itself")
            if key in functions and key not in sizes:
                if len(calling) == _DEEPEST_CALLS:
                    raise ExportError(f"functions call each other more than {_DEEPEST_CALLS} deep")
                sizes[key] = nodes_of(functions[key].node, calling | {key})
            total += sizes.get(key, 1)
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += nodes_of(graph.node, calling)
            if total > _MOST_NODES:
                raise ExportError(f"its functions expand to more than {_MOST_NODES:,} nodes")
        return total

    nodes_of(proto.graph.node, frozenset())


def _external(proto: onnx.ModelProto) -> list[TensorProto]:
    """Tensors stored in other files, including those of nodes and of nested graphs."""
    tensors: list[TensorProto] = []
    for graph in all_graphs(proto):
        tensors += graph.initializer
    for node in all_nodes(proto):
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
    return [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]


def _bytes_of(tensor: TensorProto) -> int:
    count = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    for length in tensor.dims:
        count *= length
    return count
