"""Shows that OpenVINO gives wrong results with AMX and several streams, for its developers.

    python bench/openvino_amx_fault.py            # needs only numpy, onnx and openvino

It compiles a chain of products by int8 matrices behind DequantizeLinear for the CPU in bfloat16,
with 1, 2 and 4 streams, and prints the smallest cosine to the same chain in numpy. Each should be
1.00. With AMX and several streams, OpenVINO 2026.4.1 gives far less if the inner width is at most
512 and not a multiple of 32. DYNAMIC_QUANTIZATION_GROUP_SIZE makes no difference.

What seems to happen: with AMX and bfloat16 the CPU plugin does not treat such a product as
compressed (FullyConnected::isSupportedCompressedOperation has the conditions of oneDNN's AMX inner
product), so the matrix is unpacked while the graph is prepared. Each stream prepares its own graph,
and unpacked matrices are shared between them under keys that can collide. Results are right with
one stream, with widths that are multiples of 64, and in float32.

Exits with 1 if a result is wrong.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

WIDTHS = (48, 64, 80, 96, 112, 128, 312, 320)
PRODUCTS = 6
STREAMS = (1, 2, 4)
LEAST = 0.99


def chain(width: int) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A graph of products with ReLU between them, and their matrices, float32 (width, width)."""
    rng = np.random.default_rng(width)
    nodes, stored, matrices, last = [], [], [], "x"
    for i in range(PRODUCTS):
        exact = rng.standard_normal((width, width)).astype(np.float32) * (2 / width) ** 0.5
        scales = np.abs(exact).max(axis=0) / 127
        rounded = np.rint(exact / scales).astype(np.int8)
        matrices.append(rounded * scales)
        stored += [
            numpy_helper.from_array(rounded, f"w{i}"),
            numpy_helper.from_array(scales, f"s{i}"),
            numpy_helper.from_array(np.zeros(width, dtype=np.float32), f"b{i}"),
        ]
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{i}", f"s{i}"], [f"m{i}"], axis=1),
            helper.make_node("MatMul", [last, f"m{i}"], [f"p{i}"]),
            helper.make_node("Add", [f"p{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "sequence", width])
        for name in ("x", last)
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), matrices


def smallest_cosine(width: int, streams: int) -> float:
    """The smallest cosine between OpenVINO's rows and numpy's."""
    proto, matrices = chain(width)
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(proto.SerializeToString()),
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "bf16",
            "NUM_STREAMS": str(streams),
            "INFERENCE_NUM_THREADS": str(streams),
        },
    )
    rows = np.random.default_rng(0).standard_normal((3, 9, width)).astype(np.float32)
    exact = rows
    for matrix in matrices:
        exact = np.maximum(exact @ matrix, 0)
    least = 1.0
    requests = [compiled.create_infer_request() for _ in range(streams)]
    for _ in range(4):
        for request in requests:  # all at once, so that every stream runs
            request.start_async({"x": rows})
        for request in requests:
            request.wait()
            vectors = request.get_output_tensor().data.astype(np.float64)
            dots = (vectors * exact).sum(-1)
            lengths = np.linalg.norm(vectors, axis=-1) * np.linalg.norm(exact, axis=-1)
            least = min(least, float((dots / np.maximum(lengths, 1e-12)).min()))
    return least


def main() -> int:
    """Print a table; 1 if a figure is wrong."""
    processor = openvino.Core().get_property("CPU", "FULL_DEVICE_NAME")
    print(f"OpenVINO {openvino.get_version()}, {processor}")
    print(f"{'width':>6}" + "".join(f"{f'{n} streams':>12}" for n in STREAMS))
    wrong = 0
    for width in WIDTHS:
        cosines = [smallest_cosine(width, streams) for streams in STREAMS]
        wrong += sum(cosine < LEAST for cosine in cosines)
        print(f"{width:6}" + "".join(f"{cosine:12.4f}" for cosine in cosines), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
