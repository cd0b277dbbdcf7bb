"""Hostile input for every route of `flowvec serve`, over real sockets.

    python -m tests.faults.hostile --requests 10000 --seed 0 [--routes PART]

Requests whose bytes, headers, chunks or bodies are broken, with huge numbers, NaN, deep nesting
and halves of surrogate pairs. The server must answer with a reason, or cut the connection: never
500, never an end of the process. `tests/integrations/test_schemathesis.py` sends what the OpenAPI
document allows, and what it forbids.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from flowvec.server.described import description_of
from flowvec.server.routes import ROUTES
from tests.faults.served.garbage import odd_request
from tests.faults.served.wire import Cut, NotBegun, NotHttp, Wire
from tests.faults.served.world import RERANKER
from tests.runtime.server.test_openapi import BODIES, path_of
from tests.serving import port_of, served

__all__ = ["WORDS", "Result", "campaign"]

# What `flowvec serve` gets, besides a collection `notes`.
TINY = RERANKER.parent / "tiny"
SPARSE = RERANKER.parent / "sparse"
WORDS = (
    f"tiny={TINY}", "mini", f"words={SPARSE}", "--reranker", f"sorts={RERANKER}",
    "--provider", "cpu",
)  # fmt: skip
# Connections at a time.
_AT_ONCE = 32
# A request whose end is missing gets no answer before the server cuts it.
_PATIENCE = 0.5


@dataclass
class Result:
    """Counts of a campaign.

    Attributes:
        sent: requests by route.
        outcomes: statuses, or how the connection ended.
        wrong: requests with an answer that must not be.
    """

    sent: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


async def once(port: int, data: bytes, result: Result) -> None:
    """Send a request, and look at its answer."""
    wire = Wire(port)
    said = "no answer"
    try:
        await wire.send(data)
        async with asyncio.timeout(_PATIENCE):
            reply = await wire.reply()
        said = str(reply.status)
        # One of the odd headers names a deadline of a second, which may pass.
        is_late = reply.status == 504 and b"timeout-ms: 1_000" in data
        if reply.status >= 500 and not is_late:
            result.wrong.append(f"{data[:600]!r}: {reply.status} {reply.body[:300]!r}")
    except NotBegun:
        said = "closed"
    except Cut as error:
        said = "cut"
        # The answer to HEAD has a length and no body, and a stream is answered before its end.
        if not data.startswith(b"HEAD ") and b"/v1/embed-stream" not in data:
            result.wrong.append(f"{data[:600]!r}: {error}")
    except NotHttp as error:
        said = "not HTTP"
        result.wrong.append(f"{data[:600]!r}: {error}")
    except TimeoutError:
        said = "waits for more"
    finally:
        wire.close()
    result.outcomes[said] += 1


async def attack(port: int, requests: int, seed: int, result: Result, part: str) -> None:
    """So many requests for each route, and a plain one after each route."""
    for route in ROUTES:
        if part not in route.path:
            continue
        draw = random.Random(f"{seed} {route.method} {route.path}")
        valid = BODIES.get(route.path, {"inputs": "a"}) if description_of(route.run).takes else {}
        path = path_of(route)
        data = (odd_request(draw, route.method, path_of(route), valid) for _ in range(requests))

        async def some(data: Iterator[bytes]) -> None:
            for each in data:
                await once(port, each, result)

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(some(data))
        result.sent[f"{route.method} {route.path}"] += requests
        wire = Wire(port)
        for method, path in (("GET", "/health"), ("POST", "/embed")):
            body = {"inputs": "a cat"} if method == "POST" else None
            reply = await wire.ask(method, path, body)
            if reply.status != 200:
                result.wrong.append(f"after {route.path}: {reply.status} {reply.body[:300]!r}")
        wire.close()


def campaign(requests: int, seed: int, folder: Path, part: str = "") -> Result:
    """Requests for each route whose path contains `part`."""
    result = Result()
    with served(folder, *WORDS, "--collection", f"notes={folder / 'notes'}") as (url, process, log):
        asyncio.run(attack(port_of(url), requests, seed, result, part))
        if process.poll() is not None:
            result.wrong.append(f"the server ended: {process.returncode}")
        if "Traceback" in log.read_text():
            result.wrong.append(log.read_text()[-3000:])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routes", default="")
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flowvec-") as temporary:
        folder = Path(temporary)
        result = campaign(arguments.requests, arguments.seed, folder, arguments.routes)
    figures = {
        "seed": arguments.seed, "routes": len(result.sent), "sent": sum(result.sent.values()),
        "outcomes": dict(result.outcomes.most_common()), "wrong": len(result.wrong),
        "examples": result.wrong[:10], "seconds": round(time.monotonic() - begun),
        "when": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip
    print(json.dumps(figures, indent=1))
    if result.wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
