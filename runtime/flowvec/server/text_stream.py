"""A stream of texts: read, computed and written at the pace of its client."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.encoder.options import EncodeOptions
from flowvec.server.body_stream import BodyStream
from flowvec.server.model_queue import Outcome, QueuedCall
from flowvec.server.refusal import AnswerCut, Reason, Refusal, stopping
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_model import ServedEncoder
from flowvec.server.stream_input import Block, StreamInput
from flowvec.server.stream_lines import Format, Line, StreamQuery, written

__all__ = ["TextStream"]

Vectors = npt.NDArray[Any]

# Lines whose vectors are not sent yet.
_LINES_AHEAD = 2048
# Seconds between two looks at whether the server stops.
_LOOK = 0.5
# What is wrong with one text rather than with the stream.
_OF_A_TEXT: tuple[Reason, ...] = ("invalid", "model_failed", "out_of_memory", "too_large")


class TextStream:
    """One request: lines come, wait as blocks for room, are computed, and are written."""

    def __init__(
        self,
        served: Served,
        request: Request,
        body: BodyStream,
        query: StreamQuery,
        model: ServedEncoder,
        options: EncodeOptions,
        format: Format,
    ) -> None:
        """A stream of which nothing has been read; arguments are those of the request."""
        self._served, self._request, self._body = served, request, body
        self._model, self._options, self._format = model, options, format
        self._skips = query.on_error == "skip"
        self.dim: int = query.dimensions or model.encoder.dim
        self._input: StreamInput
        self._next: Block | None = None  # waits for room
        self._pending: deque[Block] = deque()
        self._ahead = 0  # lines of pending blocks
        self._sent = 0  # number of the last line that was answered
        self._end: Line | None = None  # why there is no more
        self._since = 0.0  # when something last happened

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """What is sent, as it is ready.

        Raises:
            ClientGone: the client left.
            AnswerCut: a line failed, and float32 has no other way to say so.
        """
        most = self._served.settings.max_text_characters
        self._input = StreamInput(
            self._request, self._body, self._model, most, self.dim, skips=self._skips
        )
        self._model.queue.streams.enter(self)
        self._since = time.perf_counter()
        try:
            while not self._is_over():
                if self._pending and self._pending[0].is_done:
                    yield await self._piece(self._pending[0])
                elif not (self._read() or self._queue_block()):
                    await self._wait()
                    continue
                self._since = time.perf_counter()
            if self._end is not None:
                yield self._ending(self._end)
        finally:
            self._close()

    def _is_over(self) -> bool:
        if self._served.is_stopping:
            self._fail(stopping())
        if self._pending:
            return False
        return self._end is not None or (self._input.is_over and self._next is None)

    def _fail(self, refusal: Refusal) -> None:
        """End the stream when everything that was queued is answered."""
        if self._end is None:
            last = self._pending[-1].lines[-1].number if self._pending else self._sent
            self._end = Line(last + 1, "", refusal=refusal)

    def _give_up(self, refusal: Refusal) -> None:
        """End the stream after the last line that was answered."""
        self._drop_pending()
        self._end = None
        self._fail(refusal)

    def _close(self) -> None:
        self._input.close()
        self._model.queue.streams.leave(self)
        self._drop_pending()

    def _drop_pending(self) -> None:
        while self._pending:
            block = self._pop()
            if block.call is not None:
                self._model.queue.drop(block.call)

    def _pop(self) -> Block:
        """The first pending block, which counts no more."""
        block = self._pending.popleft()
        self._ahead -= len(block.lines)
        self._served.unsent_bytes -= self._bytes_of(block)
        return block

    def _bytes_of(self, block: Block) -> int:
        """Memory of its vectors."""
        return 4 * self.dim * len(block.lines)

    # --- computing ------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Read on if there is room for more lines; whether some came."""
        if self._next is not None or self._end is not None or self._ahead >= _LINES_AHEAD:
            return False
        try:
            return self._input.read()
        except Refusal as refusal:
            self._fail(refusal)
            return True

    def _queue_block(self) -> bool:
        """Queue the next block if there is room; whether one was."""
        if self._end is not None:
            return False
        block = self._next = self._next or self._input.block()
        if block is None or not self._has_room(block.cost):
            return False
        if texts := block.texts:
            try:
                block.call = self._put(texts)
            except Refusal as refusal:
                self._fail(refusal)
                return True
            repaired = sum(line.is_repaired and line.refusal is None for line in block.lines)
            self._served.count_replaced(self._request, self._model, repaired)
        self._next = None
        if block.lines:
            self._pending.append(block)
            self._ahead += len(block.lines)
            self._served.unsent_bytes += self._bytes_of(block)
        self._end = block.ending
        return True

    def _has_room(self, cost: int) -> bool:
        served, queue = self._served, self._model.queue
        if self._ahead >= _LINES_AHEAD:
            return False
        if self._ahead and served.unsent_bytes > served.settings.max_unsent_bytes:
            return False
        return not cost or (
            queue.streams.fits(self, cost) and queue.has_room(self._request.key, cost)
        )

    def _put(self, texts: list[str]) -> QueuedCall:
        now = time.perf_counter()
        end = min(self._request.client_end(), now + self._served.settings.timeout)
        queue, costs = self._model.queue, self._model.costs(texts)
        options = dict(self._options)
        call = queue.put(self._request.key, texts, costs, options, came=now, end=end)
        room, cost = queue.streams, call.cost
        room.hold(self, cost)
        call.done.add_done_callback(lambda _: room.release(self, cost))
        return call

    async def _wait(self) -> None:
        """Wait for a piece of the body, vectors, or room."""
        now = time.perf_counter()
        head = self._pending[0].call if self._pending else None
        others: list[asyncio.Future[Any]] = [] if head is None else [head.done]
        end = min(self._request.client_end(), now + _LOOK if head is None else head.end)
        if self._next is not None:
            others.append(self._model.queue.freed())
        elif head is None and now - self._since > self._served.settings.body_timeout:
            self._fail(Refusal("timed_out", "no line came for too long"))
            return
        if now >= end:
            self._give_up(Refusal("late", "the line was not answered before its deadline"))
            return
        await self._input.body.wait(others, min(_LOOK, end - now))

    # --- writing --------------------------------------------------------------------------------

    async def _piece(self, block: Block) -> bytes:
        """What is sent for the first pending block, whose vectors are there."""
        lines, vectors = block.lines, np.empty((0, self.dim), np.float32)
        if block.call is not None:
            error = block.call.done.exception()
            if error is None:
                vectors = self._counted(block.call.done.result(), len(block.texts))
            elif isinstance(error, Refusal) and error.reason in _OF_A_TEXT:
                lines, vectors = await self._one_by_one(block, error)
            else:
                self._give_up(error if isinstance(error, Refusal) else stopping())
                return b""
        if self._pending:
            self._pop()
        if lines:
            self._sent = lines[-1].number
        return written(lines, vectors, self._format)

    async def _one_by_one(self, block: Block, error: Refusal) -> tuple[list[Line], Vectors]:
        """Lines and vectors of a block of which one text fails: each is computed by itself."""
        rows: list[Vectors] = []
        given = [line for line in block.lines if line.refusal is None]
        for line in given:
            refusal = error if len(given) == 1 else None
            if refusal is None:
                try:
                    rows.append(await self._vector(line.text))
                except Refusal as failed:
                    refusal = failed
            if refusal is None:
                continue
            refusal.message = refusal.message.replace("item 0", "the text")
            if self._skips and refusal.reason in _OF_A_TEXT:
                line.refusal = refusal
                continue
            self._drop_pending()
            self._end = Line(line.number, "", line.id, refusal)
            kept = block.lines[: block.lines.index(line)]
            return kept, np.reshape(rows, (-1, self.dim))
        return block.lines, np.reshape(rows, (-1, self.dim))

    async def _vector(self, text: str) -> Vectors:
        """The vector of one text, (1, dim).

        Raises:
            Refusal: it fails.
        """
        cost = int(self._model.costs([text])[0])
        while not self._model.queue.has_room(self._request.key, cost):
            await self._input.body.wait([self._model.queue.freed()], _LOOK)
        call = self._put([text])
        try:
            while not call.done.done():
                await self._input.body.wait([call.done], _LOOK)
                if time.perf_counter() > call.end:
                    raise Refusal("late", "the line was not answered before its deadline")
            return self._counted(call.done.result(), 1)
        finally:
            self._model.queue.drop(call)

    def _counted(self, outcome: Outcome, texts: int) -> Vectors:
        self._served.count(self._request, self._model, texts, outcome)
        vectors: Vectors = outcome.results
        return vectors

    def _ending(self, line: Line) -> bytes:
        """The last line, which says why there is no more."""
        assert line.refusal is not None
        if self._format == "float32":
            raise AnswerCut(line.refusal)
        return written([line], np.empty((0, self.dim), np.float32), self._format)
