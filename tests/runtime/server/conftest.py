"""A server that runs for real, on uvicorn and a socket, in a thread of the tests' process."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from flowvec import ClosedError, Encoder, Reranker
from tests.waiting import wait_until

WORDS = ["the", "cat", "a", "dog", "man", "sleeps", "eats", "on", "river", "house", "café", "猫"]


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of one to forty words; none is empty."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))) for _ in range(count)]


def is_closed(model: Any) -> bool:
    """Whether a model has been closed, and refuses calls."""
    try:
        model.encode_document([])
    except ClosedError:
        return True
    return False


@dataclass
class Running:
    """A running server.

    Attributes:
        url: its address.
        app: its application, which lives on the server's event loop.
        server: what runs it.
    """

    url: str
    app: Any
    server: Any
    loop: asyncio.AbstractEventLoop

    def client(self, **options: Any) -> Any:
        """A client of its routes."""
        httpx = pytest.importorskip("httpx", reason="needs the extra [serve]")
        return httpx.Client(base_url=self.url, timeout=600, trust_env=False, **options)

    def openai(self, **options: Any) -> Any:
        """OpenAI's client, which tries once."""
        openai = pytest.importorskip("openai", reason="needs the extra [serve]")
        given = {"api_key": "none", "max_retries": 0, "timeout": 600} | options
        return openai.OpenAI(base_url=f"{self.url}/v1", **given)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the server's event loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(600)


@contextmanager
def running(app: Any, **options: Any) -> Iterator[Running]:
    """Run an application until the end of the block."""
    from flowvec.server.running import Server

    server = Server(app, port=0, log_config=None, **{"grace": 600.0} | options)
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    def run() -> None:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield Running(f"http://127.0.0.1:{server.port}", app, server, loops[0])
    finally:
        server.stop()
        thread.join(900)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def server(tiny: Encoder, mini: Encoder, reranker: Reranker) -> Iterator[Running]:
    """Two encoders, of which `tiny` is the first and `org/mini` has a slash in its name; and a
    reranker."""
    pytest.importorskip("msgspec", reason="needs the extra [serve]")
    from flowvec.server import create_app

    with running(create_app({"tiny": tiny, "org/mini": mini}, {"sorts": reranker})) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[Any]:
    with server.client() as client:
        yield client
