"""The application: routes, bodies, and other applications around it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder, InputTypeError, InputValueError

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import Settings, create_app


def test_serving_is_no_part_of_import_flowvec(python: Any) -> None:
    done = python(
        "import flowvec, sys; print({'msgspec', 'orjson', 'uvicorn', 'flowvec.server'} & "
        "set(sys.modules))"
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("path", ["/", "/live", "/ready", "/health", "/ping"])
def test_probes_answer(client: Any, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert client.head(path).content == b""


def test_unknown_routes_and_methods(client: Any) -> None:
    answer = client.get("/v1/nothing")
    assert answer.status_code == 404
    assert "/v1/nothing" in answer.json()["error"]["message"]
    answer = client.get("/v1/embeddings")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert client.delete("/embed").json()["error_type"] == "Validation"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"input": "\xff"}', "not"),
        (b'{"input": "\\ud800"}', None),
        (b'{"input": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"input": "a", "x": 1e999}', None),
        (b"[]", "Expected `object`"),
    ],
)
def test_bodies_that_are_not_json(client: Any, body: bytes, message: str | None) -> None:
    answer = client.post("/v1/embeddings", content=body)
    assert answer.status_code == (400 if message else 200), answer.text
    if message:
        assert message in answer.json()["error"]["message"]


def test_a_body_may_come_in_pieces_and_not_compressed(client: Any, tiny: Encoder) -> None:
    def pieces() -> Any:
        yield b'{"inputs": ["the '
        yield b'cat"]}'

    answer = client.post("/embed", content=pieces())
    expected = tiny.encode(["the cat"], normalize_embeddings=True)
    np.testing.assert_allclose(answer.json(), expected, atol=1e-5)
    answer = client.post("/embed", content=b"...", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415


def test_it_can_be_mounted_in_another_application(tiny: Encoder) -> None:
    testclient = pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = create_app(tiny, settings=Settings(any_model=True))
    outer = Starlette(routes=[Mount("/vectors", app=app)])
    with testclient.TestClient(outer) as client:
        answer = client.post("/vectors/v1/embeddings", json={"input": "a", "model": "any"})
        assert answer.json()["model"] == tiny.bundle.manifest.name
        assert client.get("/vectors/v1/models").status_code == 200
        assert client.get("/v1/models").status_code == 404
    asyncio.run(app.close())


def test_what_can_be_served(tiny: Encoder) -> None:
    with pytest.raises(InputTypeError, match=r'Encoder\.load\("?\'?mini'):
        create_app(["mini"])  # type: ignore[list-item]
    with pytest.raises(InputTypeError, match="not int"):
        create_app(7)  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="same name"):
        create_app([tiny, tiny])
    with pytest.raises(InputValueError, match="timeout must be above 0"):
        Settings(timeout=0)
