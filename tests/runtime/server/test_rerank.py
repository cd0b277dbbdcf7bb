"""Rerankers in the forms of Text Embeddings Inference, Jina and Cohere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Reranker
from tests.runtime.server.conftest import running, texts

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import create_app

QUERY = "the cat sleeps"


def expected(reranker: Reranker, documents: list[str]) -> list[tuple[int, float]]:
    ranked = reranker.rank(QUERY, documents, activation="sigmoid")
    return [(row["corpus_id"], row["score"]) for row in ranked]


def test_teis_form_is_a_sorted_list(client: Any, reranker: Reranker) -> None:
    documents = texts(40)
    body = {"query": QUERY, "texts": documents}
    rows = client.post("/rerank", json=body).json()
    assert [row["index"] for row in rows] == [i for i, _ in expected(reranker, documents)]
    scores = [score for _, score in expected(reranker, documents)]
    np.testing.assert_allclose([row["score"] for row in rows], scores, atol=1e-5)
    assert {tuple(row) for row in rows} == {("index", "score")}
    raw = client.post("/rerank", json={**body, "raw_scores": True, "return_text": True}).json()
    logits = reranker.predict([(QUERY, text) for text in documents], activation="identity")
    np.testing.assert_allclose([row["score"] for row in raw], sorted(logits)[::-1], atol=1e-4)
    assert [row["text"] for row in raw] == [documents[row["index"]] for row in raw]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_forms_with_documents_are_sorted_alike(client: Any, reranker: Reranker, path: str) -> None:
    documents = texts(20, seed=3)
    wanted = expected(reranker, documents)[:5]
    given = [documents[0], *({"text": text} for text in documents[1:])]
    body = {"model": "sorts", "query": QUERY, "documents": given, "top_n": 5}
    answer = client.post(path, json={**body, "return_documents": True})
    rows = answer.json()["results"]
    assert [row["index"] for row in rows] == [i for i, _ in wanted]
    scores = [row["relevance_score"] for row in rows]
    np.testing.assert_allclose(scores, [score for _, score in wanted], atol=1e-5)
    assert [row["document"]["text"] for row in rows] == [documents[i] for i, _ in wanted]
    assert answer.headers["x-flowvec-fingerprint"] == reranker.fingerprint
    tokens = int(answer.headers["x-compute-tokens"])
    if path == "/v2/rerank":
        assert answer.json()["meta"]["tokens"] == {"input_tokens": tokens}
    else:
        assert answer.json()["usage"]["total_tokens"] == tokens
        assert answer.json()["model"] == "sorts"
    without = client.post(path, json={**body, "return_documents": False, "top_n": 0}).json()
    assert len(without["results"]) == 20  # as vLLM, where 0 is all
    assert "document" not in without["results"][0]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/rerank", {"query": "a"}, 422, "neither `texts` nor `documents`"),
        ("/rerank", {"query": "a", "texts": []}, 400, "no documents"),
        ("/rerank", {"query": "a", "texts": ["b"], "model": "tiny"}, 424, "tiny is not a reranker"),
        ("/rerank", {"query": "a", "texts": ["b " * 99], "truncate": False}, 422, "item 0 has"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400, "not be negative"),
        ("/v1/rerank", {"query": "a", "texts": ["b"]}, 400, "no `documents`"),
        ("/v2/rerank", {"query": "a", "documents": ["b"], "model": "x"}, 404, "no reranker 'x'"),
        ("/v2/rerank", {"query": "a", "documents": [7]}, 400, "$.documents[0]"),
    ],
)
def test_errors_have_the_form_of_the_body(
    client: Any, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    key = "message" if path == "/v2/rerank" else "detail" if status == 400 else "error"
    if path == "/rerank" and "texts" in body:
        key = "error"
    assert message in answer.json()[key]


def test_a_server_of_rerankers_alone(reranker: Reranker) -> None:
    testclient = pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")
    app = create_app({}, {"r": reranker})
    with testclient.TestClient(app) as client:
        body = {"query": QUERY, "texts": ["a", "b"]}
        assert client.post("/", json=body).json() == client.post("/rerank", json=body).json()
        assert client.get("/info").json()["model_type"]["reranker"]["id2label"] == {"0": "LABEL_0"}
        assert client.post("/embed", json={"inputs": "a"}).status_code == 424
        answer = client.post("/", json={"inputs": "a"})
        assert (answer.status_code, "(/ is /rerank on this server" in answer.text) == (422, True)
    asyncio.run(app.close())


def test_a_server_of_a_model_of_several_labels(three: Path) -> None:
    """TEI calls it a classifier, and answers at its base URL as at `/predict`."""
    with (
        Reranker.load(three, provider="cpu") as grades,
        running(create_app({}, {"grades": grades})) as server,
        server.client() as client,
    ):
        body = {"inputs": [["a cat", "a dog"], ["a cat", "a cat"]]}
        for path in ("/", "/invocations"):
            answer = client.post(path, json=body).json()
            assert answer == client.post("/predict", json=body).json()
        assert [{item["label"] for item in row} for row in answer] == [{"yes", "no", "maybe"}] * 2
        labels = {"0": "yes", "1": "no", "2": "maybe"}
        assert client.get("/info").json()["model_type"]["classifier"]["id2label"] == labels
        answer = client.post("/", json={"query": "a", "texts": ["b"]})
        assert (answer.status_code, "(/ is /predict on this server" in answer.text) == (422, True)


def test_equal_documents_have_a_row_each(client: Any) -> None:
    rows = client.post("/rerank", json={"query": "", "texts": ["a"] * 500}).json()
    assert [row["index"] for row in rows] == list(range(500))


def test_predict_scores_every_label(client: Any, reranker: Reranker) -> None:
    pairs = [[QUERY, text] for text in texts(5)]
    answer = client.post("/predict", json={"inputs": pairs, "model": "sorts"})
    given = [(first, second) for first, second in pairs]
    scores = reranker.predict(given, activation="sigmoid")
    (label,) = reranker.head.labels
    rows = answer.json()
    np.testing.assert_allclose([row[0]["score"] for row in rows], scores, atol=1e-5)
    assert [[item["label"] for item in row] for row in rows] == [[label]] * 5
    assert answer.headers["x-flowvec-fingerprint"] == reranker.fingerprint
    raw = client.post("/predict", json={"inputs": pairs[0], "raw_scores": True}).json()
    logits = reranker.predict(given[:1], activation="identity")
    np.testing.assert_allclose([item["score"] for item in raw], logits, atol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "status", "message"),
    [
        ("a text", 422, "not a pair"),
        (["a"], 422, "not a pair"),
        (["a", "b", "c"], 422, "not a pair"),
        ([["a", "b"], ["c"]], 422, "item 1"),
        ([["a", "b"], "c"], 422, "item 1"),
        ([], 400, "empty"),
        ([["a", 1]], 422, "$.inputs"),
    ],
)
def test_predict_takes_pairs(client: Any, inputs: Any, status: int, message: str) -> None:
    answer = client.post("/predict", json={"inputs": inputs})
    assert answer.status_code == status
    assert message in answer.json()["error"]
