"""The int8-native variant: the exporter's weights, computed by flowvec's own engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flowvec import Bundle, Encoder, MultiVectorEncoder, Reranker, SparseEncoder
from flowvec.bundle.bundle import record_file
from flowvec.encoder import proof
from flowvec.engine.native_session import native_status
from flowvec.engine.providers import NATIVE, Engine
from flowvec.engine.selection import open_session
from flowvec.errors import BundleError, EngineError, ExportError
from flowvec.native import NativeEncoder, Weights
from flowvec.native.encoder import sets
from flowvec_export import export
from flowvec_export.transforms import (
    AllButTheTop,
    Compose,
    Dense,
    FlowShape,
    Moments,
    Standardise,
    Transform,
    Whitening,
)
from flowvec_export.variants import ranking, retrieval, variants
from tests.export.conftest import CORPUS, POSITIONS, TEXTS
from tests.export.cross_encoders import make_cross_encoder, pairs_of
from tests.export.sparse_encoders import make_splade
from tests.export.transforms.test_transforms import flow_of
from tests.export.variants.test_retrieval import make_multi_vector

pytestmark = pytest.mark.skipif(
    native_status() is not None, reason=f"the native engine does not run here: {native_status()}"
)

# Heads of 32 and 64, which the native engine computes.
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 64, "num_attention_heads": 2},
    "roberta": {"hidden_size": 64, "num_attention_heads": 1},
    "xlm-roberta": {"hidden_size": 64, "num_attention_heads": 2},
    "distilbert": {"dim": 64, "n_heads": 2},
    "electra": {"hidden_size": 64, "num_attention_heads": 2, "embedding_size": 64},
    "mpnet": {"hidden_size": 64, "num_attention_heads": 2},
}
# Random weights of this size are far from any trained model's, and eight bits cost them more.
LEAST = 0.97
ENGINE = Engine(NATIVE, "int8", 1)


@pytest.fixture(scope="module", autouse=True)
def _random_weights_lose_more():
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(variants.MIN_COSINE_OF, "int8-native", LEAST)
        patched.setitem(proof.MIN_COSINE_OF, "int8", LEAST)
        yield


def exported(checkpoint: Any, out: Path, architecture: str, **options: Any) -> Bundle:
    source = checkpoint(architecture, **SIZES[architecture])
    calibration = options.pop("calibration", CORPUS)
    return export(source, out, variants=["int8-native"], calibration=calibration, **options)


@pytest.fixture(scope="module")
def bundle(checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(checkpoint, tmp_path_factory.mktemp("native") / "b", "bert")


@pytest.mark.exports(but=2)
@pytest.mark.parametrize("architecture", SIZES)
def test_vectors_are_close_to_float32_and_the_same_in_any_company(
    checkpoint, tmp_path: Path, architecture: str
) -> None:
    made = exported(checkpoint, tmp_path / "b", architecture)
    # Padding tokens that are written in a text have no position in RoBERTa.
    texts = [*TEXTS, "the <pad> cat [PAD] sleeps <pad>"]
    with (
        Encoder.load(made.path, provider="cpu", compute="float32") as exact,
        Encoder.load(made.path, provider="native") as encoder,
    ):
        assert encoder.engine.variant == "int8-native"
        vectors = encoder.encode(texts)
        assert LEAST <= (exact.encode(texts) * vectors).sum(axis=1).min() < 1 - 1e-7
        assert encoder.encode(texts[::-1])[::-1].tobytes() == vectors.tobytes()
        assert np.stack([encoder.encode(text) for text in texts]).tobytes() == vectors.tobytes()
        assert encoder.encode(texts, max_batch_tokens=1 << 20).tobytes() == vectors.tobytes()


def test_every_instruction_set_gives_the_same_bits(bundle: Bundle) -> None:
    weights = Weights.read(bundle.graph("int8-native"))
    draw = np.random.default_rng(0)
    ids = draw.integers(0, len(weights.tensors["words.weight"]), 60).astype(np.int32)
    starts = np.array([0, 1, 23, 60])
    found = [NativeEncoder(weights, name).vectors(ids, starts).tobytes() for name in sets()]
    assert len(found) > 1
    assert set(found) == {found[0]}


@pytest.mark.parametrize("limit", ["AVX2", None])
def test_a_limit_on_instruction_sets_changes_no_bit(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, limit: str | None
) -> None:
    with Encoder.load(bundle.path, provider="native") as encoder:
        wanted = encoder.encode(TEXTS)
    if limit is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    with Encoder.load(bundle.path, provider="native", streams=1) as encoder:
        assert encoder.encode(TEXTS).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("pooling", ["cls", "pooler", "mean+max+last_token"])
def test_poolings_and_vectors_that_are_not_normalized(
    checkpoint, tmp_path: Path, pooling: str
) -> None:
    made = exported(checkpoint, tmp_path / "b", "bert", pooling=pooling, normalize=False)
    with (
        Encoder.load(made.path, provider="cpu", compute="float32") as exact,
        Encoder.load(made.path, provider="native") as encoder,
    ):
        wanted, found = exact.encode(TEXTS), encoder.encode(TEXTS)
    cosines = (
        (wanted * found).sum(1) / np.linalg.norm(wanted, axis=1) / np.linalg.norm(found, axis=1)
    )
    assert cosines.min() >= LEAST
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.linalg.norm(wanted, axis=1), rel=0.1)


def transform_of(kind: str) -> Transform:
    draw = np.random.default_rng(0)
    if kind in ("additive", "affine"):
        return flow_of(64, FlowShape(2, 2, 32, kind))
    if kind == "linear":
        whitening = Whitening.fit(Moments.of(draw.normal(size=(500, 64))), k=20)
        top = AllButTheTop.fit(Moments.of(draw.normal(size=(500, 20))), k=3)
        return Compose([whitening, top])
    first, second = kind.split("+")
    weights = torch.from_numpy(draw.normal(size=(48, 64)).astype(np.float32) / 8)
    narrower = torch.from_numpy(draw.normal(size=(24, 48)).astype(np.float32) / 7)
    dense = Dense(weights, torch.ones(48), activation=first)
    return Compose([dense, Dense(narrower, torch.ones(24), activation=second), Standardise(24)])


@pytest.mark.exports(but=2)
@pytest.mark.parametrize(
    ("kind", "normalize"),
    [
        ("linear", False), ("additive", True), ("affine", False), ("tanh+silu", False),
        ("relu+sigmoid", True),
    ],
)  # fmt: skip
def test_transforms_are_steps_behind_the_pooling(
    checkpoint, tmp_path: Path, kind: str, normalize: bool
) -> None:
    transform = transform_of(kind)
    made = exported(checkpoint, tmp_path / "b", "bert", transform=transform, normalize=normalize)
    with (
        Encoder.load(made.path, provider="cpu", compute="float32") as exact,
        Encoder.load(made.path, provider="native") as encoder,
    ):
        wanted, found = exact.encode(TEXTS), encoder.encode(TEXTS)
        assert encoder.encode(TEXTS[::-1])[::-1].tobytes() == found.tobytes()
        assert np.stack([encoder.encode(text) for text in TEXTS]).tobytes() == found.tobytes()
    assert found.shape == wanted.shape == (len(TEXTS), transform.out_dim)
    lengths = [np.linalg.norm(vectors, axis=1) for vectors in (wanted, found)]
    assert ((wanted * found).sum(1) / lengths[0] / lengths[1]).min() >= LEAST
    assert lengths[1] == pytest.approx(lengths[0], rel=0.1)


def test_a_step_that_is_not_known_is_refused_at_export(checkpoint, tmp_path: Path) -> None:
    dense = Dense(torch.ones(8, 64), None, activation="gelu")
    with pytest.raises(ExportError, match="does not compute Gelu behind the pooling"):
        exported(checkpoint, tmp_path / "b", "bert", transform=dense)


def test_the_same_export_gives_the_same_file(checkpoint, bundle: Bundle, tmp_path: Path) -> None:
    again = exported(checkpoint, tmp_path / "b", "bert")
    assert again.manifest.files == bundle.manifest.files
    assert again.fingerprint == bundle.fingerprint
    assert bundle.manifest.parity["int8-native_min_cosine"] >= LEAST


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet"])
def test_rerankers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    monkeypatch.setattr(ranking, "MIN_TAU", 0.5)  # random scores are close to each other
    monkeypatch.setattr(ranking, "MIN_TOP_1", 0.5)
    source = make_cross_encoder(tmp_path / "s", architecture, 2, **SIZES[architecture])
    made = export(source, tmp_path / "b", variants=["int8-native"], calibration=CORPUS)
    pairs = pairs_of(10)
    with (
        Reranker.load(made.path, provider="cpu", compute="float32") as exact,
        Reranker.load(made.path, provider="native", proof="never") as reranker,
    ):
        assert reranker.engine.variant == "int8-native"
        wanted, found = (model.predict(pairs, activation="identity") for model in (exact, reranker))
        again = reranker.predict(pairs[::-1], activation="identity")[::-1]
    assert again.tobytes() == found.tobytes()
    assert found.shape == wanted.shape == (len(pairs), 2)
    for label in range(2):
        assert np.corrcoef(found[:, label], wanted[:, label])[0, 1] > 0.8


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert"])
def test_sparse_encoders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    monkeypatch.setattr(retrieval, "MIN_TAU", 0.5)  # random weights are close to each other
    monkeypatch.setattr(retrieval, "MIN_TOP_1", 0.5)
    monkeypatch.setattr(retrieval, "MIN_TOP_10", 0.5)
    source = make_splade(tmp_path / "s", architecture, sizes=SIZES[architecture])
    made = export(source, tmp_path / "b", variants=["int8-native"])
    with (
        SparseEncoder.load(made.path, provider="cpu", compute="float32") as exact,
        SparseEncoder.load(made.path, provider="native", proof="never") as encoder,
    ):
        assert encoder.engine.variant == "int8-native"
        wanted, found = (model.encode(TEXTS).to_dense() for model in (exact, encoder))
        again = encoder.encode(TEXTS[::-1]).to_dense()[::-1]
    assert again.tobytes() == found.tobytes()
    cosines = (wanted * found).sum(1) / np.linalg.norm(wanted, axis=1)
    assert (cosines / np.linalg.norm(found, axis=1)).min() > LEAST


@pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6,
    reason="this sentence-transformers has no MultiVectorEncoder",
)
def test_multi_vector_encoders(tmp_path: Path) -> None:
    source = make_multi_vector(tmp_path)
    made = export(source, tmp_path / "b", variants=["int8-native"])
    assert made.manifest.parity["int8-native_top_10"] >= 0.9
    texts = [*TEXTS, "one, two."]
    with (
        MultiVectorEncoder.load(made.path, provider="cpu", compute="float32") as exact,
        MultiVectorEncoder.load(made.path, provider="native") as encoder,
    ):
        assert encoder.engine.variant == "int8-native"
        for name in ("encode_query", "encode_document"):
            wanted, found = (getattr(model, name)(texts) for model in (exact, encoder))
            again = getattr(encoder, name)(texts[::-1])[::-1]
            for a, b, c in zip(wanted, found, again, strict=True):
                assert b.tobytes() == c.tobytes()
                assert (a * b).sum(axis=1).min() > LEAST


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"num_attention_heads": 8}, {}, "8 heads of 64"),
        ({"hidden_size": 96, "num_attention_heads": 3}, {}, "3 heads of 96"),
        ({"hidden_act": "relu"}, {}, "GELU in its exact form"),
        ({"hidden_act": "gelu_new"}, {}, "GELU in its exact form"),
        ({}, {"weights": "float16"}, "weights that are stored in float16"),
        ({}, {"pooling": "first_last_mean"}, "the pooling first_last_mean"),
    ],
)
def test_what_is_not_computed_is_refused_at_export(
    checkpoint, tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    source = checkpoint("bert", **{**SIZES["bert"], **changes})
    with pytest.raises(ExportError, match=f"does not compute.*{reason}"):
        export(source, tmp_path / "b", variants=["int8-native"], calibration=CORPUS, **options)
    assert not (tmp_path / "b").exists()


def test_equal_tensors_have_one_name_in_a_graph(checkpoint, tmp_path: Path) -> None:
    source = shutil.copytree(checkpoint("bert", **SIZES["bert"]), tmp_path / "s")
    weights = load_file(source / "model.safetensors")
    for name, tensor in weights.items():  # as in a model that was not trained
        if name.endswith("bias"):
            tensor[:] = 0
        elif "LayerNorm" in name:
            tensor[:] = 1
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    made = export(source, tmp_path / "b", variants=["int8-native"], calibration=CORPUS)
    assert made.manifest.parity["int8-native_min_cosine"] >= LEAST


def test_another_architecture_is_refused_at_export(checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="does not compute this architecture"):
        export(
            checkpoint("modernbert"), tmp_path / "b", variants=["int8-native"], calibration=CORPUS
        )


@pytest.mark.parametrize(
    "changes",
    [{"poolings": ("mean", "cls")}, {"heads": 3}, {"tensors": "positions"}],
    ids=lambda changes: next(iter(changes)),
)
def test_weights_of_another_model_are_refused(
    bundle: Bundle, tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = tmp_path / "b"
    shutil.copytree(bundle.path, folder)
    weights = Weights.read(bundle.graph("int8-native"))
    if "tensors" in changes:
        shorter = weights.tensors["positions"][: POSITIONS - 1]
        changes = {"tensors": {**weights.tensors, "positions": shorter}}
    replace(weights, **changes).write(folder / "model.native")
    files = {**bundle.manifest.files, "model.native": record_file(folder / "model.native")}
    with pytest.raises(BundleError, match=r"dimensions|cannot be computed"):
        open_session(Bundle(folder, replace(bundle.manifest, files=files)), ENGINE)


def test_a_text_that_is_alone_gets_all_cores_and_the_same_bits(bundle: Bundle) -> None:
    with Encoder.load(bundle.path, provider="native", threads=3, streams=1) as three:
        wanted = three.encode(TEXTS)
    with Encoder.load(bundle.path, provider="native") as encoder:
        for _ in range(3):  # the first texts that are alone take one core
            found = np.stack([encoder.encode(text) for text in TEXTS])
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.process
@pytest.mark.parametrize("options", [{}, {"provider": "native"}, {"compute": "int8"}], ids=str)
def test_no_other_engine_is_imported(bundle: Bundle, options: dict[str, str]) -> None:
    code = """
import json, sys
from flowvec import Encoder
from flowvec.engine.providers import is_native_best
from flowvec.machine import cpu_features
if not is_native_best(cpu_features(), ["int8-native"]):
    sys.argv[2] = '{"provider": "native"}'  # what is best there is another engine
with Encoder.load(sys.argv[1], proof="never", **json.loads(sys.argv[2])) as encoder:
    assert encoder.encode("the cat sleeps").shape == (64,)
    assert encoder.info().provider == "FlowvecNative"
print(sorted({"onnxruntime", "openvino", "onnx", "torch"} & sys.modules.keys()))
"""
    arguments = [sys.executable, "-c", code, str(bundle.path), json.dumps(options)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_a_token_without_a_row_is_an_error(bundle: Bundle) -> None:
    session = open_session(bundle, ENGINE)
    with pytest.raises(EngineError, match="vocabulary"):
        session.run(np.array([[1, 1 << 20]]), np.ones((1, 2), np.int64))
