"""An S3 server on loopback for tests: moto's, in a process of its own, optionally behind a proxy
that fails at random.

    python -m tests.faults.bucket_server --faults 0.1 --seed 1

It prints the URL, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

FAULTS = ("503", "429", "reset", "lost", "cut", "short", "slow")
_BUSY = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>Please slow down</Message></Error>"
# The server does not check signatures.
_HEADERS = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0",
    "Content-Type": "application/octet-stream",
}
_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@contextmanager
def bucket_server(faults: float = 0.0, seed: int = 0) -> Iterator[str]:
    """The address of a server with a bucket `bucket`, as http://127.0.0.1:PORT.

    Args:
        faults: share of the requests that fail, 0 to 1.
        seed: seed of the failures.
    """
    command = [sys.executable, "-m", "tests.faults.bucket_server",
               "--faults", str(faults), "--seed", str(seed)]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            behind, address = process.stdout.readline().decode().split()
            request = urllib.request.Request(f"{behind}/bucket", method="PUT")
            urllib.request.urlopen(request).close()
            yield address
        finally:
            process.stdin.close()
            process.wait()


def url_of(address: str, prefix: str) -> str:
    """The URL of a prefix of the server's bucket."""
    return f"s3://bucket/{prefix}?endpoint_override={address}&region=us-east-1"


class Bucket:
    """The server's bucket, read without any library of S3, so that it can be used beside forks."""

    def __init__(self, address: str) -> None:
        """Name the server; behind a proxy that fails, calls are repeated."""
        self._address = address

    def objects(self, prefix: str) -> dict[str, bytes]:
        """All objects below a prefix by name."""
        return {
            key.removeprefix(f"{prefix}/"): self._get(f"/{urllib.parse.quote(key)}")
            for key in self._keys(f"?list-type=2&prefix={prefix}/", "Contents")
        }

    def uploads(self, prefix: str) -> list[str]:
        """Keys of multipart uploads that were not completed."""
        return self._keys(f"?uploads&prefix={prefix}/", "Upload")

    def delete(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        for key in self._keys(f"?list-type=2&prefix={prefix}/", "Contents"):
            self._get(f"/{urllib.parse.quote(key)}", "DELETE")

    def delete_one(self, key: str) -> None:
        """Delete an object."""
        self._get(f"/{urllib.parse.quote(key)}", "DELETE")

    def begin_upload(self, key: str) -> None:
        """Begin a multipart upload that nobody completes."""
        self._get(f"/{urllib.parse.quote(key)}?uploads", "POST", b"")

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self._get(f"/{urllib.parse.quote(key)}", "PUT", content)

    def _keys(self, query: str, tag: str) -> list[str]:
        root = ET.fromstring(self._get(query))
        assert root.findtext(f"{_NAMESPACE}IsTruncated") == "false"
        return [str(one.findtext(f"{_NAMESPACE}Key")) for one in root.iter(f"{_NAMESPACE}{tag}")]

    def _get(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        request = urllib.request.Request(
            f"{self._address}/bucket{path}", body, _HEADERS, method=method
        )
        while True:
            try:
                with urllib.request.urlopen(request) as answer:
                    content: bytes = answer.read()
                    if answer.headers.get("Content-Length") in (None, str(len(content))):
                        return content
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    raise
            except (OSError, http.client.HTTPException):
                continue


# --- the proxy ------------------------------------------------------------------------------------


class FlakyProxy:
    """Forwards requests of HTTP, and fails some of them at random.

    - `503`, `429`: the store is busy, and does nothing.
    - `reset`: the connection breaks before the store sees the request.
    - `lost`: the store does what was asked, and the answer is lost.
    - `cut`: half of the answer arrives.
    - `short`: half of the body reaches the store.
    - `slow`: the answer takes a moment.
    """

    def __init__(self, port: int, faults: float, seed: int) -> None:
        """Listen on a free port, in front of another."""
        self._behind = port
        self._faults = faults
        self._rng = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.counts: Counter[str] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            request = _request_of(client)
            if request is None:
                return
            head, body = request
            fate = self._rng.choice(FAULTS) if self._rng.random() < self._faults else "fine"
            self.counts[fate] += 1
            if fate in ("503", "429"):
                code, name = {"503": (503, b"SlowDown"), "429": (429, b"TooManyRequests")}[fate]
                answer = _answer(code, _BUSY % name)
                is_head = head.startswith(b"HEAD ")
                client.sendall(answer.partition(b"<")[0] if is_head else answer)
                return
            if fate == "reset":
                return
            if fate == "slow":
                time.sleep(self._rng.uniform(0.0, 0.3))
            with socket.create_connection(("127.0.0.1", self._behind)) as store:
                if fate == "short" and body:
                    store.sendall(head + body[: len(body) // 2])
                    return
                store.sendall(head + body)
                answer = b"".join(iter(lambda: store.recv(1 << 16), b""))
            if fate == "cut":
                answer = answer[: len(answer) // 2]
            if fate != "lost":
                client.sendall(answer)


def _request_of(client: socket.socket) -> tuple[bytes, bytes] | None:
    """A request's head, which asks to close the connection after the answer, and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        block = client.recv(1 << 16)
        if not block:
            return None
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    fields = {
        k.strip().lower(): v.strip() for k, _, v in (line.partition(b":") for line in lines[1:])
    }
    if fields.get(b"expect", b"").lower() == b"100-continue":
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    wanted = int(fields.get(b"content-length", b"0"))
    while len(body) < wanted:
        block = client.recv(1 << 16)
        if not block:
            return None
        body += block
    kept = [line for line in lines if not line.lower().startswith((b"expect:", b"connection:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""]), body


def _answer(code: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {code} Busy\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\nConnection: close\r\n\r\n" + body


def _serve_moto() -> Any:
    # Tests upload parts of a few kilobytes; the real limit is 5 MiB.
    os.environ["S3_UPLOAD_PART_MIN_SIZE"] = "1"
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    server = _serve_moto()
    port = server.get_host_and_port()[1]
    front = FlakyProxy(port, arguments.faults, arguments.seed).port if arguments.faults else port
    print(f"http://127.0.0.1:{port} http://127.0.0.1:{front}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
