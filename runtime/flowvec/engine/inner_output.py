"""The vectors that a graph's transform takes, as a further output of the graph.

Exported graphs name the weights of their transforms `transforms.N...`, and those that were
attached to a given graph or a table `flowvec.N...`. What the first node with such a weight computes
on is the pooled vector. Only as much of the file is parsed as that takes (ONNX is Protocol Buffers:
tag, length, bytes), so that no further library is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle
from flowvec.engine.onnxruntime_session import open_graph
from flowvec.errors import BundleError

__all__ = ["BeforeTransform", "HiddenTransformError", "transform_input", "with_output"]

_WEIGHT = re.compile(r"(?:transforms|flowvec[^.]*)\.\d+\.")
# Numbers of fields: ModelProto.graph; GraphProto.node and output; NodeProto.input and output;
# ValueInfoProto.name.
_GRAPH, _NODE, _OUTPUT = 7, 1, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_KIND = 1, 2, 4
_NAME = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Nodes that only take a part of a vector, or name it anew.
_PARTS = frozenset(("Slice", "Split", "Gather", "Identity", "Cast", "Reshape", "Squeeze"))


class HiddenTransformError(BundleError):
    """A graph does not name the vectors that its transform takes."""


class BeforeTransform:
    """Runs a bundle's graph on ONNX Runtime, and gives vectors before and after its transform."""

    def __init__(self, bundle: Bundle) -> None:
        """Load the graph once more, on one thread.

        Raises:
            HiddenTransformError: the graph has no transform that can be found.
            BundleError: the graph cannot be loaded.
        """
        name = None
        if bundle.manifest.transform:
            model = Path(bundle.model).read_bytes()
            name = transform_input(model)
        if name is None:
            raise HiddenTransformError(
                f"the graph of {bundle.manifest.name} shows no vector to transform"
            )
        self._names = [name, bundle.manifest.output]
        self._session = open_graph(with_output(model, name), bundle.manifest.name)

    def run(
        self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Vectors of a padded batch, int64 (batch, sequence): before, and after, (batch, dim)."""
        before, after = self._session.run(self._names, {"input_ids": ids, "attention_mask": mask})
        return before.reshape(len(ids), -1), after


def transform_input(model: bytes) -> str | None:
    """The name of what a graph's transform takes; None if none can be found.

    Raises:
        BundleError: the file is damaged.
    """
    made_by: dict[str, tuple[str, list[str]]] = {}
    for number, graph in _fields(memoryview(model)):
        if number != _GRAPH:
            continue
        for kind, inputs, outputs in _nodes(graph):
            if any(map(_WEIGHT.match, inputs)):
                given = next((name for name in inputs if name in made_by), None)
                while given is not None and made_by[given][0] in _PARTS:
                    given = next((n for n in made_by[given][1] if n in made_by), None)
                if given is not None:
                    return given
            made_by |= dict.fromkeys(outputs, (kind, inputs))
    return None


def with_output(model: bytes, name: str) -> bytes:
    """A graph with a further output: parts of a message that come twice are merged."""
    value = _encoded(_NAME, name.encode())
    return model + _encoded(_GRAPH, _encoded(_OUTPUT, value))


def _nodes(graph: memoryview) -> Iterator[tuple[str, list[str], list[str]]]:
    """Kind, inputs and outputs of each node, in order."""
    for number, node in _fields(graph):
        if number != _NODE:
            continue
        kind, inputs, outputs = "", list[str](), list[str]()
        for part, value in _fields(node):
            if part == _NODE_INPUT:
                inputs.append(str(value, "utf-8"))
            elif part == _NODE_OUTPUT:
                outputs.append(str(value, "utf-8"))
            elif part == _NODE_KIND:
                kind = str(value, "utf-8")
        yield kind, inputs, outputs


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of each field that has a length; others are passed over."""
    at = 0
    try:
        while at < len(message):
            tag, at = _varint(message, at)
            kind = tag & 7
            if kind == _VARINT:
                _, at = _varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            elif kind == _BYTES:
                length, at = _varint(message, at)
                if at + length > len(message):
                    raise IndexError
                yield tag >> 3, message[at : at + length]
                at += length
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


def _encoded(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    parts = []
    for value in (number << 3 | _BYTES, len(content)):
        while value > 127:
            parts.append(value & 127 | 128)
            value >>= 7
        parts.append(value)
    return bytes(parts) + content
