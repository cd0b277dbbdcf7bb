"""An int8 variant of a graph: the encoder's products in integers, one scale for each token.

A scale for a whole tensor, as dynamic quantisation has it, makes a text's vector depend on what it
is batched with. Here every token has its own, so that nothing of another row enters: the variant is
as batch-invariant as the graph it was made from.

    X W  ~  (scale of each row) (X in 8 bits) (W in 8 bits) (scale of each column)

Weights are int8, activations uint8 around 128, since processors multiply unsigned by signed bytes
fastest. Two things keep it close: LayerNorm's outputs have a few loud channels, part of whose
loudness is moved into the weights first (SmoothQuant, Xiao et al. 2023, with alpha 1/2), and GELU's
outputs, which are never below -.17, are shifted to use all 256 steps. Pooling, transform and
normalisation stay in float32, as does what attention multiplies.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from flowvec.batching import pad, plan
from flowvec.errors import ExportError
from flowvec.manifest import INPUTS
from flowvec.tokenizer import Tokenizer

__all__ = ["quantize_graph"]

Floats = npt.NDArray[np.float32]

_ALPHA = 0.5
_GELU_SHIFT = 0.17  # GELU's minimum is -.16997
_TINY = 1e-12
_MAX_BATCH_TOKENS = 4096


def quantize_graph(
    proto: onnx.ModelProto,
    tokenizer: Tokenizer,
    pad_id: int,
    texts: Sequence[str],
) -> onnx.ModelProto:
    """Make the variant.

    Args:
        proto: the float32 graph; it is left as it is.
        tokenizer: of the bundle.
        pad_id: the padding token's id.
        texts: what the channels' loudness is measured on.

    Raises:
        ExportError: the graph has no matrix products to quantise, or there are no texts.
    """
    quantised = onnx.ModelProto()
    quantised.CopyFrom(proto)
    products = _products(quantised)
    if not products:
        raise ExportError("the graph has no products of the encoder's to compute in int8")
    if not texts:
        raise ExportError("an int8 variant needs texts to measure the encoder's channels on")
    makers = {name: node for node in quantised.graph.node for name in node.output}
    smoothed = sorted(
        {
            node.input[0]
            for node in products
            if node.input[0] in makers and makers[node.input[0]].op_type == "LayerNormalization"
        }
    )
    loudness = _loudness(proto, smoothed, tokenizer, pad_id, texts)
    _Rewriter(quantised, products, makers, loudness).rewrite()
    onnx.checker.check_model(quantised)
    return quantised


def _products(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """MatMuls of tokens, (batch, sequence, width), by a stored matrix: the encoder's own.

    What comes after the pooling multiplies vectors, (batch, width).
    """
    graph = proto.graph
    inferred = onnx.shape_inference.infer_shapes(proto).graph.value_info
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in inferred}
    stored = {init.name: init for init in graph.initializer}
    casts = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Cast" and node.input[0] in stored
    }
    return [
        node
        for node in graph.node
        if node.op_type == "MatMul"
        and ranks.get(node.input[0]) == 3
        and (name := casts.get(node.input[1], node.input[1])) in stored
        and len(stored[name].dims) == 2
    ]


def _loudness(
    proto: onnx.ModelProto,
    names: Sequence[str],
    tokenizer: Tokenizer,
    pad_id: int,
    texts: Sequence[str],
) -> dict[str, Floats]:
    """The largest magnitude of each channel of some tensors over the tokens of texts."""
    if not names:
        return {}
    observed = onnx.ModelProto()
    observed.CopyFrom(proto)
    del observed.graph.output[:]
    observed.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    found: dict[str, Floats] = {}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="flowvec-") as folder:
        path = Path(folder) / "observed.onnx"
        path.write_bytes(observed.SerializeToString())
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        ids = tokenizer(texts).ids
        for batch in plan([len(row) for row in ids], _MAX_BATCH_TOKENS, tokenizer.max_length):
            feeds = pad(ids, batch, pad_id)
            tokens = feeds[1].astype(bool)
            outputs = session.run(list(names), dict(zip(INPUTS, feeds, strict=True)))
            for name, values in zip(names, outputs, strict=True):
                largest = np.abs(values[tokens]).max(axis=0)
                found[name] = np.maximum(found.get(name, np.zeros_like(largest)), largest)
    return found


class _Rewriter:
    """Replaces products one by one; inputs that several share are quantised once."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        products: Sequence[onnx.NodeProto],
        makers: Mapping[str, onnx.NodeProto],
        loudness: Mapping[str, Floats],
    ) -> None:
        self.graph = proto.graph
        self.proto = proto
        self.products = {node.output[0]: node for node in products}
        self.makers, self.loudness = makers, loudness
        self.stored = {init.name: init for init in self.graph.initializer}
        self.casts = {
            node.output[0]: node.input[0]
            for node in self.graph.node
            if node.op_type == "Cast" and node.input[0] in self.stored
        }
        self.nodes: list[onnx.NodeProto] = []
        self.ready: dict[str, tuple[str, str, str]] = {}
        self.smoothing: dict[str, Floats] = {}

    # --- small helpers --------------------------------------------------------------------------

    def _constant(self, name: str, values: npt.NDArray[Any]) -> str:
        if name not in self.stored:
            tensor = numpy_helper.from_array(values, name)
            self.graph.initializer.append(tensor)
            self.stored[name] = tensor
        return name

    def _node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], output, **attributes))
        return output

    def _matrix(self, node: onnx.NodeProto) -> tuple[str, Floats]:
        stored = self.casts.get(node.input[1], node.input[1])
        values = numpy_helper.to_array(self.stored[stored]).astype(np.float32)
        return stored.removesuffix(".float16"), values

    # --- the rewriting --------------------------------------------------------------------------

    def rewrite(self) -> None:
        for name in self.loudness:
            self.smoothing[name] = self._smoothing(name)
        self._node("Shape", [INPUTS[0]], "int8.batch_and_sequence")
        for node in self.graph.node:
            product = self.products.get(node.output[0])
            if product is None:
                self.nodes.append(node)
            else:
                self._replace(product)
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        self._drop_unused()
        self.proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    def _smoothing(self, name: str) -> Floats:
        """What to divide each channel of an input by, and multiply the weights' rows by."""
        weights = [self._matrix(n)[1] for n in self.products.values() if n.input[0] == name]
        rows = np.max([np.abs(matrix).max(axis=1) for matrix in weights], axis=0)
        factors = np.maximum(self.loudness[name], 1e-5) ** _ALPHA
        factors = factors / np.maximum(rows, 1e-5) ** (1 - _ALPHA)
        smoothing: Floats = (factors / factors.mean()).astype(np.float32)
        return smoothing

    def _replace(self, node: onnx.NodeProto) -> None:
        source, out = node.input[0], node.output[0]
        name, matrix = self._matrix(node)
        smoothing = self.smoothing.get(source)
        if smoothing is not None:
            matrix = matrix * smoothing[:, None]
        scales = np.maximum(np.abs(matrix).max(axis=0), _TINY) / 127
        rounded = np.rint(matrix / scales).astype(np.int8)
        quantised, row_scales, zero = self._quantised(source, matrix.shape[0], smoothing)
        products = self._node(
            "MatMulIntegerToFloat",
            [
                quantised,
                self._constant(f"{name}.int8", rounded),
                self._constant("int8.one", np.array(1, np.float32)),
                self._constant(f"{name}.int8_scale", scales.astype(np.float32)),
                zero,
            ],
            f"{out}.int8_product",
            domain="com.microsoft",
        )
        scaled = self._node("Mul", [products, row_scales], f"{out}.int8_scaled")
        if self._is_gelu(source):
            # What the shift added comes off again: the same for every token.
            excess = -_GELU_SHIFT * (rounded.astype(np.float64) * scales).sum(axis=0)
            constant = self._constant(f"{name}.int8_shift", excess.astype(np.float32))
            scaled = self._node("Add", [scaled, constant], f"{out}.int8_shifted")
        self._node("Reshape", [scaled, self._shape(matrix.shape[1])], out)

    def _shape(self, width: int) -> str:
        """The shape (batch, sequence, width), computed once a run."""
        name = f"int8.shape_{width}"
        if name not in self.ready:
            constant = self._constant(f"int8.width_{width}", np.array([width], np.int64))
            self._node("Concat", ["int8.batch_and_sequence", constant], name, axis=0)
            self.ready[name] = (name, name, name)
        return name

    def _is_gelu(self, source: str) -> bool:
        return source in self.makers and self.makers[source].op_type == "Gelu"

    def _quantised(self, source: str, width: int, smoothing: Floats | None) -> tuple[str, str, str]:
        """A (tokens, width) input in 8 bits, its scales (tokens, 1), and its zero point."""
        if source in self.ready:
            return self.ready[source]
        base = f"{source}.int8"
        flat = self._constant(f"int8.rows_{width}", np.array([-1, width], np.int64))
        axis = self._constant("int8.last_axis", np.array([-1], np.int64))
        rows = self._node("Reshape", [source, flat], f"{base}_rows")
        steps, zero = 127.0, 128
        if self._is_gelu(source):
            shift = self._constant("int8.gelu_shift", np.array(_GELU_SHIFT, np.float32))
            rows = magnitudes = self._node("Add", [rows, shift], f"{base}_shifted")
            steps, zero = 255.0, 0
        else:
            if smoothing is not None:
                factors = self._constant(f"{base}_smoothing", 1.0 / smoothing)
                rows = self._node("Mul", [rows, factors], f"{base}_smoothed")
            magnitudes = self._node("Abs", [rows], f"{base}_magnitudes")
        largest = self._node("ReduceMax", [magnitudes, axis], f"{base}_largest", keepdims=0)
        share = self._constant(f"int8.share_{steps:g}", np.array(1 / steps, np.float32))
        tiny = self._constant("int8.tiny", np.array(_TINY, np.float32))
        scaled = self._node("Mul", [largest, share], f"{base}_unbounded")
        scales = self._node("Max", [scaled, tiny], f"{base}_scales")
        count = self._node("Shape", [scales], f"{base}_count")
        value = numpy_helper.from_array(np.array([zero], np.uint8))
        zeros = self._node("ConstantOfShape", [count], f"{base}_zeros", value=value)
        quantised = self._node("QuantizeLinear", [rows, scales, zeros], f"{base}_quantised", axis=0)
        column = self._node("Unsqueeze", [scales, axis], f"{base}_column")
        point = self._constant(f"int8.zero_{zero}", np.array(zero, np.uint8))
        self.ready[source] = (quantised, column, point)
        return self.ready[source]

    def _drop_unused(self) -> None:
        """Casts and matrices that nothing reads any more."""
        outputs = {value.name for value in self.graph.output}
        used = {name for node in self.graph.node for name in node.input} | outputs
        kept = [node for node in self.graph.node if used.intersection(node.output)]
        used = {name for node in kept for name in node.input} | outputs
        del self.graph.node[:]
        self.graph.node.extend(kept)
        left = [init for init in self.graph.initializer if init.name in used]
        del self.graph.initializer[:]
        self.graph.initializer.extend(left)
