"""The HTTP client of load tests, against sockets that answer as a script says."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("httptools", reason="needs the extra [serve]")

from flowvec_bench.workers import http_client
from flowvec_bench.workers.http_client import Call, Client, ClientError
from flowvec_bench.workers.http_routes import ROUTES, call_of
from tests.waiting import wait_until

BODY = b"x" * 50
CALLS = [Call(b"POST /%d HTTP/1.1\r\nContent-Length: 0\r\n\r\n" % i, 50, 50) for i in range(4)]
# What a socket answers to the n-th request of all; None answers nothing, b"" ends the connection.
Script = Callable[[int], bytes | None]


def answer(status: int = 200, body: bytes = BODY, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d .\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), headers, body)


class Scripted:
    """A server of a script; it counts connections, and notes what was asked for."""

    def __init__(self) -> None:
        self.script: Script = lambda _: answer()
        self.asked: list[int] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = ("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while request := connection.recv(1 << 16):
                with self._lock:
                    number = len(self.asked)
                    self.asked += [int(n) for n in re.findall(rb"POST /(\d+)", request)]
                content = self.script(number)
                if content == b"":
                    return
                if content is not None:
                    connection.sendall(content)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


class Clock:
    """The time of a client: an hour passes at once when something has happened."""

    process_time = staticmethod(time.process_time)

    def __init__(self, has_happened: Callable[[], bool]) -> None:
        self._has_happened = has_happened

    def perf_counter(self) -> float:
        return time.perf_counter() + 3600.0 * self._has_happened()


def test_every_arrival_is_counted_once(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [
        answer(),
        answer(429),
        answer(body=b"short"),
        b"",  # the connection ends
        answer(headers=b"Connection: close\r\n"),
        answer(503, b""),
        None,
        answer(500),
    ]
    scripted.script = lambda number: script[number % len(script)]
    client = Client(scripted.address, CALLS)

    def are_answered() -> bool:
        load = client.load
        answers = len(load.waits) + sum(load.statuses.values()) + load.wrong + load.lost
        return answers == 35  # of 40: there are others without an answer

    monkeypatch.setattr(http_client, "time", Clock(are_answered))
    load = client.open([i / 1000 for i in range(40)], 1800.0, 64)
    wait_until(lambda: len(scripted.asked) == 40)
    assert sorted(scripted.asked) == sorted(i % 4 for i in range(40))
    assert len(load.waits) == 10
    assert load.statuses == {429: 5, 503: 5, 500: 5}
    assert (load.wrong, load.lost, load.unanswered) == (5, 5, 5)


def test_callers_keep_their_connection_and_wait_for_their_answer(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Client(scripted.address, CALLS, keep_every=3).closed(3, 0.1, 300.0)
    assert scripted.connections == 3
    assert len(load.waits) == len(scripted.asked) >= 3
    assert load.unanswered == 0
    assert len(load.kept) == -(-len(load.waits) // 3)
    assert {body for _, body in load.kept} == {BODY}
    scripted.script = lambda _: None
    assert Client(scripted.address, CALLS).closed(5, 0.01, 0.1).unanswered == 5
    # A closed connection is replaced, and its caller goes on.
    scripted.script = lambda number: answer(headers=b"Connection: close\r\n") if number else b""
    client = Client(scripted.address, CALLS)
    monkeypatch.setattr(http_client, "time", Clock(lambda: len(client.load.waits) > 2))
    again = client.closed(2, 1800.0, 3600.0)
    assert len(again.waits) > 2
    assert again.lost == 0


def test_a_call_that_is_sent_late_has_waited_since_its_arrival(scripted: Scripted) -> None:
    """The arrivals are an hour ago: waits that were counted from sending would be short."""
    load = Client(scripted.address, CALLS).open([-3600.0, -3600.0, -3600.0], 3700.0, 1)
    assert min(load.waits) >= 3600
    assert len(load.waits) == 3
    assert scripted.connections == 1


def test_answers_and_calls_of_any_size_come_in_pieces(scripted: Scripted) -> None:
    body = b"y" * 3_000_000
    scripted.script = lambda number: answer(body=body) if number == 0 else answer()
    call = Call(CALLS[0].content, len(body), len(body))
    load = Client(scripted.address, [call], keep_every=1).open([0.0], 300.0, 1)
    assert load.kept == [(0, body)]
    # The sockets' buffers hold less than this call.
    content = b"POST /1 HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (1 << 24, b"z" * (1 << 24))
    taken = threading.Event()

    def take(number: int) -> bytes | None:
        taken.set()
        return b""

    scripted.script = take
    assert Client(scripted.address, [Call(content, 0, 0)]).open([0.0], 300.0, 1).lost == 1
    assert taken.is_set()


def test_a_server_that_is_not_there_is_an_error() -> None:
    with socket.socket() as unused:  # bound, so that nobody else listens there
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ClientError, match="cannot connect"):
            Client(unused.getsockname(), CALLS).closed(1, 0.1, 1.0)


def test_a_server_that_closes_every_connection_is_an_error(scripted: Scripted) -> None:
    scripted.script = lambda _: b""
    with pytest.raises(ClientError, match="closes every connection"):
        Client(scripted.address, CALLS).closed(1, 600.0, 1.0)


@pytest.mark.parametrize("name", ROUTES)
def test_right_answers_have_a_right_size_and_others_have_not(name: str) -> None:
    np = pytest.importorskip("numpy")
    from flowvec.server.vector_bytes import number_rows, openai_data

    target = {"host": "h", "port": 1, "route": name, "path": "/p", "model": "m",
              "headers": {"x-a": "b"}}  # fmt: skip
    route = ROUTES[name]
    vectors = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32) * 1e-3
    call = call_of(target, ["a", "b", "c"], 8)
    assert b"POST /p HTTP/1.1\r\n" in call.content
    assert b"x-a: b\r\n" in call.content
    bodies = [number_rows(vectors)]
    if name == "openai":
        bodies = [b'{"object":"list","data":[%b],"model":"m"}' % openai_data(vectors, 0, encoding)
                  for encoding in ("base64", "float")]  # fmt: skip
    for body in bodies:
        np.testing.assert_array_equal(route.vectors(body), vectors)
        assert call.least <= len(body) <= call.most
    assert not call.least <= len(b'{"error": "no"}') <= call.most
