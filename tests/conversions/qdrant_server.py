"""The part of Qdrant's HTTP interface that `flowvec convert` calls, over a client in memory."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from qdrant_client import QdrantClient
from qdrant_client.http import models

__all__ = ["QdrantServer", "running_server"]


class QdrantServer(ThreadingHTTPServer):
    """A server of a client in memory.

    Attributes:
        client: what it has stored.
        faults: what befalls the next writes of points, before they are stored: a status to answer,
            `drop` the connection, or `lose` the answer after they were stored.
        sizes: bytes and points of each write.
        keys: the API keys of all requests.
        key: the API key that is needed, or None.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.client = QdrantClient(":memory:")
        self.lock = threading.Lock()
        self.faults: deque[int | str] = deque()
        self.sizes: list[tuple[int, int]] = []
        self.keys: set[str | None] = set()
        self.key: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def names(self) -> list[str]:
        return sorted(one.name for one in self.client.get_collections().collections)

    def handle_error(self, *_: Any) -> None:
        pass  # a client that was killed


@contextmanager
def running_server() -> Iterator[QdrantServer]:
    with QdrantServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: QdrantServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.keys.add(self.headers.get("api-key"))
        if self.server.key not in (None, self.headers.get("api-key")):
            self._send(403, {"status": {"error": "forbidden"}})
            return
        path = tuple(unquote(part) for part in urlsplit(self.path).path.strip("/").split("/"))
        is_write = method == "PUT" and path[2:] == ("points",)
        with self.server.lock:
            fault = self.server.faults.popleft() if is_write and self.server.faults else None
        if fault == "drop":
            self.close_connection = True
            return
        if isinstance(fault, int):
            headers = {"Retry-After": "0"} if fault == 429 else {}
            self._send(fault, {"status": {"error": "a fault"}}, headers)
            return
        try:
            with self.server.lock:
                result = _called(self.server, method, path, body)
        except ValueError as error:
            self._send(404, {"status": {"error": str(error)}})
            return
        if fault == "lose":
            self.close_connection = True
            return
        self._send(200, {"result": result, "status": "ok", "time": 0.0})

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _called(server: QdrantServer, method: str, path: tuple[str, ...], body: bytes) -> Any:
    client = server.client
    match method, path:
        case "GET", ("collections",):
            return client.get_collections().model_dump()
        case "GET", ("aliases",):
            return client.get_aliases().model_dump()
        case "POST", ("collections", "aliases"):
            changes = models.ChangeAliasesOperation.model_validate_json(body).actions
            return client.update_collection_aliases(changes)
        case "PUT", ("collections", name):
            made = models.CreateCollection.model_validate_json(body)
            return client.create_collection(
                name, made.vectors, made.sparse_vectors, metadata=made.metadata
            )
        case "DELETE", ("collections", name):
            return client.delete_collection(name)
        case "PUT", ("collections", name, "points"):
            if "points" in json.loads(body):
                points: Any = models.PointsList.model_validate_json(body).points
                count = len(points)
            else:
                points = models.PointsBatch.model_validate_json(body).batch
                count = len(points.ids)
            server.sizes.append((len(body), count))
            return client.upsert(name, points).model_dump()
        case "POST", ("collections", name, "points", "count"):
            return client.count(name).model_dump()
    raise ValueError(f"{method} {path} is not known")
