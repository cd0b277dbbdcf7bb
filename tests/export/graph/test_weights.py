"""How weights are stored in the graph: shared rows once, whole numbers in a byte, float16."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from flowvec import Bundle, Encoder
from flowvec.engine.providers import CPU, OPENVINO
from flowvec.engine.selection import available_providers
from flowvec.errors import ExportError
from flowvec_export import export
from flowvec_export.assembly.parity import Parity
from flowvec_export.graph import weights
from tests.export.conftest import TEXTS, mean_in_torch, with_weights


def with_words(folder: Path, tmp_path: Path, change) -> Path:
    """A copy of a checkpoint with other word embeddings."""

    def replace(weights: dict[str, torch.Tensor]) -> None:
        name = next(name for name in weights if name.endswith("word_embeddings.weight"))
        weights[name] = change(weights[name]).contiguous()

    return with_weights(folder, tmp_path, replace)


def table_of(bundle: Bundle) -> dict[str, onnx.TensorProto]:
    """The weights of a graph that hold word embeddings, by the rest of their names."""
    stored = onnx.load(bundle.model).graph.initializer
    words = re.compile(r"backbone\.(words|model\.embeddings\.word_embeddings\.weight)")
    return {words.sub("", i.name): i for i in stored if words.match(i.name)}


def words_stored(bundle: Bundle, change, weights_of: str) -> set[str]:
    """The same of a graph that gets other word embeddings before its weights are stored."""
    graph = ir.from_proto(onnx.load(bundle.model)).graph
    value = graph.initializers["backbone.words"]
    assert value.const_value is not None
    rows = change(value.const_value.numpy().copy()).astype(np.float32)
    value.const_value = ir.tensor(rows, name=value.name)
    weights.store(graph, weights_of)
    return {n.removeprefix("backbone.words") for n in graph.initializers if ".words" in n}


@pytest.mark.exports
@pytest.mark.parametrize(
    ("architecture", "weights"), [("roberta", "float16"), ("mpnet", "float32")]
)
def test_words_that_share_a_vector_store_it_once(
    checkpoint, tmp_path, architecture, weights
) -> None:
    def share(rows: torch.Tensor) -> torch.Tensor:
        owner = torch.arange(len(rows)) // 3 * 3
        owner[7] = 9  # and one whose copy is not beside it
        return rows[owner]

    source = with_words(checkpoint(architecture), tmp_path, share)
    bundle = export(source, tmp_path / "b", weights=weights)
    table = table_of(bundle)
    row_of = table.pop(".row_of")
    (rows,) = table.values()
    assert row_of.data_type == onnx.TensorProto.INT32
    assert rows.dims[0] == -(-row_of.dims[0] // 3)
    expected = mean_in_torch(source, TEXTS)
    for provider in {CPU, OPENVINO} & set(available_providers()):
        with Encoder.load(bundle.path, provider=provider, compute="float32") as encoder:
            parity = Parity.of(encoder.encode(TEXTS), expected)
        assert parity.min_cosine >= (0.99999 if weights == "float32" else 0.999), provider
    again = export(source, tmp_path / "d", weights=weights)
    assert again.manifest.files == bundle.manifest.files  # byte for byte


@pytest.mark.exports
def test_a_few_equal_rows_change_nothing(bert_bundle) -> None:
    def share(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([np.repeat(rows[:1], 20, axis=0), rows[20:]])

    assert words_stored(bert_bundle, share, "float32") == table_of(bert_bundle).keys() == {""}


@pytest.mark.exports
def test_whole_numbers_are_stored_in_a_byte_each(checkpoint, tmp_path) -> None:
    def round_rows(rows: torch.Tensor) -> torch.Tensor:
        # LayerNorm takes the scale away: as good as any rounding to 8 bits.
        whole = torch.round(rows / rows.abs().amax(1, keepdim=True) * 127)
        return whole.abs() * whole.sign().where(whole != 0, 1.0)  # no -0.0

    source = with_words(checkpoint("bert"), tmp_path, round_rows)
    bundle = export(source, tmp_path / "b", weights="float16", variants=["int8", "float16"])
    table = table_of(bundle)
    assert [(name, tensor.data_type) for name, tensor in table.items()] == [
        (".int8", onnx.TensorProto.INT8)
    ]
    assert bundle.manifest.parity["min_cosine"] >= 0.99999
    expected = mean_in_torch(source, TEXTS)
    for provider in {CPU, OPENVINO} & set(available_providers()):
        with Encoder.load(bundle.path, provider=provider, compute="float32") as encoder:
            parity = Parity.of(encoder.encode(TEXTS), expected)
        assert parity.min_cosine >= 0.999, provider  # other matrices are rounded to float16
    with Encoder.load(bundle.path, provider="cpu", compute="int8") as encoder:
        assert np.isfinite(encoder.encode(TEXTS)).all()


@pytest.mark.exports
@pytest.mark.parametrize("value", [128.0, 0.5, -0.0, 1e9])
def test_what_a_byte_cannot_hold_is_stored_as_before(bert_bundle, value) -> None:
    def whole(rows: np.ndarray) -> np.ndarray:
        return np.clip(np.round(rows * 10), -100, 100) + np.float32(0.0)

    def one_other(rows: np.ndarray) -> np.ndarray:
        changed = whole(rows)
        changed[5, 3] = value
        return changed

    assert words_stored(bert_bundle, whole, "float16") == {".int8"}
    if value == 1e9:
        with pytest.raises(ExportError, match="float16"):
            words_stored(bert_bundle, one_other, "float16")
    else:
        assert words_stored(bert_bundle, one_other, "float16") == {".float16"}


@pytest.mark.exports
def test_weights_that_float16_would_ruin_are_refused(checkpoint, tmp_path) -> None:
    def shrink(weights: dict[str, torch.Tensor]) -> None:
        for name in weights:
            if name.startswith("embeddings.") and "LayerNorm" not in name:
                weights[name] = weights[name] * 1e-7

    source = with_weights(checkpoint("bert", layer_norm_eps=1e-20), tmp_path, shrink)
    export(source, tmp_path / "whole")
    with pytest.raises(ExportError, match=r"rounding .*float16"):
        export(source, tmp_path / "half", weights="float16")


@pytest.mark.exports
def test_float16_figures_compare_with_the_weights_as_they_were(checkpoint, tmp_path) -> None:
    figures = export(checkpoint("bert"), tmp_path / "b", weights="float16").manifest.parity
    assert 0.999 <= figures["min_cosine_to_float32_weights"] <= 1


@pytest.mark.exports
def test_a_graph_above_two_gigabytes_says_so(
    checkpoint, tmp_path, bert_bundle, traced_anew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "MAX_BYTES", 90_000)
    with pytest.raises(ExportError, match="float16 weights"):
        export(checkpoint("bert"), tmp_path / "b")
    assert words_stored(bert_bundle, lambda rows: rows, "float16") == {".float16"}
