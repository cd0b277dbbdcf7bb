"""examples/service.py runs for real: its routes, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

httpx = pytest.importorskip("httpx", reason="needs the extra [test]")
for package in ("fastapi", "uvicorn", "gunicorn"):
    pytest.importorskip(package, reason="needs the extra [test]")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMANDS = {
    "uvicorn": [
        "uvicorn", "--app-dir", str(EXAMPLES), "service:app", "--port", "0",
        "--timeout-graceful-shutdown", "10", "--workers",
    ],
    "gunicorn": [
        "gunicorn", "--chdir", str(EXAMPLES), "service:app", "-k", "asgi", "-b", "127.0.0.1:0",
        "--graceful-timeout", "10", "--no-control-socket", "-w",
    ],
}  # fmt: skip


@dataclass
class Service:
    """A running service."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def client(self) -> Any:
        """A client that opens a connection for each request, so that all workers get some."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(base_url=self.url, limits=limits, timeout=60, trust_env=False)


@contextmanager
def running(server: str, folder: Path, model: Path, workers: int) -> Iterator[Service]:
    """The service, whose collection is `notes` in a folder."""
    log = folder / "log"
    environment = {
        **os.environ,
        "NOTES_PATH": str(folder / "notes"),
        "NOTES_MODEL": str(model),
        "NOTES_SECONDS": "60",
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
        wait_until(lambda: log.read_text().count("ready: ") == workers, 120)
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(120)


@pytest.mark.parametrize("server", COMMANDS)
def test_what_callers_do_wrong_is_answered(server: str, tmp_path: Path, tiny_dir: Path) -> None:
    with running(server, tmp_path, tiny_dir, 1) as service, service.client() as client:
        note = {"id": "a", "text": "the cat sleeps", "metadata": {"year": 2024}}
        assert client.post("/notes", json=[note]).json() == {
            "rows": 1, "replaced": 0, "truncated": 0,
        }  # fmt: skip
        (hit,) = client.post("/search", json={"query": "a cat", "filter": {"year": 2024}}).json()
        assert (hit["id"], hit["text"], hit["metadata"]) == ("a", note["text"], {"year": 2024})
        assert client.get("/notes/a").json() == note
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
        service.process.terminate()
        # uvicorn without a parent process raises the signal again when it is done.
        assert service.process.wait(120) in (0, -signal.SIGTERM)
        log = service.log.read_text()
    assert log.count("service: closed\n") == 1
    assert "Traceback" not in log
