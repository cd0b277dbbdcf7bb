"""Sparse and multi-vector encoders beside the other kinds, and alone."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder, Reranker
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.errors import BundleError, InputTypeError, InputValueError
from flowvec.multi_vector import MultiVectorEncoder
from flowvec.sparse import SparseEncoder, SparseVectors
from tests.runtime.gate import Gate
from tests.runtime.server.conftest import Running, is_closed, running, texts
from tests.serving import served
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("httpx", reason="needs the extra [serve]")

import httpx

from flowvec.server import Settings, create_app
from flowvec.server.keys import Key, Keys
from flowvec.server.model_kinds import load_model

KEYS = Keys([Key("ops", hashlib.sha256(b"ops").digest(), is_admin=True)])
OPS = {"authorization": "Bearer ops"}
PATHS = {"words": "/embed_sparse", "tokens": "/embed_all"}
ROUTES = {"words": "/embed_sparse is", "tokens": "/embed_all and /rerank are"}


@pytest.fixture(scope="module")
def sparse(sparse_dir: Path) -> Iterator[SparseEncoder]:
    with SparseEncoder.load(sparse_dir, provider="cpu") as model:
        yield model


@pytest.fixture(scope="module")
def colbert(multi_vector_dir: Path) -> Iterator[MultiVectorEncoder]:
    with MultiVectorEncoder.load(multi_vector_dir, provider="cpu") as model:
        yield model


@pytest.fixture(scope="module")
def all_kinds(
    tiny: Encoder, sparse: SparseEncoder, colbert: MultiVectorEncoder, reranker: Reranker
) -> Iterator[Any]:
    models = {"words": sparse, "tiny": tiny, "tokens": colbert, "sorts": reranker}
    with running(create_app(models)) as server, server.client() as client:
        yield client


def sparse_of(answer: Any, dim: int) -> np.ndarray[Any, Any]:
    """Sparse vectors of an answer, dense."""
    rows = answer.json()
    out = np.zeros((len(rows), dim), np.float32)
    for row, weights in enumerate(rows):
        for weight in weights:
            assert set(weight) == {"index", "value"}
            out[row, weight["index"]] = weight["value"]
    return out


def assert_tokens(answer: Any, expected: list[Any]) -> None:
    """An answer has these vectors of tokens."""
    rows = answer.json()
    assert [len(row) for row in rows] == [len(row) for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row, wanted, atol=1e-5)


def test_sparse_vectors_are_those_of_the_encoder(all_kinds: Any, sparse: SparseEncoder) -> None:
    for given in ("the cat", ["the cat"], texts(300)):  # the last is many parts, in blocks
        answer = all_kinds.post("/embed_sparse", json={"inputs": given})
        assert answer.status_code == 200, answer.text
        expected = sparse.encode(given).to_dense()
        np.testing.assert_allclose(sparse_of(answer, sparse.dim), expected, atol=1e-5)
    answer = all_kinds.post("/embed_sparse", json={"inputs": texts(3), "max_active_dims": 4})
    assert [len(row) for row in answer.json()] == [4, 4, 4]
    assert answer.headers["x-flowvec-fingerprint"] == sparse.fingerprint


def test_vectors_of_tokens_are_those_of_the_encoder(
    all_kinds: Any, colbert: MultiVectorEncoder
) -> None:
    given = texts(300)
    for body, encode in (
        ({}, colbert.encode_document),
        ({"input_type": "document"}, colbert.encode_document),
        ({"prompt_name": "document"}, colbert.encode_document),
        ({"input_type": "query"}, colbert.encode_query),
        ({"prompt_name": "query"}, colbert.encode_query),
    ):
        answer = all_kinds.post("/embed_all", json={"inputs": given, **body})
        assert answer.status_code == 200, answer.text
        assert_tokens(answer, encode(given))
    answer = all_kinds.post("/embed_all", json={"inputs": "the cat"})
    assert_tokens(answer, [colbert.encode_document("the cat")])


def test_a_large_answer_is_sent_in_blocks(
    all_kinds: Any, colbert: MultiVectorEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowvec.server.answer._WHOLE", 1000)
    given = ["the cat sleeps on a river"] * 2000
    answer = all_kinds.post("/embed_sparse", json={"inputs": given})
    assert "content-length" not in answer.headers
    assert len(answer.json()) == 2000
    assert {len(row) for row in answer.json()} == {len(answer.json()[0])}
    answer = all_kinds.post("/embed_all", json={"inputs": given})
    assert "content-length" not in answer.headers
    assert len(answer.json()) == 2000
    np.testing.assert_allclose(answer.json()[-1], colbert.encode_document(given[0]), atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/embed_sparse", {"inputs": []}, 400, "inputs is empty"),
        ("/embed_sparse", {"inputs": ["a", ""]}, 422, "text 1"),
        ("/embed_sparse", {"inputs": [1, 2]}, 422, "token ids"),
        ("/embed_sparse", {"inputs": "a", "normalize": True}, 400, "`normalize` does not apply to"),
        ("/embed_sparse", {"inputs": "a", "dimensions": 3}, 400, "`dimensions` does not apply to"),
        ("/embed_sparse", {"inputs": "a", "max_active_dims": 0}, 422, "max_active_dims"),
        ("/embed_sparse", {"inputs": "a", "prompt_name": "x"}, 422, "no prompt 'x'"),
        ("/embed_sparse", {"inputs": "a", "truncation_direction": "left"}, 422, "Right"),
        ("/embed_sparse", {"inputs": ["a", "a cat " * 99], "truncate": False}, 422, "item 1 has"),
        ("/embed_all", {"inputs": "a", "normalize": False}, 400, "`normalize` does not apply to"),
        ("/embed_all", {"inputs": "a", "dimensions": 3}, 400, "model of kind multi_vector"),
        ("/embed_all", {"inputs": "a", "prompt_name": "x"}, 422, "it has query and document"),
        ("/embed_all", {"inputs": "a cat " * 99, "truncate": False, "input_type": "query"}, 422,
         "item 0 has more than 24 tokens"),
        ("/embed_sparse", {"inputs": "a", "model": "tokens"}, 424,
         "tokens is not a sparse encoder but a multi-vector encoder, for /embed_all"),
        ("/embed_all", {"inputs": "a", "model": "sorts"}, 424, "but a reranker, for /rerank"),
        ("/embed", {"inputs": "a", "model": "words"}, 424,
         "words is not an embedding model but a sparse encoder, for /embed_sparse"),
        ("/embed_sparse", {"inputs": "a", "model": "x"}, 424, "'x'; this server has words"),
    ],
)  # fmt: skip
def test_errors_say_what_does_not_fit(
    all_kinds: Any, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    answer = all_kinds.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]


def test_every_model_is_listed_with_its_kind(
    all_kinds: Any, sparse: SparseEncoder, colbert: MultiVectorEncoder
) -> None:
    models = {each["id"]: each for each in all_kinds.get("/v1/models").json()["data"]}
    kinds = {name: each["kind"] for name, each in models.items()}
    assert kinds == {
        "words": "sparse", "tiny": "embedding", "tokens": "multi_vector", "sorts": "reranker",
    }  # fmt: skip
    for name, model in (("words", sparse), ("tokens", colbert)):
        about = all_kinds.get(f"/v1/models/{name}").json()
        assert about == models[name]
        assert (about["dim"], about["max_length"]) == (model.dim, model.max_length)
        assert (about["prompts"], about["fingerprint"]) == (
            ["document", "query"], model.fingerprint,
        )  # fmt: skip
    assert all_kinds.get("/info").json()["served_model_name"] == "tiny"
    counted = all_kinds.get("/metrics").text
    for name in models:
        assert f'flowvec_waiting_tokens{{model="{name}"}} 0.0' in counted


@pytest.mark.parametrize("name", PATHS)
def test_a_server_of_one_such_model(
    sparse: SparseEncoder, colbert: MultiVectorEncoder, name: str
) -> None:
    """What TEI answers where it serves such a model alone."""
    model = sparse if name == "words" else colbert
    with running(create_app({name: model})) as server, server.client() as client:
        given = ["the cat", "a man sleeps"]
        for path in ("/", "/invocations"):
            answer = client.post(path, json={"inputs": given})
            assert answer.content == client.post(PATHS[name], json={"inputs": given}).content
            answer = client.post(path, json={"query": "a", "texts": ["b"]})
            assert answer.status_code == 422
            assert f"({path} is {PATHS[name]} on this server" in answer.json()["error"]
        tokens = client.post("/tokenize", json={"inputs": given}).json()
        assert [[token["id"] for token in text] for text in tokens] == model.tokenize(given).ids
        ids = [[token["id"] for token in text] for text in tokens]
        decoded = client.post("/decode", json={"ids": ids}).json()
        assert [text.replace(" ", "") for text in decoded] == ["thecat", "amansleeps"]
        info = client.get("/info").json()
        assert (info["served_model_name"], info["fingerprint"]) == (name, model.fingerprint)
        pooling = "splade" if name == "words" else "none"
        assert info["model_type"] == {"embedding": {"pooling": pooling}}
        answer = client.post("/embed", json={"inputs": "a"})
        assert answer.status_code == 424
        assert f"no embedding model; {ROUTES[name]} for its" in answer.json()["error"]
        assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 404
        answer = client.post("/rerank", json={"query": "a", "texts": ["b"]})
        assert answer.status_code == (200 if name == "tokens" else 424)


def waiting(server: Running) -> int:
    return int(server.call(lambda: sum(m.queue.waiting_tokens for m in server.app.served.models)))


@pytest.mark.parametrize("name", PATHS)
def test_admission_deadlines_and_clients_that_leave(
    sparse_dir: Path, multi_vector_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = sparse_dir if name == "words" else multi_vector_dir
    gate = Gate(monkeypatch)
    with (
        load_model(str(folder), provider="cpu", streams=1, max_batch_tokens=64) as model,
        running(create_app({name: model}, settings=Settings(max_waiting_tokens=200))) as server,
        server.client() as client,
        ThreadPoolExecutor(2) as pool,
    ):

        def post(count: int, **headers: str) -> Any:
            body = {"inputs": ["a cat"] * count}
            return httpx.post(server.url + PATHS[name], json=body, headers=headers, timeout=600)

        with gate.shut():
            accepted = [pool.submit(post, 6) for _ in range(2)]
            wait_until(lambda: waiting(server) == 192)
            refused = post(1)
            assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
            assert int(refused.headers["retry-after-ms"]) > 0
            assert client.get("/live").status_code == client.get("/ready").status_code == 200
        assert [call.result(600).status_code for call in accepted] == [200, 200]
        with gate.shut():
            late = post(6, **{"x-request-timeout-ms": "50"})
            assert (late.status_code, late.headers["x-should-retry"]) == (504, "false")
            assert waiting(server) == 0
            body = json.dumps({"inputs": ["a cat"] * 6}).encode()
            head = f"POST {PATHS[name]} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", server.server.port)) as leaving:
                leaving.sendall(head.encode() + body)
                wait_until(lambda: waiting(server) == 96)
            wait_until(lambda: waiting(server) == 0)
        assert post(12).status_code == 200


def test_queries_and_documents_share_batches_without_a_difference(
    multi_vector_dir: Path, colbert: MultiVectorEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    given = ["the cat", "a dog", "a man eats"]
    with (
        MultiVectorEncoder.load(multi_vector_dir, provider="cpu", streams=1) as model,
        running(create_app({"tokens": model})) as server,
        ThreadPoolExecutor(4) as pool,
    ):

        def post(kind: str) -> Any:
            body = {"inputs": given, "input_type": kind}
            return httpx.post(f"{server.url}/embed_all", json=body, timeout=600)

        with gate.shut():
            first = pool.submit(post, "document")
            assert gate.entered.wait(600)
            calls = [pool.submit(post, kind) for kind in ("document", "query", "document")]
            wait_until(lambda: waiting(server) == 4 * 3 * 16)
        assert_tokens(first.result(600), colbert.encode_document(given))
        for call, encode in zip(
            calls, (colbert.encode_document, colbert.encode_query, colbert.encode_document),
            strict=True,
        ):  # fmt: skip
            assert_tokens(call.result(600), encode(given))


def test_both_kinds_are_loaded_again_while_they_serve(
    sparse_dir: Path, multi_vector_dir: Path
) -> None:
    folders = {"words": sparse_dir, "tokens": multi_vector_dir}
    loaded: list[LoadedModel] = []
    is_over = threading.Event()

    def load(name: str) -> LoadedModel:
        loaded.append(load_model(str(folders[name]), provider="cpu", streams=1))
        return loaded[-1]

    models = {name: load(name) for name in folders}
    app = create_app(models, settings=Settings(keys=KEYS), reload=load)
    app.served.owned |= set(models.values())

    seen: Counter[tuple[str, int]] = Counter()

    def call(url: str, path: str) -> None:
        with httpx.Client(base_url=url, headers=OPS, timeout=600) as client:
            while not is_over.is_set():
                seen[path, client.post(path, json={"inputs": texts(5)}).status_code] += 1

    def wait_for_answers() -> None:
        before = seen.copy()
        wait_until(lambda: all(seen[path, 200] > before[path, 200] + 2 for path in PATHS.values()))

    with running(app) as server, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(call, server.url, path) for path in PATHS.values()]
        wait_for_answers()
        with server.client(headers=OPS) as client:
            answer = client.post("/v1/admin/reload").json()["models"]
        assert {(each["id"], each["kind"], each["status"]) for each in answer} == {
            ("words", "sparse", "swapped"), ("tokens", "multi_vector", "swapped"),
        }  # fmt: skip
        wait_until(lambda: all(map(is_closed, loaded[:2])))
        wait_for_answers()
        is_over.set()
        for each in calls:
            each.result(600)
        assert {status for _, status in seen} == {200}
    assert len(loaded) == 4
    assert all(map(is_closed, loaded))


@pytest.mark.process
def test_the_command_takes_all_kinds_in_one_list(
    tmp_path: Path, tiny_dir: Path, sparse_dir: Path, multi_vector_dir: Path, reranker_dir: Path
) -> None:
    words = ["mini", tiny_dir, f"splade={sparse_dir}", multi_vector_dir, reranker_dir]
    with (
        served(tmp_path, *words, "--provider", "cpu") as (url, _, log),
        httpx.Client(timeout=600) as client,
    ):
        models = client.get(f"{url}/v1/models").json()["data"]
        assert [(each["id"], each["kind"]) for each in models] == [
            ("mini", "embedding"), ("tiny", "embedding"), ("splade", "sparse"),
            ("multi_vector", "multi_vector"), ("reranker", "reranker"),
        ]  # fmt: skip
        for path, body in (
            ("/embed", {"inputs": "a"}), ("/embed_sparse", {"inputs": "a"}),
            ("/embed_all", {"inputs": "a"}), ("/rerank", {"query": "a", "texts": ["b"]}),
        ):  # fmt: skip
            answer = client.post(url + path, json=body)
            assert answer.status_code == 200, answer.text
        assert f"the page: open {url}/ in a browser" in log.read_text()


def test_a_model_for_reranker_must_be_one(sparse_dir: Path) -> None:
    with pytest.raises(BundleError, match=r"flowvec\.SparseEncoder"):
        Reranker.load(sparse_dir)


def test_what_is_given_is_checked(tiny: Encoder, reranker: Reranker) -> None:
    with pytest.raises(InputValueError, match="same name"):
        create_app({"one": tiny}, {"one": reranker})
    wrong: Any = {"one": "mini"}
    with pytest.raises(InputTypeError, match=r"write Encoder.load\('mini'\)"):
        create_app(wrong)
    for each in (tiny, [tiny]):
        with pytest.raises(InputTypeError, match="must be"):
            create_app({}, each)  # type: ignore[arg-type]


def make_vectors(rows: list[dict[int, float]]) -> SparseVectors:
    lengths = [0, *(len(row) for row in rows)]
    return SparseVectors(
        np.cumsum(lengths, dtype=np.int64),
        np.array([i for row in rows for i in row], np.int32),
        np.array([v for row in rows for v in row.values()], np.float32),
        10_000,
    )


@pytest.mark.parametrize("sizes", [[0], [0, 0, 3, 0], [5000, 0, 1, 4095, 1, 5000], [1] * 9000])
def test_blocks_of_sparse_vectors_are_all_of_them(sizes: list[int]) -> None:
    from flowvec.server.vector_bytes import sparse_pieces, sparse_rows

    draw = np.random.default_rng(0)
    rows = [dict(zip(range(n), draw.random(n, np.float32).tolist(), strict=True)) for n in sizes]
    vectors = make_vectors(rows)
    blocks = list(sparse_pieces(vectors))
    assert sum(map(len, blocks)) == len(vectors)
    read = json.loads(b"[" + b",".join(map(sparse_rows, blocks)) + b"]")
    given_back = [{w["index"]: float(np.float32(w["value"])) for w in row} for row in read]
    assert given_back == vectors.as_dicts()
