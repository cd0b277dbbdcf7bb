"""HTTP connections with limits that uvicorn does not have: slow, half-open and oversized ones are
cut."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowvec.compat import override
from flowvec.server.request_parser import RequestParser

__all__ = ["Connection", "ConnectionLimits", "cut_slow"]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections.

    Attributes:
        head_bytes: most bytes of a request's line and headers.
        head_seconds: in which they must come.
        read_seconds: in which a client must have read something of its answer.
        connections: most connections. Above it, one that is idle is closed for a new one.
    """

    head_bytes: int = 64 << 10
    head_seconds: float = 10.0
    read_seconds: float = 30.0
    connections: int = 4096


_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """A connection whose request line and headers have a limit of size and time."""

    def __init__(self, *, limits: ConnectionLimits | None = None, **options: Any) -> None:
        """As uvicorn's, with limits."""
        super().__init__(**options)
        self.parser = cast(Any, RequestParser(self))
        self._limits = limits or ConnectionLimits()
        self._head_bytes = 0
        self._size = 0
        self._is_refused = False
        self._ends = False  # after the answer that is under way
        # Since when the headers of a request are expected; None while there is none.
        self._head_since: float | None = None
        self._unsent = 0
        self._unsent_since = 0.0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            idle = next((c for c in self.connections if _is_idle(c) and c is not self), None)
            (self if idle is None else idle).transport.close()
        self._head_since = self.loop.time()

    @override
    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers."""
        if self._is_refused:
            return
        if self._head_since is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_since is not None and self._head_bytes > self._limits.head_bytes:
            self._refuse()

    @override
    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._size = 0
        if self._head_since is None:
            self._head_since = self.loop.time()

    @override
    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        self._size += len(url)
        if self._size <= self._limits.head_bytes:
            super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._size += len(name) + len(value)
        if self._size <= self._limits.head_bytes:
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        """Begin the request, unless its headers were too large or come once more."""
        self._head_since, self._head_bytes = None, 0
        if self._size > self._limits.head_bytes:
            self._refuse()
        if not self._is_refused and not self.parser.should_upgrade():
            super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._is_refused:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        """The end of the body."""
        if not self._is_refused and not self.parser.should_upgrade():
            super().on_message_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, but never within another answer."""
        self._is_refused = True
        if self.pipeline or not (_is_idle(self) or self.cycle.more_body):
            # They come after whole requests, of which the first is answered.
            self.pipeline.clear()
            self._ends = True
        elif _is_idle(self) or not self.cycle.response_started:
            super().send_400_response(msg)
        else:  # in a body that is read while it is answered: the client finds the answer cut
            self.transport.close()

    @override
    def on_response_complete(self) -> None:
        """End a connection on which nothing more can be read."""
        if self._ends:
            self.transport.close()
        super().on_response_complete()

    def _refuse(self) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        if not self.transport.is_closing():
            if _is_idle(self):
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def cut_if_slow(self, now: float) -> None:
        """End the connection if headers do not come, or if what was sent is not read."""
        if self._head_since is not None and now - self._head_since > self._limits.head_seconds:
            self.transport.abort()
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent or not unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since > self._limits.read_seconds:
            self.transport.abort()


def _is_idle(connection: Any) -> bool:
    """Whether no request is being answered."""
    cycle = connection.cycle
    return cycle is None or bool(cycle.response_complete)


def cut_slow(connections: set[Any], now: float) -> None:
    """End those connections that are too slow."""
    for connection in list(connections):
        if isinstance(connection, Connection):
            connection.cut_if_slow(now)
