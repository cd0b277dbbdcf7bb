"""The float32-native variant: where the native engine finds a static embedder's table.

The engine reads the table from the graph's own file and computes what the graph says, in float32.
So only graphs of the exporter's own two forms have this variant: the mean of a table's rows
(`flowvec_export.assembly.from_table`), and a backbone without layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from flowvec.bundle.manifest import INPUTS, Manifest
from flowvec.errors import ExportError
from flowvec.native.table import GRAPH_TYPES, Stored, TableWeights
from flowvec_export.variants.native_tail import Graph, Tail, steps_to_output

__all__ = ["check_table", "table_weights"]

_IDS, _MASK = INPUTS[:2]
_LANES = 16
# Attributes with which an operator is what it is taken for; ONNX's own defaults agree.
_ATTRIBUTES = {
    ("Gather", "axis"): 0,
    ("GatherND", "batch_dims"): 0,
    ("LayerNormalization", "axis"): -1,
}
# Constants that an operator must have, by their places among its inputs: sums are over a text's
# tokens, and positions begin with the first.
_CONSTANTS = {"ReduceSum": {1: 1}, "Slice": {1: 0, 3: 0, 4: 1}}
_MAX_WIDTH = 1 << 14


@dataclass(slots=True)
class _Mean:
    """A mean of rows: names of its tensors in the graph, and its numbers."""

    names: dict[str, str]
    is_weighted: bool
    least: float
    ignored: int | None = None
    epsilon: float = 0.0


def table_weights(proto: onnx.ModelProto, manifest: Manifest, graph: Path) -> TableWeights:
    """How the native engine computes a static embedder.

    Args:
        proto: the graph.
        manifest: of its bundle.
        graph: the graph's file.

    Raises:
        ExportError: the native engine does not compute this model.
    """
    mean, tail = check_table(proto, manifest)
    content = graph.read_bytes()
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    stored = {name: _stored(tensors[label], content) for name, label in mean.names.items()}
    return TableWeights(
        stored=stored,
        steps=tuple(tail.steps),
        is_normalized=tail.is_normalized,
        is_weighted=mean.is_weighted,
        least=mean.least,
        ignored=mean.ignored,
        epsilon=mean.epsilon,
        tensors=tail.tensors,
    )


def check_table(proto: onnx.ModelProto, manifest: Manifest) -> tuple[_Mean, Tail]:
    """The mean of a static embedder's graph, and what follows it.

    Args:
        proto: the graph.
        manifest: of its bundle.

    Raises:
        ExportError: the native engine does not compute this model.
    """
    if manifest.kind != "embedder" or manifest.layers != 0:
        raise ExportError("only a static embedder has this variant")
    graph = Graph(proto)
    tail = Tail()
    name = proto.graph.output[0].name
    if (vector := graph.before_normalization(name)) is not None:
        name, tail.is_normalized = vector, True
    source = next((made for made in graph.between(name) if _is_mean(graph, made)), None)
    if source is None or graph.sources(name) != {source}:
        raise _refused()
    reader = _Reader(graph)
    mean = reader.of_backbone(source) or reader.of_table(source)
    if mean is None:
        raise _refused()
    mean.names = {name: graph.same(label) for name, label in mean.names.items()}
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    if not set(mean.names.values()) <= tensors.keys():
        raise _refused()
    width = tensors[mean.names["rows"]].dims[1]
    if width > _MAX_WIDTH or ("norm.weight" in mean.names and width % _LANES):
        raise ExportError(f"the native engine does not compute a table of {width} columns")
    steps_to_output(graph, tail, source, width, name)
    return mean, tail


def _refused() -> ExportError:
    return ExportError("the native engine does not compute this static embedder's graph")


def _is_mean(graph: Graph, name: str) -> bool:
    node = graph.makers[name]
    divisor = graph.makers.get(node.input[1]) if node.op_type == "Div" else None
    count = graph.makers.get(divisor.input[0]) if divisor is not None and divisor.input else None
    return count is not None and count.op_type == "ReduceSum"


class _Reader:
    """Recognizes a mean by the nodes that make it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def of_table(self, name: str) -> _Mean | None:
        """The mean of rows with weights, divided by the number of tokens; None for others."""
        total, count, least = self._division(name, "Max")
        product = self._inputs(self._inputs(total, "Squeeze")[0], "MatMul")
        factors, names = self._inputs(product[0], "Unsqueeze")[0], self._rows(product[-1])
        counted = self._inputs(count, "ReduceSum")[0]
        if names is None or least is None:
            return None
        if factors != counted:
            pair = self._inputs(factors, "Mul")
            weights = self._gathered(pair[-1])
            if pair[0] != counted or weights is None:
                return None
            names["weights"] = weights
        ignored = None
        if not self._is_mask(counted):
            mask, kept = (*self._inputs(counted, "Mul"), "", "")[:2]
            equal = self._inputs(self._inputs(self._graph.same(kept), "Not")[0], "Equal")
            number = self._graph.constant(equal[-1])
            if not self._is_mask(mask) or equal[0] != _IDS or number is None:
                return None
            ignored = int(number)
        return _Mean(names, is_weighted=False, least=least, ignored=ignored)

    def of_backbone(self, name: str) -> _Mean | None:
        """The mean of normalized rows and positions by weight; None for others."""
        total, count, least = self._division(name, "Clip")
        rows, weights = (*self._inputs(self._inputs(total, "ReduceSum")[0], "Mul"), "", "")[:2]
        if weights != self._inputs(count, "ReduceSum")[0] or least is None:
            return None
        mask, of_words = (*self._inputs(weights, "Mul"), "", "")[:2]
        is_weighted = bool(of_words)
        if not self._is_mask(self._inputs(mask if is_weighted else weights, "Unsqueeze")[0]):
            return None
        given = self._inputs(rows, "LayerNormalization")
        if len(given) != 3:
            return None
        parts = self._inputs(given[0], "Add")
        names = self._rows(parts[0])
        positions = self._graph.same(self._inputs(parts[-1], "Slice")[0])
        if names is None or not positions:
            return None
        names |= {"positions": positions, "norm.weight": given[1], "norm.bias": given[2]}
        if is_weighted:
            given = self._inputs(self._inputs(of_words, "Unsqueeze")[0], "GatherND")
            if self._inputs(given[-1], "Unsqueeze")[0] != _IDS:
                return None
            names["weights"] = given[0]
        attributes = self._graph.makers[rows].attribute
        epsilon = next((a.f for a in attributes if a.name == "epsilon"), 1e-5)
        return _Mean(names, is_weighted=True, least=least, epsilon=float(epsilon))

    def _division(self, name: str, limit: str) -> tuple[str, str, float | None]:
        """What is divided, what it is divided by, and the least that this is taken for."""
        total, divisor = self._inputs(name, "Div")
        count, *least = self._inputs(divisor, limit)
        value = self._graph.constant(least[0]) if len(least) == 1 else None
        return total, count, None if value is None else float(value)

    def _rows(self, name: str) -> dict[str, str] | None:
        """The table from which tokens choose rows, and perhaps which row each token has."""
        table, *ids = self._inputs(self._graph.same(name), "Gather")
        if not ids:
            return None
        if ids[0] == _IDS:
            return {"rows": table}
        row_of = self._gathered(ids[0])
        return None if row_of is None else {"rows": table, "row_of": row_of}

    def _gathered(self, name: str) -> str | None:
        """A tensor of which each token chooses a number."""
        tensor, *ids = self._inputs(name, "Gather")
        return tensor if ids == [_IDS] else None

    def _is_mask(self, name: str) -> bool:
        return self._graph.same(name) == _MASK

    def _inputs(self, name: str, operation: str) -> list[str]:
        """What a node of this operation takes; an empty name if another one makes the tensor."""
        node = self._graph.makers.get(name)
        if node is None or node.op_type != operation:
            return [""]
        for attribute in node.attribute:
            if attribute.i != _ATTRIBUTES.get((operation, attribute.name), attribute.i):
                return [""]
        for place, wanted in _CONSTANTS.get(operation, {}).items():
            value = self._graph.constant(node.input[place]) if place < len(node.input) else None
            if value is None or value.ravel().tolist() != [wanted]:
                return [""]
        return list(node.input)


def _stored(tensor: onnx.TensorProto, content: bytes) -> Stored:
    """Where a tensor is in the graph's file."""
    values: npt.NDArray[Any] = numpy_helper.to_array(tensor)
    kinds = [kind for kind, type_ in GRAPH_TYPES.items() if type_ == values.dtype]
    raw = np.ascontiguousarray(values).tobytes()
    offset = content.find(raw)  # equal bytes at another place are as good
    if not kinds or offset < 0 or not np.isfinite(values).all():
        raise _refused()
    return Stored(kinds[0], tuple(values.shape), offset)
