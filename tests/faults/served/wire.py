"""HTTP/1.1 on a socket, for clients that must know what became of each byte."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any

import orjson

__all__ = ["Cut", "NotBegun", "NotHttp", "Reply", "Wire", "request_bytes"]

_MOST_LINE = 1 << 20


class NotBegun(Exception):
    """The connection ended before the first byte of an answer."""


class Cut(Exception):
    """The connection ended within an answer."""


class NotHttp(Exception):
    """An answer cannot be read."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


def request_bytes(
    method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> bytes:
    """A request whose body is JSON, or bytes as they are."""
    given = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(given)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + given


class Wire:
    """A connection, which is opened when it is needed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(
                "127.0.0.1", self.port, limit=_MOST_LINE
            )

    def close(self, *, reset: bool = False) -> None:
        """Close it; with `reset` the server gets an error instead of an end."""
        if self.writer is None:
            return
        if reset:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()
        self.reader = self.writer = None

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            ConnectionRefusedError: nothing listens.
            NotBegun: the server has closed the connection.
        """
        await self.open()
        assert self.writer is not None
        try:
            self.writer.write(data)
            await self.writer.drain()
        except (ConnectionResetError, BrokenPipeError) as error:
            self.close()
            raise NotBegun(repr(error)) from error

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """Send a request and read its answer.

        Raises:
            ConnectionRefusedError: nothing listens.
            NotBegun, Cut: the connection ended before the answer, or within it.
            NotHttp: the answer is not HTTP.
        """
        await self.send(request_bytes(method, path, body, headers))
        return await self.reply()

    async def reply(self, pause: float = 0.0) -> Reply:
        """Read an answer, with a pause before each of its pieces.

        Raises:
            NotBegun, Cut, NotHttp: as `ask`.
        """
        assert self.reader is not None
        begun = b""
        try:
            begun = await self.reader.read(1)
            if not begun:
                raise NotBegun
            head = begun + await self.reader.readuntil(b"\r\n\r\n")
            status, headers = _parsed(head)
            body = await self._body(headers, pause)
        except (asyncio.IncompleteReadError, ConnectionError, NotBegun) as error:
            self.close()
            raise (Cut if begun else NotBegun)(repr(error)) from error
        except ValueError as error:
            self.close()
            raise NotHttp(repr(error)) from error
        if headers.get("connection") == "close":
            self.close()
        return Reply(status, headers, body)

    async def _body(self, headers: dict[str, str], pause: float) -> bytes:
        assert self.reader is not None
        parts: list[bytes] = []
        if headers.get("transfer-encoding") == "chunked":
            while True:
                await asyncio.sleep(pause)
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                parts.append((await self.reader.readexactly(size + 2))[:-2])
                if not size:
                    return b"".join(parts)
        left = int(headers.get("content-length", "0"))
        while left:
            await asyncio.sleep(pause)
            part = await self.reader.read(min(left, 1 << 16))
            if not part:
                raise asyncio.IncompleteReadError(b"".join(parts), left)
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def _parsed(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines if line)
    return int(first.split(" ")[1]), {name.lower(): value.strip() for name, value in pairs}
