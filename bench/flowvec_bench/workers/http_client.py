"""Callers of an HTTP server: ready bytes, raw sockets, and one thread that waits for all of them.

It is light, so that a server on the same machine has the processor for itself. Waits for arrivals
have a resolution of microseconds, which event loops round up to milliseconds.
"""

from __future__ import annotations

import gc
import select
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httptools

__all__ = ["Call", "Client", "ClientError", "HttpLoad"]

_READ = selectors.EVENT_READ
_CONNECT_SECONDS = 10.0
# Connections that are open before the first arrival; more are opened when all are busy.
_READY_CONNECTIONS = 64
# Attempts in a row to connect again after a connection was lost.
_MOST_LOST = 100


class ClientError(RuntimeError):
    """The server cannot be reached."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is ready to be sent.

    Attributes:
        content: its bytes, headers included.
        least: the smallest body of a right answer, in bytes.
        most: the largest.
    """

    content: bytes
    least: int
    most: int


@dataclass(slots=True)
class HttpLoad:
    """Measurements of the callers.

    Attributes:
        waits: seconds of each call that was answered with status 200 and a body of a right size.
        seconds: from the first call to the last answer.
        unanswered: calls that were given up.
        statuses: other statuses, and how often each came.
        wrong: answers with status 200 and a body of another size.
        lost: calls whose connection ended before the answer.
        kept: bodies of some answers, each with the number of its call.
        processor_seconds: processor time of this process.
        answer_bytes: size of the last body that counted.
    """

    waits: list[float] = field(default_factory=list)
    seconds: float = 0.0
    unanswered: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    lost: int = 0
    kept: list[tuple[int, bytes]] = field(default_factory=list)
    processor_seconds: float = 0.0
    answer_bytes: int = 0


class _Connection:
    """A connection that is kept alive, with at most one call on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        try:
            self.socket = socket.create_connection(address, _CONNECT_SECONDS)
        except OSError as error:
            raise ClientError(f"cannot connect to {address[0]}:{address[1]}: {error}") from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.parser = httptools.HttpResponseParser(self)
        self.number: int | None = None
        self.since = 0.0
        self.size = 0
        self.body: list[bytes] | None = None
        self.unsent = memoryview(b"")
        self.is_complete = self.is_last = False

    def on_body(self, part: bytes) -> None:
        self.size += len(part)
        if self.body is not None:
            self.body.append(part)

    def on_message_complete(self) -> None:
        self.is_complete = True
        self.is_last = not self.parser.should_keep_alive()

    def begin(self, number: int, content: bytes, since: float, *, keep: bool) -> None:
        self.number, self.since, self.size = number, since, 0
        self.body = [] if keep else None
        self.is_complete = False
        self.unsent = memoryview(content)
        self.send()

    def send(self) -> None:
        """Send as much as the socket takes; raises OSError if the connection is lost."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass

    def read(self, space: memoryview) -> bool:
        """Read what has come; whether the answer is complete.

        Raises:
            OSError: the connection is lost.
        """
        try:
            size = self.socket.recv_into(space)
        except BlockingIOError:
            return False
        if not size:
            raise ConnectionResetError("the server closed the connection")
        try:
            self.parser.feed_data(space[:size])
        except httptools.HttpParserError as error:
            raise ConnectionResetError(f"the answer is not HTTP: {error}") from None
        return self.is_complete


class Client:
    """Sends calls to one server. It is not safe for threads."""

    def __init__(
        self, address: tuple[str, int], calls: Sequence[Call], keep_every: int = 0
    ) -> None:
        """No connection is open yet.

        Args:
            address: host and port.
            calls: what to send, in turn.
            keep_every: of so many answers, the body of the first is kept; 0 keeps none.
        """
        self._address = address
        self._calls = calls
        self._keep_every = keep_every
        self._space = memoryview(bytearray(1 << 18))
        self._begun = self._lost_in_a_row = 0
        self._selector = selectors.DefaultSelector()
        self._open: set[_Connection] = set()
        self.load = HttpLoad()

    # --- loads ----------------------------------------------------------------------------------

    def closed(self, callers: int, seconds: float, patience: float) -> HttpLoad:
        """Run callers, each of whom sends its next call when it has the answer to the last.

        Args:
            callers: how many.
            seconds: until no more is sent.
            patience: seconds after which calls are given up.
        """

        def run() -> None:
            places = {}
            for first in range(callers):
                connection = self._connect()
                places[connection] = first
                self._send(connection, first, time.perf_counter())
            end = time.perf_counter() + seconds
            while places and (left := end + patience - time.perf_counter()) > 0:
                for old, connection in self._finished(left):
                    place = places.pop(old) + callers
                    now = time.perf_counter()
                    if now < end:
                        places[connection] = place
                        self._send(connection, place, now)
            self.load.unanswered = len(places)

        return self._measured(run)

    def open(
        self,
        moments: Sequence[float],
        patience: float,
        most: int,
        may_send: Callable[[], bool] | None = None,
    ) -> HttpLoad:
        """Send a call at each moment. A wait starts at the moment, also if the call is sent later.

        Args:
            moments: seconds from the start, ascending.
            patience: seconds after the last moment at which calls are given up.
            most: connections; if all are busy, calls wait for one.
            may_send: asked before each call; if it says no, the call is left out.
        """

        def run() -> None:
            idle = [self._connect() for _ in range(min(most, _READY_CONNECTIONS))]
            arrived: deque[int] = deque()
            place, started = 0, time.perf_counter()
            end = (moments[-1] if moments else 0.0) + patience
            while True:
                now = time.perf_counter() - started
                while place < len(moments) and moments[place] <= now:
                    if may_send is None or may_send():
                        arrived.append(place)
                    place += 1
                while arrived and (idle or len(self._open) < most):
                    connection = idle.pop() if idle else self._connect()
                    number = arrived.popleft()
                    self._send(connection, number, started + moments[number])
                is_over = place == len(moments) and not arrived and len(idle) == len(self._open)
                if is_over or now >= end:
                    break
                until = moments[place] if place < len(moments) else end
                for old, connection in self._finished(until - now):
                    if old is not connection and old in idle:
                        idle.remove(old)
                    idle.append(connection)
            self.load.unanswered = len(arrived) + len(self._open) - len(idle)

        return self._measured(run)

    def _measured(self, run: Callable[[], None]) -> HttpLoad:
        self.load = load = HttpLoad()
        self._begun = 0
        gc.collect()
        gc.disable()
        began, used = time.perf_counter(), time.process_time()
        try:
            run()
        finally:
            load.seconds = time.perf_counter() - began
            load.processor_seconds = time.process_time() - used
            gc.enable()
            for connection in list(self._open):
                self._close(connection)
        return load

    # --- connections ----------------------------------------------------------------------------

    def _connect(self) -> _Connection:
        connection = _Connection(self._address)
        self._selector.register(connection.socket, _READ, connection)
        self._open.add(connection)
        return connection

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._open.discard(connection)

    def _replaced(self, connection: _Connection) -> _Connection:
        self._close(connection)
        return self._connect()

    def _send(self, connection: _Connection, place: int, since: float) -> None:
        number = place % len(self._calls)
        keep = bool(self._keep_every) and self._begun % self._keep_every == 0
        self._begun += 1
        try:
            connection.begin(number, self._calls[number].content, since, keep=keep)
        except OSError:
            return  # reading it tells, and counts it
        if connection.unsent:
            self._selector.modify(connection.socket, _READ | selectors.EVENT_WRITE, connection)

    def _finished(self, seconds: float) -> Iterator[tuple[_Connection, _Connection]]:
        """Connections whose answer has come, or that were lost, within some time.

        Each comes with the one to use from now on: the same, or a new one if it was closed.
        """
        # A selector rounds up to milliseconds, `select` does not.
        select.select([self._selector.fileno()], [], [], max(0.0, seconds))
        for key, events in self._selector.select(0):
            connection: _Connection = key.data
            try:
                if events & selectors.EVENT_WRITE:
                    connection.send()
                    if not connection.unsent:
                        self._selector.modify(connection.socket, _READ, connection)
                if not (events & _READ and connection.read(self._space)):
                    continue
            except OSError:
                is_idle, connection.number = connection.number is None, None
                if is_idle:  # the server closed it between two calls
                    yield connection, self._replaced(connection)
                    continue
                self.load.lost += 1
                self._lost_in_a_row += 1
                if self._lost_in_a_row > _MOST_LOST:
                    raise ClientError("the server closes every connection") from None
                yield connection, self._replaced(connection)
                continue
            self._count(connection)
            yield connection, self._replaced(connection) if connection.is_last else connection

    def _count(self, connection: _Connection) -> None:
        number = connection.number
        assert number is not None
        connection.number = None
        self._lost_in_a_row = 0
        call, load = self._calls[number], self.load
        status = connection.parser.get_status_code()
        if status != 200:
            load.statuses[status] += 1
        elif not call.least <= connection.size <= call.most:
            load.wrong += 1
        else:
            load.waits.append(time.perf_counter() - connection.since)
            load.answer_bytes = connection.size
            if connection.body is not None:
                load.kept.append((number, b"".join(connection.body)))
