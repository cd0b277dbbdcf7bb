"""Retrieval: BEIR's layout, the metrics, BM25 as the baseline, and the command."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

pytest.importorskip("ir_measures", reason="needs the extra [bench]")
pytest.importorskip("bm25s", reason="needs the extra [bench]")
pytest.importorskip("Stemmer", reason="needs the extra [bench]")

from flowvec import Bundle, Encoder, MultiVectorEncoder, Reranker, SparseEncoder, maxsim
from flowvec.errors import InputValueError
from flowvec_bench.quality.beir import RetrievalSet, read_retrieval
from flowvec_bench.quality.retrieval import score_retrieval, score_run
from flowvec_bench.quality.searching import (
    Timed,
    fuse_ranks,
    rerank,
    search_bm25,
    search_encoder,
    search_hybrid,
    search_multi_vector,
    search_sparse,
)

DOCUMENTS = [
    {"_id": "d1", "title": "The cat", "text": "sleeps on a mat"},
    {"_id": "d2", "title": "", "text": "Stocks fell."},
    {"_id": "d3", "text": "A dog runs"},
    {"_id": "d4", "title": "Bread", "text": "is eaten by dogs"},
]
QUERIES = [{"_id": f"q{i}", "text": text} for i, text in enumerate(["cats", "stock", "dog", "x"])]
QRELS = "query-id\tcorpus-id\tscore\nq0\td1\t2\nq0\td2\t0\nq1\td2\t1\nq2\td3\t1\nq2\td4\t1\n"


def write_set(
    folder: Path, documents=DOCUMENTS, queries=QUERIES, qrels: str | bytes | None = QRELS
) -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, records in (("corpus", documents), ("queries", queries)):
        lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if qrels is not None:
        data = qrels if isinstance(qrels, bytes) else qrels.encode()
        (folder / "qrels" / "test.tsv").write_bytes(data)
    return folder


def test_a_set_is_read_as_beir_has_it(tmp_path: Path) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path / "one"))
    assert retrieval_set.name == "one"
    assert retrieval_set.document_ids == ["d1", "d2", "d3", "d4"]
    assert retrieval_set.documents[:3] == ["The cat sleeps on a mat", "Stocks fell.", "A dog runs"]
    assert retrieval_set.query_ids == ["q0", "q1", "q2"]
    assert retrieval_set.queries == ["cats", "stock", "dog"]
    assert retrieval_set.qrels["q0"] == {"d1": 2, "d2": 0}
    assert retrieval_set.warnings == ["1 queries without a relevant document were left out"]


def test_a_folder_of_sets_is_read_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_set(tmp_path / name)
    (tmp_path / "other").mkdir()
    assert [s.name for s in read_retrieval(tmp_path)] == ["a", "b"]


def test_a_judged_document_that_is_missing_counts_as_not_found(tmp_path: Path) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path, qrels=QRELS + "q1\tgone\t1\n"))
    assert any("1 judged documents" in line and "gone" in line for line in retrieval_set.warnings)
    score = score_run(retrieval_set, "x", [[0], [1], [2, 3]])
    assert score.recall_at_10 == pytest.approx((1 + 0.5 + 1) / 3)


def test_only_relevant_judgements_make_a_query(tmp_path: Path) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path, qrels=QRELS + "q3\td1\t0\n"))
    assert retrieval_set.query_ids == ["q0", "q1", "q2"]


BAD = [
    (
        {"qrels": "version https://git-lfs.github.com/spec/v1\n"},
        r"test\.tsv is a pointer of git-lfs",
    ),
    ({"documents": [*DOCUMENTS, "{"]}, r"corpus\.jsonl, line 5 is not JSON"),
    ({"documents": [*DOCUMENTS, "[1]"]}, r"corpus\.jsonl, line 5 is not a JSON object"),
    ({"documents": [{"_id": "d1"}]}, r"corpus\.jsonl, line 1 has no text in the field 'text'"),
    ({"documents": [{"_id": 7, "text": "x"}]}, r"line 1 has no text in the field '_id'"),
    ({"documents": DOCUMENTS * 2}, r"corpus\.jsonl, line 5 has the _id 'd1'"),
    ({"documents": []}, "no documents"),
    ({"queries": QUERIES[:1]}, r"test\.tsv, line 4 judges the query 'q1'"),
    ({"qrels": QRELS + "q1\td1\n"}, r"test\.tsv, line 7 has 2 columns"),
    ({"qrels": QRELS + "q1\td1\tgood\n"}, r"test\.tsv, line 7: the score 'good'"),
    ({"qrels": QRELS + "q1\td1\t-1\n"}, r"test\.tsv, line 7: the score '-1'"),
    ({"qrels": "q0\td1\t1\n"}, "line 1 must be the header"),
    ({"qrels": QRELS.encode() + b"q1\t\xff\t1\n"}, r"test\.tsv, line 7 is not UTF-8"),
    ({"qrels": "query-id\tcorpus-id\tscore\n"}, "no query with a relevant one"),
    ({"qrels": None}, r"cannot read .*test\.tsv"),
    ({"documents": [{"_id": "a\0b", "text": "x"}]}, r"corpus\.jsonl, line 1 has the id 'a\\x00b'"),
    ({"queries": ['{"_id": "\\ud800", "text": "x"}']}, r"queries\.jsonl, line 1 has the id"),
    ({"qrels": QRELS + "q1\td\0\t1\n"}, r"test\.tsv, line 7 has the id"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, change, message: str) -> None:
    with pytest.raises(InputValueError, match=message):
        read_retrieval(write_set(tmp_path, **change))


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_sets_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputValueError, match=name):
        read_retrieval(tmp_path / name)


# --- metrics --------------------------------------------------------------------------------------


def made_set(qrels: dict[str, dict[str, int]], documents: int) -> RetrievalSet:
    # The order of these ids differs from that of the rows: ties must not be broken by id.
    ids = [f"d{(7 * i) % documents}" for i in range(documents)]
    queries = list(qrels)
    return RetrievalSet("made", ids, ["x"] * documents, queries, queries, qrels, [])


def test_a_perfect_ranking_scores_one() -> None:
    qrels = {"q": {"d0": 3, "d7": 2, "d14": 1}, "r": {"d7": 1}}
    score = score_run(made_set(qrels, 120), "x", [[0, 1, 2, 5], [1, 0]])
    figures = (score.ndcg_at_10, score.recall_at_10, score.recall_at_100, score.mrr_at_10)
    assert figures == pytest.approx((1, 1, 1, 1))
    assert (score.documents, score.queries) == (120, 2)


def test_the_metrics_follow_their_definitions() -> None:
    rng = np.random.default_rng(0)
    ids = [f"d{(7 * i) % 120}" for i in range(120)]
    qrels = {
        f"q{n}": {
            ids[i]: int(rng.integers(1, 4)) for i in rng.choice(120, size=rng.integers(1, 30))
        }
        for n in range(12)
    }
    made = made_set(qrels, 120)
    ranking = [rng.permutation(120)[:100].tolist() for _ in qrels]
    expected = np.zeros(4)
    for rows, relevance in zip(ranking, qrels.values(), strict=True):
        gains = [relevance.get(ids[row], 0) for row in rows]
        discounts = [1 / math.log2(place + 2) for place in range(10)]
        ideal = sorted(relevance.values(), reverse=True)[:10]
        dcg = sum(g * d for g, d in zip(gains, discounts, strict=False))
        best = sum(g * d for g, d in zip(ideal, discounts, strict=False))
        hits = [gain > 0 for gain in gains]
        first = hits[:10].index(True) if any(hits[:10]) else None
        expected += [
            dcg / best,
            sum(hits[:10]) / len(relevance),
            sum(hits) / len(relevance),
            0 if first is None else 1 / (first + 1),
        ]
    score = score_run(made, "x", ranking)
    figures = (score.ndcg_at_10, score.recall_at_10, score.recall_at_100, score.mrr_at_10)
    assert figures == pytest.approx(expected / len(qrels))


def test_a_query_that_finds_nothing_counts_as_zero() -> None:
    score = score_run(made_set({"q": {"d0": 1}, "r": {"d7": 1}}, 12), "x", [[0], []])
    assert score.recall_at_10 == score.ndcg_at_10 == score.mrr_at_10 == 0.5


def test_a_query_that_is_a_document_does_not_find_itself(tmp_path: Path, tiny: Encoder) -> None:
    """ArguAna's queries are its own documents; equal ids alone (CISI, Cranfield) mean nothing."""
    queries = [{"_id": "d4", "text": "is eaten by dogs"}, {"_id": "d3", "text": "something else"}]
    judged = "query-id\tcorpus-id\tscore\nd4\td3\t1\nd3\td3\t1\n"
    (retrieval_set,) = read_retrieval(write_set(tmp_path, queries=queries, qrels=judged))
    assert retrieval_set.queries_that_are_documents == {"d4"}
    score = score_run(retrieval_set, "x", [[3, 2, 0, 1], [2, 3, 0, 1]])
    assert (score.mrr_at_10, score.ndcg_at_10) == (1.0, 1.0)
    for score in score_retrieval(tiny, retrieval_set):  # both systems would find it first
        assert score.recall_at_100 > 0


def test_recall_at_100_counts_without_the_query_itself(tmp_path: Path, tiny: Encoder) -> None:
    documents = [{"_id": f"d{i}", "text": f"cat {'dog ' * i}"} for i in range(130)]
    judged = "query-id\tcorpus-id\tscore\nd0\td1\t1\n"
    (retrieval_set,) = read_retrieval(
        write_set(
            tmp_path, documents=documents, queries=[{"_id": "d0", "text": "cat"}], qrels=judged
        )
    )
    for ranking in (
        search_encoder(tiny, retrieval_set).ranking,
        search_bm25(retrieval_set).ranking,
    ):
        assert len(ranking[0]) == 101


# --- systems --------------------------------------------------------------------------------------


def test_bm25_stems_and_finds_only_what_shares_a_word(tmp_path: Path) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path))
    assert search_bm25(replace(retrieval_set, queries=["cats", "stock", "dog"])).ranking == [
        [0],
        [1],
        [2, 3],
    ]
    # Stop words and unknown words find nothing.
    assert search_bm25(replace(retrieval_set, queries=["the", "zzz", ""])).ranking == [[], [], []]


def test_bm25_of_stop_words_alone_finds_nothing(tmp_path: Path) -> None:
    documents = [{"_id": f"d{i}", "text": "the and of"} for i in range(1, 5)]
    (retrieval_set,) = read_retrieval(write_set(tmp_path / "stop", documents=documents))
    assert search_bm25(retrieval_set).ranking == [[] for _ in retrieval_set.queries]


@pytest.mark.parametrize("score", ["²", "9" * 30, "1.5", "-1"])
def test_a_score_that_is_not_a_small_whole_number_is_an_error(tmp_path: Path, score: str) -> None:
    with pytest.raises(InputValueError, match="whole number"):
        read_retrieval(write_set(tmp_path / "odd", qrels=QRELS + f"q0\td3\t{score}\n"))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_the_encoder_searches_exactly_by_its_similarity(
    tmp_path: Path, tiny_copy: Path, similarity: str
) -> None:
    manifest = json.loads((tiny_copy / "manifest.json").read_text())
    (tiny_copy / "manifest.json").write_text(json.dumps({**manifest, "similarity": similarity}))
    words = ["cat", "dog", "stocks fell", "a man eats red bread", "the woman runs fast", "blue"]
    documents = [{"_id": f"d{i}", "text": f"{words[i % 6]} {i}"} for i in range(130)]
    (retrieval_set,) = read_retrieval(write_set(tmp_path / "set", documents=documents))
    with Encoder.load(tiny_copy, provider="cpu") as encoder:
        ranking = search_encoder(encoder, retrieval_set).ranking
        queries = encoder.encode(retrieval_set.queries, prompt_name="query")
        vectors = encoder.encode_document(retrieval_set.documents)
        scores = encoder.similarity(queries, vectors)
    assert Bundle.load(tiny_copy).manifest.prompts["query"]
    for rows, line in zip(ranking, scores, strict=True):
        assert len(rows) == len(set(rows)) == 101
        np.testing.assert_allclose(line[rows], np.sort(line)[::-1][:101], atol=1e-5)


def test_both_systems_are_scored(tmp_path: Path, tiny: Encoder) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path))
    encoder, bm25 = score_retrieval(tiny, retrieval_set)
    assert (encoder.system, bm25.system) == ("tiny", "BM25")
    assert encoder.recall_at_10 == 1  # four documents are all among ten
    assert replace(bm25, milliseconds=None) == score_run(retrieval_set, "BM25", [[0], [1], [2, 3]])


def test_a_reranker_sorts_each_systems_first_documents(
    tmp_path: Path, tiny: Encoder, reranker: Reranker
) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path))
    scores = score_retrieval(tiny, retrieval_set, hybrid=True, rerankers=[reranker], rerank_from=2)
    systems = ["tiny", "BM25", "tiny, hybrid"]
    names = [name for system in systems for name in (system, f"{system}, reranked")]
    assert [score.system for score in scores] == names
    first = search_encoder(tiny, retrieval_set)
    again = rerank(reranker, retrieval_set, first, 2)
    assert again.seconds > first.seconds
    for query, before, after in zip(
        retrieval_set.queries, first.ranking, again.ranking, strict=True
    ):
        texts = [retrieval_set.documents[row] for row in before[:2]]
        best = [before[hit["corpus_id"]] for hit in reranker.rank(query, texts)]
        assert after == [*best, *before[2:]]


def test_a_hybrid_search_is_scored_beside_both(tmp_path: Path, tiny: Encoder) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path))
    scores = score_retrieval(tiny, retrieval_set, hybrid=True)
    assert [score.system for score in scores] == ["tiny", "BM25", "tiny, hybrid"]
    assert scores[2].recall_at_10 == 1
    ranking = search_hybrid(tiny, retrieval_set).ranking
    assert [sorted(line) for line in ranking] == [[0, 1, 2, 3]] * len(retrieval_set.queries)
    # "stock" is in one document only, which no other can beat by its vector.
    assert ranking[1][0] == 1


def test_a_sparse_encoder_searches_exactly_by_the_dot_product(
    tmp_path: Path, sparse: SparseEncoder
) -> None:
    words = ["cat", "dog", "stocks fell", "a man eats red bread", "the woman runs fast", "blue"]
    documents = [{"_id": f"d{i}", "text": f"{words[i % 6]} {i}"} for i in range(130)]
    (retrieval_set,) = read_retrieval(write_set(tmp_path, documents=documents))
    scores = sparse.similarity(
        sparse.encode_query(retrieval_set.queries),
        sparse.encode_document(retrieval_set.documents),
    )
    ranking = search_sparse(sparse, retrieval_set).ranking
    for rows, line in zip(ranking, scores, strict=True):
        assert len(rows) == len(set(rows)) == min(101, np.count_nonzero(line > 0))
        np.testing.assert_allclose(line[rows], np.sort(line)[::-1][: len(rows)], rtol=1e-5)


class _Exact:
    """A model's vectors rounded to eighths: sums of their products are exact in any order, so every
    processor gives equal documents equal scores, in blocks of any size."""

    def __init__(self, model: MultiVectorEncoder) -> None:
        self._model = model

    def encode_query(self, texts: list[str]) -> list[np.ndarray]:
        return [np.round(8 * one) / 8 for one in self._model.encode_query(texts)]

    def stream_documents(self, texts: list[str]) -> Iterator[np.ndarray]:
        return (np.round(8 * one) / 8 for one in self._model.stream_documents(texts))


def test_token_vectors_are_compared_with_every_document(
    tmp_path: Path, multi_vector: MultiVectorEncoder
) -> None:
    documents = [{"_id": f"d{i}", "text": "cat " * (i % 7) + f"dog {i % 5}"} for i in range(130)]
    (retrieval_set,) = read_retrieval(write_set(tmp_path, documents=documents))
    exact = _Exact(multi_vector)
    scores = maxsim(
        exact.encode_query(retrieval_set.queries),
        list(exact.stream_documents(retrieval_set.documents)),
    )
    # Documents come in several blocks, and equal ones are ordered by their row.
    model = cast(MultiVectorEncoder, exact)
    ranking = search_multi_vector(model, retrieval_set, compared=17).ranking
    for rows, line in zip(ranking, scores, strict=True):
        assert len(rows) == len(set(rows)) == 101
        np.testing.assert_allclose(line[rows], np.sort(line)[::-1][:101], atol=1e-4)
        same = np.diff(line[rows]) == 0
        assert same.any()
        assert (np.diff(rows)[same] > 0).all()


def test_ranks_are_fused_by_their_reciprocals() -> None:
    first, second = Timed([[0, 1, 2, 3], [7]], 1.5), Timed([[3, 1], []], 2.0)
    fused = fuse_ranks(first, second)
    # 1/62 + 1/62 is more than 1/61 + 1/64 for two middle ranks, as for 1 beside 3.
    expected = {0: 1 / 61, 1: 2 / 62, 2: 1 / 63, 3: 1 / 64 + 1 / 61}
    assert fused.ranking == [sorted(expected, key=expected.__getitem__, reverse=True), [7]]
    assert fused.seconds == 3.5
    tied = fuse_ranks(Timed([[4, 5]], 0), Timed([[5, 4]], 0))
    assert tied.ranking == [[4, 5]]


def test_fused_rankings_are_no_longer_than_others() -> None:
    halves = [Timed([list(range(start, start + 101))], 0.0) for start in (0, 101)]
    assert len(fuse_ranks(*halves).ranking[0]) == 101


def test_every_system_is_scored_with_every_reranker(
    tmp_path: Path,
    tiny: Encoder,
    sparse: SparseEncoder,
    multi_vector: MultiVectorEncoder,
    reranker: Reranker,
) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path))
    scores = score_retrieval(
        tiny,
        retrieval_set,
        hybrid=True,
        sparse=sparse,
        rerankers=[reranker, multi_vector],
        rerank_from=2,
    )
    name = sparse.info().name
    systems = ["tiny", "BM25", "tiny, hybrid", name, f"tiny + {name}"]
    after = ["", *(f", reranked by {model.info().name}" for model in (reranker, multi_vector))]
    assert [score.system for score in scores] == [s + by for s in systems for by in after]
    first = search_bm25(retrieval_set)
    by_maxsim = rerank(multi_vector, retrieval_set, first, 2)
    assert replace(scores[5], milliseconds=None) == score_run(
        retrieval_set, scores[5].system, by_maxsim.ranking
    )
    for query, before, rows in zip(
        retrieval_set.queries, first.ranking, by_maxsim.ranking, strict=True
    ):
        texts = [retrieval_set.documents[row] for row in before[:2]]
        best = np.argsort(
            -maxsim(multi_vector.encode_query(query), multi_vector.encode_document(texts))[0],
            kind="stable",
        )
        assert rows == [before[i] for i in best]


def test_what_cannot_be_joined_is_an_error(
    tmp_path: Path, sparse: SparseEncoder, multi_vector: MultiVectorEncoder
) -> None:
    (retrieval_set,) = read_retrieval(write_set(tmp_path))
    name = multi_vector.info().name
    with pytest.raises(InputValueError, match=f"needs an Encoder; {name} "):
        score_retrieval(multi_vector, retrieval_set, hybrid=True)
    with pytest.raises(InputValueError, match="is sparse too"):
        score_retrieval(sparse, retrieval_set, sparse=sparse)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("cranfield", 0.33, 0.40), ("cisi", 0.23, 0.40), ("nfcorpus-test-titles", 0.30, 0.34)],
)
def test_bm25_scores_what_is_known_of_it(shared_data: Path, name, low, high) -> None:
    (retrieval_set,) = read_retrieval(shared_data / "retrieval" / name)
    assert retrieval_set.warnings == []
    assert (
        low < score_run(retrieval_set, "BM25", search_bm25(retrieval_set).ranking).ndcg_at_10 < high
    )


def test_a_warning_about_cut_texts_names_the_set(
    tmp_path: Path, tiny: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    long = {"_id": "d9", "text": "the cat sleeps " * 400}
    (retrieval_set,) = read_retrieval(write_set(tmp_path / "one", [*DOCUMENTS, long]))
    search_hybrid(tiny, retrieval_set)
    (line,) = [r.getMessage() for r in caplog.records if "were cut" in r.getMessage()]
    assert line.startswith("one: 1 of 5 texts")


# --- the command ----------------------------------------------------------------------------------


def test_the_eval_retrieval_command_prints_both_systems(flowvec, tmp_path: Path, tiny_dir) -> None:
    write_set(tmp_path / "sets" / "one")
    write_set(tmp_path / "sets" / "two")
    done = flowvec("eval", "retrieval", tiny_dir, "sets", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].split()[-7:] == ["nDCG@10", "R@10", "R@100", "MRR@10", "ms", "a", "query"]
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["one", "tiny"],
        ["one", "BM25"],
        ["two", "tiny"],
        ["two", "BM25"],
    ]
    assert "Snowball" in done.stdout
    assert "one: 1 queries without" in done.stdout
    shown = json.loads(flowvec("eval", "retrieval", tiny_dir, "sets", "--json").stdout)
    assert len(shown["scores"]) == 4
    assert shown["scores"][1]["ndcg_at_10"] == pytest.approx(1)
    assert shown["bm25"]


def test_the_command_takes_every_kind_of_model(
    flowvec, tmp_path: Path, tiny_dir, sparse_dir, multi_vector_dir, reranker_dir
) -> None:
    write_set(tmp_path / "one")
    shown = {}
    for name, options in {
        sparse_dir: [],
        multi_vector_dir: ["--rerank", reranker_dir],
        tiny_dir: ["--sparse", sparse_dir, "--rerank", multi_vector_dir, "--rerank", reranker_dir],
    }.items():
        done = flowvec("eval", "retrieval", name, "one", "--json", *options)
        assert done.returncode == 0, done.stderr
        shown[name.name] = json.loads(done.stdout)
    systems = {
        name: [score["system"] for score in result["scores"]] for name, result in shown.items()
    }
    sparse, late = (Bundle.load(path).manifest.name for path in (sparse_dir, multi_vector_dir))
    assert systems["sparse"] == [sparse, "BM25"]
    assert systems["multi_vector"] == [late, f"{late}, reranked", "BM25", "BM25, reranked"]
    assert len(systems["tiny"]) == 4 * 3
    assert shown["tiny"]["sparse"]["name"] == sparse
    assert [info["name"] for info in shown["tiny"]["rerankers"]] == [late, "tiny-reranker"]
    assert shown["tiny"]["reranker"] == shown["tiny"]["rerankers"][0]
    assert (shown["sparse"]["reranker"], shown["sparse"]["rerankers"]) == (None, [])
    done = flowvec("eval", "retrieval", reranker_dir, "one")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "give --rerank" in done.stderr


def test_a_wrong_argument_is_one_line(flowvec, tmp_path: Path, tiny_dir) -> None:
    folder = write_set(tmp_path / "set")
    shutil.rmtree(folder / "qrels")
    for name, part in (("set", "test.tsv"), ("nowhere", "nowhere")):
        done = flowvec("eval", "retrieval", tiny_dir, name)
        assert (done.returncode, done.stdout) == (2, "")
        assert part in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
