"""Lines of a stream as they come, and blocks of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from flowvec.server.body_stream import BodyStream
from flowvec.server.line_reader import LineReader
from flowvec.server.model_queue import QueuedCall
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served_model import ServedEncoder
from flowvec.server.stream_lines import Line, line_of

__all__ = ["Block", "StreamInput"]

# Texts of a block, which are written as one piece; with long vectors, fewer.
_TEXTS = 256
_NUMBERS = 1 << 17
# A byte may be written as \u0041, and there is room for the other fields.
_BYTES_PER_CHARACTER = 6
_OTHER_FIELDS = 4096


@dataclass(slots=True, eq=False)
class Block:
    """Lines that are embedded and written together.

    Attributes:
        lines: in order.
        cost: estimated tokens of the texts.
        ending: a line after these that ends the stream.
        call: embeds them; None if all lines are refused, and before it is queued.
    """

    lines: list[Line] = field(default_factory=list)
    cost: int = 0
    ending: Line | None = None
    call: QueuedCall | None = None

    @property
    def texts(self) -> list[str]:
        """The texts of lines that are not refused."""
        return [line.text for line in self.lines if line.refusal is None]

    @property
    def is_done(self) -> bool:
        """Whether its vectors are there."""
        return self.call is None or self.call.done.done()


class StreamInput:
    """Lines of a request's body, of which one piece is in memory at a time.

    Attributes:
        body: the pieces.
    """

    def __init__(
        self,
        request: Request,
        body: BodyStream,
        model: ServedEncoder,
        most_characters: int,
        dim: int,
        *,
        skips: bool,
    ) -> None:
        """Nothing was taken yet.

        Args:
            request: whose body it is.
            body: its pieces.
            model: estimates the tokens of a text.
            most_characters: of a text.
            dim: length of a vector.
            skips: go on after a line that is not valid.
        """
        self.body = body
        self._request, self._incoming = request, request.incoming
        self._model, self._most_characters, self._skips = model, most_characters, skips
        self._most_texts = max(1, min(_TEXTS, _NUMBERS // dim))
        self._reader = LineReader(most_characters * _BYTES_PER_CHARACTER + _OTHER_FIELDS)
        self._lines: deque[tuple[int, bytes | None]] = deque()
        self._held = 0  # bytes of an unfinished line
        self._size = 0  # bytes that have come

    @property
    def is_over(self) -> bool:
        """Whether all lines were taken."""
        return self.body.is_over and not self._lines

    def read(self) -> bool:
        """Take a piece of the body, unless lines of the last one wait; whether there was one.

        Raises:
            ClientGone: the client left.
            Refusal: too much of bodies is in memory, or part of this one is lost.
        """
        piece = None if self._lines or self.body.is_over else self.body.take()
        if piece is None:
            return False
        self._lines.extend(self._reader.feed(piece))
        self._size += len(piece)
        if self.body.is_over:
            self._request.check_whole(self._size)
            self._lines.extend(self._reader.end())
        self._count_bytes(self._reader.held_bytes)
        if self._held and self._incoming.is_full:
            raise Refusal("overloaded", "too many large bodies come at once", None, 1.0)
        return True

    def _count_bytes(self, held: int) -> None:
        self._incoming.size += held - self._held
        self._held = held

    def block(self) -> Block | None:
        """A block of lines that have come; None if there are none."""
        block = Block()
        most = self._model.queue.most_of_a_call
        while self._lines and len(block.lines) < self._most_texts:
            line = line_of(*self._lines[0], self._most_characters)
            cost = int(self._model.costs([line.text])[0]) if line.refusal is None else 0
            if cost > most:
                line.refusal = Refusal("too_large", "the text is longer than the queue")
                cost = 0
            if block.lines and block.cost + cost > most // 4:
                break
            self._lines.popleft()
            if line.refusal is not None and not self._skips:
                block.ending = line
                break
            block.lines.append(line)
            block.cost += cost
        return block if block.lines or block.ending else None

    def close(self) -> None:
        """Read no more."""
        self.body.close()
        self._count_bytes(0)
