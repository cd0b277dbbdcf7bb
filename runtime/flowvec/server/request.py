"""One HTTP request: its headers, its body, and how long its client waits."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from flowvec.server.dialects import Dialect
from flowvec.server.model_queue import ModelQueue, Outcome, QueuedCall
from flowvec.server.refusal import ClientGone, Refusal, stopping
from flowvec.server.settings import Settings
from flowvec.server.spent import Spent

__all__ = ["Incoming", "Receive", "Request", "Scope", "Send"]

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# Bytes per second at which a large body is expected to come.
_SLOWEST = 64 << 10
# A request that takes longer is watched, so that a client that leaves is noticed.
_WATCH_AFTER = 0.02
_MOST_ID = 128


@dataclass(slots=True)
class Incoming:
    """Bytes of bodies that are not complete, of all requests.

    Attributes:
        size: bytes now.
        most: more are refused.
        is_over: the server stops, and waits for none of them any more.
        waits: of each body that is not complete, until when it is waited for.
    """

    size: int = 0
    most: int = 0
    is_over: bool = False
    waits: set[asyncio.Timeout] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        """Whether too many come at once."""
        return self.size > self.most

    def end(self) -> None:
        """Wait for no body any more: requests whose body is not complete are refused."""
        if not self.is_over:
            self.is_over = True
            now = asyncio.get_running_loop().time()
            for wait in self.waits:
                with suppress(RuntimeError):  # its time is over in this moment
                    wait.reschedule(now)


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
        receive: gives the next event of its connection.
        incoming: bytes of bodies that are not complete.
        repaired: strings of the body in which lone surrogates became U+FFFD.
        spent: what models did for it.
    """

    __slots__ = (
        "_headers", "_settings", "came", "dialect", "id", "incoming", "is_admin", "key", "method",
        "parameters", "path", "receive", "repaired", "scope", "spent",
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
        self.spent = Spent()
        self.receive = receive
        self._settings = settings
        self.incoming = incoming
        self.repaired: Set[str] = frozenset()
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

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the URL; of equal names the last one counts."""
        text: bytes = self.scope.get("query_string", b"")
        return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))

    def end(self) -> float:
        """The deadline, by `time.perf_counter`: the earliest of the server's and the client's."""
        return min(self.came + self._settings.timeout, self.client_end())

    def client_end(self) -> float:
        """The client's deadline, by `time.perf_counter`; infinity if it names none."""
        seconds = math.inf
        # A header of ours, of OpenAI's clients, and of Envoy.
        for name, unit in (
            (b"x-request-timeout-ms", 1e-3),
            (b"x-stainless-read-timeout", 1.0),
            (b"x-envoy-expected-rq-timeout-ms", 1e-3),
        ):
            if name in self._headers:
                seconds = min(seconds, _positive(self._headers[name]) * unit)
        return self.came + seconds

    def seconds_left(self) -> float:
        """Seconds until the deadline.

        Raises:
            Refusal: it has passed.
        """
        left = self.end() - time.perf_counter()
        if left <= 0:
            raise Refusal("late", "the request was not answered before its deadline")
        return left

    # --- body -----------------------------------------------------------------------------------

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Refusal: it is too large, compressed, or does not come in time; too many others are
                coming; the server stops before its end; or part of it is lost.
            ClientGone: the client left before its end.
        """
        most = self._settings.max_body_bytes
        length = self._headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() else 0
        if declared > most:
            raise _too_large(most)
        self.check_encoding()
        seconds = self._settings.body_timeout + declared / _SLOWEST
        wait = asyncio.timeout(0.0 if self.incoming.is_over else seconds)
        self.incoming.waits.add(wait)
        try:
            async with wait:
                return await self._whole_body(most)
        except TimeoutError:
            if self.incoming.is_over:
                raise stopping() from None
            raise Refusal("timed_out", f"the body did not arrive within {seconds:.0f} s") from None
        finally:
            self.incoming.waits.discard(wait)

    def check_encoding(self) -> None:
        """Refuse a compressed body.

        Raises:
            Refusal: it is.
        """
        if self._headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Refusal("unsupported", "the body must not be compressed")

    def check_whole(self, size: int) -> None:
        """Refuse a body of which a server has lost a part.

        An ASGI server other than ours may end a request at its headers if they offer an upgrade,
        as every HTTP/2 client does at first.

        Args:
            size: bytes that have come.

        Raises:
            Refusal: the headers announce more.
        """
        length = self._headers.get(b"content-length", b"")
        if length.isdigit():
            is_lost = size < int(length)
        else:
            is_lost = not size and self._headers.keys() >= {b"upgrade", b"transfer-encoding"}
        if is_lost:
            raise Refusal(
                "malformed",
                "the body did not reach flowvec: the server that runs it lost it, as some do if a "
                "client offers to upgrade to HTTP/2. Ask by HTTP/1.1, or run `flowvec serve`",
            )

    async def _whole_body(self, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            while True:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                if size + len(part) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    self.check_whole(size + len(part))
                    return part if not parts else b"".join([*parts, part])
                parts.append(part)
                size += len(part)
                self.incoming.size += len(part)
                if self.incoming.is_full:
                    raise Refusal("overloaded", "too many large bodies come at once", None, 1.0)
        finally:
            self.incoming.size -= size

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
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def _watch(self, call: QueuedCall) -> None:
        """End the wait for a call when its client leaves, or its deadline passes."""
        try:
            async with asyncio.timeout(call.end - time.perf_counter()):
                if (await self.receive())["type"] != "http.disconnect":
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
