"""Clients that misbehave: they leave, dawdle, send garbage, or ask for far too much."""

from __future__ import annotations

import asyncio

from tests.faults.served.callers import Caller, Kind
from tests.faults.served.garbage import odd_request
from tests.faults.served.orderly import ORDERLY
from tests.faults.served.wire import Cut, NotBegun, Reply, Wire, request_bytes

__all__ = ["KINDS", "close_half_open"]

# Connections that are left half-open at a time; the server cuts them.
_HALF_OPEN = 32
_half_open: list[Wire] = []


async def leaves(caller: Caller) -> None:
    """Ask, and close the connection before the answer, or within it."""
    texts = [caller.texts[i] for i in caller.some() * caller.draw.choice([1, 40, 400])]
    wire = Wire(caller.wire.port)
    await wire.send(request_bytes("POST", "/embed", {"inputs": texts}))
    await asyncio.sleep(caller.draw.choice([0, 0, 0.002, 0.02]))
    wire.close(reset=caller.draw.random() < 0.5)


async def leaves_a_change(caller: Caller) -> None:
    """Close the connection while rows are added and deleted that nobody looks at."""
    ids = [f"left {caller.number} {i}" for i in caller.some()]
    rows = [{"id": each, "text": caller.texts[0]} for each in ids]
    wire = Wire(caller.wire.port)
    path, body = "/v1/collections/notes/rows", {"rows": rows}
    if caller.draw.random() < 0.5:
        path, body = f"{path}/delete", {"ids": ids}  # type: ignore[dict-item]
    await wire.send(request_bytes("POST", path, body))
    await asyncio.sleep(caller.draw.choice([0, 0.002, 0.02]))
    wire.close(reset=caller.draw.random() < 0.5)


async def sends_garbage(caller: Caller) -> None:
    """Any answer but 5xx, or none."""
    wire = Wire(caller.wire.port)
    body = {"inputs": caller.texts[0]}
    path = caller.draw.choice(["/embed", "/v1/embeddings", "/rerank", "/v1/collections/notes/rows"])
    try:
        await wire.send(odd_request(caller.draw, "POST", path, body))
        async with asyncio.timeout(0.5):
            reply = await wire.reply()
    except (NotBegun, Cut, TimeoutError):
        return
    finally:
        wire.close()
    caller.tally.statuses[str(reply.status)] += 1
    if reply.status >= 500 and reply.status not in (503, 504):
        caller.tally.add_wrong(f"status {reply.status}", reply.body[:200])


async def reads_slowly(caller: Caller) -> None:
    """Ask for megabytes, and read them piece by piece."""
    which = caller.some() * 200
    wire = Wire(caller.wire.port)
    try:
        texts = [caller.texts[i] for i in which]
        await wire.send(request_bytes("POST", "/embed", {"inputs": texts}))
        reply = await wire.reply(pause=0.01)
    finally:
        wire.close()
    check(caller, which, reply)


async def writes_slowly(caller: Caller) -> None:
    """Send a request in pieces."""
    which = caller.some()
    data = request_bytes("POST", "/embed", {"inputs": [caller.texts[i] for i in which]})
    wire = Wire(caller.wire.port)
    try:
        for piece in (data[:20], data[20:90], data[90:]):
            await wire.send(piece)
            await asyncio.sleep(0.01)
        reply = await wire.reply()
    finally:
        wire.close()
    check(caller, which, reply)


async def stays_half_open(caller: Caller) -> None:
    """Begin a request, and say no more."""
    wire = Wire(caller.wire.port)
    starts = [b"", b"POST /em", b"POST /embed HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"]
    await wire.send(caller.draw.choice(starts))
    _half_open.append(wire)
    if len(_half_open) > _HALF_OPEN:
        _half_open.pop(0).close()


def close_half_open() -> None:
    """Close them."""
    while _half_open:
        _half_open.pop().close()


def check(caller: Caller, which: list[int], reply: Reply) -> None:
    caller.tally.statuses[str(reply.status)] += 1
    if reply.status == 200:
        caller.check_vectors(which, reply.json())
    else:
        caller.check_refusal("/embed", reply, is_hurried=False)


async def greedy(caller: Caller) -> None:
    """Hundreds of texts, again at once when they are refused."""
    which = caller.some() * 100
    if reply := await caller.ask("/embed", {"inputs": [caller.texts[i] for i in which]}):
        caller.check_vectors(which, reply.json())


# How often of each kind, and what it does: those of callers too.
KINDS: dict[str, tuple[int, Kind]] = {
    **ORDERLY,
    "leaves": (3, leaves),
    "leaves a change": (2, leaves_a_change),
    "sends garbage": (3, sends_garbage),
    "reads slowly": (1, reads_slowly),
    "writes slowly": (2, writes_slowly),
    "stays half open": (1, stays_half_open),
    "greedy": (0, greedy),
}
