"""Sparse vectors of collections over HTTP: what `Collection` gives, and its errors."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder, Reranker
from flowvec.sparse import SparseEncoder, SparseVectors
from tests.runtime.server.conftest import running, texts

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import Settings, create_app
from flowvec.server.answer import StageTimes
from flowvec.server.command import ServeOptions, application
from flowvec.server.model_queue import Outcome

NOTES = texts(60, seed=5)
QUERIES = ["the cat sleeps", "a river"]
DIM = 8
MOST_TERMS = 106  # of the sparse encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sparse")


def changed(sparse_dir: Path, into: Path, **manifest: Any) -> Path:
    """A copy of a bundle with another manifest, and so with another fingerprint."""
    shutil.copytree(sparse_dir, into)
    file = into / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | manifest))
    return into


@pytest.fixture(scope="module")
def sparse_encoder(folder: Path, sparse_dir: Path) -> Iterator[SparseEncoder]:
    """One that reads queries otherwise than documents."""
    prompts = {"query": "the red ", "document": "a blue "}
    bundle = changed(sparse_dir, folder / "words", prompts=prompts)
    with SparseEncoder.load(bundle, provider="cpu", streams=2) as encoder:
        yield encoder


@pytest.fixture(scope="module")
def notes(folder: Path, tiny: Encoder, sparse_encoder: SparseEncoder) -> Iterator[Collection]:
    with Collection.create(
        folder / "notes", encoder=tiny, sparse_encoder=sparse_encoder
    ) as collection:
        metadata = [{"n": i, "even": i % 2 == 0} for i in range(len(NOTES))]
        collection.add(list(range(len(NOTES))), NOTES, metadata)
        yield collection


@pytest.fixture(scope="module")
def http(
    folder: Path,
    notes: Collection,
    tiny: Encoder,
    sparse_encoder: SparseEncoder,
    reranker: Reranker,
) -> Iterator[Any]:
    """`notes` has its models; `plain` takes vectors, and both kinds of them."""
    with Collection.create(folder / "plain", dim=2) as plain:
        models = {"tiny": tiny, "words": sparse_encoder, "sorts": reranker}
        settings = Settings(max_sparse_terms=MOST_TERMS)
        app = create_app(models, collections={"notes": notes, "plain": plain}, settings=settings)
        with running(app) as server, server.client() as client:
            client.base_url = f"{server.url}/v1/collections"
            yield client


def ok(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def as_json(vectors: SparseVectors) -> list[dict[str, Any]]:
    """Sparse vectors as a body has them, with the indices in descending order."""
    return [
        {"indices": one.indices[::-1].tolist(), "values": one.values[::-1].tolist()}
        for one in vectors
    ]


def given(*rows: dict[int, float], dim: int = DIM) -> SparseVectors:
    """Sparse vectors of weights by index, which ascend."""
    return SparseVectors(
        np.cumsum([0, *map(len, rows)]).astype(np.int64),
        np.array([index for row in rows for index in row], np.int32),
        np.array([value for row in rows for value in row.values()], np.float32),
        dim,
    )


def assert_hits(found: list[dict[str, Any]], expected: list[Any]) -> None:
    """Hits of an answer are those of the collection."""
    assert [hit["id"] for hit in found] == [hit.id for hit in expected]
    for name in ("score", "word_score", "sparse_score", "search_score"):
        wanted = [getattr(hit, name) for hit in expected]
        if wanted and wanted[0] is None:
            assert all(name not in hit for hit in found)
        else:
            np.testing.assert_allclose([hit[name] for hit in found], wanted, atol=1e-5)


def random_vectors(count: int) -> Any:
    return np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)


# --- searching ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vector_weight": 0.2, "sparse_weight": 0.7, "k": 5},
        {"sparse_weight": 1.0},
        {"sparse_weight": 0.0},
        {"fusion": "ranks", "filter": {"even": True}},
        {"fusion": "ranks", "sparse_weight": 0.5, "offset": 3, "group_by": "even"},
        {"rerank": True, "rerank_from": 20, "k": 5},
    ],
)
def test_hybrid_searches_are_those_of_the_collection(
    http: Any,
    notes: Collection,
    tiny: Encoder,
    sparse_encoder: SparseEncoder,
    reranker: Reranker,
    options: dict[str, Any],
) -> None:
    local = {**options, "rerank": reranker} if "rerank" in options else options
    expected = notes.search_batch(QUERIES, hybrid=True, **local)
    body = {"hybrid": True, **options}
    for sparse in ({}, {"sparse": True}, {"sparse": "words"}, {"sparse": None}):
        answer = http.post("/notes/search_batch", json={"queries": QUERIES, **body, **sparse})
        for found, line in zip(ok(answer)["hits"], expected, strict=True):
            assert_hits(found, line)
        answer = http.post("/notes/search", json={"query": QUERIES[0], **body, **sparse})
        assert_hits(ok(answer)["hits"], expected[0])
    # The same, of vectors that were made elsewhere.
    sparse = as_json(sparse_encoder.encode_query(QUERIES))
    vectors = tiny.encode_query(QUERIES).tolist()
    body |= {"vectors": vectors, "texts": QUERIES, "sparse": sparse}
    lines = ok(http.post("/notes/search_batch", json=body))["hits"]
    for found, line in zip(lines, expected, strict=True):
        assert_hits(found, line)


def test_a_given_sparse_vector_takes_part_in_a_hybrid_search(http: Any, notes: Collection) -> None:
    weights = given({5: 1.0, 9: 0.25}, dim=notes.info().sparse_dim or 0)
    (body,) = as_json(weights)
    vector = random_vectors(8).ravel()
    for options in ({"sparse_weight": 0.6}, {"fusion": "ranks", "vector_weight": 0.1}):
        expected = notes.search(vector, text="cat", hybrid=True, sparse=weights, **options)
        query = {"vector": vector.tolist(), "text": "cat", "sparse": body}
        answer = http.post("/notes/search", json={**query, "hybrid": True, **options})
        assert_hits(ok(answer)["hits"], expected)
    # Without words, a vector needs no text.
    options = {"hybrid": True, "vector_weight": 0.5, "sparse_weight": 0.5}
    expected = notes.search(vector, sparse=weights, **options)
    query = {"vector": vector.tolist(), "sparse": body}
    assert_hits(ok(http.post("/notes/search", json={**query, **options}))["hits"], expected)


def test_a_search_can_leave_sparse_vectors_out(folder: Path, http: Any, tiny: Encoder) -> None:
    with Collection.open(folder / "notes", encoder=tiny) as without:
        expected = without.search(QUERIES[0], hybrid=True)
    answer = http.post("/notes/search", json={"query": QUERIES[0], "hybrid": True, "sparse": False})
    assert_hits(ok(answer)["hits"], expected)
    plain = {"query": QUERIES[0], "sparse": False}
    assert ok(http.post("/notes/search", json=plain))["hits"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "offset": 2},
        {"filter": {"even": True, "n": {"<": 30}}, "min_score": 0.01},
        {"with_vectors": True, "k": 2},
    ],
)
def test_searches_by_sparse_vectors_alone_are_those_of_the_collection(
    http: Any, notes: Collection, options: dict[str, Any]
) -> None:
    expected = notes.search_sparse_batch(QUERIES, **options)
    assert expected[0]
    for sparse in ({}, {"sparse": True}, {"sparse": "words"}):
        answer = http.post(
            "/notes/search_sparse_batch", json={"queries": QUERIES, **options, **sparse}
        )
        for found, line in zip(ok(answer)["hits"], expected, strict=True):
            assert_hits(found, line)
        answer = http.post("/notes/search_sparse", json={"query": QUERIES[0], **options, **sparse})
        found = ok(answer)["hits"]
        assert_hits(found, expected[0])
        assert all(("vector" in hit) == options.get("with_vectors", False) for hit in found)
        stages = answer.headers["server-timing"]
        assert all(stage in stages for stage in ("queue;", "compute;", "search;", "total;"))
    weights = given({5: 1.0, 9: 0.25}, {3: 2.0}, dim=notes.info().sparse_dim or 0)
    bodies = as_json(weights)
    answer = http.post("/notes/search_sparse_batch", json={"sparse": bodies, **options})
    expected = notes.search_sparse_batch(weights, **options)
    for found, line in zip(ok(answer)["hits"], expected, strict=True):
        assert_hits(found, line)
    answer = http.post("/notes/search_sparse", json={"sparse": bodies[0], **options})
    assert_hits(ok(answer)["hits"], expected[0])
    cut = {"query": QUERIES[0], "text_limit": 3, **options}
    assert all(len(h["text"]) <= 3 for h in ok(http.post("/notes/search_sparse", json=cut))["hits"])


def test_no_queries_have_no_hits(http: Any) -> None:
    for body in ({"queries": []}, {"sparse": []}):
        assert ok(http.post("/notes/search_sparse_batch", json=body)) == {"hits": []}
    body = {"queries": [], "hybrid": True}
    assert ok(http.post("/notes/search_batch", json=body)) == {"hits": []}


def test_the_stages_of_both_models_are_added_up(http: Any) -> None:
    answer = http.post("/notes/search", json={"query": "a cat", "hybrid": True})
    parts = [part.split(";dur=") for part in answer.headers["server-timing"].split(", ")]
    stages = {name: float(ms) for name, ms in parts}
    assert list(stages) == ["tokenize", "compute", "queue", "search", "total"]
    assert stages["queue"] + stages["search"] <= stages["total"]


def test_equal_stages_are_added_up() -> None:
    times = StageTimes(time.perf_counter() - 10.0)
    for _ in range(2):
        times.add_outcome(Outcome(None, 0, 0, 1.0, 0.0, 2.0))
    name, header = times.header()
    parts = [part.split(b";dur=") for part in header.split(b", ")]
    stages = {stage: float(ms) for stage, ms in parts}
    assert (name, stages[b"tokenize"], stages[b"compute"]) == (b"server-timing", 2000.0, 4000.0)
    assert stages[b"queue"] >= 4000.0
    assert sum(stages.values()) - stages[b"total"] <= stages[b"total"]


# --- rows ---------------------------------------------------------------------------------------


def test_the_life_of_sparse_vectors(http: Any) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return ok(http.post(f"/plain/{path}", json=body))

    weights = given({1: 0.5, 4: 2.0}, {}, {0: 1.0}, {4: 1.0}, {7: -1.5})
    vectors = random_vectors(5).tolist()
    rows = [
        {"id": i, "vector": vectors[i], "text": f"text {i}", "sparse": one}
        for i, one in enumerate(as_json(weights))
    ]
    body = {"rows": [*rows, {**rows[0], "sparse": rows[3]["sparse"]}], "sparse_dim": DIM}
    assert post("rows", body) == {"rows": 5, "replaced": 0, "truncated": 0}
    assert post("rows", {"rows": rows[:1]}) == {"rows": 1, "replaced": 1, "truncated": 0}
    read = post("rows/get", {"ids": [0, "0", 1], "with_sparse": True})["rows"]
    first = {"indices": [1, 4], "values": [0.5, 2.0]}
    assert [row and row["sparse"] for row in read] == [first, None, {"indices": [], "values": []}]
    assert all("sparse" not in row for row in post("rows/get", {"ids": [0]})["rows"])

    (query,) = as_json(given({4: 1.0}))
    hits = post("search_sparse", {"sparse": query})["hits"]
    assert [(hit["id"], hit["score"]) for hit in hits] == [(0, 2.0), (3, 1.0)]
    about = ok(http.get("/plain"))
    assert (about["sparse_rows"], about["sparse_dim"], about["sparse_model"]) == (5, DIM, None)
    assert about["sparse_memory_bytes"] >= 8 * len(weights.values)
    metrics = http.get(str(http.base_url).split("/v1/")[0] + "/metrics").text
    assert 'flowvec_collection_sparse_rows{collection="plain"} 5.0' in metrics
    in_memory = f'_sparse_bytes{{collection="plain"}} {float(about["sparse_memory_bytes"])}'
    assert in_memory in metrics

    # A row that is replaced without one has none.
    assert post("rows", {"rows": [{"id": 3, "vector": vectors[3]}]})["replaced"] == 1
    assert ok(http.get("/plain"))["sparse_rows"] == 4
    changed = {"ids": [3, 2, 99], "sparse": as_json(given({4: 9.0}, {}, {4: 8.0}))}
    assert post("rows/set_sparse", changed) == {"updated": 2}
    hits = post("search_sparse", {"sparse": query})["hits"]
    assert [(hit["id"], hit["score"]) for hit in hits] == [(3, 9.0), (0, 2.0)]
    listed = post("rows/list", {"with_sparse": True})["rows"]
    by_id = {row["id"]: row["sparse"]["indices"] for row in listed}
    assert by_id == {0: [1, 4], 1: [], 2: [], 3: [4], 4: [7]}
    assert post("rows/delete", {"ids": [0, 3]}) == {"deleted": 2}
    assert post("search_sparse", {"sparse": query})["hits"] == []


def test_texts_of_rows_get_both_vectors(
    tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder
) -> None:
    wanted = sparse_encoder.encode_document(NOTES[:4])
    rows = [{"id": i, "text": text} for i, text in enumerate(NOTES[:4])]
    models = {"tiny": tiny, "words": sparse_encoder}
    with (
        Collection.create(tmp_path / "later", encoder=tiny) as later,
        running(create_app(models, collections={"later": later})) as server,
        server.client() as client,
    ):
        path = f"{server.url}/v1/collections/later"

        def post(route: str, body: dict[str, Any]) -> Any:
            return ok(client.post(f"{path}/{route}", json=body))

        def sparse_of(ids: list[int]) -> list[Any]:
            return [None if one is None else one.as_dicts()[0] for one in later.get_sparse(ids)]

        def expected(place: int) -> Any:
            return pytest.approx(wanted[place].as_dicts()[0], abs=1e-5)

        # No model of sparse vectors is known yet, so one has to be chosen.
        post("rows", {"rows": rows[:1]})
        assert ok(client.get(path))["sparse_model"] is None
        assert client.post(f"{path}/search_sparse", json={"query": "a"}).status_code == 400
        post("rows", {"rows": [*rows[1:2], *rows[1:2]], "sparse": True})
        assert sparse_of([0, 1]) == [None, expected(1)]
        # From then on it makes them, unless they are not wanted.
        about = ok(client.get(path))
        assert (about["sparse_model"], about["sparse_rows"]) == ("words", 1)
        post("rows", {"rows": rows[2:3]})
        post("rows", {"rows": rows[3:], "sparse": False})
        assert sparse_of([2, 3]) == [expected(2), None]
        given_one = {"indices": [3], "values": [0.5]}
        post("rows", {"rows": [{**rows[3], "sparse": given_one}]})
        assert sparse_of([3]) == [{3: 0.5}]
        # Rows with vectors get them only if they are asked for.
        vector = {"vector": [1.0] * tiny.dim}
        post("rows", {"rows": [{**rows[3], **vector}]})
        assert sparse_of([3]) == [None]
        post("rows", {"rows": [{**rows[3], **vector}], "sparse": "words"})
        assert sparse_of([3]) == [expected(3)]
        hits = post("search_sparse", {"query": NOTES[3], "k": 1})["hits"]
        assert hits[0]["id"] == later.search_sparse(wanted[3], 1)[0].id
        refused = client.post(f"{path}/rows", json={"rows": [{"id": 9, **vector}], "sparse": True})
        assert "row 9 has no text" in refused.json()["error"]["message"]
    with Collection.open(tmp_path / "later", sparse_encoder=sparse_encoder) as again:
        assert again.verify() == []


def test_a_collections_own_sparse_encoder_needs_no_name(
    http: Any, tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder
) -> None:
    """Also if it is not among the models that are served."""
    with (
        Collection.create(tmp_path / "c", encoder=tiny, sparse_encoder=sparse_encoder) as own,
        running(create_app(tiny, collections={"own": own})) as server,
        server.client() as client,
    ):
        client.base_url = f"{server.url}/v1/collections"
        ok(client.post("/own/rows", json={"rows": [{"id": 1, "text": "a cat"}]}))
        assert ok(client.get("/own"))["sparse_rows"] == 1
        assert ok(client.post("/own/search_sparse", json={"query": "a cat"}))["hits"][0]["id"] == 1
        answer = client.get(f"{server.url}/metrics").text
        assert 'flowvec_texts_total{model="own.sparse"} 2.0' in answer
    listed = ok(http.get(str(http.base_url).rstrip("/")))["data"]
    assert [(each["id"], each["sparse_model"]) for each in listed] == [
        ("notes", "words"), ("plain", None),
    ]  # fmt: skip
    about = ok(http.get("/notes"))
    assert (about["sparse_rows"], about["sparse_model"]) == (len(NOTES), "words")
    assert str(sparse_encoder.bundle.path) not in json.dumps(about)


# --- what is refused ----------------------------------------------------------------------------

ONE = {"indices": [1], "values": [1.0]}


def _row(sparse: Any, **fields: Any) -> dict[str, Any]:
    return {"rows": [{"id": 1, "vector": [1, 1], "sparse": sparse}], "sparse_dim": DIM, **fields}


NOT_VALID: list[tuple[Any, int, str]] = [
    ({"indices": [1, 2], "values": [1.0]}, 400, "has 2 indices and 1 values"),
    ({"indices": [3, 1, 3], "values": [1, 2, 3]}, 400, "the index 3 twice"),
    ({"indices": [-1], "values": [1.0]}, 400, "indices[0]"),
    ({"indices": [1 << 31], "values": [1.0]}, 400, "indices[0]"),
    ({"indices": [1 << 70], "values": [1.0]}, 400, "indices[0]"),
    ({"indices": [1.5], "values": [1.0]}, 400, "indices[0]"),
    ({"indices": [True], "values": [1.0]}, 400, "indices[0]"),
    ({"indices": [1], "values": [1e39]}, 400, "NaN or infinity"),
    ({"indices": [1], "values": [None]}, 400, "values[0]"),
    ({"indices": [1], "values": ["1"]}, 400, "values[0]"),
    ({"indices": list(range(107)), "values": [1.0] * 107}, 413, "at most 106 are"),
    ({"indices": [1]}, 400, "values"),
    ({"index": [1], "values": [1.0]}, 400, "index"),
    ([[1, 1.0]], 400, "sparse"),
    (7, 400, "sparse"),
]


@pytest.mark.parametrize(("sparse", "status", "message"), NOT_VALID)
def test_sparse_vectors_that_are_not_valid_are_refused(
    http: Any, notes: Collection, sparse: Any, status: int, message: str
) -> None:
    for path, body in (
        ("plain/rows", _row(sparse)),
        ("plain/rows/set_sparse", {"ids": [1], "sparse": [sparse], "sparse_dim": DIM}),
        ("notes/search", {"query": "a", "hybrid": True, "sparse": sparse}),
        ("notes/search_batch", {"queries": ["a"], "hybrid": True, "sparse": [sparse]}),
        ("notes/search_sparse", {"sparse": sparse}),
        ("notes/search_sparse_batch", {"sparse": [ONE, sparse]}),
    ):
        answer = http.post(f"/{path}", json=body)
        assert answer.status_code == status, (path, answer.text)
        assert message in answer.json()["error"]["message"], path
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert ok(http.post("/plain/rows/count", json={"filter": {"$id": 1, "x": 1}}))["count"] == 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_numbers_that_no_float32_holds_are_refused(http: Any, number: str) -> None:
    body = f'{{"sparse": {{"indices": [1], "values": [{number}]}}}}'
    answer = http.post("/notes/search_sparse", content=body)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("notes/search", {"query": "a", "sparse": True}, 400, "sparse is for a hybrid search"),
        ("notes/search", {"query": "a", "sparse": ONE}, 400, "sparse is for a hybrid search"),
        ("notes/search", {"query": "a", "sparse_weight": 0.5}, 400, 'add "hybrid": true'),
        ("notes/search", {"query": "a", "fusion": "ranks"}, 400, 'add "hybrid": true'),
        ("notes/search", {"query": "a", "hybrid": True, "fusion": "sum"}, 400, "$.fusion"),
        (
            "notes/search",
            {"query": "a", "hybrid": True, "vector_weight": 0.7, "sparse_weight": 0.7},
            400,
            "together at most 1",
        ),
        ("notes/search", {"vector": [1.0] * 16, "hybrid": True}, 400, "needs a text"),
        ("notes/search", {"query": "a", "hybrid": True, "sparse": "tiny"}, 404, "tiny is not a"),
        ("notes/search", {"query": "a", "hybrid": True, "sparse": "x"}, 404, "no sparse encoder"),
        ("notes/search_batch", {"queries": ["a"], "sparse": ONE}, 400, "$.sparse"),
        (
            "notes/search_batch",
            {"queries": ["a"], "hybrid": True, "sparse": [ONE, ONE]},
            400,
            "2 sparse vectors for 1 queries",
        ),
        ("notes/search_sparse", {}, 400, "give either query"),
        ("notes/search_sparse", {"sparse": True}, 400, "give either query"),
        ("notes/search_sparse", {"query": "a", "sparse": ONE}, 400, "give either query"),
        ("notes/search_sparse", {"query": "a", "sparse": False}, 400, "no model"),
        ("notes/search_sparse", {"query": "a", "k": -1}, 400, "k must be"),
        ("notes/search_sparse", {"query": "a", "k": 20_000}, 400, "at most 10,000 rows"),
        ("notes/search_sparse", {"query": "a", "hybrid": True}, 400, "hybrid"),
        ("notes/search_sparse", {"sparse": {"indices": [106], "values": [1]}}, 400, "below 106"),
        ("notes/search_sparse_batch", {}, 400, "give either queries"),
        ("notes/search_sparse_batch", {"sparse": [ONE] * 2000}, 400, "at most 10,000 rows"),
        ("notes/search_sparse_batch", {"queries": ["a"] * 10_001, "k": 0}, 400, "at most 10,000"),
        ("nothing/search_sparse", {"query": "a"}, 404, "no collection 'nothing'"),
        (
            "notes/rows",
            {"rows": [{"id": 1, "text": "a", "sparse": ONE}, {"id": 2, "text": "b"}]},
            400,
            "either all rows have a sparse vector",
        ),
        (
            "notes/rows",
            {"rows": [{"id": 1, "text": "a", "sparse": ONE}], "sparse": True},
            400,
            "leave sparse out",
        ),
        ("notes/rows", {"rows": [{"id": 1, "text": "a"}], "sparse": "tiny"}, 404, "tiny is not a"),
        (
            "notes/rows",
            {"rows": [{"id": 1, "text": "a", "sparse": ONE}], "sparse_dim": 105},
            400,
            "have 105 dimensions",
        ),
        ("notes/rows", {"rows": [{"id": 1, "text": "a"}], "sparse_dim": 0}, 400, "$.sparse_dim"),
        ("notes/rows/set_sparse", {"ids": [1], "sparse": []}, 400, "1 ids for 0 vectors"),
        ("notes/rows/set_sparse", {"ids": [1], "sparse": True}, 400, "$.sparse"),
    ],
)
def test_errors_say_what_to_do(
    http: Any, notes: Collection, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    before = notes.info()
    answer = http.post(f"/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    after = notes.info()
    assert (after.rows, after.sparse_rows) == (before.rows, before.sparse_rows)


def test_the_first_sparse_vectors_say_how_many_dimensions_they_have(
    tmp_path: Path, tiny: Encoder
) -> None:
    with (
        Collection.create(tmp_path / "c", dim=2) as new,
        running(create_app(tiny, collections={"new": new})) as server,
        server.client() as client,
    ):
        client.base_url = f"{server.url}/v1/collections/new"
        body = _row(ONE)
        del body["sparse_dim"]
        answer = client.post("/rows", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "sparse_dim")
        assert ok(client.post("/search_sparse", json={"sparse": ONE})) == {"hits": []}
        refused = client.post("/search_sparse", json={"query": "a"})
        assert "no model" in refused.json()["error"]["message"]
        refused = client.post("/rows", json={"rows": [{"id": 1, "text": "a", "vector": [1, 1]}],
                                             "sparse": True})  # fmt: skip
        assert (refused.status_code, len(new)) == (404, 0)
        ok(client.post("/rows", json=_row(ONE)))
        assert ok(client.post("/rows", json=body))["replaced"] == 1


def test_the_command_finds_the_model_of_sparse_vectors(
    folder: Path,
    notes: Collection,
    tiny: Encoder,
    sparse_encoder: SparseEncoder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for models in ([f"words={sparse_encoder.bundle.path}"], []):
        with ExitStack() as stack:
            options = ServeOptions(
                models=[str(tiny.bundle.path), *models], rerankers=[], host="", port=0,
                collections=[str(folder / "notes")], health_port=None, grace=0, ready_delay=0,
                key_file=None, allow_hosts=[], is_insecure=False, is_demo=False,
                engine={"provider": "cpu", "streams": 1},
            )  # fmt: skip
            app = application(options, Settings(), stack)
            stack.callback(lambda app: asyncio.run(app.close()), app)
            sparse = app.served.collections["notes"].sparse
            assert (sparse and sparse.name) == ("words" if models else None)
    warnings = [each.getMessage() for each in caplog.records if "not served" in each.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith("collection notes: the model of its sparse vectors, ")


def test_sparse_vectors_of_another_model_are_a_conflict(
    tmp_path: Path, tiny: Encoder, sparse_encoder: SparseEncoder, sparse_dir: Path
) -> None:
    other = changed(sparse_dir, tmp_path / "other", max_active_dims=5)
    folder = tmp_path / "secret"
    with (
        SparseEncoder.load(other, provider="cpu", streams=1) as another,
        Collection.create(folder, encoder=tiny, sparse_encoder=sparse_encoder) as notes,
    ):
        assert another.fingerprint != sparse_encoder.fingerprint
        notes.add([1], ["a cat"])
        models = {"tiny": tiny, "another": another, "words": sparse_encoder}
        bodies = (
            ("search", {"query": "a cat", "hybrid": True, "sparse": "another"}),
            ("search_sparse", {"query": "a cat", "sparse": "another"}),
            ("rows", {"rows": [{"id": 2, "text": "a dog"}], "sparse": "another"}),
        )
        with (
            Collection.open(folder, encoder=tiny) as served,
            Collection.create(tmp_path / "e", encoder=tiny, sparse_encoder=sparse_encoder) as empty,
        ):
            app = create_app(models, collections={"notes": served, "empty": empty})
            with running(app) as server, server.client() as client:
                path = f"{server.url}/v1/collections/notes"
                for route, body in bodies:
                    answer = client.post(f"{path}/{route}", json=body)
                    assert answer.status_code == 409, (route, answer.text)
                    assert "words" in answer.json()["error"]["message"]
                answer = client.post(f"{server.url}/v1/collections/empty/rows", json=bodies[-1][1])
                assert (answer.status_code, len(empty)) == (409, 0)
                # Without a name it is the model that made them, though another is the first.
                hits = ok(
                    client.post(f"{path}/search_sparse", json={"query": "a cat", "sparse": True})
                )
                assert hits["hits"][0]["id"] == 1
                assert ok(client.get(path))["sparse_model"] == "words"
            del models["words"]
            app = create_app(models, collections={"notes": served})
            with running(app) as server, server.client() as client:
                path = f"{server.url}/v1/collections/notes"
                for route, body in bodies:
                    answer = client.post(f"{path}/{route}", json=body)
                    assert answer.status_code == 409, (route, answer.text)
                    message = answer.json()["error"]["message"]
                    assert sparse_encoder.fingerprint[:12] in message
                    assert "secret" not in message
                    assert str(sparse_encoder.bundle.path.parent) not in message
                assert ok(client.get(path))["sparse_model"] is None
                body = {"query": "a cat", "hybrid": True}  # by vectors and words
                assert "sparse_score" not in ok(client.post(f"{path}/search", json=body))["hits"][0]
        assert (len(notes), notes.info().sparse_rows) == (1, 1)
