"""Connections that are slow, half-open, oversized or garbage are cut, and nothing else is."""

from __future__ import annotations

import itertools
import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from flowvec import Encoder
from tests.runtime.server.conftest import Running, running, texts
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import Settings, create_app
from flowvec.server.connections import ConnectionLimits, cut_slow


@pytest.fixture(scope="module")
def patient(mini: Encoder) -> Iterator[Running]:
    """A server with small limits of sizes and numbers; it waits for any client."""
    limits = ConnectionLimits(
        head_bytes=2000, head_seconds=3600.0, read_seconds=3600.0, connections=20
    )
    settings = Settings(body_timeout=3600.0, max_body_bytes=1_000_000)
    with running(create_app({"m": mini}, settings=settings), limits=limits) as server:
        yield server


LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"


def connect(server: Running) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server.port))
    connection.settimeout(600)
    return connection


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def look_later(server: Running, hours: int) -> None:
    """Let a server look at slow connections as if some hours had passed."""
    connections = server.server.server_state.connections
    server.call(lambda: cut_slow(connections, server.loop.time() + 3601.0 * hours))


def test_connections_without_a_request_are_cut(mini: Encoder) -> None:
    limits = ConnectionLimits(head_seconds=0.3)
    starts = (b"", b"GET /li", b"GET /live HTTP/1.1\r\nhost: x\r\n")
    with running(create_app({"m": mini}), limits=limits) as server:
        connections = [connect(server) for _ in starts]
        for connection, start in zip(connections, starts, strict=True):
            connection.sendall(start)
        assert [all_of(connection) for connection in connections] == [b""] * len(starts)


def test_a_body_that_does_not_come_is_given_up(mini: Encoder) -> None:
    app = create_app({"m": mini}, settings=Settings(body_timeout=0.3))
    with running(app) as server, connect(server) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
        assert all_of(connection).startswith(b"HTTP/1.1 408 ")
        wait_until(lambda: app.served.running == 0)


def test_others_are_served_beside_slow_connections(patient: Running) -> None:
    head = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n"
    slow = [connect(patient) for _ in range(4)]
    for connection, start in zip(slow, (b"", b"GET /li", head[:30], head + b"{"), strict=True):
        connection.sendall(start)
    with patient.client() as client:
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
    for connection in slow:
        connection.close()
    wait_until(lambda: patient.app.served.running == 0)


def test_headers_that_dribble_on_a_connection_that_was_used_are_cut(patient: Running) -> None:
    with connect(patient) as connection:
        connection.sendall(LIVE + b"GET /live HT")
        answer = b""
        while not answer.endswith(b"}"):
            part = connection.recv(1 << 16)
            assert part, answer
            answer += part
        assert answer.startswith(b"HTTP/1.1 200 OK")
        look_later(patient, 1)
        assert all_of(connection) == b""


@pytest.mark.campaign
def test_an_answer_that_is_not_read_is_given_up(mini: Encoder) -> None:
    body = json.dumps({"inputs": ["a cat"] * 30_000}).encode()
    head = f"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    limits = ConnectionLimits(read_seconds=3600.0)
    with running(create_app({"m": mini}), limits=limits) as server, connect(server) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: server.app.served.unsent_bytes > 0)
        hours = itertools.count(1)

        def is_given_up() -> bool:  # two looks that see the same bytes left cut the connection
            look_later(server, next(hours))
            return bool(server.app.served.unsent_bytes == 0)

        wait_until(is_given_up)
        wait_until(lambda: server.app.served.running == 0)


def test_large_headers_and_bodies_are_refused(patient: Running) -> None:
    for start in (
        b"GET /live HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 3000,
        b"GET /live HTTP/1.1\r\n" + b"".join(b"h%d: v\r\n" % i for i in range(500)) + b"\r\n",
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ):
        with connect(patient) as connection:
            connection.sendall(start)
            assert all_of(connection).startswith(b"HTTP/1.1 431 ")
    with connect(patient) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 1000001\r\n\r\n")
        assert all_of(connection).startswith(b"HTTP/1.1 413 ")
    with connect(patient) as connection:
        connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):  # it is refused before its last byte
            connection.sendall(b"100000\r\n" + b"a" * 0x100000)
        assert all_of(connection).startswith(b"HTTP/1.1 413 ")


def test_an_idle_connection_makes_room_for_a_new_one(patient: Running) -> None:
    idle = []
    for _ in range(30):
        connection = connect(patient)
        connection.sendall(LIVE)
        assert b"200 OK" in connection.recv(1 << 16)
        idle.append(connection)
    wait_until(lambda: len(patient.server.server_state.connections) <= 20)
    for connection in idle:
        connection.close()


def test_garbage_after_a_whole_request_does_not_disturb_its_answer(patient: Running) -> None:
    body = json.dumps({"inputs": ["the cat"] * 50}).encode()
    head = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    for requests in (1, 3):
        with connect(patient) as connection:
            connection.sendall((head + body) * requests + b"\x00 no HTTP\r\n\r\n")
            answer = all_of(connection)
        assert answer.count(b"HTTP/1.1 ") == 1
        first, _, rest = answer.partition(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200 ")
        assert len(json.loads(rest)) == 50


@pytest.mark.parametrize("is_begun", [True, False])
def test_garbage_in_a_body_never_comes_within_an_answer(patient: Running, is_begun: bool) -> None:
    path = b"/v1/embed-stream" if is_begun else b"/embed"
    line = b'{"id": "1", "text": "the cat"}\n'
    with connect(patient) as connection:
        connection.sendall(
            b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % path
        )
        connection.sendall(b"%x\r\n%b\r\n" % (len(line), line))
        begun = b""
        while is_begun and b"embedding" not in begun:
            part = connection.recv(1 << 16)
            assert part, begun
            begun += part
        connection.sendall(b"no length\r\n")
        answer = begun + all_of(connection)
    assert answer.startswith(b"HTTP/1.1 200 " if is_begun else b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not answer.endswith(b"0\r\n\r\n")


def test_garbage_harms_nobody(patient: Running) -> None:
    draw = random.Random(0)
    starts: list[Any] = [b"POST /embed HTTP/1.1\r\nhost: x\r\n", b"GET /live HTTP/1.1\r\n", b""]
    for _ in range(200):
        with connect(patient) as connection:
            garbage = draw.randbytes(draw.randint(1, 400))
            connection.sendall(draw.choice(starts) + garbage + b"\r\n\r\n")
            with suppress(OSError):  # the server may have ended it already
                connection.shutdown(socket.SHUT_WR)
            answer = all_of(connection)
            assert b"HTTP/1.1 500" not in answer
    with patient.client() as client:
        assert client.post("/embed", json={"inputs": texts(5)}).status_code == 200
