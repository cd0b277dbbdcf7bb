"""Probes on a port of their own, which never wait for the event loop that does the work."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import msgspec
import uvicorn
from uvicorn.server import ServerState

from flowvec.errors import InputValueError
from flowvec.server.connections import Connection, ConnectionLimits, cut_slow
from flowvec.server.dialects import Dialect, worded
from flowvec.server.heartbeat import Heartbeat
from flowvec.server.refusal import Refusal, stopping
from flowvec.server.request import Receive, Scope, Send
from flowvec.server.served import Served

__all__ = ["HealthLimits", "HealthPort", "naming_option"]

# Seconds between two looks at slow connections.
_LOOK = 1.0
_CONNECTIONS = ConnectionLimits(
    head_bytes=8 << 10, head_seconds=5.0, read_seconds=5.0, connections=256
)

_encode = msgspec.json.Encoder().encode


@contextmanager
def naming_option(option: str, host: str, port: int) -> Iterator[None]:
    """If the port that is opened in this block is in use, name the option that gives another."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputValueError(
                f"port {port} of {host} is in use: give another {option}"
            ) from error
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """What probes take for an event loop that is stuck, and limits of their connections.

    Attributes:
        stuck_seconds: without a turn of the loop, after which `/health` and `/ready` fail.
        dead_seconds: likewise for `/live`, after which the process is to be started again.
        connections: of callers that are slow, or too many.
    """

    stuck_seconds: float = 5.0
    dead_seconds: float = 30.0
    connections: ConnectionLimits = _CONNECTIONS


class HealthPort:
    """Answers `/live`, `/ready` and `/health` on a thread, an event loop and a port of its own.

    It answers from what the main event loop last left in a Heartbeat, so an answer waits neither
    for that loop nor for a queue, and a loop that is stuck shows. Every answer ends its connection.

    Attributes:
        heartbeat: of the main event loop, which writes into it.
        served: what is served; None while it is loaded.
    """

    def __init__(self, host: str, port: int, limits: HealthLimits | None = None) -> None:
        """A port that is not open yet.

        Args:
            host: address to listen on.
            port: port to listen on; 0 is any that is free.
            limits: of the loop and of connections.
        """
        self.heartbeat = Heartbeat()
        self.served: Served | None = None
        self._host, self._port = host, port
        self._limits = limits or HealthLimits()
        self._thread = threading.Thread(target=self._run, name="flowvec-health", daemon=True)
        self._opened: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._probes: dict[str, tuple[str, Callable[[], Refusal | None], Dialect]] = {
            "/live": ("live", self._not_live, "openai"),
            "/ready": ("ready", self._not_ready, "openai"),
            "/health": ("healthy", self._not_healthy, "tei"),
        }

    @property
    def port(self) -> int:
        """The port that it listens on, once it is open."""
        return self._opened.result()

    # --- life -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Open the port.

        Raises:
            InputValueError: the port is in use.
            OSError: it cannot be opened for another reason.
        """
        self._thread.start()
        with naming_option("--health-port", self._host, self._port):
            self._opened.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the port."""
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def _run(self) -> None:
        # Not the loop of uvloop: this one has little to do, and shares nothing with the other.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        config = uvicorn.Config(
            self._answer,
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            access_log=False,
            log_config=None,
        )
        state = ServerState()
        connect = partial(
            Connection,
            config=config,
            server_state=state,
            app_state={},
            limits=self._limits.connections,
        )
        try:
            server = await self._loop.create_server(connect, self._host, self._port)
        except OSError as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(server.sockets[0].getsockname()[1])
        every = min(_LOOK, self._limits.connections.head_seconds)
        while not self._end.is_set():
            cut_slow(state.connections, self._loop.time())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), every)
        server.close()
        for connection in list(state.connections):
            connection.transport.close()
        await asyncio.sleep(0)  # in which they are closed

    # --- probes ---------------------------------------------------------------------------------

    def _not_live(self) -> Refusal | None:
        return self._without_turn(self._limits.dead_seconds)

    def _not_ready(self) -> Refusal | None:
        if self.served is not None and (self.served.is_leaving or self.served.is_stopping):
            return stopping()
        return self._not_healthy()

    def _not_healthy(self) -> Refusal | None:
        if not self.heartbeat.has_begun:
            return Refusal("starting", "the models are being loaded")
        fault = self.heartbeat.fault
        if fault is not None:
            return Refusal("unhealthy", fault)
        return self._without_turn(self._limits.stuck_seconds)

    def _without_turn(self, most: float) -> Refusal | None:
        age = self.heartbeat.age()
        if age <= most:
            return None
        return Refusal("unhealthy", f"the event loop is stuck: it had no turn for {age:.0f} s")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body, headers = self._answered(scope["method"], scope["path"])
        headers = [header for header in headers if header[0] != b"connection"] + [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answered(self, method: str, path: str) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        """Status, body and headers of the answer to a request."""
        good, check, dialect = self._probes.get(path, ("", _unknown, "openai"))
        refusal = check()
        if refusal is None and method not in ("GET", "HEAD"):
            refusal = Refusal("wrong_method", f"{path} takes GET", allow="GET")
        if refusal is None:
            return 200, _encode({"status": good}), []
        return *worded(refusal, dialect), refusal.headers()


def _unknown() -> Refusal:
    return Refusal("not_found", "this port answers /live, /ready and /health")
