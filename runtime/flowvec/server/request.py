"""One HTTP request: its headers, its body, and how long its client waits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowvec.server.dialects import Dialect
from flowvec.server.model_queue import ModelQueue, Outcome, QueuedCall
from flowvec.server.refusal import ClientGone, Refusal
from flowvec.server.settings import Settings

__all__ = ["Incoming", "Receive", "Request", "Scope", "Send"]

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# Bytes per second at which a large body is expected to come.
_SLOWEST = 64 << 10
# A request that takes longer is watched, so that a client that leaves is noticed.
_WATCH_AFTER = 0.02
_MOST_ID = 128
# Bodies of the largest size that may be in memory while they come.
_BODIES = 8


@dataclass(slots=True)
class Incoming:
    """Bytes of bodies that are not complete, of all requests."""

    size: int = 0


class Request:
    """One HTTP request.

    Attributes:
        method: GET, POST, ...
        path: without the prefix under which the app is mounted.
        came: when its headers came, by `time.perf_counter`.
        key: name of its API key; "" without one.
        is_admin: whether that key may administer the server.
        parameters: parts of the path, for example a collection's name.
        dialect: in which it is answered.
    """

    __slots__ = (
        "_headers", "_incoming", "_receive", "_settings", "came", "dialect", "id", "is_admin",
        "key", "method", "parameters", "path", "scope",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, receive: Receive, settings: Settings, incoming: Incoming, new_id: str
    ) -> None:
        """A request whose headers have come."""
        self.scope = scope
        self.came = time.perf_counter()
        self.method: str = scope["method"]
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        self.path = path[len(root) :] if root and path.startswith(root) else path
        self.key = ""
        self.is_admin = False
        self.parameters: dict[str, str] = {}
        self.dialect: Dialect = "openai"
        self._receive = receive
        self._settings = settings
        self._incoming = incoming
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = self._taken_over_id() or new_id

    # --- headers --------------------------------------------------------------------------------

    def header(self, name: bytes) -> str | None:
        """The value of a header, whose name is given in lower case; None without it."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    def _taken_over_id(self) -> str | None:
        given = self.header(b"x-request-id")
        is_plain = given is not None and given.isascii() and given.isprintable()
        return given if given and is_plain and len(given) <= _MOST_ID else None

    def end(self) -> float:
        """The deadline, by `time.perf_counter`: the earliest of the server's and the client's."""
        seconds = self._settings.timeout
        # A header of ours, of OpenAI's clients, and of Envoy.
        for name, unit in (
            (b"x-request-timeout-ms", 1e-3),
            (b"x-stainless-read-timeout", 1.0),
            (b"x-envoy-expected-rq-timeout-ms", 1e-3),
        ):
            if name in self._headers:
                seconds = min(seconds, _positive(self._headers[name]) * unit)
        return self.came + seconds

    # --- body -----------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Refusal: it is too large, compressed, or does not come in time; or too many others are
                coming.
            ClientGone: the client left before its end.
        """
        most = self._settings.max_body_bytes
        length = self._headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() else 0
        if declared > most:
            raise _too_large(most)
        if self._headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal("unsupported", "the body must not be compressed")
        seconds = self._settings.body_timeout + declared / _SLOWEST
        try:
            async with asyncio.timeout(seconds):
                return await self._whole_body(most)
        except TimeoutError:
            raise Refusal("timed_out", f"the body did not arrive within {seconds:.0f} s") from None

    async def _whole_body(self, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                if size + len(part) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return part if not parts else b"".join([*parts, part])
                parts.append(part)
                size += len(part)
                self._incoming.size += len(part)
                if self._incoming.size > _BODIES * most:
                    raise Refusal("overloaded", "too many large bodies come at once", None, 1.0)
        finally:
            self._incoming.size -= size

    # --- waiting --------------------------------------------------------------------------------

    async def outcome(self, queue: ModelQueue, call: QueuedCall) -> Outcome:
        """Wait for a call; the deadline, and a client that leaves, give it up.

        Raises:
            Refusal: the deadline passed, or the model failed.
            ClientGone: the client left.
        """
        loop = asyncio.get_running_loop()
        watchers: list[asyncio.Task[None]] = []

        def watch() -> None:
            watchers.append(loop.create_task(self._watch(call)))

        left = call.end - time.perf_counter()
        timer = loop.call_later(max(0.0, min(_WATCH_AFTER, left)), watch)
        try:
            return await call.done
        finally:
            timer.cancel()
            for watcher in watchers:
                watcher.cancel()
            if call.left:  # it failed, or this task was cancelled
                queue.drop(call)

    async def gone(self) -> None:
        """Return when the client has left; it must have sent its body."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _watch(self, call: QueuedCall) -> None:
        """End the wait for a call when its client leaves, or its deadline passes."""
        try:
            async with asyncio.timeout(call.end - time.perf_counter()):
                if (await self._receive())["type"] != "http.disconnect":
                    await asyncio.Event().wait()  # this server does not tell who leaves
        except TimeoutError:
            why: Exception = Refusal("late", "the request was not answered before its deadline")
        else:
            why = ClientGone()
        if not call.done.done():
            call.done.set_exception(why)


def _positive(value: bytes) -> float:
    """A number above 0; infinity for anything else."""
    try:
        number = float(value)
    except ValueError:
        return math.inf
    return number if number > 0 else math.inf


def _too_large(most: int) -> Refusal:
    return Refusal(
        "too_large", f"the body has more than {most:,} bytes: send fewer texts a request"
    )
