"""Whether the server lives, is ready and is healthy: from state, never through a queue."""

from __future__ import annotations

from flowvec.server.answer import Answer, json_answer
from flowvec.server.answer_types import Status
from flowvec.server.described import described
from flowvec.server.refusal import Refusal, stopping
from flowvec.server.request import Request
from flowvec.server.served import Served

__all__ = ["fault_of", "health", "live", "ready"]


@described(Status)
async def live(served: Served, request: Request) -> Answer:
    """The process answers. Restart it if it does not."""
    return json_answer({"status": "live"})


@described(Status)
async def ready(served: Served, request: Request) -> Answer:
    """Requests can be sent here. It fails first when the server stops."""
    if served.is_leaving or served.is_stopping:
        raise stopping()
    _require_progress(served)
    return json_answer({"status": "ready"})


@described(Status)
async def health(served: Served, request: Request) -> Answer:
    """Every model makes progress."""
    _require_progress(served)
    return json_answer({"status": "healthy"})


def _require_progress(served: Served) -> None:
    fault = fault_of(served)
    if fault is not None:
        raise Refusal("unhealthy", fault)


def fault_of(served: Served) -> str | None:
    """Why there is no progress: a model or a collection has a dead thread, or a model has answered
    nothing for too long. None if nothing is wrong."""
    for collection in served.collections.values():
        if dead := collection.dead_threads:
            return f"{collection.name}: {dead} threads have ended"
    for model in served.queues:
        if dead := model.queue.dead_threads:
            return f"{model.name}: {dead} worker threads have ended"
        seconds = model.queue.stalled_seconds()
        if seconds > served.settings.stall_timeout:
            return f"{model.name}: requests wait, and nothing came for {seconds:.0f} s"
    return None
