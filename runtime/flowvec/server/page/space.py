"""What a collection's model does to the space of its vectors."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from flowvec.projection.space import Space as MeasuredSpace
from flowvec.projection.space import SpaceFrame, space_frames
from flowvec.server.answer import Answer, json_answer
from flowvec.server.background_job import BackgroundJob
from flowvec.server.bodies import body_of, decoder
from flowvec.server.collections import chosen_of
from flowvec.server.described import described
from flowvec.server.page.bodies import Space, SpaceStart, SpaceState
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection

__all__ = ["start", "state"]

_START = decoder(SpaceStart)
_FIRST = 5.0
_JOB = "space"


@described(SpaceState, takes=SpaceStart)
async def start(served: Served, request: Request) -> Answer:
    """Measure a sample of the collection, unless that was done, and wait a moment for it."""
    body = await body_of(request, _START)
    chosen = chosen_of(served, request)
    job = chosen.jobs.get(_JOB)
    if job is not None and (body.again or job.failure):
        await chosen.end_job(_JOB)
    job = chosen.jobs.get(_JOB)
    if job is None:
        encoder = None if chosen.model is None else chosen.model.encoder
        frames = partial(space_frames, chosen.rows.collection, encoder, rows=body.texts)
        job = chosen.jobs[_JOB] = BackgroundJob(frames, "flowvec-space")
    await asyncio.to_thread(job.wait_for_state, min(_FIRST, request.seconds_left()))
    return json_answer(_state(chosen))


@described(SpaceState)
async def state(served: Served, request: Request) -> Answer:
    """How far it is, and the figures when it is done."""
    return json_answer(_state(chosen_of(served, request)))


def _state(chosen: ServedCollection) -> SpaceState:
    model, job = chosen.model, chosen.jobs.get(_JOB)
    frame: SpaceFrame | None = None if job is None else job.state
    made: SpaceState = {
        "stage": "none" if job is None else "waiting",
        "progress": 0.0,
        "message": "" if job is None else job.failure,
        "model": None if model is None else model.name,
        "transform": [] if model is None else list(model.encoder.info().transform),
    }
    if frame is not None:
        made |= {"stage": frame.stage, "progress": frame.progress}
        if frame.after is not None:
            before = None if frame.before is None else _as_json(frame.before)
            made |= {"texts": list(frame.texts), "before": before, "after": _as_json(frame.after)}
    if job is not None and job.failure:
        made["stage"] = "failed"
    return made


def _as_json(space: MeasuredSpace) -> Space:
    positions: Any = space.positions.tolist()
    return {
        "mean_cosine": space.evenness.mean_cosine,
        "isoscore": space.evenness.isoscore,
        "spectrum": list(space.evenness.spectrum),
        "positions": positions,
        "shares": list(space.shares),
    }
