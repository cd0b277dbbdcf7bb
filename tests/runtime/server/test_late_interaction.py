"""Documents and hits sorted by a served multi-vector encoder: what the Python API gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder, MultiVectorEncoder, Reranker
from flowvec.sparse import SparseEncoder
from tests.runtime.gate import Gate
from tests.runtime.server.conftest import Running, running, texts
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("prometheus_client", reason="needs the extra [serve]")
pytest.importorskip("httpx", reason="needs the extra [serve]")

import httpx

from flowvec.server import Settings, create_app

QUERY = "the cat sleeps"
QUERIES = [QUERY, "a river", "猫", "a dog eats the man"]
NOTES = [*texts(60, seed=5), "the cat sleeps on a river"]
LONG = "a cat " * 99


def changed(multi_vector_dir: Path, into: Path) -> Path:
    """A copy of the bundle with another manifest, and so with another fingerprint."""
    shutil.copytree(multi_vector_dir, into)
    file = into / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["late_interaction"]["document_length"] -= 1
    file.write_text(json.dumps(manifest))
    return into


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("late")


@pytest.fixture(scope="module")
def colbert(multi_vector_dir: Path) -> Iterator[MultiVectorEncoder]:
    with MultiVectorEncoder.load(multi_vector_dir, provider="cpu", streams=1) as model:
        yield model


@pytest.fixture(scope="module")
def other(folder: Path, multi_vector_dir: Path) -> Iterator[MultiVectorEncoder]:
    bundle = changed(multi_vector_dir, folder / "bundle")
    with MultiVectorEncoder.load(bundle, provider="cpu", streams=1) as model:
        yield model


@pytest.fixture(scope="module")
def notes(folder: Path, tiny: Encoder) -> Iterator[Collection]:
    """A collection without token vectors."""
    with Collection.create(folder / "notes", encoder=tiny) as collection:
        metadata = [{"n": i} for i in range(len(NOTES))]
        collection.add(list(range(len(NOTES))), NOTES, metadata)
        yield collection


@pytest.fixture(scope="module")
def late(folder: Path, tiny: Encoder, colbert: MultiVectorEncoder) -> Iterator[Collection]:
    """A collection with token vectors of three quarters of its rows, as signs: those that are
    encoded for a search differ from them much if they are not rounded alike."""
    with Collection.create(folder / "late", encoder=tiny) as collection:
        ids = list(range(len(NOTES)))
        collection.add(ids[:45], NOTES[:45])
        assert collection.add_token_vectors(colbert, dtype="signs") == 45
        collection.add(ids[45:], NOTES[45:])
        yield collection


@pytest.fixture(scope="module")
def server(
    tiny: Encoder,
    colbert: MultiVectorEncoder,
    other: MultiVectorEncoder,
    sparse_encoder: SparseEncoder,
    reranker: Reranker,
    notes: Collection,
    late: Collection,
) -> Iterator[Running]:
    models = {
        "tiny": tiny, "other": other, "tokens": colbert, "words": sparse_encoder, "sorts": reranker,
    }  # fmt: skip
    with running(create_app(models, collections={"notes": notes, "late": late})) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[Any]:
    with server.client() as client:
        yield client


def ok(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def as_pairs(hits: list[Any]) -> list[tuple[Any, float, float | None, int | None]]:
    return [(hit.id, hit.score, hit.search_score, hit.search_rank) for hit in hits]


def found(answer: list[dict[str, Any]]) -> list[tuple[Any, Any, Any, Any]]:
    return [(h["id"], h["score"], h["search_score"], h["search_rank"]) for h in answer]


def encoded_texts(client: Any, name: str = "tokens") -> float:
    """How many texts a model has encoded."""
    lines = client.get("/metrics").text.splitlines()
    start = f'flowvec_texts_total{{model="{name}"}} '
    (line,) = (line for line in lines if line.startswith(start))
    return float(line[len(start) :])


# --- documents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("query", [QUERY, ""])
def test_documents_are_ranked_as_by_the_encoder(
    http: Any, colbert: MultiVectorEncoder, path: str, query: str
) -> None:
    documents = ["", *texts(30, seed=3), "a dog", "a dog"]
    wanted = colbert.rank(query, documents, return_documents=True)
    body = {"model": "tokens", "query": query, "documents": documents, "return_documents": True}
    answer = http.post(path, json=body)
    results = ok(answer)["results"]
    ours = [(row["index"], row["document"]["text"]) for row in results]
    assert ours == [(row["corpus_id"], row["text"]) for row in wanted]
    scores = [row["score"] for row in wanted]
    assert [row["relevance_score"] for row in results] == pytest.approx(scores, rel=1e-5)
    assert answer.headers["x-flowvec-fingerprint"] == colbert.fingerprint
    assert int(answer.headers["x-compute-characters"]) == len(query) + sum(map(len, documents))
    tokens = int(answer.headers["x-compute-tokens"])
    assert tokens > len(documents)
    if path == "/v2/rerank":
        assert answer.json()["meta"]["tokens"] == {"input_tokens": tokens}
    else:
        assert answer.json()["usage"]["total_tokens"] == tokens
    best = ok(http.post(path, json={**body, "top_n": 2, "return_documents": False}))["results"]
    assert [row["index"] for row in best] == [row["corpus_id"] for row in wanted[:2]]


def test_teis_form(http: Any, colbert: MultiVectorEncoder) -> None:
    documents = texts(30, seed=3)
    wanted = colbert.rank(QUERY, documents)
    body = {"query": QUERY, "texts": documents, "model": "tokens"}
    for raw in (False, True):  # MaxSim has no logit
        rows = ok(http.post("/rerank", json={**body, "raw_scores": raw}))
        assert [row["index"] for row in rows] == [row["corpus_id"] for row in wanted]
        scores = [row["score"] for row in wanted]
        assert [row["score"] for row in rows] == pytest.approx(scores, rel=1e-5)
    assert max(row["score"] for row in rows) > 1


def test_a_reranker_comes_before_a_multi_vector_encoder(http: Any, reranker: Reranker) -> None:
    answer = http.post("/v1/rerank", json={"query": QUERY, "documents": ["a", "b"]})
    assert ok(answer)["model"] == "sorts"
    assert answer.headers["x-flowvec-fingerprint"] == reranker.fingerprint


def test_a_server_of_a_multi_vector_encoder_alone(colbert: MultiVectorEncoder) -> None:
    wanted = [row["corpus_id"] for row in colbert.rank(QUERY, NOTES)]
    settings = Settings(any_model=True)
    app = create_app({"tokens": colbert}, settings=settings)
    with running(app) as server, server.client() as client:
        for name in ("tokens", "a-name-of-elsewhere", None):
            body = {"query": QUERY, "documents": NOTES, "model": name}
            answer = ok(client.post("/v1/rerank", json=body))
            assert answer["model"] == "tokens"
            assert [row["index"] for row in answer["results"]] == wanted


def test_a_repeated_document_is_encoded_once(http: Any) -> None:
    before = encoded_texts(http)
    body = {"query": QUERY, "texts": ["a dog"] * 50, "model": "tokens"}
    rows = ok(http.post("/rerank", json=body))
    assert [row["index"] for row in rows] == list(range(50))
    assert encoded_texts(http) == before + 2  # the query and the document


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/rerank", {"model": "tiny"}, 424, "tiny is not a reranker but an embedding model"),
        ("/rerank", {"model": "words"}, 424, "words is not a reranker but a sparse encoder"),
        ("/rerank", {"model": "x"}, 424, "no reranker 'x'; this server has other, tokens, sorts"),
        ("/rerank", {"label": "a"}, 400, "`label` does not apply to tokens"),
        ("/rerank", {"top_n": -1}, 422, "must not be negative"),
        ("/rerank", {"texts": []}, 400, "no documents"),
        ("/rerank", {"truncation_direction": "left"}, 422, "must be Right"),
        ("/rerank", {"truncate": False, "query": LONG}, 422, "the query has more than 24 tokens"),
        ("/rerank", {"truncate": False, "texts": ["a", "a", LONG, LONG]}, 422,
         "item 2 has more than 64"),
        ("/rerank", {"query": 7}, 422, "$.query"),
        ("/predict", {"inputs": ["a", "b"]}, 424,
         "tokens is not a reranker but a multi-vector encoder, for /embed_all and /rerank"),
        ("/embed", {"inputs": "a"}, 424, "but a multi-vector encoder, for /embed_all and /rerank"),
    ],
)  # fmt: skip
def test_errors_say_what_does_not_fit(
    http: Any, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    given = {"model": "tokens", "query": "a", "texts": ["b"], **body}
    answer = http.post(path, json=given)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]


def waiting(server: Running) -> int:
    return int(server.call(lambda: sum(m.queue.waiting_tokens for m in server.app.served.models)))


def test_admission_and_deadlines(multi_vector_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is refused, or too late, leaves nothing in the queue: not its query either."""
    gate = Gate(monkeypatch)
    settings = Settings(max_waiting_tokens=200, max_text_characters=1000)
    with (
        MultiVectorEncoder.load(
            multi_vector_dir, provider="cpu", streams=1, max_batch_tokens=64
        ) as model,
        running(create_app({"tokens": model}, settings=settings)) as server,
        ThreadPoolExecutor(2) as pool,
    ):

        def post(count: int, **headers: str) -> Any:
            body = {"query": "a", "texts": [f"a cat {'a' * i}" for i in range(count)]}
            return httpx.post(f"{server.url}/rerank", json=body, headers=headers, timeout=600)

        assert post(20).status_code == 413  # 320 tokens at once
        assert waiting(server) == 0
        long = {"query": "a", "texts": ["a" * 1001]}
        assert httpx.post(f"{server.url}/rerank", json=long, timeout=600).status_code == 413
        assert waiting(server) == 0
        with gate.shut():
            accepted = pool.submit(post, 6)
            wait_until(lambda: waiting(server) == 7 * 16)
            refused = post(5)  # its query fits
            assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
            assert waiting(server) == 7 * 16
            late = post(3, **{"x-request-timeout-ms": "50"})
            assert late.status_code == 504
            assert waiting(server) == 7 * 16
        assert accepted.result(600).status_code == 200
        wait_until(lambda: waiting(server) == 0)


def test_requests_share_batches(multi_vector_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents of one caller, its query, and the texts of others are in one batch."""
    gate = Gate(monkeypatch)
    with (
        MultiVectorEncoder.load(multi_vector_dir, provider="cpu", streams=1) as model,
        running(create_app({"tokens": model})) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        documents = ["the cat", "a dog", "a man eats"]
        wanted = [row["corpus_id"] for row in model.rank(QUERY, documents)]

        def post() -> Any:
            body = {"query": QUERY, "texts": documents}
            return httpx.post(f"{server.url}/rerank", json=body, timeout=600)

        with gate.shut():
            first = pool.submit(post)
            assert gate.entered.wait(600)
            calls = [pool.submit(post) for _ in range(3)]
            wait_until(lambda: waiting(server) >= 4 * 3 * 16)
        for call in (first, *calls):
            assert [row["index"] for row in ok(call.result(600))] == wanted
        served = server.app.served.models[0].measures
        batches = dict(served.batch_items.buckets())["+Inf"]
        assert served.items == 4 * 4
        assert batches < 4 * 2  # as many as if each call had its own


# --- searches -------------------------------------------------------------------------------------


def test_hits_without_token_vectors_are_encoded(
    http: Any, notes: Collection, colbert: MultiVectorEncoder
) -> None:
    url = "/v1/collections/notes"
    options: dict[str, Any] = {"k": 7, "filter": {"n": {">=": 10}}, "offset": 2}
    wanted = notes.search_batch(QUERIES, **options, rerank=colbert, rerank_from=20)
    body = {"queries": QUERIES, **options, "rerank": "tokens", "rerank_from": 20}
    lines = ok(http.post(f"{url}/search_batch", json=body))["hits"]
    for line, hits in zip(lines, wanted, strict=True):
        assert [hit["id"] for hit in line] == [hit.id for hit in hits]
        np.testing.assert_allclose([h["score"] for h in line], [h.score for h in hits], rtol=1e-5)
    hybrid = notes.search(QUERY, 5, hybrid=True, rerank=colbert)
    answer = http.post(f"{url}/search", json={
        "query": QUERY, "k": 5, "hybrid": True, "rerank": "tokens",
    })  # fmt: skip
    assert [hit["id"] for hit in ok(answer)["hits"]] == [hit.id for hit in hybrid]
    assert "rerank;dur=" in answer.headers["server-timing"]
    vector = notes.encoder.encode_query(QUERY).tolist()  # type: ignore[union-attr]
    body = {"vector": vector, "text": QUERY, "k": 5, "rerank": "tokens"}
    hits = notes.search(vector, 5, text=QUERY, rerank=colbert)
    assert [hit["id"] for hit in ok(http.post(f"{url}/search", json=body))["hits"]] == [
        hit.id for hit in hits
    ]


def test_stored_token_vectors_give_exactly_the_hits_of_the_collection(
    http: Any, late: Collection, colbert: MultiVectorEncoder
) -> None:
    for query in QUERIES:
        wanted = late.search(query, 45, filter={"$id": {"in": list(range(45))}}, rerank=colbert)
        before = encoded_texts(http)
        of_stored = {"$id": {"in": list(range(45))}}
        body = {"query": query, "k": 45, "filter": of_stored, "rerank": "tokens"}
        hits = ok(http.post("/v1/collections/late/search", json=body))["hits"]
        assert found(hits) == as_pairs(wanted)
        assert encoded_texts(http) == before + 1  # the query alone


@pytest.mark.parametrize(
    ("limit", "value", "most"),
    # A document has at most 64 tokens of 16 numbers.
    [("_MOST_HITS", 256, 256), ("_MOST_HITS", 7, 7), ("_MOST_BYTES", 5 * 64 * 16 * 4, 5),
     ("_MOST_BYTES", 9, 1)],
)  # fmt: skip
def test_hits_that_lack_token_vectors_are_encoded_and_rounded_alike(
    http: Any, late: Collection, colbert: MultiVectorEncoder, monkeypatch: Any,
    limit: str, value: int, most: int,
) -> None:  # fmt: skip
    read: list[int] = []  # hits whose token vectors are in memory at a time
    stored_tokens = Collection._stored_tokens

    def reading(self: Collection, encoder: Any, hits: Any) -> Any:
        read.append(sum(map(len, hits)))
        return stored_tokens(self, encoder, hits)

    monkeypatch.setattr(Collection, "_stored_tokens", reading)
    monkeypatch.setattr(f"flowvec.server.late_interaction.{limit}", value)
    wanted = late.search_batch(QUERIES, len(NOTES), rerank=colbert, rerank_from=len(NOTES))
    before = encoded_texts(http)
    body = {"queries": QUERIES, "k": len(NOTES), "rerank": "tokens", "rerank_from": len(NOTES)}
    read.clear()
    lines = ok(http.post("/v1/collections/late/search_batch", json=body))["hits"]
    assert sum(read) == len(QUERIES) * len(NOTES)
    assert max(read) <= most
    for line, hits in zip(lines, wanted, strict=True):
        scores = {hit.id: hit.score for hit in hits}
        assert {h["id"]: h["score"] for h in line} == pytest.approx(scores, rel=1e-5)
        assert [h["score"] for h in line] == sorted((h["score"] for h in line), reverse=True)
    lacking = len(set(NOTES[45:]))
    made = encoded_texts(http) - before - len(QUERIES)
    assert made == lacking if most == 256 else lacking <= made <= len(QUERIES) * lacking


def test_token_vectors_of_another_model_are_not_read(
    http: Any, late: Collection, other: MultiVectorEncoder
) -> None:
    wanted = late.search(QUERY, 5, rerank=other)
    before = encoded_texts(http, "other")
    body = {"query": QUERY, "k": 5, "rerank": "other"}
    hits = ok(http.post("/v1/collections/late/search", json=body))["hits"]
    assert [hit["id"] for hit in hits] == [hit.id for hit in wanted]
    assert encoded_texts(http, "other") == before + 51


def test_true_is_the_reranker_or_else_the_model_of_the_token_vectors(
    http: Any,
    tiny: Encoder,
    colbert: MultiVectorEncoder,
    other: MultiVectorEncoder,
    notes: Collection,
    late: Collection,
    reranker: Reranker,
) -> None:
    body = {"query": QUERY, "k": 9, "rerank": True}

    def scores(client: Any, name: str) -> list[float]:
        answer = ok(client.post(f"/v1/collections/{name}/search", json=body))
        return [hit["score"] for hit in answer["hits"]]

    def wanted(collection: Collection, model: Any) -> Any:
        return pytest.approx([h.score for h in collection.search(QUERY, 9, rerank=model)], rel=1e-4)

    assert scores(http, "late") == wanted(late, reranker)
    models = {"tiny": tiny, "other": other, "tokens": colbert}
    app = create_app(models, collections={"notes": notes, "late": late})
    with running(app) as server, server.client() as client:
        assert scores(client, "late") == wanted(late, colbert)
        assert scores(client, "notes") == wanted(notes, other)  # the first


def test_errors_of_searches(http: Any, notes: Collection) -> None:
    def refused(status: int, **body: Any) -> str:
        answer = http.post("/v1/collections/notes/search", json={"query": QUERY, **body})
        assert answer.status_code == status, answer.text
        return str(answer.json()["error"]["message"])

    assert "words is not a reranker but a sparse encoder" in refused(404, rerank="words")
    assert "no reranker 'x'; this server has other, tokens" in refused(404, rerank="x")
    vector = notes.encoder.encode_query(QUERY).tolist()  # type: ignore[union-attr]
    message = refused(400, query=None, vector=vector, rerank="tokens")
    assert "rerank needs a text" in message
    assert "at most 10,000 rows" in refused(400, rerank="tokens", rerank_from=10_001)


def test_a_row_without_a_text_is_refused(
    tmp_path: Path, tiny: Encoder, colbert: MultiVectorEncoder
) -> None:
    with Collection.create(tmp_path / "c", dim=2) as collection:
        collection.add_vectors(["a", "b"], [[1, 0], [0, 1]], texts=["a dog", None])
        with running(create_app({"t": colbert}, collections={"c": collection})) as server:
            body = {"vector": [1, 0], "text": "a", "rerank": True}
            with server.client() as client:
                answer = client.post("/v1/collections/c/search", json=body)
    assert answer.status_code == 400
    assert "the row 'b' has no text" in answer.json()["error"]["message"]


def test_searches_while_token_vectors_come_and_go(
    tmp_path: Path, tiny: Encoder, colbert: MultiVectorEncoder
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as collection:
        collection.add(range(len(NOTES)), NOTES)
        app = create_app({"tokens": colbert}, collections={"c": collection})
        with running(app) as server, server.client() as client:
            url, body = "/v1/collections/c/search", {"query": QUERY, "k": 5, "rerank": True}
            before = ok(client.post(url, json=body))["hits"]
            made = encoded_texts(client)
            collection.add_token_vectors(colbert)
            stored = ok(client.post(url, json=body))["hits"]
            assert found(stored) == as_pairs(collection.search(QUERY, 5, rerank=colbert))
            assert encoded_texts(client) == made + 1
            collection.add([0], ["the cat sleeps"])  # its token vectors are those of no text now
            changed = ok(client.post(url, json=body))["hits"]
            assert found(changed) == as_pairs(collection.search(QUERY, 5, rerank=colbert))
            collection.add([0], [NOTES[0]])
            collection.drop_token_vectors()
            assert found(ok(client.post(url, json=body))["hits"]) == found(before)


def test_a_collection_tells_its_token_vectors_and_no_folder(
    http: Any, late: Collection, folder: Path
) -> None:
    about = http.get("/v1/collections/late")
    info = late.info()
    assert (ok(about)["token_model"], about.json()["token_dtype"]) == ("tokens", "signs")
    assert (about.json()["token_rows"], about.json()["token_bytes"]) == (45, info.token_bytes)
    assert info.token_model not in (None, "tokens")
    assert str(info.token_model) not in about.text
    assert str(folder) not in about.text
    listed = {each["id"]: each["token_model"] for each in ok(http.get("/v1/collections"))["data"]}
    assert listed == {"notes": None, "late": "tokens"}
    metrics = http.get("/metrics").text
    assert 'flowvec_collection_token_rows{collection="late"} 45.0' in metrics
    size = f'flowvec_collection_token_bytes{{collection="late"}} {float(info.token_bytes)}'
    assert size in metrics
    assert 'flowvec_collection_token_rows{collection="notes"} 0.0' in metrics
