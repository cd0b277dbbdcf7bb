"""One graph: tokens in, vector out, in ONNX's standard operators."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from flowvec.errors import ExportError
from flowvec.manifest import INPUTS
from flowvec_export.pooling import Pooling

__all__ = [
    "OPSET",
    "OUTPUT",
    "SentenceEncoder",
    "drop_unused",
    "module_to_onnx",
    "quiet_exporter",
    "to_onnx",
    "write_onnx",
]

OUTPUT = "sentence_embedding"
# 20 is the first with Gelu as one operator; all engines of the last two years read it.
OPSET = 20

# Matrices below this size are not worth a Cast.
_MIN_FLOAT16_ELEMENTS = 4096
# A table of which so many rows are unlike any before stays as it is.
_MAX_UNIQUE_ROWS = 0.75
# Room for the nodes beside the weights.
_MAX_BYTES = (1 << 31) - (1 << 22)


class SentenceEncoder(nn.Module):
    """Backbone, pooling, transforms, L2 normalisation."""

    def __init__(
        self,
        backbone: nn.Module,
        pooling: Pooling,
        transforms: Sequence[nn.Module],
        normalise: bool,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.transforms = nn.ModuleList(transforms)
        self.normalise = normalise

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Int64 (batch, sequence), twice -> float32 (batch, dim)."""
        states = self.backbone(input_ids, attention_mask)
        vector = self.pooling(states, attention_mask, input_ids)
        for transform in self.transforms:
            vector = transform(vector)
        if self.normalise:
            vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=1e-12)
        out: Tensor = vector
        return out


def to_onnx(
    model: SentenceEncoder, pad_id: int, weights: str = "float32", exact: Sequence[str] = ()
) -> onnx.ModelProto:
    """Trace the model into a graph with free batch and sequence axes.

    Args:
        model: what to trace, in evaluation mode.
        pad_id: a token id to trace with.
        weights: storage of the weight matrices, `float32` or `float16`.
        exact: prefixes of the names of weights that stay float32 in any case.

    Raises:
        ExportError: torch cannot trace it, the graph needs more than standard operators, or it is
            larger than the 2 GiB that one file may hold.
    """
    # Sizes that are neither 1 nor equal, so that no axis is taken for a constant or for another.
    ids = torch.full((2, 5), pad_id, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    with quiet_exporter():
        try:
            program = torch.onnx.export(
                model.eval(),
                (ids, mask),
                dynamo=True,
                opset_version=OPSET,
                input_names=list(INPUTS),
                output_names=[OUTPUT],
                dynamic_shapes={"input_ids": axes, "attention_mask": axes},
                verbose=False,
            )
        except Exception as error:
            raise ExportError(f"torch cannot turn this encoder into a graph: {error}") from error
        assert program is not None
        graph = program.model.graph
        _store_equal_rows_once(graph)
        if weights == "float16":
            _store_whole_numbers_as_int8(graph)
            _store_as_float16(graph, tuple(exact))
        _require_size(graph, weights)
        proto = program.model_proto
    _clean(proto)
    foreign = {node.domain for node in proto.graph.node} - {"", "ai.onnx"}
    if foreign or proto.functions:
        raise ExportError(
            f"the graph uses operators of {', '.join(sorted(foreign)) or 'functions'}"
        )
    onnx.checker.check_model(proto, full_check=True)
    return proto


def module_to_onnx(module: nn.Module, dim: int) -> onnx.ModelProto:
    """A graph of a module of vectors alone: `u`, float32 (batch_size, dim), to `z`.

    Raises:
        ExportError: torch cannot trace it.
    """
    with quiet_exporter():
        try:
            program = torch.onnx.export(
                module.eval(),
                (torch.zeros(2, dim),),
                dynamo=True,
                opset_version=OPSET,
                input_names=["u"],
                output_names=["z"],
                dynamic_shapes=({0: torch.export.Dim("batch_size")},),
                verbose=False,
            )
        except Exception as error:
            raise ExportError(f"torch cannot turn this module into a graph: {error}") from error
    assert program is not None
    return program.model_proto


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Keep torch's exporter from printing its progress and its own deprecations.

    Garbage collection waits meanwhile: the exporter makes millions of objects that live until its
    end, and to look through them again and again is a sixth of its time.
    """
    collects = gc.isenabled()
    levels = {
        name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")
    }
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            gc.disable()
            yield
        finally:
            if collects:
                gc.enable()
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def _clean(proto: onnx.ModelProto) -> None:
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


def _tables(graph: ir.Graph) -> Iterator[tuple[ir.Value, list[ir.Node]]]:
    """Matrices that are read by their rows alone, as embeddings are, each with its readers."""
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
    """Store a table's different rows, and for each row which of them it is.

    Words that share a vector, as forms of one word may, then cost four bytes each.
    """
    for table, readers in _tables(graph):
        assert table.const_value is not None
        assert table.name is not None
        name, values = table.name, table.const_value.numpy()
        # Bytes, and not numbers: -0.0 and 0.0 are equal, and would not be the same graph.
        lines = np.ascontiguousarray(values).view(np.dtype((np.void, values.shape[1] * 4)))
        _, first, which = np.unique(lines.ravel(), return_index=True, return_inverse=True)
        if len(first) > _MAX_UNIQUE_ROWS * len(values):
            continue
        order = np.argsort(first)  # as they come, so that equal models give equal bytes
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
    """Store tables that hold nothing but whole numbers from -128 to 127 in a byte each.

    The rows that are read, and not the table, are cast to float32, so that it stays small in memory
    as well.
    """
    for table, readers in _tables(graph):
        assert table.const_value is not None
        assert table.name is not None
        values = table.const_value.numpy()
        with np.errstate(invalid="ignore"):  # what is too large is found below
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
            cast.replace_input_with(0, read)  # which the line above has replaced as well
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
            raise ExportError(f"{name} holds values that float16 cannot; use float32 weights")
        del graph.initializers[name]
        stored = _stored(graph, f"{name}.float16", values.astype(np.float16))
        cast = ir.node("Cast", [stored], attributes={"to": ir.DataType.FLOAT}, name=f"{name}.cast")
        cast.outputs[0].name, cast.outputs[0].shape = f"{name}.float32", value.shape
        ir.convenience.replace_all_uses_with(value, cast.outputs[0])
        graph.insert_before(first, cast)


def _require_size(graph: ir.Graph, weights: str) -> None:
    """A protobuf, and so a graph in one file, holds at most 2 GiB."""
    size = sum(v.const_value.nbytes for v in graph.initializers.values() if v.const_value)
    if size >= _MAX_BYTES:
        hint = "; export it with float16 weights" if weights == "float32" else ""
        raise ExportError(f"the graph has {size / 1e9:.1f} GB of weights, and 2 GiB fit{hint}")


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
