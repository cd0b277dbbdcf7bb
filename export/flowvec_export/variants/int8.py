"""The int8 variants: the encoder's products in integers, with one scale per token.

One scale for a whole tensor, as in dynamic quantization, makes a text's vector depend on its batch.
Here every token has its own scale (in OpenVINO's form, every 128 channels of a token). So the
variant is as batch-invariant as the float32 graph.

    X W  ~  (scale of each row) (X in 8 bits) (W in 8 bits) (scale of each column)

Weights are rounded by `gptq.py`. Pooling, transform, normalization and the products of attention
are not changed. There are two forms, because no engine is fast on both:

- `int8`, for ONNX Runtime's CPU provider: its own operator for integer products. The graph
  quantizes activations to uint8 around 128, which processors multiply fastest by signed bytes.
  Outputs of GELU, which are never below -.17, are shifted to use all 256 steps.
- `int8-openvino`, in standard operators: the stored matrix is int8 behind a DequantizeLinear.
  OpenVINO quantizes the activations of such a product itself (its dynamic quantization).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from flowvec.bundle.manifest import INPUTS
from flowvec.errors import ExportError
from flowvec.tokenizer.token_ids import TokenIds
from flowvec_export.graph.proto import drop_unused
from flowvec_export.variants.gptq import Rounded, observe, round_matrix, smoothing

__all__ = ["quantize_graph", "rounded_products"]

Floats = npt.NDArray[np.float32]

_GELU_SHIFT = 0.17  # GELU's minimum is -.16997
_TINY = 1e-12
# If an inner width is not a multiple of 32, OpenVINO on a processor with AMX unpacks the stored
# matrix, and with two streams it mixes up the unpacked ones: bench/openvino_amx_fault.py. Its
# integer products use blocks of 64.
_OPENVINO_BLOCK = 64


def quantize_graph(
    proto: onnx.ModelProto,
    ids: TokenIds,
    max_length: int,
    pad_id: int,
    kind: str = "int8",
) -> onnx.ModelProto:
    """Create the variant.

    Args:
        proto: the float32 graph, which is not changed.
        ids: token ids of the texts, or pairs, that rounding is optimized for.
        max_length: most tokens of a text.
        pad_id: the padding token's id.
        kind: `int8` or `int8-openvino`.

    Raises:
        ExportError: the graph has no matrix products to quantize, or there are no texts.
    """
    if not len(ids):
        raise ExportError("an int8 variant needs texts to calibrate the encoder's weights on")
    quantized = onnx.ModelProto()
    quantized.CopyFrom(proto)
    rewriter = (_OpenVino if kind == "int8-openvino" else _OnnxRuntime)(quantized)
    if not rewriter.products:
        raise ExportError("the encoder has no matrix products to compute in int8")
    rewriter.round(ids, max_length, pad_id)
    rewriter.rewrite()
    onnx.checker.check_model(quantized)
    return quantized


def rounded_products(
    proto: onnx.ModelProto, ids: TokenIds, max_length: int, pad_id: int, most_of_pairs: int
) -> tuple[dict[str, Rounded], dict[str, Floats]]:
    """The encoder's matrices in 8 bits, without a graph.

    Args:
        proto: the float32 graph, which is not changed.
        ids: token ids of the texts, or pairs, that rounding is optimized for.
        max_length: most tokens of a text.
        pad_id: the padding token's id.
        most_of_pairs: as for `round_matrix`.

    Returns:
        By the names of the matrices: what they are rounded to, and, where their input is that of a
        layer normalization, the factors (rows,) by which they were multiplied, and by which its
        channels must be divided.

    Raises:
        ExportError: there are no texts.
    """
    if not len(ids):
        raise ExportError("an int8 variant needs texts to calibrate the encoder's weights on")
    rewriter = _Rewriter(proto)
    rewriter.round(ids, max_length, pad_id, most_of_pairs)
    products = rewriter.products.values()
    factors = {
        product.stored: rewriter.smoothings[product.source]
        for product in products
        if product.source in rewriter.smoothings
    }
    return {product.stored: rewriter.rounded[product.out] for product in products}, factors


@dataclass(frozen=True, slots=True)
class _Product:
    """A MatMul of tokens by a stored matrix."""

    source: str
    out: str
    stored: str


class _Rewriter:
    """Replaces products one by one; an input of several products is quantized once."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto, self.graph = proto, proto.graph
        self.makers = {name: node for node in self.graph.node for name in node.output}
        self.stored = {init.name: init for init in self.graph.initializer}
        self.products = {product.out: product for product in self._products()}
        self.smoothings: dict[str, Floats] = {}
        self.rounded: dict[str, Rounded] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.ready: dict[str, Any] = {}

    def _products(self) -> list[_Product]:
        """The encoder's products: tokens, (batch, sequence, width), by a stored matrix.

        Products after the pooling multiply vectors, (batch, width).
        """
        inferred = onnx.shape_inference.infer_shapes(self.proto).graph.value_info
        ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in inferred}
        products = []
        for node in self.graph.node:
            if node.op_type != "MatMul" or ranks.get(node.input[0]) != 3:
                continue
            name = node.input[1]
            if name in self.makers and self.makers[name].op_type == "Cast":
                name = self.makers[name].input[0]
            if name in self.stored and len(self.stored[name].dims) == 2:
                products.append(_Product(node.input[0], node.output[0], name))
        return products

    def _matrix(self, product: _Product) -> Floats:
        values: Floats = numpy_helper.to_array(self.stored[product.stored]).astype(np.float32)
        return values

    def _is(self, source: str, kind: str) -> bool:
        return source in self.makers and self.makers[source].op_type == kind

    def round(
        self, ids: TokenIds, max_length: int, pad_id: int, most_of_pairs: int | None = None
    ) -> None:
        """Round every product's matrix, for its inputs over the texts; see `round_matrix`."""
        readers: dict[str, list[_Product]] = {}
        for product in self.products.values():
            readers.setdefault(product.source, []).append(product)
        widths = {
            source: self.stored[products[0].stored].dims[0] for source, products in readers.items()
        }
        for group in observe(self.proto, widths, ids, max_length, pad_id):
            for source, observed in group.items():
                matrices = [self._matrix(product) for product in readers[source]]
                moments = observed.moments
                if self._is(source, "LayerNormalization"):
                    factors = smoothing(observed.loudness, matrices)
                    self.smoothings[source] = factors
                    matrices = [matrix * factors[:, None] for matrix in matrices]
                    moments = moments / np.outer(factors, factors)
                for product, matrix in zip(readers[source], matrices, strict=True):
                    self.rounded[product.out] = round_matrix(
                        matrix, moments, most_of_pairs=most_of_pairs
                    )

    def rewrite(self) -> None:
        """Replace the exact products by rounded ones."""
        self._begin()
        for node in self.graph.node:
            product = self.products.get(node.output[0])
            if product is None:
                self.nodes.append(node)
            else:
                self._replace(product, self.rounded[product.out])
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        drop_unused(self.graph)

    def _begin(self) -> None:
        """Add the nodes that come first; none by default."""

    def _replace(self, product: _Product, matrix: Rounded) -> None:
        raise NotImplementedError

    def _smoothed(self, source: str, rows: str) -> str:
        """An input with its large channels scaled down."""
        if source not in self.smoothings:
            return rows
        name = f"{source}.int8_smoothed"
        if name not in self.ready:
            factors = self._constant(f"{source}.int8_smoothing", 1.0 / self.smoothings[source])
            self.ready[name] = self._node("Mul", [rows, factors], name)
        return name

    def _constant(self, name: str, values: npt.NDArray[Any]) -> str:
        if name not in self.stored:
            tensor = numpy_helper.from_array(values, name)
            self.graph.initializer.append(tensor)
            self.stored[name] = tensor
        return name

    def _node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [output], output, **attributes))
        return output


class _OpenVino(_Rewriter):
    """Stored matrices after a DequantizeLinear; inner widths are padded with zeros to whole blocks.

    The zeros change no sum and no scale.
    """

    def _replace(self, product: _Product, matrix: Rounded) -> None:
        out = product.out
        missing = -matrix.values.shape[0] % _OPENVINO_BLOCK
        filled = np.pad(matrix.values, ((0, missing), (0, 0)))
        values = self._constant(f"{out}.int8", filled)
        scales = self._constant(f"{out}.int8_scale", matrix.scales)
        stored = self._node("DequantizeLinear", [values, scales], f"{out}.int8_matrix", axis=1)
        rows = self._padded(self._smoothed(product.source, product.source), missing)
        self._node("MatMul", [rows, stored], out)

    def _padded(self, rows: str, missing: int) -> str:
        """Rows, (batch, sequence, width), padded with this many zeros."""
        if missing == 0:
            return rows
        name = f"{rows}.int8_padded"
        if name not in self.ready:
            pads = np.array([0, 0, 0, 0, 0, missing], dtype=np.int64)
            self.ready[name] = self._node(
                "Pad", [rows, self._constant(f"int8.pad_{missing}", pads)], name
            )
        return name


class _OnnxRuntime(_Rewriter):
    """MatMulIntegerToFloat, with activations that the graph quantizes."""

    def _begin(self) -> None:
        self._node("Shape", [INPUTS[0]], "int8.batch_and_sequence")
        self.proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    def _replace(self, product: _Product, matrix: Rounded) -> None:
        source, out = product.source, product.out
        rows, columns = matrix.values.shape
        quantized, row_scales, zero = self._quantized(source, rows)
        products = self._node(
            "MatMulIntegerToFloat",
            [
                quantized,
                self._constant(f"{out}.int8", matrix.values),
                self._constant("int8.one", np.array(1, np.float32)),
                self._constant(f"{out}.int8_scale", matrix.scales),
                zero,
            ],
            f"{out}.int8_product",
            domain="com.microsoft",
        )
        scaled = self._node("Mul", [products, row_scales], f"{out}.int8_scaled")
        if self._is(source, "Gelu"):
            # Subtract what the shift added, which is the same for every token.
            sums = (matrix.values.astype(np.float64) * matrix.scales).sum(axis=0)
            excess = (-_GELU_SHIFT * sums).astype(np.float32)
            constant = self._constant(f"{out}.int8_shift", excess)
            scaled = self._node("Add", [scaled, constant], f"{out}.int8_shifted")
        self._node("Reshape", [scaled, self._shape(columns)], out)

    def _shape(self, width: int) -> str:
        """The shape (batch, sequence, width), computed once per run."""
        name = f"int8.shape_{width}"
        if name not in self.ready:
            constant = self._constant(f"int8.width_{width}", np.array([width], np.int64))
            self.ready[name] = self._node(
                "Concat", ["int8.batch_and_sequence", constant], name, axis=0
            )
        return name

    def _quantized(self, source: str, width: int) -> tuple[str, str, str]:
        """A (tokens, width) input in 8 bits, its scales (tokens, 1), and its zero point."""
        base = f"{source}.int8"
        if base in self.ready:
            stored: tuple[str, str, str] = self.ready[base]
            return stored
        flat = self._constant(f"int8.rows_{width}", np.array([-1, width], np.int64))
        axis = self._constant("int8.last_axis", np.array([-1], np.int64))
        rows = self._node("Reshape", [source, flat], f"{base}_rows")
        steps, zero = 127.0, 128
        if self._is(source, "Gelu"):
            shift = self._constant("int8.gelu_shift", np.array(_GELU_SHIFT, np.float32))
            rows = magnitudes = self._node("Add", [rows, shift], f"{base}_shifted")
            steps, zero = 255.0, 0
        else:
            rows = self._smoothed(source, rows)
            magnitudes = self._node("Abs", [rows], f"{base}_magnitudes")
        largest = self._node("ReduceMax", [magnitudes, axis], f"{base}_largest", keepdims=0)
        share = self._constant(f"int8.share_{steps:g}", np.array(1 / steps, np.float32))
        tiny = self._constant("int8.tiny", np.array(_TINY, np.float32))
        scaled = self._node("Mul", [largest, share], f"{base}_unbounded")
        scales = self._node("Max", [scaled, tiny], f"{base}_scales")
        count = self._node("Shape", [scales], f"{base}_count")
        value = numpy_helper.from_array(np.array([zero], np.uint8))
        zeros = self._node("ConstantOfShape", [count], f"{base}_zeros", value=value)
        # The name is in exported files, so its spelling stays.
        quantized = self._node("QuantizeLinear", [rows, scales, zeros], f"{base}_quantised", axis=0)
        column = self._node("Unsqueeze", [scales, axis], f"{base}_column")
        point = self._constant(f"int8.zero_{zero}", np.array(zero, np.uint8))
        self.ready[base] = (quantized, column, point)
        return quantized, column, point
