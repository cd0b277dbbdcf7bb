"""Runs a server in a process: started, ready, paused while others are measured, and ended."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from flowvec.errors import FlowvecError
from flowvec_bench import workers

__all__ = ["ServerError", "ServerProcess", "answers", "free_port"]

_START_SECONDS = 240.0
_POLL_SECONDS = 0.1
_STOP_SECONDS = 10.0
# Servers must not ask a hub for models, nor tell others that they run.
_QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}


class ServerError(FlowvecError, RuntimeError):
    """A server does not start, or failed."""


class ServerProcess:
    """A server in a process of its own, on loopback."""

    def __init__(self, name: str, command: Sequence[str], values: Mapping[str, str]) -> None:
        """Start it, and wait until it answers.

        Args:
            name: of the server, for messages.
            command: program and arguments, in which `{name}` stands for a value.
            values: values by name; `port` and `workers` are added.

        Raises:
            ServerError: it ends, or does not answer `/health` in time.
        """
        self.name, self.port = name, free_port()
        filled = {**values, "port": str(self.port), "workers": str(Path(workers.__file__).parent)}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            [part.format_map(filled) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_QUIET},
        )
        try:
            self._wait()
        except ServerError:
            self.end()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while not answers("127.0.0.1", self.port):
            if self._process.poll() is not None:
                raise ServerError(f"{self.name} ended; the last line it printed: {self._last()}")
            if time.monotonic() > end:
                raise ServerError(f"{self.name} did not answer within {_START_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def _last(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else "none"

    def pause(self) -> None:
        """Stop all its threads, so that it takes nothing from the server that is measured."""
        if hasattr(signal, "SIGSTOP"):
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if hasattr(signal, "SIGCONT"):
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it."""
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Whether a server says that it is healthy."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
