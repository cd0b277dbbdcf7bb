"""Collections over HTTP: what `Collection` gives, and its errors."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder, InputTypeError, InputValueError, Reranker
from tests.inside import access_of
from tests.runtime.server.conftest import running, texts

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import Settings, create_app

NOTES = texts(60, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collections")


@pytest.fixture(scope="module")
def notes(folder: Path, mini: Encoder) -> Iterator[Collection]:
    with Collection.create(folder / "notes", encoder=mini) as collection:
        metadata = [{"n": i, "even": i % 2 == 0} for i in range(len(NOTES))]
        collection.add(list(range(len(NOTES))), NOTES, metadata)
        yield collection


@pytest.fixture(scope="module")
def http(
    folder: Path, notes: Collection, tiny: Encoder, mini: Encoder, reranker: Reranker
) -> Iterator[Any]:
    """`notes` shares the queue of `mini`, `own` has a queue of its own, `plain` takes vectors."""
    with (
        Collection.create(folder / "own", encoder=tiny) as own,
        Collection.create(folder / "plain", dim=2, write_timeout=0.2) as plain,
    ):
        collections = {"notes": notes, "own": own, "plain": plain}
        app = create_app({"mini": mini}, {"sorts": reranker}, collections)
        with running(app) as server, server.client() as client:
            client.base_url = f"{server.url}/v1/collections"
            yield client


def ok(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def as_json(hits: list[Any]) -> list[tuple[Any, ...]]:
    return [(hit.id, pytest.approx(hit.score, abs=1e-5), hit.text, hit.metadata) for hit in hits]


def rows_of(hits: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(hit["id"], hit["score"], hit["text"], hit["metadata"]) for hit in hits]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "offset": 2},
        {"filter": {"even": True, "n": {"<": 30}}},
        {"hybrid": True, "vector_weight": 0.3},
        {"group_by": "even"},
        {"min_score": 0.8, "exact": True},
        {"rerank": True, "rerank_from": 20, "k": 5},
    ],
)
def test_searches_are_those_of_the_collection(
    http: Any, notes: Collection, mini: Encoder, reranker: Reranker, options: dict[str, Any]
) -> None:
    queries = ["the cat sleeps", "a river"]
    local = {**options, "rerank": reranker} if "rerank" in options else options
    expected = notes.search_batch(queries, **local)
    body = {"queries": queries, **options}
    lines = ok(http.post("/notes/search_batch", json=body))["hits"]
    assert [rows_of(line) for line in lines] == [as_json(line) for line in expected]
    one = ok(http.post("/notes/search", json={"query": queries[0], **options}))["hits"]
    assert rows_of(one) == as_json(expected[0])
    if "rerank" in options:
        scores = [hit["search_score"] for hit in one]
        np.testing.assert_allclose(scores, [h.search_score for h in expected[0]], atol=1e-5)
    needs_text = options.get("hybrid") or options.get("rerank")
    text = {"text": queries[0]} if needs_text else {}
    vector = mini.encode_query(queries[0])
    for given in (vector.tolist(), base64.b64encode(vector.tobytes()).decode()):
        body = {"vector": given, **text, **options}
        assert rows_of(ok(http.post("/notes/search", json=body))["hits"]) == as_json(expected[0])


@pytest.mark.parametrize("name", ["own", "plain"])
def test_the_life_of_rows(http: Any, name: str, tiny: Encoder) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return ok(http.post(f"/{name}/{path}", json=body))

    given = [text[:40] for text in texts(7)]
    vectors = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    rows = [{"id": i, "text": text, "metadata": {"n": i}} for i, text in enumerate(given)]
    if name == "plain":
        rows = [{**row, "vector": vectors[i].tolist()} for i, row in enumerate(rows)]
    else:
        vectors = tiny.encode_document(given)
    rows = [*rows, {**rows[0], "metadata": {"n": 100}}]  # of equal ids the last counts
    assert post("rows", {"rows": rows}) == {"rows": 7, "replaced": 0, "truncated": 0}
    assert post("rows", {"rows": rows[1:3]}) == {"rows": 2, "replaced": 2, "truncated": 0}
    assert post("rows/count", {}) == {"count": 7}
    assert post("rows/count", {"filter": {"n": 100}}) == {"count": 1}
    first, unknown = post("rows/get", {"ids": [0, "0"], "with_vectors": True})["rows"]
    assert (first["text"], first["metadata"], unknown) == (given[0], {"n": 100}, None)
    assert [row["id"] for row in post("rows/get", {"ids": 0})["rows"]] == [0]
    np.testing.assert_allclose(first["vector"], vectors[0], atol=1e-5)
    if name == "own":  # whose model has a prompt for queries and another for documents
        query = tiny.encode_query("a cat", normalize_embeddings=True)
        cosines = tiny.encode_document(given, normalize_embeddings=True) @ query
        hits = post("search", {"query": "a cat", "k": 7})["hits"]
        np.testing.assert_allclose([h["score"] for h in hits], sorted(cosines)[::-1], atol=1e-5)

    changes = {"ids": [1, 2], "changes": {"tag": "x"}}
    assert post("rows/update", changes) == {"updated": 2}
    page = post("rows/list", {"filter": {"tag": {"exists": False}}, "limit": 3})
    rest = post("rows/list", {"filter": {"tag": {"exists": False}}, "after": page["after"]})
    assert [row["id"] for row in page["rows"] + rest["rows"]] == [3, 4, 5, 6, 0]
    assert rest["after"] is None
    assert post("rows/delete", {"ids": 3}) == {"deleted": 1}
    assert post("rows/delete", {"filter": {}}) == {"deleted": 6}
    assert post("rows/count", {}) == {"count": 0}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("nothing/search", {"query": "a"}, 404, "no collection 'nothing'"),
        ("notes/search", {}, 400, "either query"),
        ("notes/search", {"query": "a", "K": 3}, 400, "K"),
        ("notes/search", {"query": "a", "k": -1}, 400, "k must be"),
        ("notes/search", {"query": "a", "k": 0}, 400, "k must be at least 1"),
        ("notes/search", {"query": "a", "fusion": "rrf"}, 400, "choose from weights, ranks"),
        ("notes/search", {"query": "a", "k": 20_000}, 400, "at most 10,000 rows"),
        ("notes/search", {"query": "a", "filter": {"n": {"~": 1}}}, 400, "'~'"),
        ("notes/search", {"query": "a", "rerank": "x"}, 404, "no reranker 'x'"),
        ("notes/search", {"vector": [1.0]}, 400, "384 dimensions"),
        ("notes/search", {"vector": "?"}, 400, "base64"),
        ("notes/search_batch", {"queries": ["a"] * 2000}, 400, "at most 10,000 rows"),
        ("notes/rows/list", {"limit": 20_000}, 400, "limit must be from 0"),
        ("notes/rows/delete", {}, 400, "give ids or filter"),
        ("notes/rows", {"rows": [{"id": 1}]}, 400, "row 0 has neither"),
        ("notes/rows", {"rows": [{"id": True, "text": "a"}]}, 400, "$.rows[0].id"),
        ("notes/rows", {"rows": [{"id": 1 << 2000, "text": "a"}]}, 400, ""),
        ("plain/search", {"query": "a"}, 400, "takes vectors, not texts"),
        ("plain/rows", {"rows": [{"id": 1, "text": "a"}]}, 400, "takes vectors, not texts"),
        ("plain/rows", {"rows": [{"id": 1, "vector": [1, 1]}, {"id": 2}]}, 400, "either all rows"),
        ("plain/rows", {"rows": [{"id": 1, "vector": [1, "a"]}]}, 400, "$.rows[0].vector"),
    ],
)
def test_errors_say_what_to_do(
    http: Any, notes: Collection, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    rows = len(notes)
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert len(notes) == rows


def test_what_is_late_is_not_begun(http: Any, notes: Collection) -> None:
    rows = len(notes)
    late = {"x-request-timeout-ms": "0.001"}
    for path, body in (
        ("search", {"query": "a"}),
        ("rows", {"rows": [{"id": "late", "text": "a"}]}),
        ("rows/count", {}),
    ):
        answer = http.post(f"/notes/{path}", json=body, headers=late)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
    assert len(notes) == rows


def test_a_change_that_waits_for_another_writer_gets_503(http: Any, folder: Path) -> None:
    began, ends = threading.Event(), threading.Event()

    def write() -> None:
        with Collection.open(folder / "plain") as other, access_of(other).writing():
            began.set()
            ends.wait(600)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert began.wait(600)
        row = {"id": 1, "vector": [1.0, 1.0]}
        answer = http.post("/plain/rows", json={"rows": [row]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
        assert answer.headers["retry-after"] == "1"
        assert ok(http.post("/plain/rows/count", json={})) == {"count": 0}  # reads do not wait
    finally:
        ends.set()
        writer.join(600)


def test_collections_are_listed(http: Any, notes: Collection) -> None:
    listed = ok(http.get(str(http.base_url).rstrip("/")))["data"]
    assert [(each["id"], each["model"]) for each in listed] == [
        ("notes", "mini"), ("own", "own"), ("plain", None),
    ]  # fmt: skip
    about = ok(http.get("/notes"))
    assert (about["rows"], about["fingerprint"]) == (len(notes), notes.info().fingerprint)
    assert "path" not in about


def test_vectors_of_another_model_are_a_conflict(
    tmp_path: Path, tiny: Encoder, nan_dir: Path
) -> None:
    folder = tmp_path / "secret"
    Collection.create(folder, dim=tiny.dim).close()
    with (
        Collection.open(folder, encoder=tiny) as served,  # it has no model yet
        Encoder.load(nan_dir, provider="cpu", streams=1) as another,
        running(create_app({"tiny": tiny}, collections={"notes": served})) as server,
        server.client() as client,
    ):
        with Collection.open(folder, encoder=another) as writer:
            writer.add([1], ["a cat"])
        for path, body in (
            ("search", {"query": "a cat"}),
            ("search_batch", {"queries": ["a cat"]}),
            ("rows", {"rows": [{"id": 2, "text": "a dog"}]}),
        ):
            answer = client.post(f"/v1/collections/notes/{path}", json=body)
            assert answer.status_code == 409, path
            message = answer.json()["error"]["message"]
            assert another.fingerprint[:12] in message
            assert "secret" not in message
            assert str(nan_dir.parent) not in message
            assert nan_dir.name in message
        vector = {"vector": tiny.encode("a cat").tolist()}
        assert client.post("/v1/collections/notes/search", json=vector).status_code == 200
        assert ok(client.post("/v1/collections/notes/rows/count", json={}))["count"] == 1


def test_what_can_be_served(mini: Encoder, notes: Collection) -> None:
    for wrong in ("a/b", "", "x" * 65):
        with pytest.raises(InputValueError, match="collection's name"):
            create_app(mini, collections={wrong: notes})
    with pytest.raises(InputTypeError, match="must be a Collection"):
        create_app(mini, collections={"notes": "notes"}, settings=Settings())  # type: ignore[dict-item]


def test_the_command_opens_each_collection_with_its_model(
    folder: Path, notes: Collection, tiny: Encoder, mini: Encoder
) -> None:
    from contextlib import ExitStack

    from flowvec.server.command import opened_collections

    made = folder / "made"
    with ExitStack() as stack:
        given = [f"n={folder / 'notes'}", str(made), str(folder / "plain-too")]
        Collection.create(folder / "plain-too", dim=2).close()
        opened = opened_collections(given, {"tiny": tiny, "mini": mini}, stack)
        encoders = {name: collection.encoder for name, collection in opened.items()}
        assert encoders == {"n": mini, "made": tiny, "plain-too": None}
        with pytest.raises(InputValueError, match="serve it too"):
            opened_collections([str(folder / "notes")], {"tiny": tiny}, stack)
        with pytest.raises(InputValueError, match="two collections"):
            opened_collections([str(made), str(made)], {"tiny": tiny}, stack)
