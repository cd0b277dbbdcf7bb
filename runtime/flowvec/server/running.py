"""Runs the application on uvicorn: limits of connections, and an orderly stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from flowvec.compat import override
from flowvec.server.app import App
from flowvec.server.connections import Connection, ConnectionLimits, cut_slow
from flowvec.server.health import fault_of
from flowvec.server.heartbeat import Heartbeat
from flowvec.server.refusal import Refusal
from flowvec.server.reload import reload_models

__all__ = ["Server"]

logger = logging.getLogger(__name__)

# Ticks of uvicorn's loop, of .1 s, between two looks at slow connections.
_TICKS = 10
# Seconds that a body which is on its way has left when new work is refused.
_BODY_SECONDS = 1.0
# Seconds after the grace time at which a process that hangs is ended.
_LAST_SECONDS = 5.0


class Server(uvicorn.Server):
    """A server of one application, in one process.

    The first SIGTERM or SIGINT begins an orderly stop: `/ready` fails; after `ready_delay` new work
    is refused with 503, a second later also requests whose body is not complete; when everything
    that was taken in is answered, or the grace time is over, the process ends. A second signal ends
    it at once. SIGHUP loads the models again.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        grace: float = 30.0,
        ready_delay: float = 0.0,
        keep_alive: int = 75,
        limits: ConnectionLimits | None = None,
        heartbeat: Heartbeat | None = None,
        **options: Any,
    ) -> None:
        """A server that does not run yet.

        Args:
            app: what answers.
            host: address to listen on.
            port: port to listen on; 0 is any that is free.
            grace: seconds in which requests are answered after a signal.
            ready_delay: seconds for which `/ready` already fails and work is still taken, so that a
                load balancer has time to notice.
            keep_alive: seconds for which an idle connection is kept; longer than those of the load
                balancer in front.
            limits: of connections.
            heartbeat: what the event loop tells other threads, for a HealthPort.
            **options: others of `uvicorn.Config`.
        """
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=cast(Any, partial(Connection, limits=limits or ConnectionLimits())),
            ws="none",
            loop="auto",
            lifespan="on",
            access_log=False,
            server_header=False,
            timeout_keep_alive=keep_alive,
            backlog=4096,
            **options,
        )
        super().__init__(config)
        self._app, self._served = app, app.served
        self._grace = grace
        self._ready_delay = ready_delay
        self._heartbeat = heartbeat or Heartbeat()
        self._stop_began: float | None = None
        self._reloads: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    def stop(self) -> None:
        """Begin an orderly stop, from any thread or a signal's handler; twice ends it at once."""
        if self._stop_began is not None:
            self.should_exit = self.force_exit = True
            return
        self._served.is_leaving = True
        self._stop_began = time.monotonic()

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal."""
        if self._stop_began is None:
            # A thread inside an engine that hangs cannot be ended in another way.
            timer = threading.Timer(self._grace + _LAST_SECONDS, os._exit, (1,))
            timer.daemon = True
            timer.start()
        self.stop()

    @override
    async def startup(self, sockets: Any = None) -> None:
        """Listen, and load the models again at each SIGHUP."""
        is_main = threading.current_thread() is threading.main_thread()
        handles_hangup = is_main and hasattr(signal, "SIGHUP")
        early: list[int] = []
        if handles_hangup:
            # Before the server says that it runs: until then the signal would end the process.
            signal.signal(signal.SIGHUP, lambda number, _: early.append(number))
        await super().startup(sockets)
        self._heartbeat.start(partial(fault_of, self._served))
        if self.servers and self._served.settings.page:
            logger.info(
                "the page: open http://%s:%d/ in a browser",
                _address_of(self.config.host),
                self.port,
            )
        if handles_hangup:
            loop = asyncio.get_running_loop()
            begin = partial(loop.call_soon_threadsafe, self._begin_reload)
            # As uvicorn does with SIGTERM; with a handler of the loop as well, uvloop can crash.
            signal.signal(signal.SIGHUP, lambda *_: begin())
            if early:
                self._begin_reload()

    def _begin_reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        try:
            await reload_models(self._served)
        except Refusal as refusal:
            logger.error("reload: %s", refusal.message)
        except Exception:
            logger.exception("reload")

    @override
    async def on_tick(self, counter: int) -> bool:
        """Look at slow connections, and whether the stop is complete."""
        if counter % _TICKS == 0:
            cut_slow(self.server_state.connections, asyncio.get_running_loop().time())
        is_over = await super().on_tick(counter)
        if self._stop_began is None or is_over:
            return is_over
        since = time.monotonic() - self._stop_began
        if since < self._ready_delay:
            return False
        self._served.is_stopping = True
        if since >= self._ready_delay + _BODY_SECONDS:
            self._app.end_bodies()
        return self._served.running == 0 or since >= self._grace

    @override
    async def shutdown(self, sockets: Any = None) -> None:
        """Close connections; answers that are being sent have until the end of the grace time."""
        self._served.is_leaving = self._served.is_stopping = True
        began = time.monotonic() if self._stop_began is None else self._stop_began
        left = self._grace - (time.monotonic() - began)
        self.config.timeout_graceful_shutdown = max(1, round(left))
        await super().shutdown(sockets)


def _address_of(host: str) -> str:
    """What a browser on this machine opens, for the address that a server listens on."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - compared, not listened on
        return "localhost"
    return f"[{host}]" if ":" in host else host
