"""Traces torch modules into graphs."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import warnings
from collections.abc import Iterator, Sequence

import onnx
import torch
from torch import Tensor, nn

from flowvec.bundle.manifest import INPUTS
from flowvec.errors import ExportError, first_line
from flowvec_export.graph.proto import OPSET, OUTPUT, clean, require_standard
from flowvec_export.graph.weights import store
from flowvec_export.layers.pooling import Pooling

__all__ = ["SentenceEncoder", "TokenEncoder", "module_to_onnx", "quiet_exporter", "to_onnx"]


class SentenceEncoder(nn.Module):
    """Backbone, pooling, transforms, L2 normalization."""

    def __init__(
        self,
        backbone: nn.Module,
        pooling: Pooling,
        transforms: Sequence[nn.Module],
        normalize: bool,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = pooling
        self.transforms = nn.ModuleList(transforms)
        self.normalize = normalize

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Int64 (batch, sequence), twice -> float32 (batch, dim)."""
        states = self.backbone(input_ids, attention_mask)
        vector = self.pooling(states, attention_mask, input_ids)
        for transform in self.transforms:
            vector = transform(vector)
        if self.normalize:
            vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=1e-12)
        out: Tensor = vector
        return out


class TokenEncoder(nn.Module):
    """Backbone, layers over each token vector, L2 normalization."""

    def __init__(self, backbone: nn.Module, layers: Sequence[nn.Module], normalize: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.layers = nn.ModuleList(layers)
        self.normalize = normalize

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Int64 (batch, sequence), twice -> float32 (batch, sequence, dim)."""
        vectors: Tensor = self.backbone(input_ids, attention_mask)[-1]
        for layer in self.layers:
            vectors = layer(vectors)
        if self.normalize:
            vectors = vectors / vectors.norm(dim=2, keepdim=True).clamp(min=1e-12)
        return vectors


def to_onnx(
    model: nn.Module,
    pad_id: int,
    weights: str = "float32",
    exact: Sequence[str] = (),
    *,
    inputs: Sequence[str] = INPUTS,
    output: str = OUTPUT,
) -> onnx.ModelProto:
    """Trace the model into a graph with free batch and sequence axes.

    Args:
        model: what to trace, in evaluation mode.
        pad_id: a token id to trace with.
        weights: storage of the weight matrices, `float32` or `float16`.
        exact: prefixes of the names of weights that always stay float32.
        inputs: names of the model's arguments, each int64 (batch, sequence).
        output: name of its output.

    Raises:
        ExportError: torch cannot trace it, the graph needs more than standard operators, or it is
            larger than the 2 GiB that one file may hold.
    """
    # Different sizes above 1, so that no axis is mistaken for a constant or for another axis.
    ids = torch.full((2, 5), pad_id, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    types = torch.zeros_like(ids)
    types[:, 2:] = 1
    axes = {0: torch.export.Dim("batch_size"), 1: torch.export.Dim("sequence_length")}
    with quiet_exporter():
        try:
            program = torch.onnx.export(
                model.eval(),
                (ids, mask, types)[: len(inputs)],
                dynamo=True,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=[output],
                dynamic_shapes=dict.fromkeys(inputs, axes),
                verbose=False,
            )
        except Exception as error:
            reason = first_line(error.__cause__ or error)
            raise ExportError(f"torch cannot turn this encoder into a graph: {reason}") from error
        assert program is not None
        store(program.model.graph, weights, exact)
        proto = program.model_proto
    clean(proto)
    require_standard(proto)
    return proto


def module_to_onnx(module: nn.Module, dim: int) -> onnx.ModelProto:
    """A graph of a module over vectors: `u`, float32 (batch_size, dim), to `z`.

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
    """Keep torch's exporter from printing progress and deprecations.

    Garbage collection is off meanwhile: the exporter creates millions of objects that live until
    its end, and scanning them again and again takes a sixth of its time.
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
