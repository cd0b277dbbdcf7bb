"""An offer to upgrade that is not taken changes nothing (RFC 9110, section 7.8): the body is read,
and what follows it is the next request."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import pytest

from tests.runtime.server.conftest import Running

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server.health_port import HealthPort
from flowvec.server.request_parser import RequestParser

OFFERS = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n",
    "websocket": b"upgrade: websocket\r\nconnection: keep-alive, UPGRADE\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "several": b"Connection: upgrade\r\nUpgrade: TLS/1.2, H2C\r\nuPGRADE: a/1\r\n",
}
# A request is written with the place of an offer in its head.
POST = b"POST %b HTTP/%b\r\nHost: localhost\r\n|%b\r\n%b"
BODY = b'{"inputs": ["the cat", "a dog"]}'
LAST = b"GET /live HTTP/1.1\r\nHost: localhost\r\n|Connection: close\r\n\r\n"


def post(body: bytes, path: bytes = b"/embed", version: bytes = b"1.1", more: bytes = b"") -> bytes:
    return POST % (path, version, more + b"Content-Length: %d\r\n" % len(body), body)


def in_chunks(
    body: bytes, path: bytes = b"/embed", more: bytes = b"", trailer: bytes = b""
) -> bytes:
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    parts = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    coding = b"Transfer-Encoding: chunked\r\n"
    return POST % (path, b"1.1", more + coding, b"".join(parts) + b"0\r\n" + trailer + b"\r\n")


LINES = b'"the cat"\n{"id": 7, "text": "a dog"}\n'
STREAM = b"/v1/embed-stream?dimensions=2"
REQUESTS = {
    "body": post(BODY),
    "other routes": post(b'{"input":"a"}', b"/v1/embeddings")
    + post(b'{"query":"a","texts":["b"]}', b"/rerank")
    + post(b'{"inputs":[["a","b"]]}', b"/predict")
    + post(b"{}", b"/nowhere"),
    "chunks": in_chunks(BODY, trailer=b"X: y\r\n"),
    "stream": post(LINES, STREAM),
    "stream in chunks": in_chunks(LINES, STREAM),
    "no body": LAST.replace(b"Connection: close\r\n", b"") * 3,
    "empty body": post(b""),
    "pipelined": post(BODY) + in_chunks(BODY) + post(b'{"inputs":"x"}'),
    "a request in a body": post(LAST.replace(b"|", b"")),
    "HTTP/1.0": post(BODY, version=b"1.0"),
    "close": post(BODY, more=b"Connection: close\r\n"),
    "length and chunks": in_chunks(BODY, more=b"Content-Length: 5\r\n"),
    "two lengths": post(BODY, more=b"Content-Length: 5\r\n"),
    "chunks are not last": in_chunks(BODY).replace(b"chunked", b"chunked, gzip"),
    "length over two lines": post(BODY).replace(b": 32", b": 3\r\n 2"),
    "tunnel": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n|\r\n",
    "tunnel behind a body": post(BODY) + b"CONNECT /embed HTTP/1.1\r\nHost: localhost\r\n|\r\n",
    "not HTTP in chunks": in_chunks(BODY).replace(b"\r\n0\r\n", b"\r\nx\r\n"),
}


def answers(port: int, sent: bytes) -> list[bytes]:
    """What comes for some bytes until the connection ends, without what differs each time."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(600)
        parts = []
        try:
            connection.sendall(sent)
            while part := connection.recv(1 << 16):
                parts.append(part)
        except ConnectionError:  # an answer that ends the connection before all was sent
            pass
    varies = rb"(?m)^(date|x-[a-z-]*time|x-request-id|server-timing): .*\r\n"
    plain = re.sub(varies, b"", b"".join(parts))
    # How rows are put together is a matter of when they come.
    plain = re.sub(rb"(?m)^[0-9a-f]*\r\n", b"", plain)
    return [b"HTTP/" + answer for answer in plain.split(b"HTTP/")[1:]]


def statuses(answers: list[bytes]) -> list[int]:
    return [int(answer.split()[1]) for answer in answers]


@pytest.mark.parametrize("name", REQUESTS)
def test_an_offer_changes_no_answer(server: Running, name: str) -> None:
    port, request = server.server.port, REQUESTS[name] + LAST
    expected = answers(port, request.replace(b"|", b""))
    assert expected
    for offer in OFFERS.values():
        assert answers(port, request.replace(b"|", offer)) == expected


def test_bodies_are_read_on_every_route(server: Running) -> None:
    for offer in OFFERS.values():
        for name, found in {
            "other routes": [200, 200, 200, 404, 200],
            "pipelined": [200, 200, 200, 200],
            "a request in a body": [400, 200],
        }.items():
            sent = (REQUESTS[name] + LAST).replace(b"|", offer)
            assert statuses(answers(server.server.port, sent)) == found
        for name in ("stream", "stream in chunks"):
            (answer, _) = answers(server.server.port, (REQUESTS[name] + LAST).replace(b"|", offer))
            assert [json.loads(line)["line"] for line in re.findall(rb"{.*}", answer)] == [1, 2]


@pytest.mark.parametrize("path", [b"/embed", STREAM])
@pytest.mark.parametrize("offer", ["", "h2c"])
def test_a_client_that_waits_for_100_continue_sends_its_body(
    server: Running, path: bytes, offer: str
) -> None:
    body = BODY if path == b"/embed" else LINES
    request = post(body, path, more=b"Expect: 100-continue\r\nConnection: close\r\n")
    request = request.replace(b"|", OFFERS.get(offer, b""))
    with socket.create_connection(("127.0.0.1", server.server.port)) as connection:
        connection.settimeout(600)
        connection.sendall(request.removesuffix(body))
        with connection.makefile("rb") as stream:
            assert stream.read(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            answer = stream.read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"[") >= 2


def test_the_health_port_ignores_offers() -> None:
    with HealthPort("127.0.0.1", 0) as port:
        for method in (b"GET", b"POST"):
            request = LAST.replace(b"GET", method) + LAST
            (expected,) = answers(port.port, request.replace(b"|", b""))
            for offer in OFFERS.values():
                assert answers(port.port, request.replace(b"|", offer)) == [expected]


def test_a_head_with_an_offer_keeps_its_limit(server: Running) -> None:
    large = post(BODY, more=b"X: " + b"a" * (64 << 10) + b"\r\n") + LAST
    found = answers(server.server.port, large.replace(b"|", OFFERS["h2c"]))
    assert statuses(found) == [431]


class Recorder:
    """What a parser calls."""

    def __init__(self) -> None:
        self.parser = RequestParser(self)
        self.requests: list[tuple[Any, ...]] = []

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", [], b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        pass

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            keeps = self.parser.should_keep_alive()
            self.requests.append((self.parser.get_method(), self.url, self.body, keeps))


def test_requests_are_the_same_wherever_their_bytes_are_cut() -> None:
    sent = (REQUESTS["pipelined"] + REQUESTS["chunks"] + LAST).replace(b"|", OFFERS["h2c"])
    kept = b"/embed"
    for at in range(len(sent)):
        recorder = Recorder()
        recorder.parser.feed_data(sent[:at])
        recorder.parser.feed_data(sent[at:])
        assert recorder.requests == [
            (b"POST", kept, BODY, True),
            (b"POST", kept, BODY, True),
            (b"POST", kept, b'{"inputs":"x"}', True),
            (b"POST", kept, BODY, True),
            (b"GET", b"/live", b"", False),
        ]


@pytest.mark.parametrize("path", ["/embed", "/v1/embed-stream"])
@pytest.mark.parametrize("framing", [(b"content-length", b"9"), (b"transfer-encoding", b"chunked")])
def test_a_body_that_another_server_loses_is_not_an_empty_one(
    server: Running, path: str, framing: tuple[bytes, bytes]
) -> None:
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b""}
    headers = [(b"connection", b"upgrade"), (b"upgrade", b"h2c"), framing]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    call = server.app({**scope, "headers": headers}, receive, send)
    asyncio.run_coroutine_threadsafe(call, server.loop).result(600)
    assert b"HTTP/1.1" in b"".join(message.get("body", b"") for message in sent)
