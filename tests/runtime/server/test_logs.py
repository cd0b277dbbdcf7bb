"""Logs: one line of JSON each, and nothing of the texts in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from flowvec import Encoder

pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("starlette.testclient", reason="needs the extra [serve]")

from starlette.testclient import TestClient

from flowvec.server import create_app, openai
from flowvec.server.logs import LogFormat, access_logger, set_up_logs

SECRET = "Mrs Robinson's diagnosis"


class Logged:
    """What is logged after `set_up_logs`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._text = capsys, ""

    @property
    def text(self) -> str:
        self._text += self._capsys.readouterr().err
        return self._text

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def logged(capsys: pytest.CaptureFixture[str]) -> Iterator[Logged]:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    clients = [logging.getLogger(name) for name in ("httpx", "httpx2")]  # the test's own
    for client in clients:
        client.disabled = True
    yield Logged(capsys)
    for client in clients:
        client.disabled = False
    root.handlers[:], root.level = before
    access_logger.setLevel(logging.NOTSET)


def test_requests_are_logged_by_route_and_without_texts(tiny: Encoder, logged: Logged) -> None:
    set_up_logs("json")
    with TestClient(create_app({"t": tiny})) as client:
        ids = [{"x-request-id": f"r-{number}"} for number in range(1, 6)]
        client.post("/v1/embeddings", json={"input": [SECRET, "a"]}, headers=ids[0])
        client.post("/embed", json={"inputs": [SECRET, 1]}, headers=ids[1])
        client.post("/v1/embed-stream", content=json.dumps(SECRET), headers=ids[2])
        client.post("/v1/embed-stream", content=f"{{{SECRET}", headers=ids[3])
        client.get(f"/nothing/{SECRET}?q={SECRET}", headers=ids[4])
    assert SECRET not in logged.text
    # A server of other tests may log the last of its requests late.
    known = {each["x-request-id"] for each in ids}
    access = [line for line in logged.lines if line["logger"] == "flowvec.server.access"]
    first, second, third, _, other = [line for line in access if line["request_id"] in known]
    assert (first["route"], first["status"]) == ("POST /v1/embeddings", 200)
    assert (first["request_id"], first["model"], first["texts"]) == ("r-1", "t", 2)
    assert first["tokens"] > 4
    assert {"ms", "queue_ms", "tokenize_ms", "compute_ms", "time", "level"} <= set(first)
    assert (second["route"], second["status"]) == ("POST /embed", 422)
    assert (third["route"], third["texts"]) == ("POST /v1/embed-stream", 1)
    assert (other["route"], other["status"]) == ("other", 404)


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_unexpected_error_is_logged_without_its_message(
    tiny: Encoder, logged: Logged, monkeypatch: pytest.MonkeyPatch, form: LogFormat
) -> None:
    def fail(*_: object) -> None:
        raise KeyError(SECRET)

    set_up_logs(form)
    monkeypatch.setattr(openai, "_options", fail)
    with TestClient(create_app({"t": tiny})) as client:
        answer = client.post("/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 500
    assert SECRET not in logged.text + answer.text
    assert "KeyError" in logged.text
    assert "openai.py" in logged.text
    if form == "json":
        (failed,) = [line for line in logged.lines if line["level"] == "error"]
        assert failed["error"] == "KeyError"
        assert failed["route"] == "POST /v1/embeddings"
        assert failed["trace"][-1].endswith(" fail")
    else:
        assert "POST /v1/embeddings 500" not in logged.text  # no line for each request
