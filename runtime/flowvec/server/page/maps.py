"""The map of a collection: starting it, its positions, and what its points are."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.collection import Collection
from flowvec.collection.store.rows import check_ids
from flowvec.projection.collection_map import MapFrame, map_frames
from flowvec.projection.colours import point_colours
from flowvec.server.answer import Answer, json_answer
from flowvec.server.background_job import BackgroundJob
from flowvec.server.bodies import body_of, decoder
from flowvec.server.collection_bodies import row_as_json
from flowvec.server.collections import chosen_of
from flowvec.server.described import described
from flowvec.server.page.bodies import (
    MapFields,
    MapIds,
    MapPoints,
    MapRows,
    MapRowsFound,
    MapStart,
    MapState,
    MapValues,
)
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection

__all__ = ["forget", "points", "positions", "rows", "start", "state", "values"]

_START, _FIELDS, _ROWS, _IDS = (
    decoder(MapStart), decoder(MapFields), decoder(MapRows), decoder(MapIds),
)  # fmt: skip
# Seconds for which a start waits for the first positions.
_FIRST = 10.0
_JOB = "map"


@described(MapState, takes=MapStart)
async def start(served: Served, request: Request) -> Answer:
    """Make a map, unless there is one, and wait a moment for its first positions."""
    body = await body_of(request, _START)
    chosen = chosen_of(served, request)
    job = chosen.jobs.get(_JOB)
    if body.halt:
        if job is not None:
            await asyncio.to_thread(job.stop)
        return json_answer(_state(chosen))
    if job is not None and (body.again or job.failure):
        await chosen.end_job(_JOB)
    job = chosen.jobs.get(_JOB)
    if job is None:
        frames = partial(map_frames, chosen.rows.collection, rows=body.rows, seed=body.seed)
        job = chosen.jobs[_JOB] = _Map(chosen.rows.collection, frames)
    patience = min(_FIRST, request.seconds_left())
    await asyncio.to_thread(job.wait_for_state, patience)
    return json_answer(_state(chosen))


@described(MapState)
async def state(served: Served, request: Request) -> Answer:
    """How far the map is."""
    return json_answer(_state(chosen_of(served, request)))


@described(MapState)
async def forget(served: Served, request: Request) -> Answer:
    """Stop making the map, and forget it."""
    chosen = chosen_of(served, request)
    await chosen.end_job(_JOB)
    return json_answer(_state(chosen))


@described(bytes)
async def positions(served: Served, request: Request) -> Answer:
    """Positions of the points: x and y of each as little-endian float32; empty without a map."""
    job = chosen_of(served, request).jobs.get(_JOB)
    frame: MapFrame | None = None if job is None else job.state
    body = b"" if frame is None else frame.positions.astype("<f4").tobytes()
    return Answer(body, kind=b"application/octet-stream")


@described(MapValues, takes=MapFields)
async def values(served: Served, request: Request) -> Answer:
    """A field's values as colours of the points."""
    body = await body_of(request, _FIELDS)
    chosen = chosen_of(served, request)
    labels = _frame(chosen).labels
    collection = chosen.rows.collection

    def read() -> MapValues:
        with collection._access.reading():
            found = point_colours(collection._store.field_values(body.field, labels), labels)
        return {**found.described(), "codes": base64.b64encode(found.codes.tobytes()).decode()}

    return json_answer(await _read(chosen, request, read))


@described(MapRowsFound, takes=MapRows)
async def rows(served: Served, request: Request) -> Answer:
    """The rows of some points; null for a row that is gone."""
    body = await body_of(request, _ROWS)
    chosen = chosen_of(served, request)
    labels = _frame(chosen).labels
    if body.points and max(body.points) >= len(labels):
        raise Refusal("invalid", f"the map has {len(labels):,} points", "points")
    wanted = labels[body.points].tolist() if body.points else []
    collection = chosen.rows.collection

    def read() -> list[dict[str, Any] | None]:
        with collection._access.reading():
            items = collection._store.read(sorted(set(wanted)))
        made = partial(row_as_json, with_vectors=False, text_limit=body.text_limit)
        return [made(items[label]) if label in items else None for label in wanted]

    return json_answer({"rows": await _read(chosen, request, read)})


@described(MapPoints, takes=MapIds)
async def points(served: Served, request: Request) -> Answer:
    """The points of some rows; null for a row that is not on the map."""
    body = await body_of(request, _IDS)
    chosen = chosen_of(served, request)
    labels = _frame(chosen).labels
    ids = check_ids(body.ids)
    collection = chosen.rows.collection

    def read() -> list[int | None]:
        with collection._access.reading():
            label_by_id = dict(collection._store.labels_of(ids))
        return [_point(labels, label_by_id.get(item)) for item in ids]

    return json_answer({"points": await _read(chosen, request, read)})


class _Map(BackgroundJob[MapFrame]):
    """A map's job, and the state of the collection that it began with."""

    def __init__(self, collection: Collection, frames: Any) -> None:
        self.of_state = collection._index.state
        super().__init__(frames, "flowvec-map")


def _state(chosen: ServedCollection) -> MapState:
    job = chosen.jobs.get(_JOB)
    frame: MapFrame | None = None if job is None else job.state
    state: MapState = {
        "stage": "none", "progress": 0.0, "version": 0, "points": 0, "rows": 0, "shares": [],
        "is_stale": False, "message": "",
    }  # fmt: skip
    if job is None:
        return state
    state |= {"stage": "waiting", "version": job.version, "message": job.failure}
    if isinstance(job, _Map):
        state["is_stale"] = job.of_state != chosen.rows.collection._index.state
    if frame is not None:
        state |= {
            "stage": frame.stage,
            "progress": frame.progress,
            "points": len(frame.labels),
            "rows": frame.total,
            "shares": list(frame.shares),
        }
        if not job.is_running:
            state["stage"] = "done"
    if job.failure:
        state["stage"] = "failed"
    return state


def _frame(chosen: ServedCollection) -> MapFrame:
    job = chosen.jobs.get(_JOB)
    frame: MapFrame | None = None if job is None else job.state
    if frame is None:
        raise Refusal("not_found", "there is no map yet: POST to /v1/collections/NAME/map")
    return frame


async def _read(chosen: ServedCollection, request: Request, run: Any) -> Any:
    """Run a read on a thread of the collection's."""
    calls = chosen.rows._calls
    async with calls.call(request.seconds_left()):
        return await calls.read(run)


def _point(labels: npt.NDArray[np.int64], label: int | None) -> int | None:
    if label is None or not len(labels):
        return None
    point = int(np.searchsorted(labels, label))
    return point if point < len(labels) and labels[point] == label else None
