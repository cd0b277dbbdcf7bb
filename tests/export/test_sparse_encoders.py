"""SPLADE models as sparse encoders: sentence-transformers' vectors, for every form of source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from flowvec import Bundle, ExportError, InputValueError, SparseEncoder
from flowvec_export import export
from flowvec_export.sources.load import read_any_source
from flowvec_export.sources.torch import TorchSource
from tests.export.conftest import TEXTS
from tests.export.sparse_encoders import change_json, make_masked_lm, make_splade, weights_of

pytestmark = pytest.mark.parity

# Those whose encoder and head are flowvec's own come first; then transformers' own module.
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("roberta", {"activation_function": "log1p_relu"}),
    ("distilbert", {"pooling_strategy": "sum"}),
    ("modernbert", {}),
]


def vectors_of(bundle: Bundle, texts: list[str], **options: Any) -> np.ndarray:
    with SparseEncoder.load(bundle.path, provider="cpu", compute="float32") as encoder:
        return encoder.encode(texts, **options).to_dense()


@pytest.mark.exports(but=1)
@pytest.mark.parametrize(("architecture", "pooling"), KINDS, ids=[kind for kind, _ in KINDS])
def test_weights_are_those_of_sentence_transformers(
    architecture: str, pooling: dict[str, Any], tmp_path: Path
) -> None:
    source = make_splade(tmp_path, architecture, **pooling)
    expected = weights_of(source, TEXTS)
    active = (expected > 0).mean()
    assert 0.01 < active < 0.7
    bundle = export(source, tmp_path / "bundle")
    # All texts together, so that a text's padding would show.
    np.testing.assert_allclose(vectors_of(bundle, TEXTS), expected, rtol=1e-4, atol=2e-5)


def test_the_largest_weights_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    source = make_splade(tmp_path)
    change_json(source / "config_sentence_transformers.json", max_active_dims=7)
    bundle = export(source, tmp_path / "bundle")
    assert bundle.manifest.max_active_dims == 7
    for given, count in ((None, 7), (3, 3), (12, 12)):
        expected = weights_of(source, TEXTS, max_active_dims=count)
        ours = vectors_of(bundle, TEXTS, max_active_dims=given)
        assert ((ours > 0).sum(axis=1) <= count).all()
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=2e-5)


def test_logits_never_leave_the_graph(tmp_path: Path) -> None:
    bundle = export(make_splade(tmp_path), tmp_path / "bundle")
    graph = onnx.load(bundle.model).graph
    (output,) = graph.output
    assert len(output.type.tensor_type.shape.dim) == 2  # (batch, vocabulary): no sequence
    assert (bundle.manifest.kind, bundle.manifest.pooling) == ("sparse", "max")
    assert bundle.manifest.transform == ("relu", "log1p")
    assert bundle.manifest.parity["max_relative_error"] <= 1e-4


def test_the_layout_of_older_versions_gives_the_same_bundle(tmp_path: Path) -> None:
    source = make_splade(tmp_path)
    older = Path(shutil.copytree(source, tmp_path / "older"))
    kinds = ("MLMTransformer", "SpladePooling")
    modules = json.loads((older / "modules.json").read_text())
    for module, kind in zip(modules, kinds, strict=True):
        module["type"] = f"sentence_transformers.sparse_encoder.models.{kind}"
    (older / "modules.json").write_text(json.dumps(modules))
    (older / modules[0]["path"] / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 40, "do_lower_case": false}'
    )
    (older / "1_SpladePooling" / "config.json").write_text(
        '{"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 9}'
    )
    fingerprints = {
        export(folder, tmp_path / "bundles" / folder.name).fingerprint for folder in (source, older)
    }
    assert len(fingerprints) == 1


def test_prompts_are_put_before_texts(tmp_path: Path) -> None:
    source = make_splade(tmp_path)
    change_json(
        source / "config_sentence_transformers.json",
        prompts={"query": "the cat ", "document": ""},
    )
    bundle = export(source, tmp_path / "bundle")
    with SparseEncoder.load(bundle.path, provider="cpu") as encoder:
        query = encoder.encode_query("sleeps").to_dense()
        document = encoder.encode_document("the cat sleeps").to_dense()
    np.testing.assert_array_equal(query, document)


@pytest.mark.exports
def test_float16_weights_halve_the_file(tmp_path: Path) -> None:
    source = make_splade(tmp_path)
    exact = export(source, tmp_path / "float32")
    half = export(source, tmp_path / "float16", weights="float16")
    assert half.manifest.files["model.onnx"].bytes < 0.7 * exact.manifest.files["model.onnx"].bytes
    assert half.manifest.parity["min_cosine_to_float32_weights"] >= 0.999


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pooling": "mean"}, "whose pooling is its own, so pooling cannot be used"),
        ({"normalize": True}, "normalize cannot be used"),
        ({"variants": ["float16"]}, "a sparse encoder has no float16 variant"),
    ],
)
def test_options_of_embedders_are_refused(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises((ExportError, InputValueError), match=reason):
        export(make_splade(tmp_path), tmp_path / "bundle", **options)
    assert not (tmp_path / "bundle").exists()


def test_other_sparse_encoders_are_refused(tmp_path: Path) -> None:
    source = make_splade(tmp_path)
    change_json(source / "1_SpladePooling" / "config.json", activation_function="softplus")
    with pytest.raises(ExportError, match="activation_function 'softplus'"):
        export(source, tmp_path / "bundle")
    modules = json.loads((source / "modules.json").read_text())
    modules[1]["type"] = "sentence_transformers.sparse_encoder.models.SparseAutoEncoder"
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match="only SPLADE is supported"):
        export(source, tmp_path / "bundle")
    modules[1]["type"] = "mine.SpladePooling"
    (source / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match=r"mine\.SpladePooling.* code"):
        export(source, tmp_path / "bundle")


def test_a_plain_masked_language_model_stays_an_encoder(tmp_path: Path) -> None:
    source = read_any_source(make_masked_lm(tmp_path / "bert", "bert"))
    assert isinstance(source, TorchSource)
