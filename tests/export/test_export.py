"""`export`: one graph that computes what torch computes, or nothing at all."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers

from flowvec import Bundle, Encoder, InputValueError
from flowvec.bundle.bundle import shipped_bundles
from flowvec.encoder.batching import Batch, pad
from flowvec.errors import ExportError
from flowvec_export import Dense, Identity, export, export_bundle, read_source
from flowvec_export.assembly.parity import Parity
from flowvec_export.staging import staged_directory
from tests.export.conftest import DEEP, POSITIONS, TEXTS, WIDTH, mean_in_torch, with_weights

ARCHITECTURES = ["bert", "roberta", "xlm-roberta", "distilbert", "mpnet"]


@pytest.mark.exports(but=1)
@pytest.mark.parity
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_bundle_gives_transformers_vectors(checkpoint, tmp_path, architecture, provider) -> None:
    folder = checkpoint(architecture, num_hidden_layers=DEEP)
    bundle = export(folder, tmp_path / "b")
    manifest = bundle.manifest
    assert (manifest.dim, manifest.max_length, manifest.pooling) == (WIDTH, POSITIONS, "mean")
    assert manifest.normalised
    assert manifest.layers == DEEP
    assert manifest.parity["max_relative_error"] <= 1e-4
    with Encoder.load(bundle.path, provider=provider, compute="float32") as encoder:
        parity = Parity.of(encoder.encode(TEXTS), mean_in_torch(folder, TEXTS))
    assert parity.max_relative_error <= 1e-4
    assert parity.min_cosine >= 0.99999


@pytest.mark.exports(but=1)
@pytest.mark.parity
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_ids_are_transformers(checkpoint, tmp_path, architecture) -> None:
    folder = checkpoint(architecture, num_hidden_layers=DEEP)  # which has been traced
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    strange = [*TEXTS, "\x00", "👩\u200d👧", "שלום", "漢字", "e\u0301", "  two  spaces ", "x" * 999]
    with Encoder.load(export(folder, tmp_path / "b").path, provider="cpu") as encoder:
        ids = encoder.tokenize(strange).ids
    assert ids == [theirs(text, truncation=True)["input_ids"] for text in strange]


@pytest.mark.exports(but=1)
@pytest.mark.parity
@pytest.mark.parametrize(
    "pooling", ["cls", "max", "mean_sqrt_len", "last_token", "pooler", "first_last_mean",
                "last2_mean", "weighted_mean", "cls+mean"]
)  # fmt: skip
def test_every_pooling_passes_the_gate(checkpoint, tmp_path, pooling) -> None:
    layers = DEEP if "_mean" in pooling else 1
    source = checkpoint("bert", num_hidden_layers=layers)
    bundle = export(source, tmp_path / "b", pooling=pooling, calibration=())
    assert bundle.manifest.pooling == pooling
    assert bundle.manifest.dim == WIDTH * len(pooling.split("+"))


def test_the_graph_in_plain_onnxruntime_equals_encode(bert_bundle: Bundle) -> None:
    session = onnxruntime.InferenceSession(
        str(bert_bundle.model), providers=["CPUExecutionProvider"]
    )
    shapes = [(node.name, node.type, node.shape) for node in session.get_inputs()]
    axes = ["batch_size", "sequence_length"]
    assert shapes == [(n, "tensor(int64)", axes) for n in ("input_ids", "attention_mask")]
    (output,) = session.get_outputs()
    assert (output.name, output.shape) == ("sentence_embedding", ["batch_size", WIDTH])
    with Encoder.load(bert_bundle.path, provider="cpu") as encoder:
        ids = encoder.tokenize(TEXTS).ids
        batch = Batch(tuple(range(len(ids))), max(map(len, ids)))
        input_ids, mask = pad(ids, batch, bert_bundle.manifest.pad_id)
        (bare,) = session.run(None, {"input_ids": input_ids, "attention_mask": mask})
        np.testing.assert_allclose(bare, encoder.encode(TEXTS), atol=1e-5)


def test_the_graph_is_one_file_of_standard_operators(bert_bundle: Bundle) -> None:
    proto = onnx.load(bert_bundle.model)
    assert {entry.domain for entry in proto.opset_import} == {""}
    assert {node.domain for node in proto.graph.node} <= {"", "ai.onnx"}
    assert not any(t.data_location == onnx.TensorProto.EXTERNAL for t in proto.graph.initializer)
    names = {path.name for path in bert_bundle.path.iterdir()}
    assert names == {
        "manifest.json", "model.onnx", "tokenizer.json", "references.npz", "int8_ranges.npy"
    }  # fmt: skip


def test_query_key_and_value_are_one_product(bert_bundle: Bundle) -> None:
    from tests.export.conftest import LAYERS

    graph = onnx.load(bert_bundle.model).graph
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    assert len(products) == 6 * LAYERS  # qkv, scores, context, output, up, down


@pytest.mark.exports
def test_two_exports_are_equal_bytes_and_name_no_path(checkpoint, tmp_path, traced_anew) -> None:
    for name in ("one", "two"):
        traced_anew()
        export(checkpoint("bert"), tmp_path / name, name="same")
    for file in ("manifest.json", "model.onnx", "tokenizer.json"):
        first, second = ((tmp_path / n / file).read_bytes() for n in ("one", "two"))
        assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()
        assert str(tmp_path).encode() not in first
        assert b"site-packages" not in first


# --- options --------------------------------------------------------------------------------------


def test_max_length_cuts_if_requested(checkpoint, tmp_path) -> None:
    bundle = export(checkpoint("bert"), tmp_path / "b", max_length=8)
    with Encoder.load(bundle.path, provider="cpu") as encoder:
        assert max(encoder.tokenize(TEXTS).lengths) == 8
    for bad in (0, 2, POSITIONS + 1):
        with pytest.raises(ExportError, match=f"from 3 to {POSITIONS}"):
            export(checkpoint("bert"), tmp_path / "c", max_length=bad)
    assert not (tmp_path / "c").exists()


def test_normalization_can_be_left_out(checkpoint, tmp_path, bert_bundle) -> None:
    bundle = export(checkpoint("bert"), tmp_path / "b", normalize=False, name="raw")
    assert not bundle.manifest.normalised
    assert bundle.manifest.name == "raw"
    with (
        Encoder.load(bundle.path, provider="cpu") as raw,
        Encoder.load(bert_bundle.path, provider="cpu") as unit,
    ):
        vectors = raw.encode(TEXTS)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors / norms, unit.encode(TEXTS), atol=1e-5)
        with pytest.raises(InputValueError):
            unit.encode(TEXTS, normalize_embeddings=False)


@pytest.mark.exports
def test_a_transform_is_applied_between_pooling_and_normalization(checkpoint, tmp_path) -> None:
    torch.manual_seed(1)
    dense = Dense(torch.randn(5, WIDTH), torch.randn(5), "relu")
    bundle = export(checkpoint("bert"), tmp_path / "b", transform=dense)
    assert bundle.manifest.transform == (f"dense({WIDTH}->5, relu)",)
    assert bundle.manifest.dim == 5
    raw = export(checkpoint("bert"), tmp_path / "raw", normalize=False)
    with (
        Encoder.load(bundle.path, provider="cpu") as transformed,
        Encoder.load(raw.path, provider="cpu") as pooled,
    ):
        expected = dense(torch.from_numpy(pooled.encode(TEXTS))).detach()
        expected = torch.nn.functional.normalize(expected, dim=1).numpy()
        np.testing.assert_allclose(transformed.encode(TEXTS), expected, atol=1e-5)
    assert (
        export(checkpoint("bert"), tmp_path / "same", transform=Identity(WIDTH)).manifest.transform
        == ()
    )
    with pytest.raises(ExportError, match="takes 7 dimensions"):
        export(checkpoint("bert"), tmp_path / "c", transform=Identity(7))


@pytest.mark.exports
@pytest.mark.parametrize("heads", [3, 4])
def test_float16_weights_halve_the_file_and_pass_the_gate(checkpoint, tmp_path, heads) -> None:
    # 48 / 3 heads: 1/sqrt(16) is a power of two; 48 / 4: 1/sqrt(12) is not.
    folder = checkpoint("bert", num_attention_heads=heads)
    whole, half = (
        export(folder, tmp_path / weights, weights=weights) for weights in ("float32", "float16")
    )
    sizes = [bundle.model.stat().st_size for bundle in (whole, half)]
    assert sizes[1] < 0.65 * sizes[0]
    assert half.manifest.weights == "float16"
    assert half.manifest.parity["max_relative_error"] <= 1e-4
    with (
        Encoder.load(whole.path, provider="cpu") as a,
        Encoder.load(half.path, provider="cpu") as b,
    ):
        assert (a.encode(TEXTS) * b.encode(TEXTS)).sum(1).min() >= 0.999


@pytest.mark.exports
def test_positions_limit_the_length_if_the_tokenizer_does_not(checkpoint, tmp_path) -> None:
    """RoBERTa's position table has rows before the first token's."""
    for name in ("roberta", "mpnet", "bert"):
        copy = shutil.copytree(checkpoint(name, num_hidden_layers=DEEP), tmp_path / name)
        file = copy / "tokenizer_config.json"
        settings = json.loads(file.read_text())
        del settings["model_max_length"]
        file.write_text(json.dumps(settings))
        bundle = export(copy, tmp_path / f"{name}-bundle")
        assert bundle.manifest.max_length == POSITIONS


# --- failing --------------------------------------------------------------------------------------


def test_an_existing_directory_is_overwritten_only_if_requested(checkpoint, tmp_path) -> None:
    target = tmp_path / "b"
    export(checkpoint("bert"), target, pooling="cls")
    with pytest.raises(ExportError, match="exists"):
        export(checkpoint("bert"), target)
    assert Bundle.load(target).manifest.pooling == "cls"
    export(checkpoint("bert"), target, overwrite=True)
    assert Bundle.load(target).manifest.pooling == "mean"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    # Other things have a manifest.json, too.
    (tmp_path / "precious" / "manifest.json").write_text('{"format_version": 1, "files": {}}')
    with pytest.raises(ExportError, match="not written by this command"):
        export(checkpoint("bert"), tmp_path / "precious", overwrite=True)
    assert (tmp_path / "precious" / "file").exists()
    (tmp_path / "link").symlink_to(target)
    for odd in (tmp_path / "link", tmp_path / "precious" / "file"):
        with pytest.raises(ExportError, match="not a directory"):
            export(checkpoint("bert"), odd, overwrite=True)
    with pytest.raises(ExportError, match="cannot write"):
        export(checkpoint("bert"), tmp_path / "precious" / "file" / "b")


def test_a_bundle_and_its_source_are_apart(checkpoint, tmp_path) -> None:
    source = tmp_path / "source"
    shutil.copytree(checkpoint("bert"), source)
    (tmp_path / "link").symlink_to(source)
    before = sorted(source.rglob("*"))
    for out in (source, source / "bundle", tmp_path / "link" / "bundle", tmp_path):
        with pytest.raises(InputValueError, match="the input"):
            export(source, out, overwrite=True)
    assert sorted(source.rglob("*")) == before
    with pytest.raises(InputValueError, match="is in the input"):
        export_bundle("mini", shipped_bundles()["mini"] / "other", "tei")
    assert not (shipped_bundles()["mini"] / "other").exists()


def test_a_directory_that_appears_meanwhile_is_left_alone(checkpoint, tmp_path) -> None:
    target = tmp_path / "b"

    def somebody_else(step: str) -> None:
        if step.startswith("comparing"):
            target.mkdir()
            (target / "theirs").touch()

    for overwrite in (False, True):
        with pytest.raises(ExportError, match=r"exists|not written by"):
            export(checkpoint("bert"), target, overwrite=overwrite, on_step=somebody_else)
        assert [p.name for p in tmp_path.rglob("*")] == ["b", "theirs"]
        shutil.rmtree(target)


def test_a_damaged_bundle_may_be_overwritten(checkpoint, tmp_path) -> None:
    bundle = export(checkpoint("bert"), tmp_path / "b", calibration=())
    bundle.model.unlink()
    export(checkpoint("bert"), tmp_path / "b", calibration=(), overwrite=True)
    Bundle.load(tmp_path / "b")


def test_a_failed_overwrite_keeps_the_old_bundle(checkpoint, tmp_path) -> None:
    target = tmp_path / "b"
    export(checkpoint("bert"), target)
    with pytest.raises(ExportError):
        export(checkpoint("bert"), target, pooling="nonsense", overwrite=True)
    Bundle.load(target)


def test_weights_with_nan_are_a_typed_error_and_leave_nothing(checkpoint, tmp_path) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["encoder.layer.0.output.dense.bias"][0] = float("nan")

    source = with_weights(checkpoint("bert"), tmp_path, spoil)
    with pytest.raises(ExportError, match="NaN"):
        export(source, tmp_path / "new" / "folders" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parity
def test_weights_that_transformers_would_ignore_are_refused(checkpoint, tmp_path) -> None:
    def add(weights: dict[str, torch.Tensor]) -> None:
        name = "encoder.layer.0.attention.self.distance_embedding.weight"
        weights[name] = torch.ones(79, 12)

    with pytest.raises(ExportError, match="distance_embedding"):
        export(with_weights(checkpoint("bert"), tmp_path, add), tmp_path / "b")


def damaged(folder: Path, tmp_path: Path, change: str) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "source"))
    if change == "no config":
        (copy / "config.json").unlink()
    elif change == "config is rubbish":
        (copy / "config.json").write_text("{")
    elif change == "no weights":
        (copy / "model.safetensors").unlink()
    elif change == "weights cut":
        data = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(data[: len(data) // 2])
    elif change == "a layer too many":
        config = json.loads((copy / "config.json").read_text())
        config["num_hidden_layers"] += 1
        (copy / "config.json").write_text(json.dumps(config))
    elif change == "another architecture":
        config = json.loads((copy / "config.json").read_text())
        config["model_type"] = "gpt2"
        (copy / "config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no config", r"has weights (.*) but no config\.json"),
        ("config is rubbish", r"cannot read .*config\.json"),
        ("no weights", r"no weights: .*model\.safetensors is missing"),
        ("weights cut", "cannot load"),
        ("a layer too many", "lacks weights: encoder.layer.1"),
        ("another architecture", "lacks weights: h.0.attn"),
    ],
)
def test_a_damaged_source_is_a_typed_error(checkpoint, tmp_path, change, message) -> None:
    source = damaged(checkpoint("bert"), tmp_path, change)
    with pytest.raises(ExportError, match=message):
        export(source, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_source_that_does_not_exist_is_a_typed_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for source in ("./nowhere", str(tmp_path / "nowhere"), "a/b/c"):
        with pytest.raises(ExportError, match=f"^{re.escape(source)}.* exist"):
            export(source, tmp_path / "b")


def test_a_bundle_is_not_a_source(bert_bundle: Bundle, tmp_path) -> None:
    with pytest.raises(ExportError, match="is a bundle, which"):
        export(bert_bundle.path, tmp_path / "b")


def test_a_checkpoint_without_pooler_says_so(checkpoint, tmp_path) -> None:
    with pytest.raises(ExportError, match="no pooler"):
        export(checkpoint("distilbert"), tmp_path / "b", pooling="pooler")


def test_a_randomly_initialized_pooler_is_not_a_pooler(checkpoint, tmp_path) -> None:
    def drop(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if name.startswith("pooler.")]:
            del weights[name]

    copy = with_weights(checkpoint("bert"), tmp_path, drop)
    export(copy, tmp_path / "mean")
    with pytest.raises(ExportError, match="no pooler"):
        export(copy, tmp_path / "b", pooling="pooler")


# --- the command ----------------------------------------------------------------------------------


def test_the_export_command_writes_a_bundle(flowvec, checkpoint, tmp_path) -> None:
    done = flowvec("export", checkpoint("bert"), "-o", "b", "--pooling", "cls", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["pooling"], result["dim"]) == ("cls", WIDTH)
    assert done.stderr.splitlines()[0] == f"reading {checkpoint('bert')}"
    encoded = flowvec("encode", "b", "-", "-o", "v.npy", stdin="one\ntwo\n")
    assert encoded.returncode == 0, encoded.stderr
    assert np.load(tmp_path / "v.npy").shape == (2, WIDTH)


def test_the_export_command_shows_what_variants_lose(flowvec, checkpoint) -> None:
    done = flowvec("export", checkpoint("bert"), "-o", "b", "--variants", "int8")
    assert done.returncode == 0, done.stderr
    parity = json.loads(flowvec("info", "b", "--json").stdout)["parity"]
    assert done.stdout.splitlines()[1:] == [
        f"int8, compared with float32: mean cosine {parity['int8_mean_cosine']:g}, "
        f"min cosine {parity['int8_min_cosine']:g}"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["./nowhere", "-o", "b"],
        ["SOURCE", "-o", "b", "--pooling", "nonsense"],
        ["SOURCE", "-o", "b", "--max-length", "100000"],
        ["SOURCE", "-o", "b", "--weights", "int4"],
    ],
)
def test_a_wrong_argument_is_one_line(flowvec, checkpoint, tmp_path, arguments) -> None:
    source = str(checkpoint("bert"))
    done = flowvec("export", "--quiet", *[source if a == "SOURCE" else a for a in arguments])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def with_head(checkpoint, folder: Path, architecture: str, head: str) -> Path:
    """A checkpoint of an encoder with one of transformers' heads."""
    source = checkpoint(architecture)
    shutil.copytree(source, folder)
    model = getattr(transformers, f"AutoModelFor{head}").from_pretrained(source)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("architecture", "named"),
    [("bert", "BertForSequenceClassification"), ("roberta", "RobertaForSequenceClassification")],
)
def test_a_cross_encoder_is_not_read_as_an_embedder(
    checkpoint, tmp_path: Path, architecture: str, named: str
) -> None:
    source = with_head(checkpoint, tmp_path / "in", architecture, "SequenceClassification")
    with pytest.raises(ExportError, match=rf"is a {named}: a classifier") as e:
        read_source(source)
    assert "classifier would be dropped" in str(e.value)
    said: list[str] = []
    bundle = export(source, tmp_path / "out", encoder_only=True, on_step=said.append)
    assert any("leaving out what is above the encoder: classifier" in line for line in said)
    assert bundle.manifest.dim == WIDTH


def test_a_head_that_is_not_used_is_named(checkpoint, tmp_path: Path) -> None:
    source = with_head(checkpoint, tmp_path / "in", "bert", "MaskedLM")
    said: list[str] = []
    export(source, tmp_path / "out", on_step=said.append)
    assert "leaving out what is above the encoder: cls" in said
    said.clear()
    export(checkpoint("bert"), tmp_path / "plain", on_step=said.append)
    assert not any("leaving out" in line for line in said)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can exchange two names in one step")
def test_the_bundle_exists_at_every_moment_of_an_overwrite(tmp_path) -> None:
    target, end, missed = tmp_path / "b", threading.Event(), []
    target.mkdir()
    (target / "n").write_text("0")

    def watch() -> None:
        while not end.is_set():
            if not target.exists():
                missed.append(1)
            time.sleep(0.0001)  # short, to look at many moments of each overwrite

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for number in range(1, 300):
            with staged_directory(target, True, lambda _: True) as staged:
                (staged / "n").write_text(str(number))
    finally:
        end.set()
        watcher.join()
    assert not missed
    assert (target / "n").read_text() == "299"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
