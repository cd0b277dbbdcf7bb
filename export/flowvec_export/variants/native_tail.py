"""The steps behind the pooling of a graph, for the native engine: see `flowvec.native.tail`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from flowvec.errors import ExportError
from flowvec.native.tail import Step

__all__ = ["Graph", "Tail", "steps_to_output", "tail_of"]

Floats = npt.NDArray[np.float32]

_OF_TWO = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}
_OF_ONE = {"Relu": "relu", "Tanh": "tanh", "Exp": "exp", "Sigmoid": "sigmoid"}
_SAME = {"Cast", "Identity"}
_PRODUCTS = {"MatMul", "Gemm"}
_KNOWN = {*_OF_TWO, *_OF_ONE, *_SAME, *_PRODUCTS, "Slice", "Split", "Concat"}


@dataclass(slots=True)
class Tail:
    """What follows the pooling.

    Attributes:
        steps: as the native engine computes them.
        tensors: of the steps, float32, by name.
        is_normalized: whether the result is divided by its length.
    """

    steps: list[Step] = field(default_factory=list)
    tensors: dict[str, Floats] = field(default_factory=dict)
    is_normalized: bool = False


def tail_of(proto: onnx.ModelProto, pooled: int, *, of_tokens: bool = False) -> Tail:
    """The steps from pooled vectors to the graph's output.

    Args:
        proto: the graph.
        pooled: length of a pooled vector.
        of_tokens: whether nothing is pooled, and the steps are those of each token's state.

    Raises:
        ExportError: the native engine does not compute one of them.
    """
    graph = Graph(proto)
    name = proto.graph.output[0].name
    tail = Tail()
    if (vector := graph.before_normalization(name)) is not None:
        name, tail.is_normalized = vector, True
    (source,) = graph.sources(name)
    if not of_tokens:
        graph.check_pooled(source)
    elif (made_by := graph.makers[source].op_type) != "LayerNormalization":
        raise _refused(made_by)
    _Walk(graph, tail, source, pooled, (-1, 2 if of_tokens else 1)).number(name)
    return tail


def steps_to_output(graph: Graph, tail: Tail, source: str, pooled: int, name: str) -> None:
    """Append the steps from pooled vectors to a tensor.

    Args:
        graph: the graph.
        tail: gets the steps.
        source: the pooled vectors.
        pooled: length of one.
        name: the tensor.

    Raises:
        ExportError: the native engine does not compute one of them.
    """
    _Walk(graph, tail, source, pooled, (-1, 1)).number(name)


def _refused(operation: str) -> ExportError:
    return ExportError(f"the native engine does not compute {operation} behind the pooling")


class Graph:
    """Nodes by the names of their outputs, and constants."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.makers = {name: node for node in proto.graph.node for name in node.output}
        self._stored = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._sources: dict[str, frozenset[str]] = {}

    def constant(self, name: str) -> npt.NDArray[Any] | None:
        """The value of a constant; None for other tensors."""
        if name in self._stored:
            return numpy_helper.to_array(self._stored[name])
        node = self.makers.get(name)
        if node is None:
            return None
        if node.op_type == "Constant":
            value: npt.NDArray[Any] = numpy_helper.to_array(node.attribute[0].t)
            return value
        return self.constant(node.input[0]) if node.op_type in _SAME else None

    def sources(self, name: str) -> frozenset[str]:
        """The one tensor from which steps compute this one: itself where there is no such."""
        if name not in self._sources:
            self._sources[name] = frozenset((name,))
            node = self.makers.get(name)
            if node is not None and (summed := self.product_by_sum(node)) is not None:
                self._sources[name] = self.sources(summed[0])
            elif node is not None and node.op_type in _KNOWN:
                given = [i for i in node.input if i and self.constant(i) is None]
                found = frozenset[str]().union(*map(self.sources, given))
                if len(found) == 1:
                    self._sources[name] = found
        return self._sources[name]

    def between(self, name: str) -> Iterator[str]:
        """A tensor, and those that it is computed from, through operators that are steps."""
        names, seen = [name], set[str]()
        while names:
            name = names.pop()
            if name in seen or name not in self.makers:
                continue
            seen.add(name)
            yield name
            if (node := self.makers[name]).op_type in _KNOWN:
                names += node.input

    def same(self, name: str) -> str:
        """The tensor of which this one is a copy, perhaps in another type."""
        while (node := self.makers.get(name)) is not None and node.op_type in _SAME:
            name = node.input[0]
        return name

    def before_normalization(self, name: str) -> str | None:
        """The vector x of x / max(norm of x, a constant)."""
        node = self.makers[self.same(name)]
        if node.op_type != "Div":
            return None
        limit = self.makers.get(node.input[1])
        norm = self.makers.get(limit.input[0]) if limit is not None and limit.input else None
        if norm is None or norm.op_type != "ReduceL2" or norm.input[0] != node.input[0]:
            return None
        return str(node.input[0])

    def product_by_sum(self, node: onnx.NodeProto) -> tuple[str, Floats] | None:
        """The vector and the matrix of a product that is written as a sum of x * matrix.

        Heads of rerankers have such products. None for other nodes.
        """
        if node.op_type != "ReduceSum":
            return None
        times = self.makers.get(node.input[0])
        if times is None or times.op_type != "Mul":
            return None
        matrix, row = self.constant(times.input[1]), self.makers.get(times.input[0])
        if matrix is None or matrix.ndim != 2 or row is None or row.op_type != "Unsqueeze":
            return None
        return row.input[0], matrix.T

    def check_pooled(self, name: str) -> None:
        """Raise ExportError if something else than the pooling is between here and the layers."""
        names, seen = [name], set[str]()
        first = self.makers[name].op_type
        while names:
            node = self.makers.get(names.pop())
            if node is None or node.output[0] in seen:
                continue
            seen.add(node.output[0])
            if node.op_type in _PRODUCTS:
                raise _refused(first)
            if node.op_type != "LayerNormalization":
                names += node.input


class _Walk:
    """Appends the steps of a vector, those of its operands first."""

    def __init__(
        self, graph: Graph, tail: Tail, source: str, pooled: int, axes: tuple[int, ...]
    ) -> None:
        self._graph, self._tail, self._axes = graph, tail, axes
        self._numbers = {source: 0}
        self._lengths = [pooled]

    def number(self, name: str) -> int:
        """The number of a vector."""
        if name not in self._numbers:
            self._compute(self._graph.makers[name])
        return self._numbers[name]

    def _add(
        self, operation: str, *operands: int, length: int, begin: int = 0, tensor: Any = None
    ) -> int:
        if tensor is not None:
            stored: Floats = np.ascontiguousarray(tensor, np.float32)
            self._tail.tensors[f"tail.{len(self._tail.steps)}"] = stored
        self._tail.steps.append(Step(operation, operands, length, begin))
        self._lengths.append(length)
        return len(self._tail.steps)

    def _operand(self, name: str, length: int | None = None) -> int:
        """A vector, or a constant of this length."""
        value = self._graph.constant(name)
        if value is None:
            return self.number(name)
        assert length is not None
        values = np.broadcast_to(value.reshape(-1), (length,))
        return self._add("constant", length=length, tensor=values)

    def _compute(self, node: onnx.NodeProto) -> None:
        kind, given = node.op_type, node.input
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if kind in _OF_TWO:
            vectors = [name for name in given if self._graph.constant(name) is None]
            length = self._lengths[self.number(vectors[0])]
            operands = [self._operand(name, length) for name in given]
            number = self._add(_OF_TWO[kind], *operands, length=length)
        elif kind in _OF_ONE:
            operand = self.number(given[0])
            number = self._add(_OF_ONE[kind], operand, length=self._lengths[operand])
        elif kind in _SAME:
            number = self.number(given[0])
        elif kind in _PRODUCTS:
            number = self._product(node, attributes)
        elif (summed := self._graph.product_by_sum(node)) is not None:
            vector, matrix = summed
            operand = self.number(vector)
            number = self._add("product", operand, length=matrix.shape[1], tensor=matrix)
        elif kind == "Concat":
            self._require_rows(kind, attributes.get("axis"))
            number = self.number(given[0])
            for name in given[1:]:
                other = self.number(name)
                length = self._lengths[number] + self._lengths[other]
                number = self._add("join", number, other, length=length)
        elif kind in ("Slice", "Split"):
            self._parts(node, attributes)
            return
        else:
            raise _refused(f"the operator {kind}")
        self._numbers[node.output[0]] = number

    def _product(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> int:
        matrix = self._graph.constant(node.input[1])
        factors = [attributes.get(name, 1.0) for name in ("alpha", "beta")]
        if matrix is None or factors != [1.0, 1.0] or attributes.get("transA"):
            raise _refused("a product of two vectors")
        if attributes.get("transB"):
            matrix = matrix.T
        operands = [self.number(node.input[0])]
        length = matrix.shape[1]
        if len(node.input) > 2 and node.input[2]:
            operands.append(self._operand(node.input[2], length))
        return self._add("product", *operands, length=length, tensor=matrix)

    def _parts(self, node: onnx.NodeProto, attributes: dict[str, Any]) -> None:
        """A slice, or the parts of a split."""
        operand = self.number(node.input[0])
        whole = self._lengths[operand]
        constants = [self._graph.constant(name) for name in node.input[1:]]
        if any(value is None for value in constants):
            raise _refused(f"a {node.op_type} at places that depend on the text")
        numbers = [value.tolist() for value in constants if value is not None]
        if node.op_type == "Slice":
            (begin,), (end,), axis, step = *numbers[:2], *[*numbers[2:], [0], [1]][:2]
            self._require_rows("Slice", axis[0], step == [1])
            begin, end, _ = slice(begin, end).indices(whole)
            bounds = [(begin, end)]
        else:
            self._require_rows("Split", attributes.get("axis", 0))
            count = len(node.output)
            sizes = numbers[0] if numbers else [-(-whole // count)] * count
            ends = np.minimum(np.cumsum(sizes), whole).tolist()
            bounds = list(zip([0, *ends], ends, strict=False))
        for name, (begin, end) in zip(node.output, bounds, strict=True):
            number = self._add("part", operand, length=end - begin, begin=begin)
            self._numbers[name] = number

    def _require_rows(self, operation: str, axis: Any, is_right: bool = True) -> None:
        if axis not in self._axes or not is_right:
            raise _refused(f"a {operation} over texts")
