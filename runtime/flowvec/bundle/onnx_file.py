"""What an ONNX file says about its graph, without a further library.

ONNX is Protocol Buffers: tag, length, bytes. Only as much is parsed as the question takes; the
weights themselves are passed over.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flowvec.errors import BundleError

__all__ = ["GRAPH", "NAME", "OUTPUT", "Node", "encoded", "fields_of", "nodes_of", "rows_read_by"]

# Numbers of fields: ModelProto.graph; GraphProto.node, initializer and output; NodeProto.input,
# output, op_type and attribute; TensorProto.dims and name; AttributeProto.t; ValueInfoProto.name.
GRAPH, _NODE, _INITIALIZER, OUTPUT = 7, 1, 5, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND, _NODE_ATTRIBUTE = 1, 2, 4, 5
_DIMS, _TENSOR_NAME, _ATTRIBUTE_TENSOR = 1, 8, 5
NAME = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Nodes that only pass token ids on, and those that pass a table on, row by row.
_PASS_IDS = frozenset(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"))
_PASS_ROWS = frozenset(("Cast", "Identity", "DequantizeLinear"))


@dataclass(slots=True)
class Node:
    """A node of a graph.

    Attributes:
        kind: its operator.
        inputs: names of what it takes.
        outputs: names of what it gives.
        dims: shape of the tensor among its attributes, as a `Constant` has one.
    """

    kind: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)


def rows_read_by(model: Path, name: str) -> int | None:
    """Rows of the tables from which a graph takes those with the numbers of an input.

    Args:
        model: the ONNX file.
        name: the input, such as `input_ids`.

    Returns:
        Every number below this has a row. None if no such table is found.

    Raises:
        BundleError: the file is damaged.
    """
    try:
        with model.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise BundleError(f"cannot read {model}: {error}") from None
    counts = [rows for number, graph in fields_of(content) if number == GRAPH
              for rows in _rows(graph, name)]  # fmt: skip
    return min(counts, default=None)


def _rows(graph: memoryview, name: str) -> Iterator[int]:
    """Rows of each table of a graph that an input chooses from."""
    rows: dict[str, int] = {}  # of each tensor that is known
    for number, tensor in fields_of(graph):
        if number == _INITIALIZER:
            label, dims = _tensor(tensor)
            rows[label] = dims[0] if dims else 1
    names = {name}
    for node in nodes_of(graph):
        if node.dims:
            rows |= dict.fromkeys(node.outputs, node.dims[0])
        if not node.inputs:
            continue
        first = node.inputs[0]
        if node.kind in _PASS_IDS and first in names:
            names.update(node.outputs)
        elif node.kind in _PASS_ROWS and first in rows:
            rows |= dict.fromkeys(node.outputs, rows[first])
        elif node.kind == "Gather" and node.inputs[1] in names and first in rows:
            yield rows[first]


def _tensor(message: memoryview) -> tuple[str, list[int]]:
    """Name and shape of a tensor."""
    name, dims = "", list[int]()
    for number, value in fields_of(message):
        if number == _TENSOR_NAME:
            name = str(value, "utf-8")
        elif number == _DIMS:  # one number, or all of them
            at = 0
            while at < len(value):
                dim, at = _varint(value, at)
                dims.append(dim)
    return name, dims


def nodes_of(graph: memoryview) -> Iterator[Node]:
    """The nodes of a graph, in order."""
    for number, message in fields_of(graph):
        if number != _NODE:
            continue
        node = Node()
        for part, value in fields_of(message):
            if part == _NODE_INPUT:
                node.inputs.append(str(value, "utf-8"))
            elif part == _NODE_OUTPUT:
                node.outputs.append(str(value, "utf-8"))
            elif part == _NODE_KIND:
                node.kind = str(value, "utf-8")
            elif part == _NODE_ATTRIBUTE:
                for each, tensor in fields_of(value):
                    if each == _ATTRIBUTE_TENSOR:
                        node.dims = _tensor(tensor)[1]
        yield node


def fields_of(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field of a message, apart from those of fixed length.

    Raises:
        BundleError: the message is damaged.
    """
    at = 0
    try:
        while at < len(message):
            tag, at = _varint(message, at)
            kind, start = tag & 7, at
            if kind == _VARINT:
                _, at = _varint(message, at)
                yield tag >> 3, message[start:at]
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            elif kind == _BYTES:
                length, start = _varint(message, at)
                at = start + length
                if at > len(message):
                    raise IndexError
                yield tag >> 3, message[start:at]
            else:
                raise IndexError
    except (IndexError, UnicodeDecodeError):
        raise BundleError("the graph's file is damaged: it is not ONNX") from None


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def encoded(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    parts = []
    for value in (number << 3 | _BYTES, len(content)):
        while value > 127:
            parts.append(value & 127 | 128)
            value >>= 7
        parts.append(value)
    return bytes(parts) + content
