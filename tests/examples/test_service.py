"""examples/service.py runs for real: three workers, random writes, and a worker that is killed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection
from tests.waiting import wait_until

httpx = pytest.importorskip("httpx", reason="needs the extra [test]")
for package in ("fastapi", "uvicorn", "gunicorn"):
    pytest.importorskip(package, reason="needs the extra [test]")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORKERS = 3
COMMANDS = {
    "uvicorn": [
        "uvicorn", "--app-dir", str(EXAMPLES), "service:app", "--port", "0",
        "--timeout-graceful-shutdown", "300", "--timeout-worker-healthcheck", "300", "--workers",
    ],
    "gunicorn": [
        "gunicorn", "--chdir", str(EXAMPLES), "service:app", "-k", "asgi", "-b", "127.0.0.1:0",
        "--timeout", "300", "--graceful-timeout", "300", "--no-control-socket", "-w",
    ],
}  # fmt: skip
WORDS = ["cat", "dog", "man", "bread", "house", "river", "stone", "music"]


@dataclass
class Service:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def client(self) -> Any:
        """A client that opens a connection for each request, so that all workers get some."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(base_url=self.url, limits=limits, timeout=600, trust_env=False)

    def workers(self) -> set[int]:
        """Processes that answer now."""
        with self.client() as client:
            return {client.get("/health").json()["process"] for _ in range(8 * WORKERS)}


@contextmanager
def running(server: str, folder: Path, model: Path, workers: int = WORKERS) -> Iterator[Service]:
    """The service, whose collection is `notes` in a folder."""
    log = folder / "log"
    environment = {
        **os.environ,
        "NOTES_PATH": str(folder / "notes"),
        "NOTES_MODEL": str(model),
        "NOTES_SECONDS": "600",
        "PYTHONUNBUFFERED": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *COMMANDS[server], str(workers)],
            stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder,
        )  # fmt: skip
    try:

        def url() -> str | None:
            assert process.poll() is None, log.read_text()
            address = re.search(
                r"(?:running on|Listening at:) (http://127\S+:\d+)", log.read_text()
            )
            return address and address[1]

        wait_until(url)
        service = Service(str(url()), process, log)
        wait_until(lambda: log.read_text().count("ready: ") == workers)
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(300)


@dataclass
class Client:
    """One client, which writes notes of its own and knows what each may hold."""

    number: int
    service: Service
    stop: threading.Event
    answered: int = 0
    broken: int = 0  # requests without an answer
    wrong: list[str] = field(default_factory=list)
    # For each id the texts that it may have; None for no note. Several after a broken request.
    possible: dict[str, set[str | None]] = field(default_factory=dict)

    def run(self) -> None:
        draw = random.Random(self.number)
        with self.service.client() as client:
            while not self.stop.is_set():
                step = draw.choice([self.add, self.add, self.delete, self.read, self.search])
                try:
                    step(client, draw)
                    self.answered += 1
                except httpx.TransportError:
                    self.broken += 1

    def write(self, id_: str, text: str | None, send: Any) -> None:
        before = self.possible.get(id_, {None})
        self.possible[id_] = before | {text}  # unless there is an answer
        answer = send()
        self.check(answer.status_code == 200, f"{answer.status_code} {answer.text}")
        self.possible[id_] = {text}

    def add(self, client: Any, draw: random.Random) -> None:
        id_ = f"{self.number}-{draw.randrange(30)}"
        text = " ".join(draw.choices(WORDS, k=6))
        note = {"id": id_, "text": text, "metadata": {"client": self.number}}
        self.write(id_, text, lambda: client.post("/notes", json=[note]))

    def delete(self, client: Any, draw: random.Random) -> None:
        if self.possible:
            id_ = draw.choice(sorted(self.possible))
            self.write(id_, None, lambda: client.delete(f"/notes/{id_}"))

    def read(self, client: Any, draw: random.Random) -> None:
        if self.possible:
            id_ = draw.choice(sorted(self.possible))
            answer = client.get(f"/notes/{id_}")
            self.check(answer.status_code in (200, 404), answer.text)
            text = answer.json().get("text")
            self.check(text in self.possible[id_], f"{id_} is {text}, not {self.possible[id_]}")

    def search(self, client: Any, draw: random.Random) -> None:
        query = {"query": draw.choice(WORDS), "k": 100, "filter": {"client": self.number}}
        answer = client.post("/search", json=query)
        self.check(answer.status_code == 200, answer.text)
        texts = {hit["id"]: hit["text"] for hit in answer.json()}
        for id_, possible in self.possible.items():
            self.check(texts.get(id_) in possible, f"{id_} is {texts.get(id_)}, not {possible}")

    def check(self, holds: bool, message: str) -> None:
        if not holds:
            self.wrong.append(message)


@pytest.mark.parametrize("server", COMMANDS)
def test_workers_write_in_turn_and_a_killed_one_loses_nothing(
    server: str, tmp_path: Path, tiny_dir: Path
) -> None:
    stop = threading.Event()
    with running(server, tmp_path, tiny_dir) as service:
        wait_until(lambda: len(service.workers()) == WORKERS)
        clients = [Client(number, service, stop) for number in range(6)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: all(client.answered > 20 for client in clients))
            assert not any(client.broken for client in clients)
            killed = min(service.workers())
            os.kill(killed, signal.SIGKILL)
            after = [client.answered + 20 for client in clients]
            wait_until(lambda: all(c.answered > n for c, n in zip(clients, after, strict=True)))
            wait_until(lambda: len(service.workers() - {killed}) == WORKERS)
            # It ends while clients write.
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(300) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        log = service.log.read_text()
    assert log.count("service: closed\n") == WORKERS, log
    assert "Traceback" not in log, log
    assert not [message for client in clients for message in client.wrong]
    with Collection.open(tmp_path / "notes") as notes:
        assert notes.verify() == []
        texts = {item.id: item.text for item in notes.rows()}
    for client in clients:
        for id_, possible in client.possible.items():
            assert texts.pop(id_, None) in possible
    assert not texts


def test_what_callers_do_wrong_is_answered(tmp_path: Path, tiny_dir: Path) -> None:
    with running("uvicorn", tmp_path, tiny_dir, 1) as service, service.client() as client:
        note = {"id": "a", "text": "the cat sleeps", "metadata": {"year": 2024}}
        assert client.post("/notes", json=[note]).json() == {
            "rows": 1, "replaced": 0, "truncated": 0,
        }  # fmt: skip
        (hit,) = client.post("/search", json={"query": "a cat", "filter": {"year": 2024}}).json()
        assert (hit["id"], hit["text"], hit["metadata"]) == ("a", note["text"], {"year": 2024})
        assert client.get("/notes/a").json() == note
        for path, body in (
            ("/search", {"query": "\ud800"}),
            ("/search", {"query": "a", "filter": {"a": "\ud800"}}),
            ("/search", {"query": "a", "filter": {"\ud800": 1}}),
            ("/search", {"query": "a", "k": "\ud800", "\ud800": 1}),
            ("/notes", [{"id": "\ud800", "text": "a"}]),
            ("/notes", [{"id": "b", "text": "\ud800"}]),
            ("/notes", [{"id": "b", "text": "a", "metadata": {"\ud800": [{"a": "\udfff"}]}}]),
        ):
            answer = client.post(path, content=json.dumps(body))
            assert (answer.status_code, list(answer.json())) == (422, ["detail"]), body
        for answer, status, words in (
            (client.post("/search", json={"query": "a", "filter": {"a": {"~": 1}}}), 422, "'~' is"),
            (client.post("/search", json={"query": "a", "k": 0}), 422, "greater than"),
            (client.post("/notes", json=[{"id": "a"}]), 422, "text"),
            (client.get("/notes/b"), 404, "there is no note 'b'"),
            (client.delete("/notes/b"), 200, '"deleted":0'),
            (client.delete("/notes/a"), 200, '"deleted":1'),
            (client.get("/ready"), 200, '"notes":0'),
        ):
            assert answer.status_code == status
            assert words in json.dumps(answer.json(), separators=(",", ":"))
