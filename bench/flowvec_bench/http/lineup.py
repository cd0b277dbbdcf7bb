"""Starts the servers of a run, with the settings that suit each best."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from flowvec.errors import FlowvecError, InputValueError
from flowvec_bench.http.contestants import Contestant, InProcess, Level, Loads, Served
from flowvec_bench.http.processes import ServerError, ServerProcess, answers
from flowvec_bench.http.registry import HttpServer
from flowvec_bench.peers.environments import make_environment
from flowvec_bench.peers.registry import FLOWVEC, Forms, Peer
from flowvec_bench.peers.runner import Runner
from flowvec_bench.workers import http_load
from flowvec_bench.workers.http_routes import ROUTES

__all__ = ["HttpLineup", "load_generator", "opened", "target_of"]

# Settings are chosen with so many callers, for so many seconds.
_CHOOSING = Level("callers", 64)
_CHOOSING_SECONDS = 2.0
_SHOWN = (
    "flowvec", "onnxruntime", "openvino", "uvicorn", "httptools", "uvloop", "torch", "transformers",
    "sentence-transformers", "infinity-emb", "optimum", "fastapi",
)  # fmt: skip


@dataclass(slots=True)
class HttpLineup:
    """What runs.

    Attributes:
        contestants: servers, and flowvec in process at the end.
        versions: versions of the relevant packages, by name.
        settings: arguments that were chosen, by name; of those who have a choice.
        errors: why the others do not run, by name.
    """

    contestants: list[Contestant] = field(default_factory=list)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def load_generator() -> Runner:
    """The load generator's process."""
    worker = Path(http_load.__file__)
    return Runner(Peer("the load generator", "http", ()), Path(sys.executable), "", {}, worker)


def target_of(url: str, route: str, model: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Where calls are sent.

    Args:
        url: of a server (`http://127.0.0.1:8080`), or with the path of a route.
        route: `openai` or `tei`.
        model: the model's name in calls.
        headers: more headers of each call.

    Raises:
        InputValueError: it is not an http:// address, or nobody answers there.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise InputValueError(f"{url} is not an address like http://127.0.0.1:8080")
    host, port = parts.hostname, parts.port or 80
    if not answers(host, port):
        raise InputValueError(f"nobody answers GET http://{host}:{port}/health")
    path = parts.path.rstrip("/") or ROUTES[route].path
    return {"host": host, "port": port, "route": route, "path": path, "model": model,
            "headers": dict(headers)}  # fmt: skip


@contextmanager
def opened(
    servers: Sequence[HttpServer],
    forms: Forms,
    options: Mapping[str, Any],
    loads: Loads,
    client: Runner,
    say: Callable[[str], object],
    headers: Mapping[str, str],
) -> Iterator[HttpLineup]:
    """Start servers, and flowvec in process; they end with the block.

    Args:
        servers: the servers; the first must start, others may fail.
        forms: the model in the forms that they read.
        options: facts about the model for engines.
        loads: the texts with which settings are chosen.
        client: the load generator.
        say: called with a line of text before each step.
        headers: more headers of each call.

    Raises:
        FlowvecError: the first does not start.
    """
    lineup = HttpLineup()
    try:
        for server in servers:
            say(f"starting {server.name}")
            try:
                served = _started(server, forms, lineup, loads, client, say, headers)
            except FlowvecError as error:
                if server is servers[0]:
                    raise
                say(str(error))
                lineup.errors[server.name] = str(error)
            else:
                served.pause()
                lineup.contestants.append(served)
        say("loading flowvec in process")
        peer = FLOWVEC["flowvec"]
        runner = Runner(
            peer, Path(sys.executable), str(forms.paths["bundle"]), {**options, **peer.options}
        )
        lineup.versions[InProcess.name] = runner.about
        lineup.contestants.append(InProcess(runner))
        yield lineup
    finally:
        for contestant in lineup.contestants:
            contestant.end()


def _started(
    server: HttpServer,
    forms: Forms,
    lineup: HttpLineup,
    loads: Loads,
    client: Runner,
    say: Callable[[str], object],
    headers: Mapping[str, str],
) -> Served:
    """A server with its best settings."""
    if server.form not in forms.paths:
        raise ServerError(f"{server.name} does not support this model's layers")
    environment = make_environment(server.requirements, (), say)
    found = environment.versions
    lineup.versions[server.name] = {name: found[name] for name in _SHOWN if name in found}
    values = {
        "python": str(environment.python),
        "bin": str(environment.python.parent),
        "model": str(forms.paths[server.form]),
        "length": str(forms.max_length),
    }

    def start(settings: tuple[str, ...]) -> Served:
        process = ServerProcess(server.name, [*server.command, *settings], values)
        url = f"http://127.0.0.1:{process.port}{server.path}"
        target = target_of(url, server.route, "bench", headers)
        return Served(server.name, client, target, process)

    settings = server.settings[0]
    if len(server.settings) > 1:
        settings = _best_settings(server, start, loads, say)
        lineup.settings[server.name] = " ".join(settings)
    return start(settings)


def _best_settings(
    server: HttpServer,
    start: Callable[[tuple[str, ...]], Served],
    loads: Loads,
    say: Callable[[str], object],
) -> tuple[str, ...]:
    """Those with which it answers most; settings with which it fails are left out.

    Raises:
        FlowvecError: it fails with all of them.
    """
    answered: dict[tuple[str, ...], int] = {}
    failure: FlowvecError | None = None
    for settings in server.settings:
        say(f"choosing settings of {server.name}: {' '.join(settings)}")
        try:
            served = start(settings)
            try:
                answered[settings] = _answered(served, loads)
            finally:
                served.end()
        except FlowvecError as error:
            say(str(error))
            failure = error
    if failure is not None and not answered:
        raise failure
    return max(answered, key=lambda settings: answered[settings])


def _answered(served: Served, loads: Loads) -> int:
    """Calls that it answers while its settings are chosen."""
    right = loads.vectors("callers")
    if not right.is_file():  # for the size of answers only
        np.save(right, served.vectors(loads, "callers"))
    return len(served.test(loads, _CHOOSING, _CHOOSING_SECONDS, 0)["waits"])
