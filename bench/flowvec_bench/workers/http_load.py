"""The load generator of `flowvec bench http`, in a process of its own.

Commands, see `lines.py`; `texts.json` holds a list of texts for each call, and `target` is where to
send them (`host`, `port`, `route`, `path`, `model`, `headers`):

    {"do": "load"}
    {"do": "vectors", "target": {...}, "texts": "texts.json", "save": "vectors.npy"}
    {"do": "load-test", "target": {...}, "texts": "texts.json", "vectors": "vectors.npy",
     "seconds": 3, "callers": 64}
    {"do": "load-test", ... with "rate": 50, "seed": 0, "patience": 3 instead of "callers"}
    {"do": "beside", "texts": "texts.json", "seconds": 3, "rate": 50, "share": 0.1, "answer": 900}
    {"do": "end"}

`vectors` are those that every answer must hold, for all texts in turn: some answers of a test are
compared with them. `beside` sends calls to a server that answers at once, at most so many per
second and with at most that share of a core: what the client of a test costs by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec_bench.workers import lines
from flowvec_bench.workers.canned_server import CannedServer
from flowvec_bench.workers.http_client import Call, Client, ClientError, HttpLoad
from flowvec_bench.workers.http_routes import ROUTES, call_of
from flowvec_bench.workers.load import arrivals

__all__ = ["main"]

Floats = npt.NDArray[np.float32]
Command = dict[str, Any]

# Seconds before each test in which its calls are sent and not counted.
_WARM_SECONDS = 0.3
# One answer of so many is compared with the vectors that it must hold.
_COMPARED = 20
# Seconds without an answer after which a server is given up, where nothing is timed.
_MOST_SECONDS = 120.0
_ARRIVALS_CONNECTIONS = 512


class Texts:
    """Files of texts, which are read once."""

    def __init__(self) -> None:
        self._read: dict[str, list[list[str]]] = {}

    def __getitem__(self, path: str) -> list[list[str]]:
        if path not in self._read:
            self._read[path] = json.loads(Path(path).read_text(encoding="utf-8"))
        return self._read[path]


def _vectors(texts: Texts, command: Command) -> Command:
    """Ask for the vectors of all texts, one call after another."""
    target, groups = command["target"], texts[command["texts"]]
    calls = [call_of(target, group, 0) for group in groups]
    answers = _each_once(target, calls)
    rows = [ROUTES[target["route"]].vectors(body) for body in answers]
    for row, group in zip(rows, groups, strict=True):
        if row.shape != (len(group), rows[0].shape[1]):
            raise ClientError(f"{len(group)} texts were answered by an array of {row.shape}")
    np.save(command["save"], np.concatenate(rows))
    return {}


def _each_once(target: Mapping[str, Any], calls: list[Call]) -> list[bytes]:
    """The body of the answer to each call."""
    bodies = []
    for call in calls:
        client = Client((target["host"], target["port"]), [call], keep_every=1)
        load = client.open([0.0], _MOST_SECONDS, 1)
        if not load.kept:
            why = f"status {next(iter(load.statuses))}" if load.statuses else "no answer"
            raise ClientError(f"{target['path']} gave {why}")
        bodies.append(load.kept[0][1])
    return bodies


def _load_test(texts: Texts, command: Command) -> Command:
    """Run callers, or arrivals."""
    target, groups = command["target"], texts[command["texts"]]
    vectors: Floats = np.load(command["vectors"])
    calls = [call_of(target, group, vectors.shape[1]) for group in groups]
    client = Client((target["host"], target["port"]), calls, keep_every=_COMPARED)
    callers, patience = command.get("callers"), command.get("patience", _MOST_SECONDS)
    client.closed(callers or 8, _WARM_SECONDS, _MOST_SECONDS)
    if callers is not None:
        load = client.closed(callers, command["seconds"], patience)
    else:
        moments = arrivals(command["rate"], command["seconds"], command["seed"])
        load = client.open(moments, patience, _ARRIVALS_CONNECTIONS)
    starts = np.cumsum([0, *map(len, groups)])
    right = {i: vectors[starts[i] : starts[i + 1]] for i, _ in load.kept}
    return _figures(load) | {"min_cosine": _least_cosine(ROUTES[target["route"]], load, right)}


def _figures(load: HttpLoad) -> Command:
    return {
        "waits": [round(wait, 6) for wait in load.waits],
        "seconds": load.seconds,
        "unanswered": load.unanswered,
        "statuses": {str(status): count for status, count in load.statuses.items()},
        "wrong": load.wrong,
        "lost": load.lost,
        "compared": len(load.kept),
        "processor": load.processor_seconds / load.seconds,
        "answer_bytes": load.answer_bytes,
    }


def _least_cosine(route: Any, load: HttpLoad, right: Mapping[int, Floats]) -> float | None:
    """The smallest cosine of the kept answers to the right vectors; None if none was kept."""
    least: float | None = None
    for number, body in load.kept:
        try:
            vectors = route.vectors(body)
        except (ValueError, KeyError, TypeError):
            return -1.0
        if vectors.shape != right[number].shape:
            return -1.0
        cosines = (vectors * right[number]).sum(axis=1) / (
            np.linalg.norm(vectors, axis=1) * np.linalg.norm(right[number], axis=1)
        )
        worst = float(cosines.min())
        # NaN is not above anything, so it is the least.
        least = worst if least is None or not worst >= least else least
    return least


def _beside(texts: Texts, command: Command) -> Command:
    """Send calls to a server that answers at once, with the load of an earlier test."""
    groups = texts[command["texts"]]
    target = {"host": "127.0.0.1", "port": 0, "route": "openai", "path": "/", "model": "",
              "headers": {}}  # fmt: skip
    calls = sorted((call_of(target, group, 0) for group in groups), key=lambda c: len(c.content))
    call = calls[len(calls) // 2]
    body = b"0" * command["answer"]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    server = CannedServer(len(call.content), head % len(body) + body)
    try:
        client = Client(server.address, [call])
        began: list[tuple[float, float]] = []
        share = float(command["share"])

        def may_send() -> bool:
            now, used = time.perf_counter(), time.process_time()
            began.append((now, used))  # the first counts, after connections were made
            del began[1:]
            return used - began[0][1] <= share * (now - began[0][0])

        moments = arrivals(command["rate"], command["seconds"], 0)
        return _figures(client.open(moments, 5.0, _ARRIVALS_CONNECTIONS, may_send)) | {"waits": []}
    finally:
        server.close()


WORKS = {"vectors": _vectors, "load-test": _load_test, "beside": _beside}


def main() -> None:
    """Serve commands until the end."""
    lines.serve(lambda _: Texts(), lambda texts, command: WORKS[command["do"]](texts, command))


if __name__ == "__main__":
    main()
