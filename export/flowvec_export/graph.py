"""One graph: tokens in, vector out, in ONNX's standard operators."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
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
        if weights == "float16":
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
    """Keep torch's exporter from printing its progress and its own deprecations."""
    levels = {
        name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")
    }
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
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
        stored_name = f"{name}.float16"
        half = ir.tensor(values.astype(np.float16), name=stored_name)
        stored = ir.Value(
            name=stored_name,
            shape=ir.Shape(values.shape),
            type=ir.TensorType(half.dtype),
            const_value=half,
        )
        cast = ir.node("Cast", [stored], attributes={"to": ir.DataType.FLOAT}, name=f"{name}.cast")
        cast.outputs[0].name, cast.outputs[0].shape = f"{name}.float32", value.shape
        ir.convenience.replace_all_uses_with(value, cast.outputs[0])
        graph.insert_before(first, cast)
        del graph.initializers[name]
        graph.register_initializer(stored)


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
