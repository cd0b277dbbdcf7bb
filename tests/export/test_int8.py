"""The int8 variant: close to float32, a scale for each token, and nothing but the encoder in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from flowvec import Bundle, Encoder, session
from flowvec.demo import load_passages
from flowvec.errors import ExportError, ProviderUnavailableError
from flowvec.manifest import VARIANTS
from flowvec.sentences import split_sentences
from flowvec_export import export, variants

from .conftest import CORPUS, LAYERS

MINI = Path(__file__).resolve().parents[2] / "models/mini/checkpoint"
SENTENCES = [s for p in load_passages() for s in split_sentences(p.text)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("int8") / "mini"
    return export(MINI, out, weights="float16", variants=["int8"])


@pytest.fixture(scope="module")
def encoder(bundle: Bundle):
    with Encoder.load(bundle.path, provider="cpu", compute="int8", streams=2) as encoder:
        yield encoder


def test_it_stays_close_to_float32_on_real_text(bundle: Bundle, encoder: Encoder) -> None:
    with Encoder.load(bundle.path, provider="cpu", compute="float32") as exact:
        cosine = (exact.encode(SENTENCES) * encoder.encode(SENTENCES)).sum(axis=1)
    assert encoder.info().compute == "int8"
    assert 0.995 <= cosine.min() < 1 - 1e-6  # it is rounded, and not by much
    figures = bundle.manifest.parity
    assert figures["int8_min_cosine"] == pytest.approx(cosine.min(), abs=1e-3)
    assert figures["int8_min_cosine"] <= figures["int8_mean_cosine"] <= 1


def test_a_vector_does_not_depend_on_what_it_is_computed_with(encoder: Encoder) -> None:
    texts = [*SENTENCES[:40], "", "word " * 300, "!", SENTENCES[0] * 5]
    alone = np.stack([encoder.encode(text) for text in texts])
    np.testing.assert_allclose(encoder.encode(texts), alone, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(texts[::-1])[::-1], alone, atol=1e-5)
    # All in one batch, padded to the longest.
    whole = encoder.encode(texts, max_batch_tokens=1 << 20)
    np.testing.assert_allclose(whole, alone, atol=1e-5)


def test_the_encoders_products_are_integers_and_nothing_else(bundle: Bundle) -> None:
    plain, small = (onnx.load(bundle.graph(c)) for c in ("float32", "int8"))
    kinds = [Counter(node.op_type for node in proto.graph.node) for proto in (plain, small)]
    layers = 3  # of mini
    assert kinds[1]["MatMulIntegerToFloat"] == 4 * layers
    assert kinds[1]["QuantizeLinear"] == 4 * layers
    # What attention multiplies, and Dense behind the pooling, stay as they were.
    assert kinds[1]["MatMul"] == kinds[0]["MatMul"] - 4 * layers
    assert kinds[1]["Gemm"] == kinds[0]["Gemm"]
    stored = {init.name: init.data_type for init in small.graph.initializer}
    inside = {name for name in stored if name.startswith("backbone.layers") and ".weight" in name}
    matrices = {name for name in inside if name.endswith(".int8")}
    assert len(matrices) == 4 * layers
    assert all(stored[name] == onnx.TensorProto.INT8 for name in matrices)
    assert not any(name.endswith(("qkv.weight", "weight.float16")) for name in inside)
    sizes = [bundle.graph(c).stat().st_size for c in ("float32", "int8")]
    assert sizes[1] < sizes[0]


def test_a_processor_without_vnni_computes_the_same(
    bundle: Bundle, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There ONNX Runtime is told to take the way that does not clip; it runs here as well.
    monkeypatch.setattr(session, "cpu_features", lambda: ["avx2"])
    with Encoder.load(bundle.path, provider="cpu", compute="int8") as careful:
        found = careful.encode(SENTENCES[:50])
    np.testing.assert_allclose(found, encoder.encode(SENTENCES[:50]), atol=1e-4)


def test_a_variant_changes_neither_the_model_nor_its_fingerprint(
    bundle: Bundle, tmp_path: Path
) -> None:
    without = export(MINI, tmp_path / "b", weights="float16")
    assert without.fingerprint == bundle.fingerprint
    assert without.variants == ()
    assert bundle.variants == ("int8",)
    again = export(MINI, tmp_path / "c", weights="float16", variants=["int8"])
    assert again.manifest.files == bundle.manifest.files  # byte for byte
    with pytest.raises(ProviderUnavailableError, match="--variants int8"):
        Encoder.load(without.path, provider="cpu", compute="int8")


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet"])
def test_every_architecture_has_one(
    checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    # Random weights of this size are far from any trained model's, and eight bits cost them more.
    monkeypatch.setitem(variants.MIN_COSINE_OF, "int8", 0.9)
    bundle = export(checkpoint(architecture), tmp_path / "b", variants=["int8"], calibration=CORPUS)
    products = Counter(n.op_type for n in onnx.load(bundle.graph("int8")).graph.node)
    assert products["MatMulIntegerToFloat"] >= 4 * LAYERS
    with Encoder.load(bundle.path, provider="cpu", compute="int8") as encoder:
        assert np.isfinite(encoder.encode(CORPUS[:9])).all()


def test_one_that_is_too_far_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(variants.MIN_COSINE_OF, "int8", 1.0)
    with pytest.raises(ExportError, match=r"int8 costs too much: cosine 0\.9999"):
        export(MINI, tmp_path / "b", variants=["int8"])
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="variants must be of int8, not 'int4'"):
        export(MINI, tmp_path / "b", variants=["int4"])  # type: ignore[list-item]
    with pytest.raises(ExportError, match="needs texts"):
        export(MINI, tmp_path / "b", variants=["int8"], calibration=[])
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_part_of_the_closed_list(bundle: Bundle) -> None:
    assert VARIANTS["int8"] in bundle.manifest.files
