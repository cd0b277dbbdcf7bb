"""Whether the server lives, is ready and is healthy: from state, never through a queue."""

from __future__ import annotations

from flowvec.server.answer import Answer, json_answer
from flowvec.server.answer_types import Status
from flowvec.server.described import described
from flowvec.server.refusal import Refusal, stopping
from flowvec.server.request import Request
from flowvec.server.served import Served

__all__ = ["health", "live", "ready"]


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
    """Refuse if a model or a collection has a dead thread, or a model has answered nothing for too
    long."""
    for collection in served.collections.values():
        if dead := collection.dead_threads:
            raise Refusal("unhealthy", f"{collection.name}: {dead} threads have ended")
    for model in served.queues:
        if dead := model.queue.dead_threads:
            raise Refusal("unhealthy", f"{model.name}: {dead} worker threads have ended")
        seconds = model.queue.stalled_seconds()
        if seconds > served.settings.stall_timeout:
            raise Refusal(
                "unhealthy", f"{model.name}: requests wait, and nothing came for {seconds:.0f} s"
            )
