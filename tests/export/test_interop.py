"""A bundle in other libraries' layouts gives the vectors that it gives itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import transformers

from flowvec import Encoder
from flowvec.errors import BundleError, ExportError, InputValueError
from flowvec_export import export, export_bundle
from flowvec_export.assembly.parity import Parity
from tests.export.conftest import POSITIONS, TEXTS, WIDTH
from tests.export.sources.test_onnx import OPTIMUM

PROMPTS = {"query": "the query: ", "document": ""}


@pytest.fixture(scope="module")
def encoder(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles") / "bert"
    export(checkpoint("bert"), folder, prompts=PROMPTS, calibration=())
    with Encoder.load(folder, provider="cpu", compute="float32") as encoder:
        yield encoder


def as_tei_runs_it(folder: Path, texts: list[str]) -> np.ndarray:
    """What its ONNX backend does: tokenizer.json, cut at max_seq_length, one padded batch."""
    config = json.loads((folder / "config.json").read_text())
    # All that it needs to start.
    assert {"architectures", "model_type", "max_position_embeddings", "pad_token_id"} <= set(config)
    assert not config["architectures"][0].endswith("Classification")
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    assert pooling["pooling_mode_cls_token"]
    longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding(pad_id=config["pad_token_id"])
    encodings = tokenizer.encode_batch(texts)
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    feeds = {
        "input_ids": np.array([e.ids for e in encodings], np.int64),
        "attention_mask": np.array([e.attention_mask for e in encodings], np.int64),
    }
    (vectors,) = session.run(["sentence_embedding"], feeds)
    return vectors


def test_text_embeddings_inference(encoder, tmp_path) -> None:
    folder = export_bundle(encoder.bundle.path, tmp_path / "tei", "tei")
    assert (folder / "model.onnx").read_bytes() == encoder.bundle.model.read_bytes()
    parity = Parity.of(as_tei_runs_it(folder, TEXTS), encoder.encode(TEXTS))
    assert parity.max_relative_error <= 1e-4
    prompts = json.loads((folder / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == PROMPTS
    # Readers ask it whether a dot product is a cosine.
    modules = json.loads((folder / "modules.json").read_text())
    assert [m["type"].split(".")[-1] for m in modules] == ["Transformer", "Pooling", "Normalize"]


@pytest.mark.parity
def test_the_graph_of_sentence_transformers_gives_one_token(encoder, tmp_path) -> None:
    folder = export_bundle(encoder.bundle.path, tmp_path / "st", "sentence-transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == POSITIONS
    inputs = tokenizer(TEXTS, truncation=True, padding=True, return_tensors="np")
    assert set(inputs) == {"input_ids", "attention_mask"}
    session = onnxruntime.InferenceSession(
        folder / "onnx/model.onnx", providers=["CPUExecutionProvider"]
    )
    feeds = {name: array.astype(np.int64) for name, array in inputs.items()}
    (tokens,) = session.run(["last_hidden_state"], feeds)
    assert tokens.shape == (len(TEXTS), 1, WIDTH)
    assert Parity.of(tokens[:, 0], encoder.encode(TEXTS)).max_relative_error <= 1e-4


@pytest.mark.parity
@pytest.mark.skipif(
    importlib.util.find_spec("optimum") is None, reason="needs optimum, which has its environment"
)
def test_sentence_transformers_gives_the_same_vectors(encoder, tmp_path) -> None:
    from sentence_transformers import SentenceTransformer

    folder = export_bundle(encoder.bundle.path, tmp_path / "st", "sentence-transformers")
    model = SentenceTransformer(str(folder), backend="onnx", device="cpu")
    assert model.max_seq_length == POSITIONS
    assert model.get_sentence_embedding_dimension() == WIDTH
    assert model.similarity_fn_name == "cosine"
    for ours, theirs in (
        (encoder.encode(TEXTS), model.encode(TEXTS)),
        (encoder.encode_query(TEXTS), model.encode_query(TEXTS)),
        (encoder.encode_document(TEXTS), model.encode_document(TEXTS)),
    ):
        parity = Parity.of(theirs, ours)
        assert parity.max_relative_error <= 1e-4
        assert parity.min_cosine >= 0.99999


@pytest.mark.parametrize("layout", ["sentence-transformers", "tei"])
def test_what_went_out_comes_in_again(encoder, tmp_path, layout) -> None:
    folder = export_bundle(encoder.bundle.path, tmp_path / "out", layout)
    back = export(folder, tmp_path / "back", calibration=())
    assert back.manifest.prompts == PROMPTS
    assert back.manifest.normalised
    with Encoder.load(back.path, provider="cpu", compute="float32") as again:
        parity = Parity.of(again.encode(TEXTS), encoder.encode(TEXTS))
    assert parity.max_relative_error <= 1e-4


@pytest.mark.exports(but=1)
@pytest.mark.parametrize("form", ["bert", "sentence"])
def test_graphs_go_out_and_come_in_again_and_again(tmp_path, form) -> None:
    # Each time nodes are added to a graph that has such nodes already.
    source, vectors = OPTIMUM / form, []
    for turn in ("1", "2"):
        bundle = export(source, tmp_path / f"bundle{turn}", calibration=()).path
        with Encoder.load(bundle, provider="cpu", compute="float32") as encoder:
            vectors.append(encoder.encode(TEXTS))
        source = export_bundle(bundle, tmp_path / f"st{turn}", "sentence-transformers")
        tei = export_bundle(bundle, tmp_path / f"tei{turn}", "tei")
        assert Parity.of(as_tei_runs_it(tei, TEXTS), vectors[-1]).max_relative_error <= 1e-4
        again = export(tei, tmp_path / f"again{turn}", calibration=(), weights="float16")
        with Encoder.load(again.path, provider="cpu", compute="float32") as encoder:
            assert Parity.of(encoder.encode(TEXTS), vectors[-1]).min_cosine >= 0.999
    assert Parity.of(vectors[1], vectors[0]).max_relative_error <= 1e-4


def test_the_shipped_model_goes_out(tmp_path, mini) -> None:
    folder = export_bundle("mini", tmp_path / "mini", "tei")
    texts = ["A man eats bread.", "Stocks fell."]
    assert Parity.of(as_tei_runs_it(folder, texts), mini.encode(texts)).max_relative_error <= 1e-4


def test_the_bundle_export_command(flowvec, encoder, tmp_path) -> None:
    source = encoder.bundle.path
    done = flowvec("bundle", "export", source, "out", "--as", "sentence-transformers")
    assert done.returncode == 0, done.stderr
    assert "onnx/model.onnx" in done.stdout
    again = flowvec("bundle", "export", source, "out", "--as", "tei")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    done = flowvec("bundle", "export", source, "out", "--as", "tei", "--overwrite", "--json")
    assert "model.onnx" in json.loads(done.stdout)["files"]
    assert not (tmp_path / "out/onnx").exists()


def test_wrong_arguments_are_errors(encoder, tmp_path) -> None:
    source = encoder.bundle.path
    with pytest.raises(InputValueError, match="layout must be"):
        export_bundle(source, tmp_path / "out", "torchserve")  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="there is no bundle"):
        export_bundle(tmp_path / "nowhere", tmp_path / "out", "tei")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/diary.txt").touch()
    with pytest.raises(ExportError, match="not overwritten"):
        export_bundle(source, tmp_path / "mine", "tei", overwrite=True)
    assert (tmp_path / "mine/diary.txt").exists()
    # A checkpoint of the same library, with unique weights.
    theirs = tmp_path / "finetuned"
    for name, text in {
        "modules.json": "[]", "model.safetensors": "", "config_sentence_transformers.json": "{}"
    }.items():  # fmt: skip
        theirs.mkdir(exist_ok=True)
        (theirs / name).write_text(text)
    with pytest.raises(ExportError, match="not written by this command"):
        export_bundle(source, theirs, "tei", overwrite=True)
    assert (theirs / "model.safetensors").exists()
    assert not (tmp_path / "out").exists()


def test_a_reranker_is_refused(reranker_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is a reranker, and"):
        export_bundle(reranker_dir, tmp_path / "out", layout="tei")
    assert not (tmp_path / "out").exists()
