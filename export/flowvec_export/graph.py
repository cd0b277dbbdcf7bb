"""One graph: tokens in, vector out, in ONNX's standard operators."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from flowvec.errors import ExportError
from flowvec_export.pooling import Pooling
from flowvec_export.transforms import Transform

__all__ = [
    "INPUTS",
    "OPSET",
    "OUTPUT",
    "SentenceEncoder",
    "store_as_float16",
    "to_onnx",
    "write_onnx",
]

INPUTS = ("input_ids", "attention_mask")
OUTPUT = "sentence_embedding"
# 20 is the first with Gelu as one operator; all engines of the last two years read it.
OPSET = 20

# Matrices below this size are not worth a Cast.
_MIN_FLOAT16_ELEMENTS = 4096


class SentenceEncoder(nn.Module):
    """Backbone, pooling, transforms, L2 normalisation."""

    def __init__(
        self,
        backbone: nn.Module,
        pooling: Pooling,
        transforms: list[Transform],
        normalise: bool,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.transforms = nn.ModuleList(transforms)
        self.normalise = normalise

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Int64 (batch, sequence), twice -> float32 (batch, dim)."""
        vector = self.pooling(self.backbone(input_ids, attention_mask), attention_mask)
        for transform in self.transforms:
            vector = transform(vector)
        if self.normalise:
            vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=1e-12)
        out: Tensor = vector
        return out


def to_onnx(model: SentenceEncoder, pad_id: int) -> onnx.ModelProto:
    """Trace the model into a graph with free batch and sequence axes.

    Raises:
        ExportError: torch cannot trace it, or the graph needs more than standard operators.
    """
    # Sizes that are neither 1 nor equal, so that no axis is taken for a constant or for another.
    ids = torch.full((2, 5), pad_id, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    with _quiet():
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
        proto = program.model_proto
    _clean(proto)
    foreign = {node.domain for node in proto.graph.node} - {"", "ai.onnx"}
    if foreign or proto.functions:
        raise ExportError(
            f"the graph uses operators of {', '.join(sorted(foreign)) or 'functions'}"
        )
    onnx.checker.check_model(proto, full_check=True)
    return proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
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


def store_as_float16(proto: onnx.ModelProto) -> None:
    """Store the weight matrices as float16 with a Cast to float32 after each.

    The graph computes in float32 as before; engines fold the Cast when they load it. Vectors such
    as biases and norms stay as they are.
    """
    graph = proto.graph
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < _MIN_FLOAT16_ELEMENTS:
            continue
        if np.abs(values).max() > np.finfo(np.float16).max:
            raise ExportError(
                f"{tensor.name} holds values that float16 cannot; use float32 weights"
            )
        name = tensor.name
        stored = f"{name}.float16"
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), stored))
        casts.append(
            helper.make_node("Cast", [stored], [name], name=f"{name}.cast", to=TensorProto.FLOAT)
        )
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(proto, full_check=True)


def write_onnx(proto: onnx.ModelProto, path: Path) -> None:
    """Write one file without external data.

    Raises:
        ExportError: the graph is larger than the 2 GiB that one file may hold.
    """
    if proto.ByteSize() >= 1 << 31:
        raise ExportError("the graph is larger than 2 GiB; export it with float16 weights")
    path.write_bytes(proto.SerializeToString(deterministic=True))
