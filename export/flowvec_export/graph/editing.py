"""Edits a graph in place: appends nodes, and gives it the inputs and the output of a bundle.

Written for any opset from 11 on: the axes of reductions became inputs at 13 (sums) and at 18 (the
rest).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from flowvec.bundle.manifest import INPUTS
from flowvec_export.graph.proto import OUTPUT, all_graphs, all_nodes

__all__ = ["Surgeon"]

_AXES_ARE_INPUTS_SINCE = {"ReduceSum": 13, "Unsqueeze": 13, "ReduceMax": 18, "ReduceL2": 18}


class Surgeon:
    """Edits one graph.

    Args:
        proto: the graph, which is changed.
        prefix: prefix of the names of added nodes. If the graph has such names already, because
            flowvec made it, a number is added to the prefix.

    Attributes:
        graph: the graph.
        opset: its version of ONNX's operators.
        prefix: the prefix in use.
    """

    def __init__(self, proto: onnx.ModelProto, prefix: str) -> None:
        self.graph = proto.graph
        self.opset = max(e.version for e in proto.opset_import if e.domain in ("", "ai.onnx"))
        self.prefix = _free_prefix(proto, prefix)
        self._count = 0

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append an operator, and return its output's name."""
        self._count += 1
        name = f"{self.prefix}{kind}_{self._count}"
        self.graph.node.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, values: npt.NDArray[Any]) -> str:
        """Add a weight, and return its name."""
        self._count += 1
        name = f"{self.prefix}constant_{self._count}"
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def _along(self, kind: str, x: str, axis: int, **attributes: Any) -> str:
        """Append an operator along one axis."""
        if self.opset < _AXES_ARE_INPUTS_SINCE[kind]:
            return self.node(kind, x, axes=[axis], **attributes)
        return self.node(kind, x, self.constant(np.array([axis], np.int64)), **attributes)

    def unsqueeze(self, x: str, axis: int) -> str:
        """Give x a new axis of length 1."""
        return self._along("Unsqueeze", x, axis)

    def set_inputs(self, inputs: Sequence[str] = INPUTS) -> None:
        """Give the graph its inputs, by default `input_ids` and `attention_mask`.

        They are int64 with free axes. Token types become zeros unless they are an input, since a
        single text has only one type.
        """
        old = {value.name: value.type.tensor_type.elem_type for value in self.graph.input}
        weights = {init.name for init in self.graph.initializer}
        nodes = list(self.graph.node)
        readers = nodes, self.graph.output
        del self.graph.node[:], self.graph.input[:]
        for name in inputs:
            axes = ["batch_size", "sequence_length"]
            self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, axes))
            if old[name] != TensorProto.INT64:
                cast = self.node("Cast", name, to=old[name])
                _rename(readers[0], name, cast)
        # In the order of the inputs, so that two exports are equal bytes.
        for name in (name for name in old if name not in inputs and name not in weights):
            zeros = self.node("Sub", INPUTS[0], INPUTS[0])
            if old[name] != TensorProto.INT64:
                zeros = self.node("Cast", zeros, to=old[name])
            _rename(nodes, name, zeros)
        self.graph.node.extend(nodes)

    def to_float32(self, x: str) -> str:
        """Cast to float32, if it is not float32 already."""
        return self.node("Cast", x, to=TensorProto.FLOAT)

    def pool(self, mode: str, tokens: str) -> str:
        """Pool token vectors, float32 (batch, sequence, width), to (batch, width).

        Args:
            mode: `mean`, `cls`, `max`, `mean_sqrt_len`, `weighted_mean` or `last_token`.
            tokens: name of the token vectors.
        """
        if mode == "cls":
            return self.node("Gather", tokens, self.constant(np.array(0, np.int64)), axis=1)
        counted = self.to_float32(INPUTS[1])
        if mode == "max":
            lowest = self.constant(np.array(-1e4, np.float32))
            is_token = self.node("Cast", self.unsqueeze(counted, 2), to=TensorProto.BOOL)
            kept = self.node("Where", is_token, tokens, lowest)
            return self._along("ReduceMax", kept, 1, keepdims=0)
        if mode in ("weighted_mean", "last_token"):
            axis = self.constant(np.array(1, np.int64))
            positions = self.node("Mul", self.node("CumSum", counted, axis), counted)
            if mode == "last_token":
                last = self._along("ReduceSum", counted, 1, keepdims=1)
                positions = self.to_float32(self.node("Equal", positions, last))
            counted = positions
        weights = self.unsqueeze(counted, 2)
        total = self._along("ReduceSum", self.node("Mul", tokens, weights), 1, keepdims=0)
        if mode == "last_token":
            return total
        least = self.constant(np.array(1e-9, np.float32))
        count = self.node("Max", self._along("ReduceSum", weights, 1, keepdims=0), least)
        if mode == "mean_sqrt_len":
            count = self.node("Sqrt", count)
        return self.node("Div", total, count)

    def normalize(self, vector: str) -> str:
        """L2-normalize (batch, dim)."""
        length = self._along("ReduceL2", vector, 1, keepdims=1)
        least = self.constant(np.array(1e-12, np.float32))
        return self.node("Div", vector, self.node("Max", length, least))

    def attach(self, tail: onnx.GraphProto, vector: str) -> str:
        """Append a graph with one input and one output, and return its output's name."""
        names = {tail.input[0].name: vector, "": ""}
        for init in tail.initializer:
            copied = self.graph.initializer.add()
            copied.CopyFrom(init)
            copied.name = names[init.name] = f"{self.prefix}{init.name}"
        for node in tail.node:
            copy = self.graph.node.add()
            copy.CopyFrom(node)
            copy.name = f"{self.prefix}{node.name}"
            copy.input[:] = [names[name] for name in node.input]
            names |= {name: f"{self.prefix}{name}" for name in node.output if name}
            copy.output[:] = [names[name] for name in node.output]
        return names[tail.output[0].name]

    def set_output(self, vector: str, dim: int, name: str = OUTPUT) -> None:
        """Make a value the graph's only output, float32 (batch, dim)."""
        self.free_name(name)
        self.graph.node.append(helper.make_node("Identity", [vector], [name], name=self.prefix))
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch_size", dim])
        del self.graph.output[:]
        self.graph.output.append(value)

    def free_name(self, taken: str) -> None:
        """Rename a value of the graph, so that an output can have its name."""
        other = f"{self.prefix}{taken}"
        _rename(list(self.graph.node), taken, other)
        for node in self.graph.node:
            node.output[:] = [other if name == taken else name for name in node.output]


def _free_prefix(proto: onnx.ModelProto, wanted: str) -> str:
    """A prefix that no name in the graph starts with."""
    taken = {init.name for graph in all_graphs(proto) for init in graph.initializer}
    taken |= {name for node in all_nodes(proto) for name in (node.name, *node.output)}
    prefix, number = wanted, 2
    while any(name.startswith(prefix) for name in taken):
        prefix, number = f"{wanted}{number}.", number + 1
    return prefix


def _rename(nodes: list[onnx.NodeProto], old: str, new: str) -> None:
    """Replace a value in all inputs, including those of nested graphs."""
    for node in nodes:
        node.input[:] = [new if name == old else name for name in node.input]
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _rename(list(graph.node), old, new)
