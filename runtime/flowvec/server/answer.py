"""An answer, and how it is sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flowvec.server.model_queue import Outcome
from flowvec.server.request import Request, Send

__all__ = [
    "JSON", "Answer", "Body", "Header", "StageTimes", "blocks_answer", "json_answer",
    "outcome_headers", "vectors_answer",
]  # fmt: skip

JSON = b"application/json"

Header = tuple[bytes, bytes]
# The whole body; or blocks of it, which are made while they are sent.
Body = bytes | Iterator[bytes] | AsyncIterator[bytes]

# An answer of more numbers is sent in blocks, without its length.
_WHOLE = 1 << 19

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class Answer:
    """What a route answers.

    Attributes:
        body: as bytes, or in blocks.
        status: HTTP status.
        kind: its content type.
        headers: others than content type and length.
        held_bytes: memory that it holds until it is sent.
    """

    body: Body
    status: int = 200
    kind: bytes = JSON
    headers: list[Header] = field(default_factory=list)
    held_bytes: int = 0

    async def send(self, request: Request, send: Send) -> None:
        """Send it."""
        headers = [
            (b"content-type", self.kind),
            (b"x-request-id", request.id.encode("ascii")),
            *self.headers,
        ]
        body = self.body
        if isinstance(body, bytes):
            headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if isinstance(body, bytes):
            await send({"type": "http.response.body", "body": body})
            return
        if isinstance(body, AsyncIterator):
            try:
                async for block in body:
                    await _send_block(send, block)
            finally:
                if isinstance(body, AsyncGenerator):
                    await body.aclose()
        else:
            for block in body:
                await _send_block(send, block)
                await asyncio.sleep(0)  # others have their turn between blocks
        await send({"type": "http.response.body", "body": b""})


async def _send_block(send: Send, block: bytes) -> None:
    await send({"type": "http.response.body", "body": block, "more_body": True})


def json_answer(value: Any, headers: list[Header] | None = None) -> Answer:
    """An answer of anything that msgspec can encode."""
    return Answer(_encode(value), headers=headers or [])


def vectors_answer(outcome: Outcome, blocks: Iterator[bytes], headers: list[Header]) -> Answer:
    """An answer of vectors in one array."""
    results = outcome.results
    return blocks_answer(blocks, results.size, results.nbytes, headers)


def blocks_answer(
    blocks: Iterator[bytes], numbers: int, held_bytes: int, headers: list[Header]
) -> Answer:
    """An answer of so many numbers, whose blocks are made while it is sent if there are many.

    Args:
        blocks: the body.
        numbers: how many it has.
        held_bytes: memory that they take.
        headers: as for `Answer`.
    """
    if numbers <= _WHOLE:
        return Answer(b"".join(blocks), headers=headers)
    return Answer(blocks, headers=headers, held_bytes=held_bytes)


def outcome_headers(
    request: Request, outcome: Outcome, characters: int, fingerprint: str
) -> list[Header]:
    """What a computed answer took: Text Embeddings Inference's headers, and finer ones."""
    total = time.perf_counter() - request.came
    times = (outcome.tokenize_seconds, outcome.queue_seconds, outcome.compute_seconds, total)
    tokenize, queue, compute, all_of_it = (1e3 * seconds for seconds in times)
    return [
        (b"x-compute-type", b"flowvec"),
        (b"x-compute-time", b"%d" % all_of_it),
        (b"x-compute-characters", b"%d" % characters),
        (b"x-compute-tokens", b"%d" % outcome.tokens),
        (b"x-total-time", b"%d" % all_of_it),
        (b"x-tokenization-time", b"%d" % tokenize),
        (b"x-queue-time", b"%d" % queue),
        (b"x-inference-time", b"%d" % compute),
        (
            b"server-timing",
            b"tokenize;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f"
            % (tokenize, queue, compute, all_of_it),
        ),
        (b"x-flowvec-truncated", b"%d" % outcome.truncated),
        (b"x-flowvec-replaced", b"%d" % request.spent.replaced),
        (b"x-flowvec-fingerprint", fingerprint.encode("ascii")),
    ]


class StageTimes:
    """How long each stage of a request took, for the header `server-timing`."""

    def __init__(self, came: float) -> None:
        """A request that came at this time, by `time.perf_counter`."""
        self._came = came
        self._seconds: dict[str, float] = {}

    def add(self, stage: str) -> None:
        """The stage that ends now began when the one before it ended; of equal stages, the sum."""
        self._add(stage, time.perf_counter() - self._came - sum(self._seconds.values()))

    def add_outcome(self, outcome: Outcome) -> None:
        """The stages of a model end now; waiting includes reading the body."""
        self._add("tokenize", outcome.tokenize_seconds)
        self._add("compute", outcome.compute_seconds)
        self.add("queue")

    def _add(self, stage: str, seconds: float) -> None:
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def header(self) -> Header:
        """Milliseconds of each stage and of the whole."""
        total = time.perf_counter() - self._came
        stages = [*self._seconds.items(), ("total", total)]
        parts = [f"{name};dur={max(0.0, 1e3 * seconds):.3f}" for name, seconds in stages]
        return b"server-timing", ", ".join(parts).encode("ascii")
