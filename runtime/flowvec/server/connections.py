"""HTTP connections with limits that uvicorn does not have: slow, half-open and oversized ones are
cut."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowvec.compat import override

__all__ = ["Connection", "cut_slow"]

# Bytes of a request's line and headers.
_MOST_HEAD = 64 << 10
# Seconds in which a request's headers must come, and in which a client must read something.
_HEAD_SECONDS = 10.0
_READ_SECONDS = 30.0

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class Connection(HttpToolsProtocol):
    """A connection whose request line and headers have a limit of size and time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As uvicorn's."""
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._size = 0
        self._is_refused = False
        # Since when the headers of a request are expected; None while there is none.
        self._head_since: float | None = None
        self._unsent = 0
        self._unsent_since = 0.0

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._head_since = self.loop.time()

    @override
    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers."""
        if self._is_refused:
            return
        if self._head_since is None and self._is_idle:
            self._head_since = self.loop.time()
        if self._head_since is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_since is not None and self._head_bytes > _MOST_HEAD:
            self._refuse()

    @override
    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._size = 0

    @override
    def on_url(self, url: bytes) -> None:
        """A piece of the request line."""
        self._size += len(url)
        if self._size <= _MOST_HEAD:
            super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._size += len(name) + len(value)
        if self._size <= _MOST_HEAD:
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        """Begin the request, unless its headers were too large."""
        self._head_since, self._head_bytes = None, 0
        if self._size > _MOST_HEAD:
            self._refuse()
        if not self._is_refused:
            super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._is_refused:
            super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        """The end of the body."""
        if not self._is_refused:
            super().on_message_complete()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _refuse(self) -> None:
        if not self._is_refused and not self.transport.is_closing():
            self._is_refused = True
            if self._is_idle:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def cut_if_slow(self, now: float) -> None:
        """End the connection if headers do not come, or if what was sent is not read."""
        if self._head_since is not None and now - self._head_since > _HEAD_SECONDS:
            self.transport.abort()
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent or not unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since > _READ_SECONDS:
            self.transport.abort()


def cut_slow(connections: set[Any], now: float) -> None:
    """End those connections that are too slow."""
    for connection in list(connections):
        if isinstance(connection, Connection):
            connection.cut_if_slow(now)
