"""`flowvec rerank`, and reranking in `flowvec search` and `flowvec info`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowvec import MultiVectorEncoder, Reranker

QUERY = "the cat sleeps"
TEXTS = ["a cat sleeps", "stocks fell", "the dog runs fast"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    return file


def test_rerank_prints_the_best_texts(flowvec, notes: Path, reranker_dir: Path) -> None:
    result = flowvec("rerank", reranker_dir, QUERY, notes, "-k", 2, "--json")
    with Reranker.load(reranker_dir) as reranker:
        ranked = reranker.rank(QUERY, TEXTS, top_k=2, return_documents=True)
    printed = json.loads(result.stdout)
    assert [hit["corpus_id"] for hit in printed] == [hit["corpus_id"] for hit in ranked]
    assert [hit["text"] for hit in printed] == [hit["text"] for hit in ranked]
    words = flowvec("rerank", reranker_dir, QUERY, notes)
    assert len(words.stdout.splitlines()) == 3


def test_rerank_takes_a_multi_vector_encoder(flowvec, notes: Path, multi_vector_dir: Path) -> None:
    result = flowvec("rerank", multi_vector_dir, QUERY, notes, "-k", 2, "--json")
    assert result.returncode == 0, result.stderr
    with MultiVectorEncoder.load(multi_vector_dir) as encoder:
        ranked = encoder.rank(QUERY, TEXTS, top_k=2, return_documents=True)
    assert json.loads(result.stdout) == [
        {**hit, "score": pytest.approx(hit["score"])} for hit in ranked
    ]
    for option in (("--label", "a"), ("--truncation", "error")):
        wrong = flowvec("rerank", multi_vector_dir, QUERY, notes, *option)
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "--label and --truncation" in wrong.stderr


def test_rerank_reads_stdin(flowvec, reranker_dir: Path) -> None:
    result = flowvec("rerank", reranker_dir, QUERY, "-", stdin="a cat sleeps\n")
    assert result.stdout.endswith("0  a cat sleeps\n")


def test_search_reranks(flowvec, notes: Path, tiny_dir: Path, reranker_dir: Path) -> None:
    flowvec("index", "c", notes, "--model", tiny_dir)
    plain = json.loads(flowvec("search", "c", QUERY, "--json").stdout)
    assert [hit["search_score"] for hit in plain] == [None] * 3
    hits = json.loads(flowvec("search", "c", QUERY, "--rerank", reranker_dir, "--json").stdout)
    before = {hit["id"]: hit["score"] for hit in plain}
    assert {hit["id"]: hit["search_score"] for hit in hits} == pytest.approx(before)
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_info_of_the_kinds_that_give_several_numbers_a_text(
    flowvec, sparse_dir: Path, multi_vector_dir: Path
) -> None:
    about = json.loads(flowvec("info", sparse_dir, "--json").stdout)
    assert (about["model_kind"], about["opens_with"]) == (
        "sparse encoder", "flowvec.SparseEncoder.load"
    )  # fmt: skip
    assert (about["pooling"], about["transform"]) == ("max", ["relu", "log1p"])
    assert not {"head", "max_active_dims", "late_interaction"} & about.keys()
    about = json.loads(flowvec("info", multi_vector_dir, "--json").stdout)
    assert (about["model_kind"], about["opens_with"]) == (
        "multi-vector encoder", "flowvec.MultiVectorEncoder.load"
    )  # fmt: skip
    assert about["late_interaction"]["expansion_length"] == 24
    assert "pooling" not in about
    shown = flowvec("info", multi_vector_dir).stdout
    assert "opens_with" in shown
    assert "expansion_is_attended=False" in shown


def test_info_says_the_kind_and_its_class(flowvec, reranker_dir: Path, tiny_dir: Path) -> None:
    about = json.loads(flowvec("info", reranker_dir, "--json").stdout)
    assert (about["kind"], about["model_kind"]) == ("bundle", "reranker")
    assert about["opens_with"] == "flowvec.Reranker.load"
    assert about["head"] == {"labels": ["LABEL_0"], "activation": "sigmoid"}
    kinds = {tiny_dir: "embedder", "mini": "static embedder"}
    for name, kind in kinds.items():
        about = json.loads(flowvec("info", name, "--json").stdout)
        assert (about["model_kind"], about["opens_with"]) == (kind, "flowvec.Encoder.load")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rerank", "mini", "q", "notes.txt"], "or use it with `flowvec encode`"),
        (["encode", "{reranker}", "notes.txt", "-o", "v.npy"], "or use it with `flowvec rerank`"),
        (["rerank", "{reranker}", "q", "notes.txt", "--label", "no"], "no label 'no'"),
        (["rerank", "{reranker}", "q", "notes.txt", "--truncation", "cut"], "truncation"),
        (["rerank", "{reranker}", "q", "missing.txt"], "missing.txt"),
    ],
)
def test_mistakes_are_one_line(
    flowvec, notes: Path, reranker_dir: Path, words: list[str], message: str
) -> None:
    result = flowvec(*(word.format(reranker=reranker_dir) for word in words))
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_an_error_about_a_text_names_its_row(
    tmp_path: Path, flowvec, reranker_dir: Path, nan_dir: Path
) -> None:
    long, bad = tmp_path / "long.txt", tmp_path / "bad.txt"
    long.write_text("one\n\ntwo " + "cat " * 900 + "\n")
    done = flowvec("rerank", reranker_dir, "q", long, "--truncation", "error")
    assert done.returncode == 2
    assert f"{long}, row 2 has more than" in done.stderr
    # Blank lines are left out of pairs, and counted as rows.
    bad.write_text("\nthe cat\n\nnan\n\nnan nan\n")
    done = flowvec("pairs", bad, "--model", nan_dir)
    assert f"NaN or infinity for {bad}, row 3, 5" in done.stderr
