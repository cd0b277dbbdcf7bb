"""Probes on a port of their own: what they say, whatever the event loop and callers do."""

from __future__ import annotations

import random
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowvec import Encoder, InputValueError
from tests.runtime.gate import Gate
from tests.runtime.server.conftest import Running, running
from tests.serving import health_port_of, served
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from flowvec.server import Settings, create_app
from flowvec.server.command import ServeOptions, serve
from flowvec.server.connections import ConnectionLimits
from flowvec.server.health_port import HealthLimits, HealthPort

httpx = pytest.importorskip("httpx", reason="needs the extra [serve]")

LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
PROBES = ("/live", "/ready", "/health")
# Of tests in which the event loop is not stuck, however slow it is.
PATIENT = HealthLimits(stuck_seconds=3600.0, dead_seconds=3600.0)


def ask(port: int, path: str, method: str = "GET") -> Any:
    """An answer, on a connection of its own as an orchestrator's."""
    return httpx.request(method, f"http://127.0.0.1:{port}{path}", timeout=600, trust_env=False)


def statuses(port: int) -> list[int]:
    return [ask(port, path).status_code for path in PROBES]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@contextmanager
def probed(
    encoder: Encoder, limits: HealthLimits = PATIENT, **options: Any
) -> Iterator[tuple[Running, int]]:
    """A server with a health port."""
    with HealthPort("127.0.0.1", 0, limits) as probes:
        app = create_app({"m": encoder}, settings=Settings(stall_timeout=0.05))
        probes.served = app.served
        with running(app, heartbeat=probes.heartbeat, **options) as server:
            yield server, probes.port


@contextmanager
def blocked(server: Running) -> Iterator[None]:
    """Hold the server's event loop in the block."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        assert is_over.wait(600)

    server.loop.call_soon_threadsafe(hold)
    assert is_held.wait(600)
    try:
        yield
    finally:
        is_over.set()


def test_it_answers_as_the_server_does(mini: Encoder) -> None:
    with probed(mini) as (server, port), server.client() as client:
        for path in PROBES:
            answer, same = ask(port, path), client.get(path)
            assert (answer.status_code, answer.json()) == (same.status_code, same.json())
            assert answer.headers["connection"] == "close"
            head = ask(port, path, "HEAD")
            assert (head.status_code, head.content) == (200, b"")
            wrong = ask(port, path, "POST")
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
        assert ask(port, "/embed").status_code == 404


def test_a_server_that_loads_is_live_and_not_ready() -> None:
    with HealthPort("127.0.0.1", 0) as probes:
        assert statuses(probes.port) == [200, 503, 503]
        assert ask(probes.port, "/ready").json()["error"]["code"] == "starting"
        assert ask(probes.port, "/health").json()["error_type"] == "Unhealthy"


def test_it_does_not_wait_for_an_event_loop_that_is_busy(mini: Encoder) -> None:
    with probed(mini) as (server, port), blocked(server):
        assert statuses(port) == [200, 200, 200]


def test_an_event_loop_that_is_stuck_shows_until_it_goes_on(mini: Encoder) -> None:
    limits = HealthLimits(stuck_seconds=0.5, dead_seconds=1.0)
    with probed(mini, limits) as (server, port):
        with blocked(server):
            wait_until(lambda: statuses(port)[1:] == [503, 503])
            assert "event loop is stuck" in ask(port, "/health").json()["error"]
            wait_until(lambda: statuses(port) == [503, 503, 503])
        wait_until(lambda: statuses(port) == [200, 200, 200])


def test_an_event_loop_that_has_ended_shows(mini: Encoder) -> None:
    limits = HealthLimits(stuck_seconds=0.5, dead_seconds=1.0)
    with HealthPort("127.0.0.1", 0, limits) as probes:
        with running(create_app({"m": mini}), heartbeat=probes.heartbeat):
            wait_until(lambda: ask(probes.port, "/live").status_code == 200)
        wait_until(lambda: statuses(probes.port) == [503, 503, 503])


def test_a_queue_without_progress_shows(mini: Encoder, gate: Gate) -> None:
    with probed(mini) as (server, port):
        with gate.shut(), server.client() as client:
            late = {"x-request-timeout-ms": "100"}
            # On a busy machine a request can be late before the model has it.
            while not gate.entered.is_set():
                assert client.post("/embed", json={"inputs": "a"}, headers=late).status_code == 504
            wait_until(lambda: statuses(port) == [200, 503, 503])
            assert "nothing came" in ask(port, "/health").json()["error"]
        wait_until(lambda: statuses(port) == [200, 200, 200])


def test_it_is_not_ready_first_when_the_server_stops(mini: Encoder) -> None:
    with probed(mini, ready_delay=3600) as (server, port), server.client() as client:
        server.server.stop()
        assert statuses(port) == [200, 503, 200]
        assert ask(port, "/ready").json()["error"]["code"] == "stopping"
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def slow_callers(port: int, count: int) -> list[socket.socket]:
    """Connections on which nothing comes after the start of a request."""
    starts = (b"", b"GET /li", LIVE[:-2])
    slow = [socket.create_connection(("127.0.0.1", port), timeout=600) for _ in range(count)]
    for number, connection in enumerate(slow):
        connection.sendall(starts[number % len(starts)])
    return slow


def test_others_are_answered_beside_slow_callers() -> None:
    connections = ConnectionLimits(head_seconds=3600.0, connections=20)
    with HealthPort("127.0.0.1", 0, HealthLimits(connections=connections)) as probes:
        slow = slow_callers(probes.port, 60)
        assert ask(probes.port, "/live").status_code == 200
        for connection in slow:
            connection.close()


def test_slow_callers_are_cut() -> None:
    connections = ConnectionLimits(head_seconds=0.3)
    with HealthPort("127.0.0.1", 0, HealthLimits(connections=connections)) as probes:
        for connection in slow_callers(probes.port, 6):
            with connection:
                assert all_of(connection) == b""
        with socket.create_connection(("127.0.0.1", probes.port), timeout=600) as dribbles:
            dribbles.sendall(LIVE[:-2])
            wait_until(lambda: is_cut(dribbles, b"x: 1\r\n"))  # bytes in time are no request


def is_cut(connection: socket.socket, more: bytes) -> bool:
    """Whether the server has closed the connection, on which more is sent if it has not."""
    try:
        connection.sendall(more)
    except OSError:
        return True
    return False


def test_hostile_bytes_harm_nobody() -> None:
    draw = random.Random(0)
    large = b"GET /live HTTP/1.1\r\nx: " + b"a" * (64 << 10)
    garbage = [draw.choice([b"", LIVE, LIVE[:-2]]) + draw.randbytes(200) for _ in range(200)]
    with HealthPort("127.0.0.1", 0) as probes:
        for each in [
            large,
            LIVE * 1000,
            b"POST /live HTTP/1.1\r\ncontent-length: 9\r\n\r\n",
            *garbage,
        ]:
            with socket.create_connection(("127.0.0.1", probes.port), timeout=600) as connection:
                try:
                    connection.sendall(each)
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    continue
                answer = all_of(connection)
                assert answer.count(b"HTTP/1.1 ") <= 1
                assert not answer.startswith(b"HTTP/1.1 5")
        assert ask(probes.port, "/live").status_code == 200


def all_of(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is POSIX's")
def test_a_process_is_probed_from_its_start_to_its_end(
    tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWVEC_HEALTH_PORT", "0")
    with served(tmp_path, f"one={tiny_dir}", "--ready-delay", 3600) as (url, process, log):
        port = health_port_of(log)
        said = log.read_text()
        assert said.index(f":{port}") < said.index(url)  # while the model was not loaded yet
        wait_until(lambda: statuses(port) == [200, 200, 200])  # the first beat may be late
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: statuses(port) == [200, 503, 200])
        answer = httpx.post(f"{url}/embed", json={"inputs": "a"}, timeout=600)
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        process.wait(600)


def test_a_port_that_cannot_be_opened_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = f"^port {port} of 127.0.0.1 is in use: give another --health-port$"
        with pytest.raises(InputValueError, match=message), HealthPort("127.0.0.1", port):
            pass
    with pytest.raises(OSError, match="assign"), HealthPort("192.0.2.1", 0):
        pass


def test_both_ports_must_differ() -> None:
    options = ServeOptions(
        models=["mini"], rerankers=[], collections=[], host="127.0.0.1", port=9, health_port=9,
        grace=1.0, ready_delay=0.0, key_file=None, allow_hosts=[], is_insecure=False,
        is_demo=False, engine={},
    )  # fmt: skip
    with pytest.raises(InputValueError, match="another port"):
        serve(options, Settings())
