"""The OpenAPI document says what the routes do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder, Reranker
from flowvec.multi_vector import MultiVectorEncoder
from flowvec.sparse import SparseEncoder

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("starlette", reason="needs the extra [serve]")
pytest.importorskip("prometheus_client", reason="needs the extra [serve]")

import msgspec
from starlette.testclient import TestClient

from flowvec.server import Settings, create_app
from flowvec.server.answer_types import ERRORS
from flowvec.server.described import description_of
from flowvec.server.keys import Key, Keys
from flowvec.server.routes import ROUTES
from tests.waiting import wait_until

# A sparse vector, and the dimensions of the sparse encoder that is served.
SPARSE: dict[str, Any] = {"indices": [7, 2], "values": [0.5, 1.5]}
SPARSE_DIM = 106
# A body for each route that takes one.
BODIES: dict[str, dict[str, Any]] = {
    "/": {"inputs": ["a", "b"]},
    "/embed": {"inputs": "a", "dimensions": 3},
    "/invocations": {"inputs": "a"},
    "/embed_sparse": {"inputs": ["a", "b"], "max_active_dims": 3},
    "/embed_all": {"inputs": ["a"], "input_type": "query"},
    "/v1/embeddings": {"input": ["a", "the cat " * 300]},
    "/v1/embed-stream": {"text": "a", "id": 1},
    "/embeddings": {"input": "a", "encoding_format": "base64"},
    "/rerank": {"query": "a", "texts": ["b", "c"], "return_text": True},
    "/predict": {"inputs": ["a", "b"]},
    "/v1/rerank": {"query": "a", "documents": ["b", {"text": "c"}]},
    "/v2/rerank": {"query": "a", "documents": ["b"], "return_documents": True},
    "/v2/embed": {"texts": ["a"], "embedding_types": ["float", "int8", "ubinary", "base64"],
                  "model": "mini"},
    "/api/embed": {"model": "tiny", "input": "a"},
    "/api/embeddings": {"model": "tiny", "prompt": "a"},
    "/v1/admin/reload": {"model": "tiny"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/tokenize": {"inputs": ["a cat"]},
    "/decode": {"ids": [1, 2]},
    "/v1/collections/{name}/rows": {"rows": [{"id": 1, "text": "a", "metadata": {"n": 1}}],
                                    "sparse": True},
    "/v1/collections/{name}/rows/set_sparse": {"ids": [1], "sparse": [SPARSE],
                                               "sparse_dim": SPARSE_DIM},
    "/v1/collections/{name}/search": {"query": "a", "with_vectors": True, "rerank": True},
    "/v1/collections/{name}/search_batch": {"queries": ["a", "b"], "hybrid": True,
                                            "sparse": [SPARSE, SPARSE]},
    "/v1/collections/{name}/search_sparse": {"query": "a", "sparse": "words"},
    "/v1/collections/{name}/search_sparse_batch": {"sparse": [SPARSE, SPARSE]},
    "/v1/collections/{name}/rows/get": {"ids": [1, "x"], "with_vectors": True,
                                        "with_sparse": True},
    "/v1/collections/{name}/rows/list": {"filter": {"n": 1}, "with_sparse": True},
    "/v1/collections/{name}/rows/count": {},
    "/v1/collections/{name}/rows/update": {"ids": [1], "changes": {"n": 2}},
    "/v1/collections/{name}/rows/delete": {"filter": {}},
    "/v1/collections/{name}/map": {},
    "/v1/collections/{name}/map/values": {"field": "n"},
    "/v1/collections/{name}/map/rows": {"points": []},
    "/v1/collections/{name}/map/points": {"ids": [1, "x"]},
    "/v1/collections/{name}/space": {"texts": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def client(
    tiny: Encoder,
    tiny_dir: Path,
    mini: Encoder,
    reranker: Reranker,
    sparse_dir: Path,
    multi_vector_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    keys = Keys([Key("ops", hashlib.sha256(b"ops").digest(), is_admin=True)])
    with (
        Collection.create(tmp_path_factory.mktemp("o") / "notes", encoder=mini) as notes,
        SparseEncoder.load(sparse_dir, provider="cpu") as sparse,
        MultiVectorEncoder.load(multi_vector_dir, provider="cpu") as colbert,
    ):
        models = {"tiny": tiny, "mini": mini, "words": sparse, "tokens": colbert}
        app = create_app(
            models, {"sorts": reranker}, {"notes": notes},
            settings=Settings(keys=keys), reload=lambda _: Encoder.load(tiny_dir, provider="cpu"),
        )  # fmt: skip
        with TestClient(app, headers={"authorization": "Bearer ops"}) as client:
            yield client


@pytest.fixture(scope="module")
def document(client: Any) -> dict[str, Any]:
    answer = client.get("/openapi.json").json()
    assert isinstance(answer, dict)
    return answer


def path_of(route: Any) -> str:
    name = "notes" if "collections" in route.path else "tiny"
    return str(route.path.replace("{name}", name).replace("{name*}", name))


def test_it_has_every_route(document: dict[str, Any]) -> None:
    documented = {(m.upper(), p) for p, methods in document["paths"].items() for m in methods}
    assert documented == {(route.method, route.path.replace("*}", "}")) for route in ROUTES}
    for methods in document["paths"].values():
        for operation in methods.values():
            assert operation["summary"].endswith(".")


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    def check(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                name = node["$ref"].removeprefix("#/components/schemas/")
                assert name in document["components"]["schemas"]
            for child in node.values():
                check(child)
        elif isinstance(node, list):
            for child in node:
                check(child)

    check(document)


def test_errors_of_both_forms_of_rerank_are_documented(document: dict[str, Any]) -> None:
    for path in ("/", "/rerank"):
        content = document["paths"][path]["post"]["responses"]["default"]["content"]
        names = {
            each["$ref"].rpartition("/")[2]
            for each in content["application/json"]["schema"]["anyOf"]
        }
        assert names == {ERRORS["tei"].__name__, ERRORS["jina"].__name__}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_answers_are_as_documented(client: Any, route: Any) -> None:
    description = description_of(route.run)
    json = BODIES.get(route.path) if description.takes else None
    if "/map/" in route.path:  # these read a map, which is made in a thread
        url = "/v1/collections/notes/map"
        assert client.post(url, json={}).status_code == 200
        wait_until(lambda: client.get(url).json()["stage"] == "done")
    answer = client.request(route.method, path_of(route), json=json or {})
    assert answer.status_code == 200, answer.text
    if description.answers == (str,):
        assert answer.headers["content-type"].partition(";")[0] == description.kind
    elif description.answers != (bytes,):
        one = description.answers[0 if route.path != "/v1/rerank" else -1]
        msgspec.convert(answer.json(), one)
    if description.takes:
        wrong = client.request(route.method, path_of(route), content=b"[")
        if description.kind != "application/json":  # an answer that has begun
            msgspec.convert(wrong.json(), description.answers[1])
            return
        assert wrong.status_code in (400, 422)  # TEI's
        msgspec.convert(wrong.json(), ERRORS[route.dialect])


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.method == "POST"],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_every_documented_field_is_read(client: Any, document: dict[str, Any], route: Any) -> None:
    if route.path in ("/embed_all", "/embed_sparse"):
        return
    kind = description_of(route.run).kind
    refused = (400, 422) if kind == "application/json" else (200,)
    body = document["paths"][route.path]["post"]["requestBody"]["content"][kind]
    first = body["schema"].get("anyOf", [body["schema"]])[0]
    schema = document["components"]["schemas"][first["$ref"].rpartition("/")[2]]
    assert schema["properties"]
    for name, field in schema["properties"].items():
        takes_objects = "object" in str(field) or "$ref" in str(field)
        answer = client.post(path_of(route), json={name: 0.5 if takes_objects else {"?": 1}})
        assert answer.status_code in refused, (name, answer.text)
        assert f"$.{name}" in answer.text
    for name in schema.get("required", []):
        answer = client.post(
            path_of(route), json={k: v for k, v in BODIES[route.path].items() if k != name}
        )
        assert answer.status_code in refused
        assert name in answer.text


def test_parameters_of_the_url_are_documented(client: Any, document: dict[str, Any]) -> None:
    for route in ROUTES:
        query = description_of(route.run).query
        operation = document["paths"][route.path.replace("*}", "}")][route.method.lower()]
        named = {p["name"] for p in operation.get("parameters", []) if p["in"] == "query"}
        assert named == set(query.__struct_fields__ if query is not None else ())
        for name in named - {"model", "prompt_name"}:
            answer = client.request(route.method, f"{path_of(route)}?{name}=?", json={})
            assert answer.status_code == 400
            assert name in answer.text
