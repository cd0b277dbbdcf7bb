"""`/v1/embed-stream`: lines in, vectors out, in order and in bounded memory."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder
from tests.runtime.gate import Gate
from tests.runtime.server.conftest import Running, running, texts
from tests.serving import served
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import Settings, create_app

PATH = "/v1/embed-stream"


def body_of(lines: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def rows_of(answer: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.splitlines()]


class Duplex:
    """A client that reads while it sends, as curl does."""

    def __init__(self, url: str, query: str = "", **headers: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=600)
        self.connection.sock = socket.socket()
        # Little is on the way to a client that does not read.
        self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self.connection.sock.settimeout(600)
        self.connection.sock.connect((host, int(port)))
        self.connection.putrequest("POST", PATH + query)
        self.connection.putheader("transfer-encoding", "chunked")
        for name, value in headers.items():
            self.connection.putheader(name, value)
        self.connection.endheaders()
        self.sent = 0  # lines

    def send(self, lines: Iterable[Any], *, at_a_time: int = 100) -> None:
        block: list[Any] = []
        for line in lines:
            block.append(line)
            if len(block) == at_a_time:
                self._send(block)
                block = []
        if block:
            self._send(block)

    def _send(self, lines: list[Any]) -> None:
        data = body_of(lines)
        self.connection.send(b"%x\r\n%b\r\n" % (len(data), data))
        self.sent += len(lines)

    def end(self) -> None:
        self.connection.send(b"0\r\n\r\n")

    def begin(self, lines: Iterable[Any]) -> threading.Thread:
        """Send in a thread."""

        def run() -> None:
            self.send(lines)
            self.end()

        sender = threading.Thread(target=run, daemon=True)
        sender.start()
        return sender

    def answer(self) -> http.client.HTTPResponse:
        return self.connection.getresponse()


@pytest.fixture(scope="module")
def one(tiny_dir: Path) -> Iterator[Encoder]:
    with Encoder.load(tiny_dir, provider="cpu", streams=1, max_batch_tokens=64) as encoder:
        yield encoder


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


Serve = Callable[..., Any]


@pytest.fixture
def serve(one: Encoder) -> Serve:
    @contextmanager
    def start(**settings: Any) -> Iterator[Running]:
        with running(create_app({"one": one}, settings=Settings(**settings))) as server:
            yield server
            wait_until(lambda: server.app.served.running == 0)
            assert server.app.served.unsent_bytes == 0
            assert waiting(server) == (0, 0)

    return start


def waiting(server: Running) -> tuple[int, int]:
    """Tokens of all calls, and of streams."""
    (model,) = server.app.served.models
    return server.call(lambda: (model.queue.waiting_tokens, model.queue.streams.held))


def test_vectors_come_in_order_with_their_ids(client: Any, tiny: Encoder) -> None:
    given = texts(700)
    lines = [text if i % 3 else {"id": i, "text": text, "more": 1} for i, text in enumerate(given)]
    body = body_of(lines).replace(b"\n", b"\n\n", 1)  # the second line is blank
    answer = client.post(PATH, content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert answer.headers["x-flowvec-fingerprint"] == tiny.fingerprint
    rows = rows_of(answer.content)
    assert [row["line"] for row in rows] == [1, *range(3, 702)]
    assert [row.get("id") for row in rows] == [None if i % 3 else i for i in range(700)]
    np.testing.assert_allclose([row["embedding"] for row in rows], tiny.encode(given), atol=1e-5)

    for raw in (
        client.post(PATH, content=body, headers={"accept": "application/octet-stream"}),
        client.post(f"{PATH}?format=float32", content=body[:-1]),  # without the last line feed
    ):
        assert raw.headers["content-type"] == "application/octet-stream"
        vectors = np.frombuffer(raw.content, "<f4").reshape(
            -1, int(raw.headers["x-flowvec-dimensions"])
        )
        np.testing.assert_allclose(vectors, tiny.encode(given), atol=1e-5)
    assert client.post(PATH, content=b"").content == b""


def test_parameters_are_those_of_other_routes(client: Any, mini: Encoder) -> None:
    given = texts(3)
    query = "?model=org/mini&dimensions=7&normalize=true"
    rows = rows_of(client.post(PATH + query, content=body_of(given)).content)
    vectors = [row["embedding"] for row in rows]
    expected = mini.encode(given, truncate_dim=7, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    for wrong, status in (
        ("model=x", 404), ("dimensions=0", 400), ("dimensions=x", 400), ("prompt_name=x", 400),
        ("on_error=x", 400), ("normalise=true", 400), ("format=x", 400),
    ):  # fmt: skip
        answer = client.post(f"{PATH}?{wrong}", content=body_of(given))
        assert answer.status_code == status, wrong
        assert answer.json()["error"]["message"]


WRONG = [
    b"{",
    b'{"text": 1}',
    b'{"id": 1}',
    b"[]",
    b'""',
    b'{"text": ""}',
    b'"\xff"',
    b'"\\ud80"',
    b"[" * 5000,
    json.dumps("x" * 2001).encode(),
    json.dumps("x" * 20_000).encode(),
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_line_that_is_not_valid_is_named(serve: Serve, one: Encoder, wrong: bytes) -> None:
    first, last = texts(2)
    body = b"%b\n%b\n%b\n" % (json.dumps(first).encode(), wrong, json.dumps(last).encode())
    with serve(max_text_characters=2000) as server, server.client() as client:
        good, failed = rows_of(client.post(PATH, content=body).content)
        np.testing.assert_allclose(good["embedding"], one.encode(first), atol=1e-5)
        assert failed["line"] == 2
        assert failed["error"]["type"] == "invalid_request_error"
        assert failed["error"]["message"]
        rows = rows_of(client.post(f"{PATH}?on_error=skip", content=body).content)
        assert [("error" in row, row["line"]) for row in rows] == [
            (False, 1),
            (True, 2),
            (False, 3),
        ]
        answer = client.post(f"{PATH}?on_error=skip&format=float32", content=body)
        vectors = np.frombuffer(answer.content, "<f4").reshape(3, -1)
        assert np.isnan(vectors[1]).all()
        np.testing.assert_allclose(vectors[[0, 2]], one.encode([first, last]), atol=1e-5)


def test_float32_that_ends_early_is_cut(client: Any, tiny: Encoder) -> None:
    httpx = pytest.importorskip("httpx", reason="needs the extra [serve]")
    parts: list[bytes] = []
    body = body_of(["a", "the cat", 1, "b"])
    with (
        pytest.raises(httpx.RemoteProtocolError),
        client.stream("POST", f"{PATH}?format=float32", content=body) as answer,
    ):
        parts += answer.iter_raw()
    vectors = np.frombuffer(b"".join(parts), "<f4").reshape(2, -1)
    np.testing.assert_allclose(vectors, tiny.encode(["a", "the cat"]), atol=1e-5)


def test_a_text_that_the_model_fails_on_is_named(nan_dir: Path) -> None:
    given = ["a", "b", "nan", "c", "nan", "d"]
    with (
        Encoder.load(nan_dir, provider="cpu", streams=1) as encoder,
        running(create_app({"nan": encoder})) as server,
        server.client() as client,
    ):
        rows = rows_of(client.post(f"{PATH}?on_error=skip", content=body_of(given)).content)
        assert [row["line"] for row in rows if "error" in row] == [3, 5]
        good = [row["embedding"] for row in rows if "embedding" in row]
        np.testing.assert_allclose(good, encoder.encode(["a", "b", "c", "d"]), atol=1e-5)
        rows = rows_of(client.post(PATH, content=body_of(given)).content)
        assert [(row["line"], "error" in row) for row in rows] == [
            (1, False), (2, False), (3, True),
        ]  # fmt: skip
        long = ["a", "the cat " * 300]
        rows = rows_of(client.post(f"{PATH}?truncate=false", content=body_of(long)).content)
        assert "more than" in rows[1]["error"]["message"]


@pytest.mark.campaign
def test_a_reader_that_stops_stops_the_sender(tiny: Encoder) -> None:
    count, more = 40_000, " " * 800
    with running(create_app({"tiny": tiny})) as server:
        client = Duplex(server.url)
        sender = client.begin(f"the cat eats {i} {more}" for i in range(count))
        # Nothing is read: sockets fill, and then the sender waits, though the model is idle.
        seen, times = -1, 0

        def is_still() -> bool:
            nonlocal seen, times
            times = times + 1 if client.sent == seen and waiting(server) == (0, 0) else 0
            seen = client.sent
            return times > 200

        wait_until(is_still)
        assert client.sent < count
        assert server.app.served.unsent_bytes < 1 << 20
        rows = rows_of(client.answer().read())
        sender.join()
        assert client.sent == count
        assert [row["line"] for row in rows] == list(range(1, count + 1))
        chosen = [0, 777, count - 1]
        expected = tiny.encode([f"the cat eats {i} {more}" for i in chosen])
        np.testing.assert_allclose([rows[i]["embedding"] for i in chosen], expected, atol=1e-5)


@pytest.mark.process
def test_memory_is_bounded_over_many_lines(tmp_path: Path, tiny_dir: Path) -> None:
    with served(tmp_path, f"one={tiny_dir}", "--provider", "cpu", "--streams", "1") as (
        url,
        process,
        log,
    ):

        def resident() -> int:
            status = Path(f"/proc/{process.pid}/status")
            if not status.exists():
                pytest.skip("this system does not tell a process's memory")
            found = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
            assert found is not None
            return int(found[1])

        def stream(count: int) -> None:
            client = Duplex(url, "?format=float32")
            client.begin("the cat eats" + " " * (i % 300) for i in range(count))
            answer = client.answer()
            size = 0
            while piece := answer.read(1 << 16):
                size += len(piece)
            assert size == count * 16 * 4

        stream(10_000)
        before = resident()
        stream(100_000)  # 17 MB of lines, and 6 MB of vectors
        assert resident() - before < 8_000, log.read_text()


def test_a_client_that_leaves_frees_its_place(serve: Serve, gate: Gate) -> None:
    with serve() as server, gate.shut():
        client = Duplex(server.url)
        client.send(["a cat"] * 50)
        wait_until(lambda: waiting(server)[1] > 0)
        client.connection.close()
        wait_until(lambda: waiting(server) == (0, 0))
        wait_until(lambda: server.app.served.running == 0)


def test_streams_wait_where_requests_are_refused(serve: Serve, gate: Gate, one: Encoder) -> None:
    with serve(max_waiting_tokens=800) as server, server.client() as client:
        with gate.shut():
            streams = [Duplex(server.url, "?format=float32") for _ in range(3)]
            for stream in streams:
                stream.begin(["a cat"] * 300)
            wait_until(lambda: waiting(server)[1] >= 300)
            assert waiting(server)[1] <= 400  # half is left for requests
            many = json.dumps({"inputs": ["a dog"] * 20}).encode()
            request = http.client.HTTPConnection(server.url[7:], timeout=600)
            request.request("POST", "/embed", many)
            wait_until(lambda: waiting(server)[0] >= 620)
            assert client.post("/embed", json={"inputs": ["a"] * 20}).status_code == 429
        assert len(json.loads(request.getresponse().read())) == 20
        for stream in streams:
            assert len(stream.answer().read()) == 300 * 4 * one.dim


def test_a_deadline_ends_a_stream(serve: Serve, gate: Gate) -> None:
    with serve() as server, gate.shut():
        client = Duplex(server.url, **{"x-request-timeout-ms": "100"})
        client.send(["a cat"] * 3)
        (row,) = rows_of(client.answer().read())
        assert (row["line"], row["error"]["code"]) == (1, "deadline_exceeded")
        assert waiting(server) == (0, 0)


def test_a_server_that_stops_says_where_to_go_on(one: Encoder) -> None:
    with running(create_app({"one": one})) as server:
        client = Duplex(server.url)
        client.send(["a cat"] * 3)
        answer = client.answer()
        assert [json.loads(answer.readline())["line"] for _ in range(3)] == [1, 2, 3]
        server.server.stop()
        (row,) = rows_of(answer.read())
        assert (row["line"], row["error"]["code"]) == (4, "stopping")


def test_a_client_that_sends_nothing_is_cut(serve: Serve) -> None:
    with serve() as server:
        client = Duplex(server.url)
        client.send(["a cat"])
        answer = client.answer()
        first = json.loads(answer.readline())
        served, short = server.app.served, Settings(body_timeout=0.1)
        server.call(lambda: setattr(served, "settings", short))  # once the first line has come
        last = json.loads(answer.read())
        assert (first["line"], last["line"]) == (1, 2)
        assert "no line" in last["error"]["message"]
