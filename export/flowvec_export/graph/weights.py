"""Stores weights: tables without repeated rows, whole numbers in bytes, float16 matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from flowvec.errors import ExportError
from flowvec_export.graph.proto import MAX_BYTES

__all__ = ["store"]

# Matrices below this size are not worth a Cast.
_MIN_FLOAT16_ELEMENTS = 4096
# A table with a larger share of distinct rows is not changed.
_MAX_UNIQUE_ROWS = 0.75


def store(graph: ir.Graph, weights: str, exact: Sequence[str] = ()) -> None:
    """Change how a graph's weights are stored, in place; its result does not change.

    Args:
        graph: its weights in float32.
        weights: storage of the weight matrices, `float32` or `float16`.
        exact: prefixes of names of weights that always stay float32.

    Raises:
        ExportError: float16 cannot hold a weight, or the graph is larger than the 2 GiB that one
            file may hold.
    """
    _store_equal_rows_once(graph)
    if weights == "float16":
        _store_whole_numbers_as_int8(graph)
        _store_as_float16(graph, tuple(exact))
    _require_size(graph, weights)


def _tables(graph: ir.Graph) -> Iterator[tuple[ir.Value, list[ir.Node]]]:
    """Matrices that are only read by rows, such as embeddings, each with its readers."""
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) != 2:
            continue
        readers = [use.node for use in value.uses()]
        rows_alone = all(
            node.op_type == "Gather"
            and node.inputs[0] is value
            and node.inputs[1] is not value
            and node.attributes.get_int("axis", 0) == 0
            for node in readers
        )
        if readers and rows_alone and tensor.size >= _MIN_FLOAT16_ELEMENTS:
            yield value, readers


def _stored(graph: ir.Graph, name: str, values: npt.NDArray[Any]) -> ir.Value:
    """A new weight of the graph."""
    tensor = ir.tensor(values, name=name)
    value = ir.Value(
        name=name,
        shape=ir.Shape(values.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    graph.register_initializer(value)
    return value


def _store_equal_rows_once(graph: ir.Graph) -> None:
    """Store a table's distinct rows, and an index for each row.

    Words that share a vector, such as forms of one word, then need four bytes each.
    """
    for table, readers in _tables(graph):
        assert table.const_value is not None
        assert table.name is not None
        name, values = table.name, table.const_value.numpy()
        # Rows are compared as bytes: -0.0 equals 0.0, but is another weight.
        lines = np.ascontiguousarray(values).view(np.dtype((np.void, values.shape[1] * 4)))
        _, first, which = np.unique(lines.ravel(), return_index=True, return_inverse=True)
        if len(first) > _MAX_UNIQUE_ROWS * len(values):
            continue
        order = np.argsort(first)  # in table order, so that equal models have equal bytes
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        del graph.initializers[name]
        rows = _stored(graph, name, values[first[order]])
        row_of = _stored(graph, f"{name}.row_of", place[which.ravel()])
        for node in readers:
            chosen = ir.node("Gather", [row_of, node.inputs[1]], name=f"{node.name}.row_of")
            chosen.outputs[0].name = f"{node.name}.row"
            graph.insert_before(node, chosen)
            node.replace_input_with(0, rows)
            node.replace_input_with(1, chosen.outputs[0])


def _store_whole_numbers_as_int8(graph: ir.Graph) -> None:
    """Store tables of whole numbers from -128 to 127 in one byte per number.

    Only the rows that are read are cast to float32, so the table is small in memory, too.
    """
    for table, readers in _tables(graph):
        assert table.const_value is not None
        assert table.name is not None
        values = table.const_value.numpy()
        with np.errstate(invalid="ignore"):  # values that are too large are detected below
            small = values.astype(np.int8)
        if not np.array_equal(small, values) or np.signbit(values[small == 0]).any():
            continue
        del graph.initializers[table.name]
        stored = _stored(graph, f"{table.name}.int8", small)
        for node in readers:
            (read,) = node.outputs
            cast = ir.node(
                "Cast", [read], attributes={"to": ir.DataType.FLOAT}, name=f"{node.name}.cast"
            )
            cast.outputs[0].name, cast.outputs[0].shape = f"{read.name}.float32", read.shape
            ir.convenience.replace_all_uses_with(read, cast.outputs[0])
            cast.replace_input_with(0, read)  # the line above replaced this input, too
            read.type = ir.TensorType(ir.DataType.INT8)
            node.replace_input_with(0, stored)
            graph.insert_after(node, cast)


def _store_as_float16(graph: ir.Graph, exact: tuple[str, ...]) -> None:
    """Store the weight matrices as float16 with a Cast to float32 after each.

    The graph computes in float32 as before; engines fold the Cast when they load it. Vectors such
    as biases and norms stay as they are.
    """
    first = graph[0]
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        if tensor.size < _MIN_FLOAT16_ELEMENTS or name.startswith(exact):
            continue
        values = tensor.numpy()
        if np.abs(values).max() > np.finfo(np.float16).max:
            raise ExportError(f"{name} has values that float16 cannot hold; use float32 weights")
        del graph.initializers[name]
        stored = _stored(graph, f"{name}.float16", values.astype(np.float16))
        cast = ir.node("Cast", [stored], attributes={"to": ir.DataType.FLOAT}, name=f"{name}.cast")
        cast.outputs[0].name, cast.outputs[0].shape = f"{name}.float32", value.shape
        cast.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        ir.convenience.replace_all_uses_with(value, cast.outputs[0])
        graph.insert_before(first, cast)


def _require_size(graph: ir.Graph, weights: str) -> None:
    """Check the size: a graph in one file can have 2 GiB."""
    size = sum(v.const_value.nbytes for v in graph.initializers.values() if v.const_value)
    if size >= MAX_BYTES:
        hint = "; export it with float16 weights" if weights == "float32" else ""
        raise ExportError(f"the graph has {size / 1e9:.1f} GB of weights, and 2 GiB fit{hint}")
