"""MTEB: its protocols, and runs of its own evaluation on tasks made of small data sets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    CollectionError,
    Encoder,
    InputTypeError,
    InputValueError,
    MultiVectorEncoder,
    Reranker,
    SparseEncoder,
    maxsim,
)

pytest.importorskip("mteb", reason="needs mteb, which has its environment")

import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.mocks.mock_tasks.classification import MockClassificationTask
from mteb.mocks.mock_tasks.pair_classification import MockPairClassificationTask
from mteb.mocks.mock_tasks.reranking import MockRerankingTask
from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask
from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol, SearchProtocol
from mteb.types import PromptType
from scipy.stats import spearmanr

from flowvec.integrations.mteb import (
    FlowvecCrossEncoder,
    FlowvecEncoder,
    FlowvecExactSearch,
    FlowvecSearch,
)


def metadata(name: str, kind: str, score: str, **more: Any) -> TaskMetadata:
    return TaskMetadata(
        name=name, description="a set of ../shared/data", reference=None, type=kind,
        dataset={"path": "local/data", "revision": "1"}, category="t2t", modalities=["text"],
        eval_splits=["test"], eval_langs=["eng-Latn"], main_score=score, date=None, domains=None,
        task_subtypes=None, license=None, annotations_creators=None, dialect=None,
        sample_creation=None, bibtex_citation="", **more,
    )  # fmt: skip


def rows(path: Path) -> list[dict[str, str]]:
    read = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [{"id": row["_id"], "title": row.get("title", ""), "text": row["text"]} for row in read]


class Cranfield(AbsTaskRetrieval):
    metadata = metadata("Cranfield", "Retrieval", "ndcg_at_10")
    folder: Path

    def load_data(self, *_: Any, **__: Any) -> None:
        relevant: dict[str, dict[str, int]] = {}
        for line in (self.folder / "qrels/test.tsv").read_text().splitlines()[1:]:
            query, document, grade = line.split("\t")
            relevant.setdefault(query, {})[document] = int(grade)
        split = RetrievalSplitData(
            queries=Dataset.from_list(rows(self.folder / "queries.jsonl")).select_columns(
                ["id", "text"]
            ),
            corpus=Dataset.from_list(rows(self.folder / "corpus.jsonl")),
            relevant_docs=relevant,
            top_ranked=None,
        )
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


class Stsb(AbsTaskSTS):
    metadata = metadata("Stsb", "STS", "cosine_spearman")
    min_score, max_score = 0, 5
    file: Path

    def load_data(self, *_: Any, **__: Any) -> None:
        lines = self.file.read_text(encoding="utf-8").splitlines()[1:]
        score, left, right = zip(*(line.split("\t") for line in lines), strict=True)
        pairs = {"score": list(map(float, score)), "sentence1": left, "sentence2": right}
        self.dataset = {"test": Dataset.from_dict(pairs)}
        self.data_loaded = True


@pytest.fixture(scope="module")
def cranfield(shared_data: Path) -> Cranfield:
    task = Cranfield()
    task.folder = shared_data / "retrieval/cranfield"
    return task


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> mteb.ResultCache:
    return mteb.ResultCache(tmp_path_factory.mktemp("mteb"))


def scores(model: Any, task: Any, cache: mteb.ResultCache) -> dict[str, Any]:
    """Evaluate, and read the file of the results."""
    result = mteb.evaluate(model, task, cache=cache, show_progress_bar=False)
    meta = model.mteb_model_meta
    read = cache.load_task_result(task.metadata.name, meta)
    assert read is not None
    assert read.get_score() == pytest.approx(result.task_results[0].get_score(), abs=1e-6)
    (line,) = read.scores["test"]
    return dict(line)


@pytest.fixture(scope="module")
def search(mini: Encoder) -> Iterator[FlowvecSearch]:
    made = FlowvecSearch(mini, exact=True)
    yield made
    made.close()


def test_models_have_mtebs_protocols(
    mini: Encoder,
    search: FlowvecSearch,
    reranker: Reranker,
    multi_vector: MultiVectorEncoder,
) -> None:
    encoder, cross = FlowvecEncoder(mini), FlowvecCrossEncoder(reranker)
    protocols = (EncoderProtocol, CrossEncoderProtocol, SearchProtocol)
    for model, expected in ((encoder, 0), (cross, 1), (search, 2)):
        assert [isinstance(model, p) for p in protocols] == [i == expected for i in range(3)]
    meta = encoder.mteb_model_meta
    assert (meta.name, meta.revision) == ("flowvec/mini", mini.fingerprint)
    assert (meta.embed_dim, meta.similarity_fn_name) == (384, "cosine")
    assert meta.experiment_kwargs == {"compute": "float32"}
    assert cross.mteb_model_meta.is_cross_encoder
    late = FlowvecCrossEncoder(multi_vector)
    assert isinstance(late, CrossEncoderProtocol)
    about = late.mteb_model_meta
    assert (about.model_type, about.similarity_fn_name) == (["late-interaction"], "MaxSim")
    assert (about.embed_dim, about.revision) == (16, multi_vector.fingerprint)
    settings = search.mteb_model_meta.experiment_kwargs
    assert settings == {"compute": "float32", "search": "collection", "exact": True}
    hybrid = FlowvecSearch(mini, hybrid=True, rerank=reranker).mteb_model_meta
    assert hybrid.model_type == ["hybrid"]
    assert dict(hybrid.experiment_kwargs)["rerank_fingerprint"] == reranker.fingerprint


def test_a_collection_is_evaluated_as_a_whole(
    cranfield: Cranfield, mini: Encoder, search: FlowvecSearch, cache: mteb.ResultCache
) -> None:
    dense = scores(FlowvecEncoder(mini), cranfield, cache)
    exact = scores(search, cranfield, cache)
    for name in ("ndcg_at_10", "recall_at_100", "mrr_at_10"):
        # Documents of equal scores may change places.
        assert exact[name] == pytest.approx(dense[name], abs=2e-3), name
    graph = FlowvecSearch(mini, index="graph", exact_below=0, ef=200)
    by_graph = scores(graph, cranfield, cache)
    assert graph.collection is not None
    assert graph.collection.info().search == "graph"
    assert by_graph["ndcg_at_10"] == pytest.approx(dense["ndcg_at_10"], abs=0.01)
    graph.close()
    hybrid = FlowvecSearch(mini, hybrid=True)
    assert scores(hybrid, cranfield, cache)["ndcg_at_10"] > dense["ndcg_at_10"] + 0.02
    hybrid.close()
    assert hybrid.collection is None


def test_pairs_of_sentences_are_compared_by_cosine(
    shared_data: Path, mini: Encoder, cache: mteb.ResultCache
) -> None:
    task = Stsb()
    (task.file,) = (shared_data / "sts/STSB").glob("*dev*")
    found = scores(FlowvecEncoder(mini), task, cache)
    task.load_data()
    pairs = task.dataset["test"]
    left, right = (mini.encode(list(pairs[name])) for name in ("sentence1", "sentence2"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    expected = spearmanr(cosines, pairs["score"]).statistic
    assert found["cosine_spearman"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("task", [MockClassificationTask, MockPairClassificationTask])
def test_mtebs_mock_tasks_run(task: Any, tiny: Encoder) -> None:
    model = FlowvecEncoder(tiny)
    result = mteb.evaluate(model, task(), cache=None, show_progress_bar=False, co2_tracker=False)
    assert 0 <= result.task_results[0].get_score() <= 1


QUERIES = [{"id": "q", "text": "a cat"}, {"id": "r", "text": "a house", "instruction": "in red"}]
CORPUS = [
    {"id": f"d{n}", "title": "", "text": text}
    for n, text in enumerate(
        ["the cat sleeps", "a dog runs", "the red house", "the green garden", "on the house"]
    )
]
ABOUT: dict[str, Any] = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
OF_SEARCH = ABOUT | {"encode_kwargs": {}, "num_proc": None}


@pytest.mark.parametrize("kind", ["reranker", "multi_vector"])
def test_reranked_documents_come_first_and_others_follow(
    kind: str, tiny: Encoder, request: pytest.FixtureRequest
) -> None:
    reranker: Reranker | MultiVectorEncoder = request.getfixturevalue(kind)
    plain = FlowvecSearch(tiny)
    both = FlowvecSearch(tiny, rerank=reranker, rerank_from=3)
    for model in (plain, both):
        with pytest.raises(CollectionError, match="call index first"):
            model.search(QUERIES, top_k=5, **OF_SEARCH)
        model.index(CORPUS, **OF_SEARCH)
    first = plain.search(QUERIES, top_k=5, **OF_SEARCH)
    again = both.search(QUERIES, top_k=5, **OF_SEARCH)
    texts = {row["id"]: row["text"] for row in CORPUS}
    for query, text in (("q", "a cat"), ("r", "a house in red")):
        before = sorted(first[query], key=first[query].__getitem__, reverse=True)
        after = sorted(again[query], key=again[query].__getitem__, reverse=True)
        ranked = reranker.rank(text, [texts[key] for key in before[:3]])
        assert after[:3] == [before[row["corpus_id"]] for row in ranked]
        assert after[3:] == before[3:]
    eligible = {"q": ["d1", "d4"], "r": []}
    found = both.search(QUERIES, top_k=5, top_ranked=eligible, **OF_SEARCH)
    assert set(found["q"]) == {"d1", "d4"}
    assert found["r"] == {}
    both.index(CORPUS[:1], **OF_SEARCH)
    assert set(both.search(QUERIES, top_k=5, **OF_SEARCH)["q"]) == {"d0"}
    plain.close()
    both.close()


def test_texts_are_embedded_with_the_prompts_of_the_bundle(
    tiny: Encoder, reranker: Reranker, multi_vector: MultiVectorEncoder
) -> None:
    encoder = FlowvecEncoder(tiny)
    texts = [row["text"] for row in CORPUS]
    batches = [{"text": texts[:2]}, {"text": texts[2:]}]
    for kind, encode in (
        (PromptType.query, tiny.encode_query),
        (PromptType.document, tiny.encode_document),
        (None, tiny.encode),
    ):
        vectors = encoder.encode(batches, prompt_type=kind, batch_size=2, **ABOUT)
        np.testing.assert_allclose(vectors, encode(texts), atol=1e-5)
    pairwise = encoder.similarity_pairwise(vectors, vectors[::-1])
    square = encoder.similarity(vectors, vectors[::-1])
    np.testing.assert_allclose(pairwise, np.diag(square), atol=1e-6)
    for model in (reranker, multi_vector):
        scores = FlowvecCrossEncoder(model).predict(batches, batches[::1], **ABOUT)
        expected = model.predict(list(zip(texts, texts, strict=True)), activation="identity")
        np.testing.assert_allclose(scores, expected, atol=1e-5)
    with pytest.raises(InputValueError, match="image"):
        encoder.encode([{"image": [1]}], **ABOUT)
    with pytest.raises(InputTypeError, match="MultiVectorEncoder, not str"):
        FlowvecSearch(tiny, rerank="my-reranker")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sparse_encoder", "multi_vector"])
def test_sparse_and_multi_vector_encoders_find_documents(
    kind: str, request: pytest.FixtureRequest
) -> None:
    encoder: SparseEncoder | MultiVectorEncoder = request.getfixturevalue(kind)
    model = FlowvecExactSearch(encoder)
    assert isinstance(model, SearchProtocol)
    with pytest.raises(CollectionError, match="call index first"):
        model.search(QUERIES, top_k=3, **OF_SEARCH)
    model.index(CORPUS, **OF_SEARCH)
    keys, texts = [row["id"] for row in CORPUS], [row["text"] for row in CORPUS]
    asked = ["a cat", "a house in red"]
    if isinstance(encoder, SparseEncoder):
        all_scores = encoder.similarity(encoder.encode_query(asked), encoder.encode_document(texts))
    else:
        all_scores = maxsim(encoder.encode_query(asked), encoder.encode_document(texts))
    found = model.search(QUERIES, top_k=3, **OF_SEARCH)
    eligible = {"q": ["d4", "d1", "elsewhere"], "r": []}
    among = model.search(QUERIES, top_k=5, top_ranked=eligible, **OF_SEARCH)
    for query, line in zip("qr", np.asarray(all_scores), strict=True):
        best = np.argsort(-line, kind="stable")[:3]
        assert list(found[query]) == [keys[i] for i in best]
        assert list(found[query].values()) == pytest.approx(line[best], rel=1e-4)
    assert among["q"] == pytest.approx({"d4": all_scores[0, 4], "d1": all_scores[0, 1]}, rel=1e-4)
    assert among["r"] == {}
    meta = model.mteb_model_meta
    similarity = {"sparse": "dot", "late-interaction": "MaxSim"}
    assert meta.similarity_fn_name == similarity[meta.model_type[0]]
    assert (meta.revision, meta.embed_dim) == (encoder.fingerprint, encoder.dim)
    for task in (MockRetrievalTask(), MockRerankingTask()):
        result = mteb.evaluate(model, task, cache=None, show_progress_bar=False, co2_tracker=False)
        assert 0 <= result.task_results[0].get_score() <= 1
    model.close()
    named = FlowvecExactSearch(encoder.bundle.path, load_options={"provider": "cpu"})
    assert type(named.encoder) is type(encoder)
    named.close()
