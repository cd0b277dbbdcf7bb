"""Asks `/live` again and again from a process of its own, and keeps how long it took.

    python -m tests.faults.served.live_probe PORT

It ends with its standard input, and prints the times as JSON. Its process is not that of the
callers, so it does not wait for them.
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
_REQUEST = b"GET /live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


class LiveProbe:
    """A probe that runs until it is asked for what it saw."""

    def __init__(self, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.served.live_probe", str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def times(self) -> list[float]:
        """Seconds that each answer took."""
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, "/live did not answer"
        return list(json.loads(out))


def main() -> None:
    times: list[float] = []
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(30)
        while not select.select([sys.stdin], [], [], _EVERY)[0]:
            begun = time.perf_counter()
            connection.sendall(_REQUEST)
            answer = b""
            while not answer.endswith(b"}"):
                part = connection.recv(1 << 16)
                assert part, "the server closed the connection"
                answer += part
            times.append(time.perf_counter() - begun)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
    print(json.dumps([round(seconds, 6) for seconds in times]))


if __name__ == "__main__":
    main()
