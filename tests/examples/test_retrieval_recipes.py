"""The recipes of sparse and multi-vector encoders begin as they say, and end in bundles."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("datasets", reason="needs the extra [train]")
pytest.importorskip("accelerate", reason="needs the extra [train]")
pytest.importorskip("bm25s", reason="needs the extra [bench]")
pytest.importorskip("ir_measures", reason="needs the extra [bench]")

import numpy as np
import torch

import flowvec
from flowvec.errors import InputValueError
from tests.examples.test_cross_encoder import is_part, paragraphs_of
from tests.examples.test_recipes import ROOT, cut_backbone, run

sys.path.insert(0, str(ROOT / "examples"))
lessons = import_module("paragraph_lessons")

TEXTS = [" ".join(sentences) for sentences in paragraphs_of(40, seed=9)]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a corpus of paragraphs, and a retrieval set of other paragraphs."""
    folder = tmp_path_factory.mktemp("retrieval")
    cut_backbone(folder / "encoder")
    paragraphs = [". ".join(s.capitalize() for s in p) + "." for p in paragraphs_of(80)]
    (folder / "corpus.txt").write_text("\n".join(paragraphs) + "\n")
    retrieval = folder / "set"
    (retrieval / "qrels").mkdir(parents=True)
    documents = paragraphs_of(40, seed=9)
    write_jsonl(retrieval / "corpus.jsonl", {f"d{i}": " ".join(d) for i, d in enumerate(documents)})
    write_jsonl(retrieval / "queries.jsonl", {f"q{i}": d[0] for i, d in enumerate(documents)})
    rows = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(len(documents)))]
    (retrieval / "qrels" / "test.tsv").write_text("\n".join(rows) + "\n")
    return folder


def write_jsonl(path: Path, texts: dict[str, str]) -> None:
    lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
    path.write_text("\n".join(lines) + "\n")


def train(toy: Path, name: str, *options: object) -> tuple[Path, dict[str, float]]:
    """A recipe's output after a few steps, and nDCG@10 of each system."""
    out = toy / name
    run(name, "--model", toy / "encoder", "--corpus", toy / "corpus.txt", "-o", out,
        "--retrieval", toy / "set", "--steps", 3, "--batch-size", 4, "--max-length", 32,
        *options)  # fmt: skip
    report = json.loads((out / "report.json").read_text())
    assert report["settings"]["paragraphs"] == 80
    assert len(report["losses"]) == 3
    return out, {row["system"]: row["ndcg_at_10"] for row in report["retrieval"]}


def test_triplets_are_of_both_lessons() -> None:
    found = paragraphs_of(80)
    data = lessons.make_triplets(found, 0.25, seed=3)
    assert len(data) == 80
    wholes = {" ".join(sentences) for sentences in found}
    assert sum(text in wholes for text in data["positive"]) == 60
    for query, positive, negative in zip(*(data[c] for c in data.column_names), strict=True):
        assert negative != positive
        # A query's words come in its paragraph, unless its sentence was taken out.
        assert is_part(query.split(), positive) or positive not in wholes
    assert data["query"] == lessons.make_triplets(found, 0.25, seed=3)["query"]


def test_a_splade_model_is_trained_and_exported(toy: Path) -> None:
    from sentence_transformers import SparseEncoder

    out, figures = train(toy, "splade")
    assert list(figures) == ["mini", "BM25", "mini, hybrid", "splade", "mini + splade"]
    assert figures["splade"] > 0.6  # by chance it is .1
    model = SparseEncoder(str(out / "model"), device="cpu")
    expected = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False)
    with flowvec.SparseEncoder.load(out / "bundle", provider="cpu", compute="float32") as encoder:
        assert encoder.info().max_length == 128  # that of the encoder, not of the training
        ours = encoder.encode(TEXTS).to_dense()
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-4, atol=2e-5)


def test_a_token_is_active_in_the_share_that_was_asked_for(toy: Path) -> None:
    splade = import_module("splade")
    encoder = splade.load(str(toy / "encoder"), 64)
    options = {"convert_to_sparse_tensor": False, "show_progress_bar": False}
    assert (encoder.encode(TEXTS, **options) > 0).float().mean() > 0.9
    splade.lower_biases(encoder, TEXTS, 0.1)
    active = (encoder.encode(TEXTS, **options) > 0).float().mean(dim=0)
    assert active.max() == pytest.approx(0.1)
    assert active.mean() > 0.05


@pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6,
    reason="this sentence-transformers has no MultiVectorEncoder",
)
def test_a_colbert_model_is_trained_and_exported(toy: Path) -> None:
    from sentence_transformers import MultiVectorEncoder

    out, figures = train(toy, "colbert", "--dim", 32, "--rerank-from", 10)
    assert [name for name in figures if "reranked" not in name] == ["mini", "BM25", "mini, hybrid"]
    assert len(figures) == 6
    model = MultiVectorEncoder(str(out / "model"), device="cpu")
    expected = model.encode_query(TEXTS[:8]), model.encode_document(TEXTS[:8])
    with flowvec.MultiVectorEncoder.load(
        out / "bundle", provider="cpu", compute="float32"
    ) as encoder:
        ours = encoder.encode_query(TEXTS[:8]), encoder.encode_document(TEXTS[:8])
        right = encoder.rank(TEXTS[3], TEXTS, top_k=1)[0]["corpus_id"]
    assert right == 3
    for side, other in zip(ours, expected, strict=True):
        for a, b in zip(side, other, strict=True):
            assert a.shape[1] == 32
            np.testing.assert_allclose(a, np.asarray(b), atol=2e-5)


@pytest.mark.skipif(
    int(version("sentence-transformers").partition(".")[0]) < 6,
    reason="this sentence-transformers has no MultiVectorEncoder",
)
def test_the_projection_begins_as_a_whitening(toy: Path) -> None:
    colbert = import_module("colbert")
    encoder = colbert.load(str(toy / "encoder"), 32, 64)

    def mean_cosine() -> float:
        tokens = torch.cat(encoder.encode_document(TEXTS, show_progress_bar=False))
        return float((tokens @ tokens.T).mean())

    before = mean_cosine()
    colbert.whiten(encoder, TEXTS)
    assert mean_cosine() < 0.5 * before


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("splade", ["--active", 0], "--active must be above 0"),
        ("splade", ["--max-length", 1000], "takes 128 tokens"),
        ("colbert", ["--dim", 1000], "have 256 numbers"),
        ("colbert", ["--max-length", 1000], "takes 128 tokens"),
    ],
)
def test_wrong_options_are_said(toy: Path, tmp_path: Path, name, options, message) -> None:
    with pytest.raises(InputValueError, match=message):
        run(name, "--model", toy / "encoder", "--corpus", toy / "corpus.txt",
            "-o", tmp_path / "out", *options)  # fmt: skip
    assert not (tmp_path / "out").exists()
