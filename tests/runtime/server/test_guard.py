"""Who may ask: keys on every route, names of the server, pages of other origins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from flowvec import Encoder
from tests.runtime.server.conftest import Running, running

pytest.importorskip("openai", reason="needs the extra [serve]")

import openai

from flowvec.server import Settings, create_app
from flowvec.server.guard import LOOPBACK
from flowvec.server.keys import Key, Keys
from flowvec.server.routes import ROUTES

TOKENS = {"alice": "token-a", "bob": "token-b"}
OPEN = {"/", "/live", "/ready", "/health", "/ping"}


@pytest.fixture(scope="module")
def guarded(tiny: Encoder) -> Iterator[Running]:
    keys = Keys(Key(name, hashlib.sha256(t.encode()).digest()) for name, t in TOKENS.items())
    settings = Settings(keys=keys, hosts=LOOPBACK, origins=("https://example.org",))
    with running(create_app({"tiny": tiny}, settings=settings)) as server:
        yield server


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_but_the_probes_needs_a_key(guarded: Running, route: Any) -> None:
    with guarded.client() as client:
        answer = client.request(route.method, route.path.replace("{", "").replace("*}", ""))
        if route.path in OPEN and route.method == "GET":
            assert answer.status_code == 200
            assert "tiny" not in answer.text
            return
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ("error_type" in answer.json()) == (route.dialect == "tei")


def test_what_is_unknown_is_not_told_without_a_key(guarded: Running) -> None:
    with guarded.client() as client:
        assert client.get("/nothing").status_code == 401
        assert client.delete("/v1/embeddings").status_code == 401


def test_keys_are_taken_as_clients_send_them(guarded: Running) -> None:
    with guarded.client() as client:
        for headers in (
            {"authorization": "Bearer token-a"},
            {"authorization": "bearer  token-b"},
            {"authorization": "token-a"},
            {"x-api-key": "token-a"},
            {"api-key": "token-a"},
        ):
            assert client.get("/v1/models", headers=headers).status_code == 200, headers
        for headers in (
            {"authorization": "Bearer token-c"},
            {"authorization": "Basic token-a"},
            {"x-api-key": b"\xff"},
        ):
            assert client.get("/v1/models", headers=headers).status_code == 401, headers
    with pytest.raises(openai.AuthenticationError, match="unknown"):
        guarded.openai(api_key="wrong").models.list()


def test_only_names_of_the_server_are_answered(guarded: Running) -> None:
    with guarded.client() as client:
        for host, status in (
            ("localhost", 200),
            ("LOCALHOST:8080", 200),
            ("127.0.0.1:1", 200),
            ("[::1]:8080", 200),
            ("evil.example", 403),
            ("localhost.evil.example", 403),
            ("", 403),
        ):
            assert client.get("/live", headers={"host": host}).status_code == status, host


def test_pages_of_other_origins_may_not_call(guarded: Running) -> None:
    key = {"authorization": "Bearer token-a"}
    with guarded.client() as client:
        for origin, status in (
            ("https://example.org", 200),
            (guarded.url, 200),  # a page of the server itself
            ("https://evil.example", 403),
            ("null", 403),
        ):
            answer = client.get("/v1/models", headers={**key, "origin": origin})
            assert answer.status_code == status, origin
            allowed = answer.headers.get("access-control-allow-origin")
            assert allowed == (origin if origin == "https://example.org" else None)
        preflight = {"origin": "https://example.org", "access-control-request-method": "POST"}
        answer = client.options("/v1/embeddings", headers=preflight)
        assert answer.status_code == 200
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert client.options("/v1/embeddings").status_code == 401
