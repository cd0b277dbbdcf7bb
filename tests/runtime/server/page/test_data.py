"""The routes that only the page uses: fields, the map, the space, and live figures."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder, Reranker
from tests.runtime.server.conftest import Running, running, texts
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import create_app
from flowvec.server.page import live

ROWS = 120
TEXTS = texts(ROWS, seed=9)


@pytest.fixture(scope="module")
def server(
    mini: Encoder, reranker: Reranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page")
    metadata = [
        {"n": i, "even": i % 2 == 0, "tags": ["a", "b"], "deep": {"er": f"v{i % 3}"}, 'q"': 1}
        for i in range(ROWS)
    ]
    with (
        Collection.create(folder / "notes", encoder=mini) as notes,
        Collection.create(folder / "empty", dim=2) as empty,
    ):
        notes.add(list(range(ROWS)), TEXTS, metadata)
        app = create_app(mini, {"sorts": reranker}, {"notes": notes, "empty": empty})
        with running(app) as server:
            yield server


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[Any]:
    with server.client() as client:
        client.base_url = f"{server.url}/v1/collections"
        yield client


def ok(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_fields_and_the_operators_that_filters_take(http: Any) -> None:
    found = ok(http.get("/notes/fields"))
    assert found["rows"] == ROWS
    fields = {field["name"]: field for field in found["fields"]}
    assert set(fields) == {"n", "even", "tags", "deep.er"}
    assert fields["even"]["types"] == ["flag"]
    assert set(fields["deep.er"]["values"]) == {"v0", "v1", "v2"}
    values = {"exists": True, "empty": False, "in": [1], "not in": [1]}
    for name, field in fields.items():
        for operator in field["operators"]:
            value = values.get(operator, "a" if field["types"][0] in ("text", "list") else 1)
            ok(http.post("/notes/rows/count", json={"filter": {name: {operator: value}}}))
    assert ok(http.get("/empty/fields")) == {"rows": 0, "fields": []}


def test_shares_of_scores_ranks_and_times(http: Any) -> None:
    query = {"query": TEXTS[3], "k": 8}
    plain = http.post("/notes/search", json=query)
    assert "word_score" not in ok(plain)["hits"][0]
    assert {"compute", "search", "total"} <= stages(plain).keys()
    for weight in (0.0, 0.4, 1.0):
        body = query | {"hybrid": True, "vector_weight": weight}
        for hit in ok(http.post("/notes/search", json=body))["hits"]:
            assert 0.0 <= hit["word_score"] <= 1.0 - weight + 1e-6
            if weight == 0.0:
                assert hit["score"] == pytest.approx(hit["word_score"])
    grouped = query | {"hybrid": True, "group_by": "deep.er"}
    assert all("word_score" in hit for hit in ok(http.post("/notes/search", json=grouped))["hits"])
    first = [hit["id"] for hit in ok(http.post("/notes/search", json=query | {"k": 50}))["hits"]]
    answer = http.post("/notes/search", json=query | {"rerank": True})
    assert "rerank" in stages(answer)
    for hit in ok(answer)["hits"]:
        assert first[hit["search_rank"] - 1] == hit["id"]


def stages(answer: Any) -> dict[str, float]:
    parts = [part.strip().split(";dur=") for part in answer.headers["server-timing"].split(",")]
    times = {name: float(ms) for name, ms in parts}
    assert sum(ms for name, ms in times.items() if name != "total") <= times["total"] + 0.1
    return times


def test_texts_are_cut_to_a_limit(http: Any) -> None:
    body = {"query": "cat", "k": 1, "text_limit": 2}
    (hit,) = ok(http.post("/notes/search", json=body))["hits"]
    assert (len(hit["text"]), hit["is_cut"]) == (2, True)
    assert all(len(name) <= 2 for name in hit["metadata"])
    (row,) = ok(http.post("/notes/rows/get", json={"ids": [0], "text_limit": 10**6}))["rows"]
    assert (row["text"], row.get("is_cut")) == (TEXTS[0], None)
    assert http.post("/notes/search", json=body | {"text_limit": -1}).status_code == 400


def started_map(http: Any) -> Any:
    """The state of a new map that has its first positions, for which a start waits some seconds."""
    ok(http.post("/notes/map", json={"again": True}))
    wait_until(lambda: ok(http.get("/notes/map"))["version"] > 0)
    return ok(http.get("/notes/map"))


def test_a_map_from_its_start_to_its_end(http: Any) -> None:
    state = started_map(http)
    assert state["points"] == state["rows"] == ROWS
    wait_until(lambda: ok(http.get("/notes/map"))["stage"] == "done")
    done = ok(http.get("/notes/map"))
    assert done["progress"] == 1.0
    assert done["version"] >= state["version"] > 0
    positions = np.frombuffer(http.get("/notes/map/positions").content, "<f4")
    assert positions.shape == (2 * ROWS,)
    assert np.isfinite(positions).all()
    colours = ok(http.post("/notes/map/values", json={"field": "deep.er"}))
    codes = np.frombuffer(base64.b64decode(colours["codes"]), np.uint8)
    assert [colours["values"][code] for code in codes] == [f"v{i % 3}" for i in range(ROWS)]
    assert ok(http.post("/notes/map/points", json={"ids": [5, "nobody"]})) == {"points": [5, None]}
    (row,) = ok(http.post("/notes/map/rows", json={"points": [5]}))["rows"]
    assert (row["id"], row["text"]) == (5, TEXTS[5])
    assert http.post("/notes/map/rows", json={"points": [ROWS]}).status_code == 400
    # A second start changes nothing, until the rows change.
    assert ok(http.post("/notes/map", json={})) == done
    ok(http.post("/notes/rows/update", json={"ids": [1], "changes": {"n": -1}}))
    assert ok(http.delete("/notes/map"))["stage"] == "none"
    assert http.post("/notes/map/rows", json={"points": []}).status_code == 404
    assert http.get("/notes/map/positions").content == b""


def test_a_map_that_is_halted_stays_as_it_is(http: Any) -> None:
    started_map(http)
    halted = ok(http.post("/notes/map", json={"halt": True}))
    assert halted["stage"] == "done"
    assert len(http.get("/notes/map/positions").content) == 8 * ROWS
    assert ok(http.get("/notes/map"))["version"] == halted["version"]
    assert ok(http.post("/empty/map", json={}))["points"] == 0


def test_the_space_of_a_model_without_a_transform(http: Any) -> None:
    ok(http.post("/notes/space", json={"texts": 50}))
    wait_until(lambda: ok(http.get("/notes/space"))["stage"] == "done")
    state = ok(http.get("/notes/space"))
    assert (state["transform"], state["before"]) == ([], None)
    assert len(state["texts"]) == len(state["after"]["positions"]) == 50
    ok(http.post("/empty/space", json={}))
    wait_until(lambda: ok(http.get("/empty/space"))["stage"] == "failed")
    assert "two rows" in ok(http.get("/empty/space"))["message"]


def test_live_figures_once_and_every_second(
    server: Running, http: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_WINDOW", 3600.0)  # the search below is recent, however slow
    before = ok(http.get(f"{server.url}/v1/live"))
    ok(http.post("/notes/search", json={"query": "a cat"}))
    after = ok(http.get(f"{server.url}/v1/live"))
    assert after["texts"] == before["texts"] + 1
    assert after["requests"] > before["requests"]
    assert 0 < after["p50"] <= after["p95"] <= after["p99"]
    stream = {"accept": "text/event-stream"}
    with http.stream("GET", f"{server.url}/v1/live", headers=stream) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        event = json.loads(next(answer.iter_lines()).removeprefix("data: "))
    assert event.keys() == after.keys()
    # Who leaves is noticed.
    wait_until(lambda: not live._streams)
