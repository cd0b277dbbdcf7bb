"""Variants: close to float32, batch-invariant, and only the encoder in another type."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec import Bundle, Encoder
from flowvec.bundle.manifest import VARIANTS
from flowvec.demo import load_passages
from flowvec.encoder import proof
from flowvec.engine import onnxruntime_session
from flowvec.engine.providers import CPU, CUDA, OPENVINO, Engine, why_not
from flowvec.engine.selection import available_providers
from flowvec.errors import ExportError, InputValueError, ProviderUnavailableError
from flowvec.machine import cpu_features
from flowvec.texts.sentences import split_sentences
from flowvec_export import export
from flowvec_export.sts import StsPairs, StsTask, read_sts
from flowvec_export.variants import variants
from flowvec_export.variants.float16 import fuse_attention
from flowvec_export.variants.gptq import round_matrix
from tests.drawing import examples
from tests.export.conftest import CORPUS, LAYERS

# The native engine's are in test_native.py and test_native_table.py.
KINDS = [kind for kind in variants.KINDS if not kind.endswith("-native")]
TRAINED_LAYERS = 2
# A third of the default calibration texts, and a few where the number does not matter.
SENTENCES = [s for p in load_passages() for s in split_sentences(p.text)][::3]
FEW = SENTENCES[::8]
ENGINES = {
    # The loss of float16 weights shows without a GPU: the CPU provider computes them in float32.
    "float16": Engine(CPU, "float16", 2),
    "int8": Engine(CPU, "int8", 2),
    "int8-openvino": Engine(OPENVINO, "int8", 2),
}
# A difference in the last bit can round an activation to the next step.
ATOL = {"float16": 1e-3, "int8": 1e-5, "int8-openvino": 2e-3}


def skip_reason(kind: str) -> str | None:
    """Why this machine cannot compute a variant, or None."""
    provider = ENGINES[kind].provider
    if provider not in available_providers():
        return f"{provider} cannot run on this machine"
    if kind == "int8-openvino" and why_not(provider, cpu_features(), [kind], "int8"):
        return "OpenVINO computes in int8 with AVX-512 only"
    return None


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Bundle:
    kinds = [kind for kind in KINDS if skip_reason(kind) is None]
    out = tmp_path_factory.mktemp("variants") / "b"
    return export(trained, out, weights="float16", variants=kinds, calibration=SENTENCES)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if reason := skip_reason(request.param):
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture(scope="module")
def encoder(bundle: Bundle, kind: str):
    with Encoder(bundle, ENGINES[kind]) as encoder:
        yield encoder


def test_a_variant_stays_close_to_float32_on_real_text(
    bundle: Bundle, encoder: Encoder, kind: str
) -> None:
    with Encoder.load(bundle.path, provider="cpu", compute="float32") as exact:
        cosine = (exact.encode(SENTENCES) * encoder.encode(SENTENCES)).sum(axis=1)
    assert encoder.info().compute == ENGINES[kind].compute
    assert encoder.engine.variant == kind  # or it would be compared with itself
    least = variants.MIN_COSINE_OF[kind]
    assert least <= cosine.min() < 1 - 1e-7  # it is rounded, and not by much
    figures = bundle.manifest.parity
    assert figures[f"{kind}_min_cosine"] == pytest.approx(cosine.min(), abs=2e-3)
    assert figures[f"{kind}_min_cosine"] <= figures[f"{kind}_mean_cosine"] <= 1


def test_a_vector_does_not_depend_on_what_it_is_computed_with(encoder: Encoder, kind: str) -> None:
    texts = [*SENTENCES[:40], "", "word " * 300, "!", SENTENCES[0] * 5]
    alone = np.stack([encoder.encode(text) for text in texts])
    together = [
        encoder.encode(texts),
        encoder.encode(texts[::-1])[::-1],
        # All in one batch, padded to the longest.
        encoder.encode(texts, max_batch_tokens=1 << 20),
    ]
    for vectors in together:
        np.testing.assert_allclose(vectors, alone, atol=ATOL[kind])
        assert (vectors * alone).sum(axis=1).min() >= 0.9999


@examples(12)
@given(
    chosen=st.lists(st.sampled_from([*SENTENCES, "", "!", "word " * 300]), min_size=1, max_size=64),
    budget=st.integers(1, 8192),
    permutation=st.randoms(use_true_random=False),
)
def test_a_vector_does_not_depend_on_order_padding_or_budget(
    encoder: Encoder, kind: str, chosen: list[str], budget: int, permutation
) -> None:
    order = list(range(len(chosen)))
    permutation.shuffle(order)
    plain = encoder.encode(chosen)[order]
    shuffled = encoder.encode([chosen[i] for i in order], max_batch_tokens=budget)
    np.testing.assert_allclose(shuffled, plain, atol=ATOL[kind])
    assert (shuffled * plain).sum(axis=1).min() >= 0.9999


def test_in_onnx_runtimes_form_the_encoders_products_are_integers(bundle: Bundle) -> None:
    plain, small = (onnx.load(bundle.graph(c)) for c in (None, "int8"))
    kinds = [Counter(node.op_type for node in proto.graph.node) for proto in (plain, small)]
    assert kinds[1]["MatMulIntegerToFloat"] == 4 * TRAINED_LAYERS
    assert kinds[1]["QuantizeLinear"] == 4 * TRAINED_LAYERS
    # What attention multiplies, and Dense behind the pooling, stay as they were.
    assert kinds[1]["MatMul"] == kinds[0]["MatMul"] - 4 * TRAINED_LAYERS
    assert kinds[1]["Gemm"] == kinds[0]["Gemm"]
    stored = {init.name: init.data_type for init in small.graph.initializer}
    matrices = [name for name, type in stored.items() if type == onnx.TensorProto.INT8]
    assert len(matrices) == 4 * TRAINED_LAYERS
    assert not any("weight" in name for name in stored if name.startswith("backbone.layers.0.qkv"))
    assert bundle.graph("int8").stat().st_size < bundle.graph(None).stat().st_size


def test_in_openvinos_form_stored_bytes_are_multiplied_in_standard_operators(
    bundle: Bundle,
) -> None:
    if "int8-openvino" not in bundle.variants:
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    small = onnx.load(bundle.graph("int8-openvino"))
    assert {entry.domain for entry in small.opset_import} == {""}
    stored = {init.name: init for init in small.graph.initializer}
    bytes_of = {
        node.output[0]: node.input[0]
        for node in small.graph.node
        if node.op_type == "DequantizeLinear"
    }
    assert len(bytes_of) == 4 * TRAINED_LAYERS
    assert all(stored[name].data_type == onnx.TensorProto.INT8 for name in bytes_of.values())
    read = [node.input[1] for node in small.graph.node if node.op_type == "MatMul"]
    assert set(bytes_of) <= set(read)


def test_in_float16_attention_is_one_operator_with_lengths(bundle: Bundle) -> None:
    half = onnx.load(bundle.graph("float16"))
    fused = [node for node in half.graph.node if node.op_type == "MultiHeadAttention"]
    assert len(fused) == TRAINED_LAYERS
    assert all(node.domain == "com.microsoft" for node in fused)
    kinds = Counter(node.op_type for node in half.graph.node)
    assert kinds["Softmax"] == kinds["Transpose"] == 0
    # The mask: the lengths of texts, and where each begins among the padded tokens, twice.
    (mask,) = {node.input[4] for node in fused}
    for rows, length in ((1, 1), (3, 7), (2, 64)):
        feeds = padded(rows, length)
        expected = [
            *feeds["attention_mask"].sum(axis=1),
            *([length * i for i in range(rows + 1)] * 2),
        ]
        (found,) = run_graph(with_output(half, mask, onnx.TensorProto.INT32), feeds)
        np.testing.assert_array_equal(found, expected)
    # It depends on no shape, which would be computed on the CPU.
    upstream = nodes_before(half, mask)
    assert upstream
    assert not {"Shape", "Range", "ConstantOfShape"} & {node.op_type for node in upstream}


def test_the_fused_graph_in_float32_is_the_graph(tmp_path: Path, trained: Path) -> None:
    plain = onnx.load(export(trained, tmp_path / "b").graph(None))
    heads = json.loads((trained / "config.json").read_text())["num_attention_heads"]
    twin = onnx.ModelProto()
    twin.CopyFrom(plain)
    assert fuse_attention(twin, heads, scale_folded=True)
    kinds = Counter(node.op_type for node in twin.graph.node)
    assert (kinds["MultiHeadAttention"], kinds["Softmax"]) == (TRAINED_LAYERS, 0)
    for rows, length in ((1, 1), (1, 9), (5, 12), (3, 63)):
        feeds = padded(rows, length)
        np.testing.assert_allclose(run_graph(twin, feeds), run_graph(plain, feeds), atol=1e-5)


def test_in_float16_norms_sums_and_what_follows_the_encoder_stay_in_float32(
    bundle: Bundle,
) -> None:
    half = onnx.load(bundle.graph("float16"))
    types = {init.name: init.data_type for init in half.graph.initializer}
    nodes = {name: node for node in half.graph.node for name in node.output}
    norms = [node for node in half.graph.node if node.op_type == "LayerNormalization"]
    assert len(norms) == 2 * TRAINED_LAYERS + 1
    for norm in norms:
        assert {types[name] for name in norm.input[1:]} == {onnx.TensorProto.FLOAT}
        added = nodes[norm.input[0]]
        assert added.op_type == "Add"
        for name in added.input:  # the norm before, and the layer's product or embeddings
            source = nodes[name]
            if source.op_type == "Cast":
                assert source.attribute[0].i == onnx.TensorProto.FLOAT
            else:
                assert source.op_type == "LayerNormalization"
    last = max(i for i, n in enumerate(half.graph.node) if n.op_type == "LayerNormalization")
    read = {name for node in half.graph.node[last + 1 :] for name in node.input}
    assert onnx.TensorProto.FLOAT16 not in {types.get(name) for name in read}
    assert half.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    matrices = [
        i for i in half.graph.initializer if len(i.dims) == 2 and i.name.startswith("backbone")
    ]
    assert {init.data_type for init in matrices} == {onnx.TensorProto.FLOAT16}


def padded(rows: int, length: int) -> dict[str, np.ndarray]:
    """Random token ids of texts of different lengths, the first as long as the batch."""
    rng = np.random.default_rng(rows * length)
    lengths = rng.integers(1, length + 1, rows)
    lengths[0] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    return {"input_ids": rng.integers(5, 1000, (rows, length)) * mask, "attention_mask": mask}


def run_graph(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The first output of a graph on ONNX Runtime's CPU provider."""
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run([session.get_outputs()[0].name], feeds))


def with_output(proto: onnx.ModelProto, name: str, kind: int) -> onnx.ModelProto:
    """The graph with a tensor of it as its only output."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    del changed.graph.output[:]
    changed.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, ["n"]))
    return changed


def nodes_before(proto: onnx.ModelProto, name: str) -> list[onnx.NodeProto]:
    """The nodes that a tensor is computed by."""
    wanted, found = {name}, []
    for node in reversed(proto.graph.node):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            found.append(node)
    return found


def test_a_processor_without_vnni_computes_the_same(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without VNNI, ONNX Runtime is told to use the kernel that does not clip; it also runs here.
    with Encoder.load(bundle.path, provider="cpu", compute="int8") as encoder:
        expected = encoder.encode(SENTENCES[:50])
    monkeypatch.setattr(onnxruntime_session, "cpu_features", lambda: ["avx2"])
    with Encoder.load(bundle.path, provider="cpu", compute="int8") as careful:
        np.testing.assert_allclose(careful.encode(SENTENCES[:50]), expected, atol=1e-4)


def test_a_variant_changes_neither_the_model_nor_its_fingerprint(
    bundle: Bundle, tmp_path: Path, trained: Path
) -> None:
    without = export(trained, tmp_path / "b", weights="float16", calibration=SENTENCES)
    assert without.fingerprint == bundle.fingerprint
    assert without.variants == ()
    assert {"float16", "int8"} <= set(bundle.variants)
    kinds: Any = bundle.variants
    again = export(
        trained, tmp_path / "c", weights="float16", variants=kinds, calibration=SENTENCES
    )
    assert again.manifest.files == bundle.manifest.files  # byte for byte
    with pytest.raises(ProviderUnavailableError, match="--variants int8`"):
        Encoder.load(without.path, provider="cpu", compute="int8")


def test_asking_for_a_compute_type_alone_finds_the_engine_that_has_it(
    tmp_path: Path, trained: Path
) -> None:
    bundle = export(trained, tmp_path / "b", weights="float16", variants=["int8"], calibration=FEW)
    with Encoder.load(bundle.path, compute="int8") as encoder:
        assert (encoder.info().provider, encoder.info().compute) == (CPU, "int8")


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet"])
def test_every_architecture_has_variants(
    checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, kind: str
) -> None:
    # Random weights of this size are far from any trained model's, and eight bits cost them more.
    monkeypatch.setitem(variants.MIN_COSINE_OF, kind, 0.9)
    monkeypatch.setitem(proof.MIN_COSINE_OF, ENGINES[kind].compute, 0.9)
    bundle = export(checkpoint(architecture), tmp_path / "b", variants=[kind], calibration=CORPUS)  # type: ignore[list-item]
    graph = onnx.load(bundle.graph(kind)).graph
    operators = Counter(n.op_type for n in graph.node)
    if kind == "int8":
        assert operators["MatMulIntegerToFloat"] >= 4 * LAYERS
    elif kind == "int8-openvino":
        assert operators["DequantizeLinear"] >= 4 * LAYERS
        # Other inner widths are where OpenVINO goes wrong with AMX.
        bytes_ = [t for t in graph.initializer if t.data_type == onnx.TensorProto.INT8]
        assert all(t.dims[0] % 64 == 0 for t in bytes_ if len(t.dims) == 2)
    elif architecture != "mpnet":  # whose attention has a bias for each distance
        assert operators["MultiHeadAttention"] == LAYERS
    with Encoder(bundle, ENGINES[kind]) as encoder:
        assert np.isfinite(encoder.encode(CORPUS[:9])).all()


def test_queries_that_were_scaled_before_are_not_scaled_twice(tmp_path: Path, checkpoint) -> None:
    # float16 weights with a head width whose root is not a power of two keep the scale outside.
    for weights in ("float32", "float16"):
        bundle = export(
            checkpoint("bert"), tmp_path / weights, weights=weights, variants=["float16"],  # type: ignore[arg-type]
            calibration=CORPUS,
        )  # fmt: skip
        assert bundle.manifest.parity["float16_min_cosine"] >= 0.999


def test_rounding_for_the_inputs_beats_rounding_to_the_nearest() -> None:
    rng = np.random.default_rng(0)  # 200 rows: more than are rounded at a time
    inputs = rng.normal(size=(2000, 200)).astype(np.float32) @ rng.normal(size=(200, 200)) / 10
    inputs = (inputs + 3 * rng.normal(size=200)).astype(np.float32)  # channels go together
    matrix = rng.normal(size=(200, 160)).astype(np.float32)
    rounded = round_matrix(matrix, inputs.T @ inputs / len(inputs))
    assert rounded.values.dtype == np.int8
    assert np.abs(rounded.values.astype(int)).max() <= 127
    np.testing.assert_allclose(rounded.scales, np.abs(matrix).max(axis=0) / 127, rtol=1e-6)
    nearest = np.rint(matrix / rounded.scales) * rounded.scales
    exact = inputs @ matrix
    errors = [
        np.square(inputs @ m - exact).mean() for m in (rounded.values * rounded.scales, nearest)
    ]
    assert errors[0] < errors[1] / 4
    # The number of rows per block makes no difference, nor that of columns, apart from last bits.
    for name in ("rows_at_once", "columns_at_once"):
        again = round_matrix(matrix, inputs.T @ inputs / len(inputs), **{name: 7})
        assert (again.values == rounded.values).mean() > 0.99
        np.testing.assert_array_equal(again.scales, rounded.scales)
    # Without knowledge of the inputs it rounds to the nearest, the loudest channels first.
    blind = round_matrix(matrix, np.eye(200, dtype=np.float32))
    np.testing.assert_array_equal(blind.values, np.rint(matrix / blind.scales))


def test_what_a_variant_loses_on_sts_is_in_the_manifest(
    tmp_path: Path, trained: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A part of one set: whole ones are scored where models are made.
    whole = read_sts(shared_data / "sts")[0]
    name, rows = next(iter(whole.subsets.items()))
    part = StsPairs(rows.gold[:300], rows.left[:300], rows.right[:300])
    tasks = [StsTask(whole.name, {name: part})]
    options: Any = {"variants": ["int8"], "sts": tasks, "calibration": SENTENCES}
    bundle = export(trained, tmp_path / "b", weights="float16", **options)
    assert bundle.manifest.parity["int8_sts_loss"] <= 0.5
    monkeypatch.setitem(variants.MAX_STS_LOSS, "int8", -9.0)
    with pytest.raises(ExportError, match=r"int8 .*\.\d\d points on "):
        export(trained, tmp_path / "c", weights="float16", **options)


def test_a_variant_that_is_too_far_is_refused_and_nothing_is_left(
    tmp_path: Path, checkpoint, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(variants.MIN_COSINE_OF, kind, 1.01)
    with pytest.raises(ExportError, match=rf"{kind} .*cosine (0\.9|1\.0)"):
        export(checkpoint("bert"), tmp_path / "b", variants=[kind], calibration=CORPUS)  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []


def test_a_variant_needs_an_engine_to_be_measured_on(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # it is not installed
    with pytest.raises(ExportError, match=r"-openvino .*on OpenVINORuntime"):
        export(trained, tmp_path / "b", variants=["int8-openvino"], calibration=FEW)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_errors(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(InputValueError, match="float16, int8, int8-openvino"):
        export(trained, tmp_path / "b", variants=["int4"])  # type: ignore[list-item]
    with pytest.raises(ExportError, match="needs texts"):
        export(trained, tmp_path / "b", variants=["int8"], calibration=[])
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_part_of_the_closed_list(bundle: Bundle) -> None:
    for kind in bundle.variants:
        assert VARIANTS[kind] in bundle.manifest.files


def test_a_gpu_runs_the_float16_graph(bundle: Bundle) -> None:
    if CUDA not in available_providers():
        pytest.skip(f"{CUDA} cannot run on this machine")
    with (
        Encoder.load(bundle.path, device="cuda") as encoder,
        Encoder.load(bundle.path, provider="cpu", compute="float32") as exact,
    ):
        assert encoder.info().compute == "float16"
        vectors = encoder.encode(SENTENCES)
        cosine = (exact.encode(SENTENCES) * vectors).sum(axis=1)
        alone = np.stack([encoder.encode(text) for text in SENTENCES[:20]])
    assert cosine.min() >= 0.999
    assert (alone * vectors[:20]).sum(axis=1).min() >= 0.9999
