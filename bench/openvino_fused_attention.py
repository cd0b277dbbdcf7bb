"""Shows that OpenVINO's fused attention is slower than separate operators, for its developers.

    python bench/openvino_fused_attention.py      # needs only numpy, onnx and openvino

It compiles the attention of an encoder of MiniLM's size (six layers, width 384, twelve heads) for
the CPU in bfloat16 with one stream of one core, once as it comes, where OpenVINO fuses each
attention into a Subgraph of Snippets, and once with SNIPPETS_MODE=DISABLE. It runs both in turn on
batches of several shapes, and prints tokens per second and their ratio.

Measured with OpenVINO 2026.4.1 and whole encoders on one core with AMX, thousands of tokens per
second:

    shape      16 x 32  18 x 28  21 x 24  25 x 20  32 x 16  3 x 170  2 x 240
    fused         25.5     19.3     20.8     22.8     25.7     16.5     18.9
    not fused     26.3     24.6     25.3     26.2     28.2     19.0     19.4

It costs most at lengths that are not multiples of 16: 28, 24 and 20. On AVX-512 with bfloat16 and
without AMX, not fusing is worth 1 % end to end on sentences and passages, 8 % on short sentences
(STS-B), and -2 to 10 % in this script.

SNIPPETS_MODE is a property for debugging. What its users need is a public property, or a fusion
that is chosen by shape.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, HEADS = 6, 384, 12
SHAPES = ((16, 32), (18, 28), (21, 24), (25, 20), (32, 16), (3, 170), (2, 240))
ROUNDS, RUNS = 15, 4


def encoder() -> onnx.ModelProto:
    """Attention layers with a residual: x (batch, sequence, width) to the same shape."""
    rng = np.random.default_rng(0)
    stored, nodes, last = [], [], "x"
    head = WIDTH // HEADS

    def constant(name: str, values: np.ndarray) -> str:
        stored.append(numpy_helper.from_array(values, name))
        return name

    split = constant("split", np.array([0, 0, 3, HEADS, head], dtype=np.int64))
    join = constant("join", np.array([0, 0, WIDTH], dtype=np.int64))
    scale = constant("scale", np.array(head**-0.5, dtype=np.float32))
    for i in range(LAYERS):
        weights = rng.standard_normal((WIDTH, 3 * WIDTH)).astype(np.float32) * WIDTH**-0.5
        out = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) * WIDTH**-0.5
        axes = constant(f"axes{i}", np.array([0], dtype=np.int64))
        nodes += [
            helper.make_node("MatMul", [last, constant(f"qkv{i}", weights)], [f"a{i}"]),
            helper.make_node("Reshape", [f"a{i}", split], [f"b{i}"]),
            helper.make_node("Transpose", [f"b{i}"], [f"c{i}"], perm=[2, 0, 3, 1, 4]),
            helper.make_node("Split", [f"c{i}"], [f"{n}{i}" for n in "QKV"], axis=0, num_outputs=3),
            *(helper.make_node("Squeeze", [f"{n}{i}", axes], [f"{n.lower()}{i}"]) for n in "QKV"),
            helper.make_node("Transpose", [f"k{i}"], [f"kt{i}"], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", [f"q{i}", f"kt{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"s{i}", scale], [f"scaled{i}"]),
            helper.make_node("Softmax", [f"scaled{i}"], [f"p{i}"], axis=-1),
            helper.make_node("MatMul", [f"p{i}", f"v{i}"], [f"d{i}"]),
            helper.make_node("Transpose", [f"d{i}"], [f"e{i}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"e{i}", join], [f"f{i}"]),
            helper.make_node("MatMul", [f"f{i}", constant(f"out{i}", out)], [f"g{i}"]),
            helper.make_node("Add", [f"g{i}", last], [f"h{i}"]),
        ]
        last = f"h{i}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "sequence", WIDTH])
        for name in ("x", last)
    ]
    graph = helper.make_graph(nodes, "attention", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def compiled(graph: bytes, **extra: str) -> openvino.InferRequest:
    """The graph on one core, in bfloat16."""
    config = {
        "INFERENCE_PRECISION_HINT": "bf16",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": "1",
        **extra,
    }
    core = openvino.Core()
    return core.compile_model(core.read_model(graph), "CPU", config).create_infer_request()


def main() -> None:
    """Run both in turn, and print a table."""
    graph = encoder().SerializeToString()
    requests = {"fused": compiled(graph), "not fused": compiled(graph, SNIPPETS_MODE="DISABLE")}
    print(f"OpenVINO {openvino.__version__}")
    print(f"{'shape':>10}{'fused':>12}{'not fused':>12}  not fused / fused, tokens per second")
    for batch, sequence in SHAPES:
        x = np.random.default_rng(1).standard_normal((batch, sequence, WIDTH)).astype(np.float32)
        rates: dict[str, list[float]] = {name: [] for name in requests}
        for number in range(ROUNDS + 1):
            for name, request in requests.items():
                begun = time.perf_counter()
                for _ in range(RUNS):
                    request.infer([x])
                seconds = time.perf_counter() - begun
                if number:  # the first round compiles
                    rates[name].append(RUNS * batch * sequence / seconds)
        fused, plain = (statistics.median(rates[name]) for name in ("fused", "not fused"))
        shape = f"{batch} x {sequence}"
        print(f"{shape:>10}{fused:12,.0f}{plain:12,.0f}  {plain / fused:.2f}")


if __name__ == "__main__":
    main()
