"""A body that is read while its answer is sent; a client that leaves is noticed in between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from flowvec.server.refusal import ClientGone
from flowvec.server.request import Receive

__all__ = ["BodyStream"]

_Message = Mapping[str, Any]


class BodyStream:
    """Pieces of a body, one at a time: the client waits until the piece before was taken.

    One read is always under way, because it is also what tells that the client left.

    Attributes:
        is_over: the whole body has come.
    """

    def __init__(self, receive: Receive) -> None:
        """Begin to read at the next turn of the event loop."""
        self._receive = receive
        self._ahead = self._read()
        self.is_over = False

    @classmethod
    async def begun(cls, receive: Receive) -> Self:
        """A body that is read before its answer begins, so that a client which waits for
        `100 Continue` is sent that, and sends the body."""
        body = cls(receive)
        await asyncio.sleep(0)
        return body

    def _read(self) -> asyncio.Task[_Message]:
        async def read() -> _Message:
            return await self._receive()

        return asyncio.get_running_loop().create_task(read())

    def take(self) -> bytes | None:
        """The piece that has come; None if there is none yet, or no more.

        Raises:
            ClientGone: the client left.
        """
        if not self._ahead.done():
            return None
        message = self._ahead.result()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if self.is_over:  # this server does not tell who leaves
            return None
        self.is_over = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        self._ahead = self._read()
        return piece

    async def wait(self, others: list[asyncio.Future[Any]], seconds: float) -> None:
        """Wait until the next piece has come, one of other futures is done, or some seconds
        passed; a piece that nobody has taken ends no wait.

        Raises:
            ClientGone: the client left.
        """
        waited = list(others) if self._ahead.done() else [*others, self._ahead]
        if waited:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)
        if self._ahead.done() and self._ahead.result()["type"] == "http.disconnect":
            raise ClientGone

    def close(self) -> None:
        """Read no more."""
        self._ahead.cancel()
