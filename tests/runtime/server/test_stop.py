"""`flowvec serve` as a process: it starts, and SIGTERM under load cuts no answer."""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, Encoder
from tests.runtime.server.conftest import running, texts
from tests.serving import served
from tests.waiting import wait_until

pytest.importorskip("msgspec", reason="needs the extra [serve]")
httpx = pytest.importorskip("httpx", reason="needs the extra [serve]")


class Caller(threading.Thread):
    """Sends requests until the server is gone, and counts what comes."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.url, self.body = url, {"inputs": texts(40, seed)}
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        while not self.seen["refused"]:
            self.seen[self.ask()] += 1

    def ask(self) -> str:
        try:
            answer: Any = httpx.post(f"{self.url}/embed", json=self.body, timeout=600)
        except httpx.ConnectError:
            return "refused"
        except (httpx.ReadError, httpx.RemoteProtocolError) as error:
            # The connection was in the listener's queue when it closed.
            before = "without sending a response" in str(error) or isinstance(
                error, httpx.ReadError
            )
            return "not begun" if before else f"cut: {error}"
        if answer.status_code == 503:
            return "stopping" if answer.headers.get("connection") == "close" else "wrong 503"
        return "whole" if len(answer.json()) == 40 else f"{answer.status_code} {answer.text}"


@pytest.mark.process
def test_sigterm_under_load_cuts_no_answer(tmp_path: Path, tiny_dir: Path) -> None:
    with served(tmp_path, f"one={tiny_dir}") as (url, process, log):
        assert httpx.get(f"{url}/v1/models", timeout=600).json()["data"][0]["id"] == "one"
        callers = [Caller(url, seed) for seed in range(6)]
        for caller in callers:
            caller.start()
        wait_until(lambda: all(caller.seen["whole"] > 5 for caller in callers))
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0, log.read_text()
        for caller in callers:
            caller.join(600)
        seen = sum((caller.seen for caller in callers), Counter())
        assert set(seen) <= {"whole", "stopping", "not begun", "refused"}, seen
        assert "Traceback" not in log.read_text()


def test_a_stop_does_not_wait_for_what_half_sent_requests_still_lack(tiny: Encoder) -> None:
    from flowvec.server import create_app

    head = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n"
    begun = {"nothing": b"", "half a head": head[:30], "no body": head, "half a body": head + b"{"}
    with running(create_app({"tiny": tiny})) as server:
        address = ("127.0.0.1", server.server.port)
        clients = {name: socket.create_connection(address, timeout=600) for name in begun}
        try:
            for name, client in clients.items():
                client.sendall(begun[name])
            wait_until(lambda: server.app.served.running == 2)
            server.server.stop()
            said = {name: client.makefile("rb").read() for name, client in clients.items()}
        finally:
            for client in clients.values():
                client.close()
    assert said["nothing"] == said["half a head"] == b""
    for name in ("no body", "half a body"):
        # After 30 seconds it would be 408.
        assert said[name].startswith(b"HTTP/1.1 503 "), said
        assert b"connection: close\r\n" in said[name]


@pytest.mark.process
def test_rows_outlive_the_process(
    tmp_path: Path, tiny_dir: Path, reranker_dir: Path, tiny: Encoder
) -> None:
    rows = [{"id": i, "text": text} for i, text in enumerate(texts(30))]
    words = (f"t={tiny_dir}", "--reranker", f"r={reranker_dir}", "--provider", "cpu")
    notes = tmp_path / "notes"  # which the first start creates
    for start in (1, 2):
        with (
            served(tmp_path, *words, "--collection", notes) as (url, process, log),
            httpx.Client(base_url=f"{url}/v1/collections/notes", timeout=600) as client,
        ):
            assert client.post("/rows/count", json={}).json()["count"] == 30 * (start - 1)
            body = {"query": "a cat", "k": 3, "rerank": "r"}
            assert len(client.post("/search", json=body).json()["hits"]) == 3 * (start - 1)
            assert client.post("/rows", json={"rows": rows}).json()["rows"] == 30
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0, log.read_text()
    with Collection.open(notes, encoder=tiny) as collection:
        assert len(collection) == 30
