"""Attaches pooling, transforms and normalization to a given ONNX graph.

It needs `onnx` only. Fitted transforms and Dense layers also need torch, which reads and folds
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, numpy_helper, version_converter

from flowvec.bundle.manifest import INPUTS, TOKEN_TYPES
from flowvec.errors import ExportError, first_line
from flowvec_export.assembly.draft import LOGITS, Draft, PairDraft, Weights, describe
from flowvec_export.assembly.parity import Reference
from flowvec_export.graph.editing import Surgeon
from flowvec_export.graph.proto import OPSET, clean, drop_unused, require_standard
from flowvec_export.graph.weights import store

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = [
    "PooledOutput",
    "draft_of_graph",
    "draft_of_pair_graph",
    "stored_graph",
    "tail_of",
    "through",
]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_PREFIX = "flowvec."


@dataclass(frozen=True, slots=True)
class PooledOutput:
    """An output of a graph, and how it becomes a part of the vector.

    Attributes:
        name: name of the output.
        width: length of its vectors.
        mode: pooling mode of an output of token vectors, (batch, sequence, width); None for an
            output with one vector for each text, (batch, width).
    """

    name: str
    width: int
    mode: str | None


def draft_of_graph(
    proto: onnx.ModelProto,
    outputs: Sequence[PooledOutput],
    steps: Sequence[Transform],
    *,
    normalize: bool,
    weights: Weights,
    pooling: str,
    vocabulary: int,
    length: int,
    origin: str,
) -> Draft:
    """Attach the steps that turn a graph's outputs into the bundle's vectors.

    Args:
        proto: the graph; not changed.
        outputs: the outputs to pool and concatenate.
        steps: transforms after the pooling.
        normalize: whether to add L2 normalization.
        weights: storage of the weight matrices.
        pooling: name of the pooling, for the manifest.
        vocabulary: number of token ids.
        length: most tokens of a text.
        origin: name of the graph, for messages.

    Raises:
        ExportError: the graph cannot be run or changed.
    """
    source = proto if weights == "float32" else _rounded(proto)
    reference = _reference(source, outputs, steps, normalize, origin)
    original = None
    if weights == "float16":
        original = _reference(proto, outputs, steps, normalize, origin)
    attached, prefix = _attached(source, outputs, steps, normalize, origin)
    return Draft(
        proto=stored_graph(attached, weights, prefix),
        dim=steps[-1].out_dim if steps else sum(output.width for output in outputs),
        pooling=pooling,
        transform=describe(steps),
        normalized=normalize or _has_unit_length(reference, vocabulary, length),
        reference=reference,
        computed_by="the source's own graph",
        original=original,
        attention=None,
    )


def draft_of_pair_graph(
    proto: onnx.ModelProto,
    inputs: tuple[str, ...],
    labels: int,
    *,
    weights: Weights,
    origin: str,
) -> PairDraft:
    """Give a cross-encoder's graph the inputs and the output of a bundle.

    Args:
        proto: the graph; not changed. It gives `logits`.
        inputs: the inputs that it keeps.
        labels: how many logits it gives for a pair.
        weights: storage of the weight matrices.
        origin: name of the graph, for messages.

    Raises:
        ExportError: the graph cannot be run or changed.
    """
    source = proto if weights == "float32" else _rounded(proto)
    edited = onnx.ModelProto()
    edited.CopyFrom(source)
    surgeon = Surgeon(edited, _PREFIX)
    surgeon.set_inputs(inputs)
    surgeon.set_output(surgeon.to_float32(LOGITS), labels, LOGITS)
    drop_unused(edited.graph)
    clean(edited)
    return PairDraft(
        proto=stored_graph(edited, weights, surgeon.prefix),
        inputs=inputs,
        reference=_logits_of(source, labels, origin),
        computed_by="the source's own graph",
        original=_logits_of(proto, labels, origin) if weights == "float16" else None,
        attention=None,
    )


def _logits_of(proto: onnx.ModelProto, labels: int, origin: str) -> Reference:
    """A reference that runs the given graph of a cross-encoder."""
    session = _session(proto, origin)
    types = {value.name: _NUMPY[value.type] for value in session.get_inputs()}

    def run(*feeds: Ids) -> Floats:
        given = {TOKEN_TYPES: np.zeros_like(feeds[0])}
        given |= dict(zip((*INPUTS, TOKEN_TYPES), feeds, strict=False))
        try:
            (logits,) = session.run([LOGITS], {n: given[n].astype(t) for n, t in types.items()})
        except Exception as error:
            raise ExportError(f"{origin} does not run: {first_line(error)}") from None
        if logits.shape != (len(feeds[0]), labels):
            raise ExportError(
                f"{origin} gives logits of shape {logits.shape} for {len(feeds[0])} pairs, and "
                f"names {labels} labels"
            )
        out: Floats = logits.astype(np.float32)
        return out

    return run


def _session(proto: onnx.ModelProto, origin: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime raises its own types
        raise ExportError(f"{origin} does not run: {first_line(error)}") from None


def _attached(
    source: onnx.ModelProto,
    outputs: Sequence[PooledOutput],
    steps: Sequence[Transform],
    normalize: bool,
    origin: str,
) -> tuple[onnx.ModelProto, str]:
    """A copy of a graph with the added steps, and the prefix of their names."""
    proto = onnx.ModelProto()
    proto.CopyFrom(source)
    tail = tail_of(steps)
    if tail is not None:
        proto, tail = _same_opset(proto, tail, origin)
    surgeon = Surgeon(proto, _PREFIX)
    surgeon.set_inputs()
    vectors = []
    for output in outputs:
        vector = surgeon.to_float32(output.name)
        vectors.append(vector if output.mode is None else surgeon.pool(output.mode, vector))
    vector = vectors[0] if len(vectors) == 1 else surgeon.node("Concat", *vectors, axis=1)
    dim = sum(output.width for output in outputs)
    if tail is not None:
        vector, dim = surgeon.attach(tail.graph, vector), steps[-1].out_dim
    surgeon.set_output(surgeon.normalize(vector) if normalize else vector, dim)
    drop_unused(proto.graph)
    clean(proto)
    return proto, surgeon.prefix


def tail_of(steps: Sequence[Transform]) -> onnx.ModelProto | None:
    """The graph of the transforms, folded."""
    if not steps:
        return None
    from torch import nn

    from flowvec_export.assembly.tracing import module_to_onnx

    return module_to_onnx(nn.Sequential(*(step.fold() for step in steps)), steps[0].in_dim)


def _same_opset(
    proto: onnx.ModelProto, tail: onnx.ModelProto, origin: str
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The two graphs with the operators of one version, the newer."""
    (version,) = {entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")}
    try:
        if version < OPSET:
            proto = version_converter.convert_version(proto, OPSET)
        elif version > OPSET:
            tail = version_converter.convert_version(tail, version)
    except Exception as error:  # onnx raises many types
        raise ExportError(
            f"{origin} has opset {version}, which cannot be converted to that of a transform: "
            f"{first_line(error)}; export it with opset {OPSET}"
        ) from None
    return proto, tail


def stored_graph(proto: onnx.ModelProto, weights: Weights, prefix: str) -> onnx.ModelProto:
    """The graph with its weights in their storage type, checked."""
    try:
        model = ir.from_proto(proto)
        store(model.graph, weights, [prefix])
        stored = ir.to_proto(model)
        clean(stored)
        require_standard(stored)
    except (
        ir.serde.SerdeError,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
    ) as error:
        raise ExportError(f"the graph cannot be changed: {first_line(error)}") from None
    return stored


def _rounded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose weight matrices hold float16 values, so that storing them loses nothing more."""
    rounded = onnx.ModelProto()
    rounded.CopyFrom(proto)
    for init in rounded.graph.initializer:
        if init.data_type == TensorProto.FLOAT and len(init.dims) >= 2:
            with np.errstate(
                over="ignore"
            ):  # values that are too large are refused when they are stored
                values = numpy_helper.to_array(init).astype(np.float16).astype(np.float32)
            init.CopyFrom(numpy_helper.from_array(values, init.name))
    return rounded


def _reference(
    proto: onnx.ModelProto,
    outputs: Sequence[PooledOutput],
    steps: Sequence[Transform],
    normalize: bool,
    origin: str,
) -> Reference:
    """A reference that runs the given graph, and the steps after it in NumPy."""
    session = _session(proto, origin)
    types = {value.name: _NUMPY[value.type] for value in session.get_inputs()}

    def run(input_ids: Ids, attention_mask: Ids) -> Floats:
        feeds = {"input_ids": input_ids, "attention_mask": attention_mask}
        feeds["token_type_ids"] = np.zeros_like(input_ids)
        names = list(dict.fromkeys(output.name for output in outputs))
        try:
            values = session.run(names, {n: feeds[n].astype(t) for n, t in types.items()})
        except Exception as error:
            raise ExportError(f"{origin} does not run: {first_line(error)}") from None
        values_of = {n: v.astype(np.float64) for n, v in zip(names, values, strict=True)}
        mask = attention_mask.astype(np.float64)
        parts = [
            values_of[output.name] if output.mode is None
            else _pooled(output.mode, values_of[output.name], mask)
            for output in outputs
        ]  # fmt: skip
        vectors = through(steps, np.concatenate(parts, axis=1))
        if normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        out: Floats = vectors.astype(np.float32)
        return out

    return run


_NUMPY = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


def _pooled(
    mode: str, tokens: npt.NDArray[np.float64], mask: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """A pooling mode by its definition, row by row; float64 (batch, width)."""
    rows = [
        _POOL_ONE[mode](vectors[counted > 0] if len(vectors) == len(counted) else vectors)
        for vectors, counted in zip(tokens, mask, strict=True)
    ]
    return np.stack(rows)


def _weighted_mean(tokens: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.arange(1, len(tokens) + 1)
    mean: npt.NDArray[np.float64] = np.average(tokens, axis=0, weights=weights)
    return mean


# A text's token vectors, float64 (tokens, width), to its vector.
_POOL_ONE: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(axis=0),
    "max": lambda tokens: tokens.max(axis=0),
    "mean_sqrt_len": lambda tokens: tokens.sum(axis=0) / np.sqrt(len(tokens)),
    "weighted_mean": _weighted_mean,
    "last_token": lambda tokens: tokens[-1],
}


def through(
    steps: Sequence[Transform], vectors: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Apply the transforms as they were fitted, not folded."""
    if not steps:
        return vectors
    import torch

    with torch.no_grad():
        z = torch.from_numpy(vectors.astype(np.float32))
        for step in steps:
            z = step(z)
    out: npt.NDArray[np.float64] = z.double().numpy()
    return out


def _has_unit_length(reference: Reference, vocabulary: int, length: int) -> bool:
    """Whether the graph normalizes already, tested on a few rows of random ids."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, vocabulary, size=(8, min(8, length)))
    norms = np.linalg.norm(reference(ids, np.ones_like(ids)), axis=1)
    return bool(np.allclose(norms, 1, atol=1e-4))
