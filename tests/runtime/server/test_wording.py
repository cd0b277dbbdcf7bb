"""Errors speak of JSON and of routes: callers may write another language than Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder, MultiVectorEncoder, Reranker
from flowvec.sparse import SparseEncoder

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("starlette", reason="needs the extra [serve]")
pytest.importorskip("prometheus_client", reason="needs the extra [serve]")

import msgspec
from starlette.testclient import TestClient

from flowvec.server import Settings, create_app
from tests.runtime.server.test_hostile import ROUTES_WITH_BODIES, fields_of
from tests.runtime.server.test_openapi import BODIES, path_of

# What only Python calls by these names: keyword arguments, values, types, calls and classes.
PYTHON = re.compile(
    r"\b[a-z_]+=|=[a-z_]+\b|\b(None|True|False|nan|inf)\b|\b(str|int|float|dict|bool|tuple|NoneType)s?\b"
    r"|\w\(\)|\w\(\.\.\.\)|\*\*|\b[A-Z]\w+\.\w|\b(encode_query|encode_document|add_sparse|add_token_vectors|drop_token_vectors)\b"
    r"|\b(sparse_encoder|truncation|top_k|truncate_dim|normalize_embeddings)\b|\{'|\['|scipy|numpy"
)
# A setting of a library that is Python's.
LANGCHAIN = "check_embedding_ctx_length=False"
# Values of encoding_format, as OpenAI names them.
ENCODINGS = "choose from float, base64"
# Values of every JSON type, some of which a field takes.
ODD: list[Any] = [
    None, True, False, -1, 0, 3, 1 << 70, 0.5, 1e308, "", "x", "none", [], ["x"], [1], [[1]],
    [None], {}, {"x": 1}, {"x": {}}, {"x": {"~": 1}}, {"x": {"<": True}}, {"x": {"exists": 1}},
    {"x": {"in": 3}}, {"x": {"starts with": None}}, {"x": [1]}, {"not": 1}, {"and": {}},
    {"and": [None]}, {"$id": {"<": None}}, {"$id": None}, {"$id": 1.5}, {"$id": {"<": 1 << 70}},
    {"$text": True}, {"$text": {"contains": None}}, {"a\0": 1}, {"x": "\0"}, {"$and": []},
    {"indices": [0], "values": [1]}, [{"indices": [0], "values": [1]}] * 2,
    [{"indices": [300], "values": [1]}], [{"id": "n"}], [{"x": {}}],
]  # fmt: skip
# Bodies from which one or two fields are changed, beside those of `BODIES`.
SEARCHES: dict[str, list[dict[str, Any]]] = {
    "search": [{"query": "a"}, {"vector": [0.5] * 384}],
    "search_batch": [{"queries": ["a", "b"]}, {"vectors": [[0.5] * 384]}],
    "search_sparse": [{"query": "a"}, {"sparse": {"indices": [1], "values": [2]}}],
}
CHANGES: dict[str, list[Any]] = {
    "hybrid": [True],
    "vector_weight": [0.5, 0.9, 7],
    "sparse_weight": [0.5],
    "fusion": ["ranks", "sum"],
    "min_score": [5],
    "offset": [-1],
    "group_by": ["x", "$id", ""],
    "prefix": [True],
    "rerank": [True, "sorts", "tokens"],
    "rerank_from": [0],
    "text": ["a"],
    "texts": [["a"], ["a", "b", "c"]],
    "ef": [0],
    "sparse": [False, True, "words", {"indices": [1], "values": [2]},
               [{"indices": [1], "values": [2]}]],
}  # fmt: skip


@pytest.fixture(scope="module")
def client(
    tiny: Encoder,
    mini: Encoder,
    reranker: Reranker,
    sparse_encoder: SparseEncoder,
    multi_vector_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("wording")
    with (
        Collection.create(folder / "notes", encoder=mini) as notes,
        Collection.create(folder / "plain", dim=2) as plain,
        MultiVectorEncoder.load(multi_vector_dir, provider="cpu", streams=1) as colbert,
    ):
        models = {"tiny": tiny, "mini": mini, "words": sparse_encoder, "tokens": colbert}
        app = create_app(
            models, {"sorts": reranker}, {"notes": notes, "plain": plain},
            settings=Settings(truncate=False),
        )  # fmt: skip
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client


def message_of(answer: Any) -> str:
    """The message of an error, in whatever dialect it is."""
    body = answer.json()
    message = body.get("error", body.get("message", body.get("detail")))
    message = message["message"] if isinstance(message, dict) else message
    assert isinstance(message, str), body
    return message


def assert_json_words(client: Any, path: str, body: Any) -> None:
    """An error, if this is one, has no words of Python's."""
    answer = client.post(path, content=msgspec.json.encode(body))
    messages: list[str] = []
    if answer.status_code >= 400:
        messages = [message_of(answer)]
    elif path == "/v1/embed-stream":  # its lines have errors of their own
        lines = map(msgspec.json.decode, answer.content.splitlines())
        messages = [line["error"]["message"] for line in lines if "error" in line]
    for message in messages:
        found = PYTHON.search(message.replace(LANGCHAIN, "").replace(ENCODINGS, ""))
        assert not found, (found, body, message)


@pytest.mark.campaign(but=3)
@pytest.mark.parametrize("route", ROUTES_WITH_BODIES, ids=lambda route: route.path)
def test_of_any_field(client: Any, route: Any) -> None:
    for field in fields_of(route):
        for value in ODD:
            body = {**BODIES.get(route.path, {"inputs": "a"}), field: value}
            assert_json_words(client, path_of(route), body)


@pytest.mark.campaign(but=1)
@pytest.mark.parametrize("name", ["notes", "plain"])
@pytest.mark.parametrize("path", SEARCHES)
def test_of_options_that_do_not_go_together(client: Any, path: str, name: str) -> None:
    for body in SEARCHES[path]:
        changes = [(field, value) for field, values in CHANGES.items() for value in values]
        for first, second in combinations(changes, 2):
            changed = {**body, first[0]: first[1], second[0]: second[1]}
            assert_json_words(client, f"/v1/collections/{name}/{path}", changed)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("search", {"query": "a", "prefix": True}, 'hybrid search: add "hybrid": true'),
        ("search", {"query": "a", "sparse_weight": 1}, 'hybrid search: add "hybrid": true'),
        ("search", {"query": "a", "text": "b"}, "text is for vectors, and query holds texts"),
        ("search", {"vector": [0.5] * 384, "text": "a"}, 'read text: add "hybrid": true or rerank'),
        ("search", {"vector": [0.5] * 384, "hybrid": True}, 'Give them as "text"'),
        ("search_batch", {"vectors": [[0.5] * 384], "hybrid": True}, 'Give them as "texts"'),
        ("search_batch", {"vectors": [[0.5] * 384], "rerank": True}, 'Give its text as "texts"'),
        (
            "search",
            {"query": "a", "hybrid": True, "sparse_weight": 1, "sparse": False},
            "give it in spa",
        ),
        ("search", {"query": 7}, "Expected `string | null`, got `integer`"),
        ("search", {"query": "a", "int": 1}, "unknown field `int`"),
        ("rows/count", {"filter": {"n": {"exists": None}}}, "takes true or false, not null"),
        ("rows/count", {"filter": {"not": "x"}}, "a filter must be an object, not a text"),
        ("rows/count", {"filter": {"$id": 1.5}}, "an id is a number; ids are texts or whole"),
        ("rows/count", {"ids": []}, 'count takes a filter: {"$id": {"in": [ID, ...]}} names ids'),
        ("rows/delete", {}, '{"$id": {"in": [ID, ...]}, "FIELD": VALUE}, and {} is all rows'),
        ("rows/update", {"ids": [1], "changes": [{}, {}]}, "1 ids for 2 changes"),
    ],
)
def test_of_collections(client: Any, path: str, body: dict[str, Any], message: str) -> None:
    answer = client.post(f"/v1/collections/notes/{path}", json=body)
    assert (answer.status_code, message in message_of(answer)) == (400, True), answer.text


@pytest.mark.parametrize("value", ["?", "-1", "true", "1.5", ""])
def test_of_the_url(client: Any, value: str) -> None:
    for name in ("dimensions", "normalize", "truncate", "format", "input_type", "prompt_name", "x"):
        answer = client.post(f"/v1/embed-stream?{name}={value}", content=b'"a"')
        if answer.status_code >= 400:
            assert not PYTHON.search(message_of(answer)), message_of(answer)


def test_of_a_text_that_must_not_be_cut(client: Any) -> None:
    answer = client.post("/embed", json={"inputs": ["a", "a cat " * 90]})
    assert message_of(answer) == "item 1 has more than 64 tokens, and longer ones are refused"


def test_more_documents_than_there_are_can_be_asked_for(client: Any) -> None:
    body = {"query": "a", "texts": ["b", "c"], "model": "sorts", "top_n": 1 << 40}
    assert len(client.post("/rerank", json=body).json()) == 2
