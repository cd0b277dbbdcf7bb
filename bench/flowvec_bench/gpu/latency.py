"""Steps about single texts, the tokenizer, and the kernels of attention."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flowvec import Encoder
from flowvec.bundle.bundle import Bundle
from flowvec.engine.providers import CPU, CUDA, Engine
from flowvec.engine.selection import open_session
from flowvec.errors import first_line
from flowvec_bench.gpu.child import Emit
from flowvec_bench.gpu.settings import Settings
from flowvec_bench.gpu.speed import load_torch

__all__ = ["race_single_texts", "run_attention_kernels", "run_packed", "time_tokenizing"]

# Calls of one text; the first ones are not counted.
_CALLS, _WARM = 400, 50
_LENGTH = 16


def race_single_texts(settings: Settings, emit: Emit, shape: str) -> None:
    """p50 and p99 of single texts: whole calls, and the graph with and without a CUDA graph."""
    calls = _CALLS // 5 if settings.stand_in else _CALLS
    texts = [text[:60] for text in settings.texts("sentences", calls)]
    with Encoder.load(settings.bundle(shape), provider="cuda", compute="float16") as encoder:
        _time(emit, calls, "flowvec CUDA float16, whole call", lambda i: encoder.encode(texts[i]))
    encode = load_torch(settings, shape, "sdpa")
    _time(emit, calls, "sentence-transformers float16, whole call", lambda i: encode([texts[i]], 1))
    for captured in (False, True):
        name = f"graph of {_LENGTH} tokens, {'with' if captured else 'without'} a CUDA graph"
        if captured and settings.stand_in:
            emit(name, note="not run: a stand-in has no CUDA graphs")
            continue
        try:
            run = _bound_graph(settings, shape, captured=captured)
            _time(emit, calls, name, run)
        except Exception as error:  # for example nodes that CUDA's provider leaves to the CPU
            emit(name, note=f"failed: {type(error).__name__}: {first_line(error)}")


def _bound_graph(settings: Settings, shape: str, *, captured: bool) -> Callable[[int], object]:
    """A run of the float16 graph on one text, with inputs and outputs at fixed addresses."""
    import onnxruntime as ort

    bundle = Bundle.load(settings.bundle(shape))
    device = "cpu" if settings.stand_in else "cuda"
    options = {"use_tf32": "0", "enable_cuda_graph": str(int(captured))}
    providers: list[Any] = [CPU] if settings.stand_in else [(CUDA, options), CPU]
    session = ort.InferenceSession(str(bundle.graph("float16")), providers=providers)
    ids = np.full((1, _LENGTH), 7, dtype=np.int64)
    inputs = [ort.OrtValue.ortvalue_from_numpy(ids, device, 0) for _ in bundle.manifest.inputs]
    inputs[1].update_inplace(np.ones_like(ids))
    size = [1, bundle.manifest.dim]
    output = ort.OrtValue.ortvalue_from_shape_and_type(size, np.float32, device, 0)
    binding = session.io_binding()
    for name, value in zip(bundle.manifest.inputs, inputs, strict=True):
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output(bundle.manifest.output, output)

    def run(i: int) -> object:
        inputs[0].update_inplace(ids + i % 50)
        session.run_with_iobinding(binding)
        return output.numpy()

    return run


def _time(emit: Emit, calls: int, name: str, call: Callable[[int], object]) -> None:
    waits = []
    for i in range(calls):
        begun = time.perf_counter()
        call(i)
        waits.append(time.perf_counter() - begun)
    p50, p99 = np.percentile(waits[_WARM:], [50, 99]) * 1000
    emit(name, p50_ms=float(p50), p99_ms=float(p99), calls=calls - _WARM)


_TOKENIZE = """
import os, sys, time
from pathlib import Path
os.sched_setaffinity(0, {int(core) for core in sys.argv[3].split(",")})
from flowvec.bundle.bundle import Bundle
from flowvec.tokenizer.tokenizer import Tokenizer
from flowvec_bench.gpu.settings import Settings
settings = Settings.load(Path(sys.argv[1]))
bundle = Bundle.load(settings.bundle("minilm-l6"))
manifest = bundle.manifest
tokenizer = Tokenizer(bundle.tokenizer, manifest.max_length, manifest.max_characters)
texts = settings.texts("sentences", int(sys.argv[2]))
tokenizer(texts[: len(texts) // 4])
begun = time.perf_counter()
tokens = int(tokenizer(texts).token_ids.lengths.sum())
seconds = time.perf_counter() - begun
print(len(texts) / seconds, tokens / seconds)
"""


def time_tokenizing(settings: Settings, emit: Emit) -> None:
    """Texts a second that the tokenizer gives with 1, 2, 4, ... cores."""
    count = 500 if settings.stand_in else 40_000
    available = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-c", _TOKENIZE, str(Path(settings.work) / "settings.json")]
    cores = 1
    while cores <= len(available):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(cores), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [*command, str(count), ",".join(map(str, available[:cores]))],
            capture_output=True, text=True, timeout=60, env=environment,
        )  # fmt: skip
        if run.returncode:
            emit(f"{cores} cores", passed=False, note=run.stderr.strip()[-300:])
            return
        texts, tokens = map(float, run.stdout.split())
        emit(f"{cores} cores", texts_per_second=texts, tokens_per_second=tokens)
        cores *= 2


# Kernels of attention, and the provider option `sdpa_kernel` that asks for each.
_KERNELS = (("as it comes", "0"), ("memory-efficient", "2"), ("cuDNN", "8"), ("unfused", "16"))


def run_attention_kernels(settings: Settings, emit: Emit, shape: str) -> None:
    """The float16 graph with both forms of a mask and each kernel that can be asked for."""
    import onnx
    import onnxruntime as ort

    bundle = Bundle.load(settings.bundle(shape))
    rng = np.random.default_rng(0)
    batches = []
    for rows, longest in ((8, 32), (4, 128)) if settings.stand_in else ((512, 32), (64, 256)):
        lengths = rng.integers(longest // 2, longest + 1, rows)
        mask = (np.arange(longest) < lengths[:, None]).astype(np.int64)
        batches.append((f"{rows} x {longest}", mask, int(lengths.sum())))
    expected: dict[str, Any] = {}
    for form, tensor in (("lengths and starts", "float16.mask"), ("lengths", "float16.lengths")):
        proto = onnx.load(str(bundle.graph("float16")))
        for node in proto.graph.node:
            if node.op_type == "MultiHeadAttention":
                node.input[4] = tensor
        file = Path(settings.work) / shape / f"{tensor}.onnx"
        onnx.save(proto, str(file))
        for kernel, option in _KERNELS[:1] if settings.stand_in else _KERNELS:
            providers: list[Any] = [CPU]
            if not settings.stand_in:
                providers.insert(0, (CUDA, {"use_tf32": "0", "sdpa_kernel": option}))
            try:
                session: Any = ort.InferenceSession(str(file), providers=providers)
                for batch, mask, tokens in batches:
                    first = expected.setdefault(batch, [])
                    name = f"{batch}, mask of {form}, {kernel}"
                    _time_kernel(emit, bundle, session, mask, tokens, name, first)
            except Exception as error:  # a kernel that this GPU does not have
                emit(f"mask of {form}, {kernel}", note=f"failed: {first_line(error)}")


def _time_kernel(
    emit: Emit, bundle: Bundle, session: Any, mask: Any, tokens: int, name: str,
    expected: list[Any],
) -> None:  # fmt: skip
    feeds = dict(zip(bundle.manifest.inputs, (mask * 7, mask), strict=True))
    vectors = session.run([bundle.manifest.output], feeds)[0]
    expected.append(vectors)
    cosine = float((vectors * expected[0]).sum(axis=1).min())
    runs, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < 1.0:
        session.run([bundle.manifest.output], feeds)
        runs += 1
    rate = runs * tokens / (time.perf_counter() - begun)
    emit(name, passed=cosine >= 0.999, cosine=cosine, tokens_per_second=rate)


def _without_padding(proto: Any) -> Any:
    """The float16 graph converted by ONNX Runtime's own tool: tokens (tokens, width), no padding.

    The tool takes lengths as the mask, and removes the padding from what the first attention's
    product reads. Here that is the output of a LayerNormalization, which is read as float16 by the
    product and as float32 by the sum after the attention.
    """
    from onnxruntime.transformers.convert_to_packing_mode import PackingMultiHeadAttention
    from onnxruntime.transformers.onnx_model import OnnxModel

    class Packing(PackingMultiHeadAttention):  # type: ignore[misc]  # it is not typed
        def _get_input_to_remove_padding(self, first_attention_node: Any) -> str | None:
            node = first_attention_node
            while node is not None and node.op_type != "LayerNormalization":
                node = self.model.get_parent(node, 0)
            return None if node is None else str(node.output[0])

    for node in proto.graph.node:
        if node.op_type == "MultiHeadAttention":
            node.input[4] = "float16.lengths"
    packing = Packing(OnnxModel(proto))
    packing.convert(use_symbolic_shape_infer=False)
    return packing.model.model


def run_packed(settings: Settings, emit: Emit, shape: str) -> None:
    """The float16 graph without padding beside the padded one, on sentences."""
    import onnx
    import onnxruntime as ort

    bundle = Bundle.load(settings.bundle(shape))
    graph = _without_padding(onnx.load(str(bundle.graph("float16"))))
    file = Path(settings.work) / shape / "packed.onnx"
    onnx.save(graph, str(file))
    kinds = sorted({node.op_type for node in graph.graph.node if node.domain})
    wanted = {"PackedMultiHeadAttention", "RemovePadding", "RestorePadding"}
    emit("conversion", passed=wanted == set(kinds), operators=kinds)
    if settings.stand_in:
        emit("packed graph", note="not run: the CPU provider does not have these operators")
        return
    packed: Any = ort.InferenceSession(str(file), providers=[(CUDA, {"use_tf32": "0"}), CPU])
    padded = open_session(bundle, Engine(CUDA, "float16", 1))
    # Lengths of sentences that were not sorted: what packing is for; and all equal: what it costs.
    rng = np.random.default_rng(0)
    for name, lengths in (("5 to 60 tokens", rng.integers(5, 61, 256)),
                          ("28 to 32 tokens", rng.integers(28, 33, 512))):  # fmt: skip
        mask = (np.arange(int(lengths.max())) < lengths[:, None]).astype(np.int64)
        feeds = dict(zip(bundle.manifest.inputs, (mask * 7, mask), strict=True))

        def run_padded(mask: Any = mask) -> Any:
            return padded.run(mask * 7, mask)

        def run_packed_graph(feeds: Any = feeds) -> Any:
            return packed.run([bundle.manifest.output], feeds)[0]

        same = float((run_padded() * run_packed_graph()).sum(axis=1).min())
        emit(f"{name}: vectors", passed=same >= 0.999, cosine=same)
        for kind, call in (("padded", run_padded), ("packed", run_packed_graph)):
            runs, begun = 0, time.perf_counter()
            while time.perf_counter() - begun < 1.0:
                call()
                runs += 1
            rate = runs * float(lengths.sum()) / (time.perf_counter() - begun)
            emit(f"{name}: {kind}", tokens_per_second=rate)
