"""The int8-native variant: the exporter's weights, computed by flowvec's own engine."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Bundle, Encoder
from flowvec.bundle.bundle import record_file
from flowvec.encoder import proof
from flowvec.engine.native_session import native_status
from flowvec.engine.providers import NATIVE, Engine
from flowvec.engine.selection import open_session
from flowvec.errors import BundleError, EngineError, ExportError
from flowvec.native import NativeEncoder, Weights
from flowvec.native.encoder import sets
from flowvec_export import export
from flowvec_export.variants import variants
from tests.export.conftest import CORPUS, POSITIONS, TEXTS

pytestmark = pytest.mark.skipif(
    native_status() is not None, reason=f"the native engine does not run here: {native_status()}"
)

# Heads of 32 and 64, which the native engine computes.
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_size": 64, "num_attention_heads": 2},
    "roberta": {"hidden_size": 64, "num_attention_heads": 1},
    "xlm-roberta": {"hidden_size": 64, "num_attention_heads": 2},
    "camembert": {"hidden_size": 64, "num_attention_heads": 2},
    "distilbert": {"dim": 64, "n_heads": 2},
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


@pytest.mark.parametrize("pooling", ["cls", "mean+max+last_token"])
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


def test_the_same_export_gives_the_same_file(checkpoint, bundle: Bundle, tmp_path: Path) -> None:
    again = exported(checkpoint, tmp_path / "b", "bert")
    assert again.manifest.files == bundle.manifest.files
    assert again.fingerprint == bundle.fingerprint
    assert bundle.manifest.parity["int8-native_min_cosine"] >= LEAST


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"num_attention_heads": 8}, {}, "8 heads of 64"),
        ({"hidden_size": 96, "num_attention_heads": 3}, {}, "3 heads of 96"),
        ({"hidden_act": "relu"}, {}, "GELU in its exact form"),
        ({"hidden_act": "gelu_new"}, {}, "GELU in its exact form"),
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


def test_another_architecture_is_refused_at_export(checkpoint, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="does not compute this architecture"):
        export(checkpoint("mpnet"), tmp_path / "b", variants=["int8-native"], calibration=CORPUS)


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


def test_a_token_without_a_row_is_an_error(bundle: Bundle) -> None:
    session = open_session(bundle, ENGINE)
    with pytest.raises(EngineError, match="vocabulary"):
        session.run(np.array([[1, 1 << 20]]), np.ones((1, 2), np.int64))
