"""Asks `/live` again and again from a process of its own, and keeps how long it took.

    python -m tests.faults.served.live_probe PORT [--new]

It ends with its standard input, and prints the times as JSON. Its process is not that of the
callers, so it does not wait for them. With `--new` each request has a connection of its own, whose
making counts, as an orchestrator's have.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time

__all__ = ["LiveProbe"]

_EVERY = 0.02
_ADDRESS = "127.0.0.1"
_REQUEST = b"GET /live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


class LiveProbe:
    """A probe that runs until it is asked for what it saw."""

    def __init__(self, port: int, *, is_new: bool = False) -> None:
        words = ["-m", "tests.faults.served.live_probe", str(port), *["--new"] * is_new]
        self.process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def times(self) -> list[float]:
        """Seconds that each answer took."""
        out, _ = self.process.communicate(timeout=600)
        assert self.process.returncode == 0, "/live did not answer"
        return list(json.loads(out))


def connected() -> socket.socket:
    connection = socket.create_connection((_ADDRESS, int(sys.argv[1])), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ask(connection: socket.socket) -> None:
    """One request, whose answer must be 200."""
    connection.sendall(_REQUEST)
    answer = b""
    while not answer.endswith(b"}"):
        part = connection.recv(1 << 16)
        assert part, "the server closed the connection"
        answer += part
    assert answer.startswith(b"HTTP/1.1 200 "), answer


def main() -> None:
    times: list[float] = []
    is_new = "--new" in sys.argv
    connection = connected()
    while not times or not select.select([sys.stdin], [], [], _EVERY)[0]:
        begun = time.perf_counter()
        if is_new:
            connection.close()
            connection = connected()
        ask(connection)
        times.append(time.perf_counter() - begun)
    connection.close()
    print(json.dumps([round(seconds, 6) for seconds in times]))


if __name__ == "__main__":
    main()
