"""From a given ONNX graph: pooling, transforms and normalization are attached to it.

It needs `onnx` only. Fitted transforms and Dense layers also need torch, which reads and folds
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, numpy_helper, version_converter

from flowvec.errors import ExportError, first_line
from flowvec_export.assembly.draft import Draft, Weights, checked_steps, describe
from flowvec_export.assembly.parity import Reference
from flowvec_export.graph.editing import Surgeon
from flowvec_export.graph.proto import OPSET, clean, drop_unused, require_standard
from flowvec_export.graph.weights import store
from flowvec_export.sources.onnx import OnnxSource

if TYPE_CHECKING:
    from flowvec_export.transforms import Transform

__all__ = ["draft_of_graph"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_PREFIX = "flowvec."


def draft_of_graph(
    source: OnnxSource,
    length: int,
    pooling: str | None,
    transform: Transform | None,
    normalize: bool | None,
    weights: Weights,
) -> Draft:
    """Attach the steps that turn a graph's output into the bundle's vectors.

    Args:
        source: the graph.
        length: most tokens of a text.
        pooling: as for `export`.
        transform: a step after the source's own Dense layers.
        normalize: as for `export`; None does not change a given sentence vector.
        weights: storage of the weight matrices.

    Raises:
        ExportError: the graph lacks an output that is needed, or cannot be changed.
    """
    modes = source.modes(pooling)
    steps = checked_steps(source, pooling, transform)
    if normalize is None:
        plain = modes is not None or bool(steps)
        normalize = plain if source.normalise is None else source.normalise
    given = source.proto if weights == "float32" else _rounded(source.proto)
    reference = _reference(given, source, modes, steps, normalize)
    original = None
    if weights == "float16":
        original = _reference(source.proto, source, modes, steps, normalize)
    proto, ours = _attached(given, source, modes, steps, normalize)
    return Draft(
        proto=_stored(proto, weights, ours),
        dim=steps[-1].out_dim if steps else source.pooled_width(pooling),
        pooling=source.pooling_name(pooling),
        transform=describe(steps),
        normalised=normalize or _has_unit_length(reference, source, length),
        reference=reference,
        computed_by="the source's own graph",
        original=original,
        attention=None,
    )


def _attached(
    given: onnx.ModelProto,
    source: OnnxSource,
    modes: Sequence[str] | None,
    steps: Sequence[Transform],
    normalize: bool,
) -> tuple[onnx.ModelProto, str]:
    """A copy of a graph with all that follows its token vectors, and what the names of that have
    in front."""
    proto = onnx.ModelProto()
    proto.CopyFrom(given)
    tail = _tail(steps)
    if tail is not None:
        proto, tail = _same_opset(proto, tail, source.origin)
    surgeon = Surgeon(proto, _PREFIX)
    surgeon.take_inputs()
    outputs = [source.sentence] if modes is None else [
        source.pooler if mode == "pooler" else source.tokens for mode in modes
    ]  # fmt: skip
    vectors = []
    for mode, output in zip(modes or ("sentence",), outputs, strict=True):
        found = surgeon.to_float32(str(output))
        vectors.append(found if mode in ("sentence", "pooler") else surgeon.pool(mode, found))
    vector = vectors[0] if len(vectors) == 1 else surgeon.node("Concat", *vectors, axis=1)
    dim = sum(source.widths[str(output)] for output in outputs)
    if tail is not None:
        vector, dim = surgeon.attach(tail.graph, vector), steps[-1].out_dim
    surgeon.give(surgeon.normalise(vector) if normalize else vector, dim)
    drop_unused(proto.graph)
    clean(proto)
    return proto, surgeon.prefix


def _tail(steps: Sequence[Transform]) -> onnx.ModelProto | None:
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
            f"{origin} is of opset {version}, and cannot be brought to that of a transform: "
            f"{first_line(error)}; export it with opset {OPSET}"
        ) from None
    return proto, tail


def _stored(proto: onnx.ModelProto, weights: Weights, ours: str) -> onnx.ModelProto:
    """The graph with its weights stored as asked, checked."""
    try:
        model = ir.from_proto(proto)
        store(model.graph, weights, [ours])
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
            with np.errstate(over="ignore"):  # too large values are refused when they are stored
                values = numpy_helper.to_array(init).astype(np.float16).astype(np.float32)
            init.CopyFrom(numpy_helper.from_array(values, init.name))
    return rounded


def _reference(
    proto: onnx.ModelProto,
    source: OnnxSource,
    modes: Sequence[str] | None,
    steps: Sequence[Transform],
    normalize: bool,
) -> Reference:
    """The given graph, and the following steps in NumPy."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime raises its own types
        raise ExportError(f"{source.origin} does not run: {first_line(error)}") from None
    types = {value.name: _NUMPY[value.type] for value in session.get_inputs()}

    def run(input_ids: Ids, attention_mask: Ids) -> Floats:
        feeds = {"input_ids": input_ids, "attention_mask": attention_mask}
        feeds["token_type_ids"] = np.zeros_like(input_ids)
        names = [name for name in (source.tokens, source.sentence, source.pooler) if name]
        try:
            found = session.run(names, {n: feeds[n].astype(t) for n, t in types.items()})
        except Exception as error:
            raise ExportError(f"{source.origin} does not run: {first_line(error)}") from None
        given = dict(zip(names, found, strict=True))
        if modes is None:
            vectors = given[str(source.sentence)].astype(np.float64)
        else:
            mask = attention_mask.astype(np.float64)
            parts = [
                given[str(source.pooler)] if mode == "pooler"
                else _pooled(mode, given[str(source.tokens)].astype(np.float64), mask)
                for mode in modes
            ]  # fmt: skip
            vectors = np.concatenate(parts, axis=1)
        vectors = _through(steps, vectors)
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


def _weighted_mean(own: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    mean: npt.NDArray[np.float64] = np.average(own, axis=0, weights=np.arange(1, len(own) + 1))
    return mean


# A text's token vectors, float64 (tokens, width), to its vector.
_POOL_ONE: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "cls": lambda own: own[0],
    "mean": lambda own: own.mean(axis=0),
    "max": lambda own: own.max(axis=0),
    "mean_sqrt_len": lambda own: own.sum(axis=0) / np.sqrt(len(own)),
    "weighted_mean": _weighted_mean,
    "last_token": lambda own: own[-1],
}


def _through(
    steps: Sequence[Transform], vectors: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The transforms as they were fitted, not folded."""
    if not steps:
        return vectors
    import torch

    with torch.no_grad():
        z = torch.from_numpy(vectors.astype(np.float32))
        for step in steps:
            z = step(z)
    out: npt.NDArray[np.float64] = z.double().numpy()
    return out


def _has_unit_length(reference: Reference, source: OnnxSource, length: int) -> bool:
    """Whether the graph normalizes already, tested on a few rows of random ids."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, source.vocabulary, size=(8, min(8, length)))
    norms = np.linalg.norm(reference(ids, np.ones_like(ids)), axis=1)
    return bool(np.allclose(norms, 1, atol=1e-4))
