"""The routes of collections: `/v1/collections/NAME/`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from flowvec.collection.results import Row
from flowvec.collection.store.rows import Item
from flowvec.errors import FlowvecError
from flowvec.server.answer import Answer, json_answer
from flowvec.server.answer_types import (
    CollectionAbout,
    Collections,
    Counted,
    Deleted,
    Listed,
    RowsById,
    Updated,
)
from flowvec.server.bodies import body_of, decoder
from flowvec.server.collection_bodies import (
    ByFilter,
    Change,
    Get,
    List,
    row_as_json,
    sparse_field,
)
from flowvec.server.described import described
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection
from flowvec.server.served_model import ServedEncoder
from flowvec.server.sparse_models import own_sparse

__all__ = [
    "chosen_of", "collection", "collections", "count", "delete", "get", "list_rows", "model_of",
    "update",
]  # fmt: skip

_GET, _BY_FILTER, _CHANGE, _LIST = decoder(Get), decoder(ByFilter), decoder(Change), decoder(List)


@described(Collections)
async def collections(served: Served, request: Request) -> Answer:
    """All collections."""
    data = [_described(served, each) for each in served.collections.values()]
    return json_answer({"object": "list", "data": data})


@described(CollectionAbout)
async def collection(served: Served, request: Request) -> Answer:
    """A collection's settings and figures."""
    chosen = chosen_of(served, request)
    info = asdict(await chosen.rows.info(timeout=request.seconds_left()))
    for folder in (
        "path",
        "model",
        "sparse_model",
        "token_model",
    ):  # of the server, which are nobody's business
        del info[folder]
    return json_answer(_described(served, chosen) | info)


def _described(served: Served, chosen: ServedCollection) -> dict[str, Any]:
    """What lists of collections say, with the models that are served."""
    tokens = None
    with suppress(FlowvecError):  # a damaged collection is listed too
        own_sparse(served, chosen)
        if encoders := served.multi_vector_encoders.values():
            made_by = chosen.token_fingerprint
            same = (each.name for each in encoders if each.encoder.fingerprint == made_by)
            tokens = next(same, None)
    return chosen.described() | {"token_model": tokens}


# --- rows ---------------------------------------------------------------------------------------


@described(RowsById, takes=Get)
async def get(served: Served, request: Request) -> Answer:
    """Rows by id; null for an unknown one."""
    body = await body_of(request, _GET)
    chosen = chosen_of(served, request)
    items = await chosen.rows.get(body.ids, timeout=request.seconds_left())
    there = iter(await _rows_as_json(request, chosen, [item for item in items if item], body))
    return json_answer({"rows": [item and next(there) for item in items]})


@described(Listed, takes=List)
async def list_rows(served: Served, request: Request) -> Answer:
    """A page of rows, in the order in which they were added."""
    body = await body_of(request, _LIST)
    chosen = chosen_of(served, request)
    rows = await chosen.rows.list(
        body.filter,
        body.limit,
        body.after,
        with_vectors=body.with_vectors,
        timeout=request.seconds_left(),
    )
    after = rows[-1].label if rows and len(rows) == body.limit else None
    listed = await _rows_as_json(request, chosen, rows, body)
    return json_answer({"rows": listed, "after": after})


async def _rows_as_json(
    request: Request, chosen: ServedCollection, rows: Sequence[Row | Item], body: Get | List
) -> list[dict[str, Any]]:
    """Rows of an answer, with the vectors that the body asks for."""
    limit = body.text_limit if isinstance(body, Get) else None
    shown = partial(row_as_json, with_vectors=body.with_vectors, text_limit=limit)
    if not body.with_sparse:
        return list(map(shown, rows))
    ids = [row.id for row in rows]
    vectors = await chosen.rows.get_sparse(ids, timeout=request.seconds_left())
    pairs = zip(rows, vectors, strict=True)
    return [shown(row) | sparse_field(vector) for row, vector in pairs]


@described(Counted, takes=ByFilter)
async def count(served: Served, request: Request) -> Answer:
    """How many rows meet a filter."""
    body = await body_of(request, _BY_FILTER)
    if body.ids is not None:
        raise Refusal(
            "invalid", 'count takes a filter: {"$id": {"in": [ID, ...]}} names ids', "ids"
        )
    rows = chosen_of(served, request).rows
    return json_answer({"count": await rows.count(body.filter, timeout=request.seconds_left())})


@described(Deleted, takes=ByFilter)
async def delete(served: Served, request: Request) -> Answer:
    """Delete rows by id or by a filter."""
    body = await body_of(request, _BY_FILTER)
    rows = chosen_of(served, request).rows
    deleted = await rows.delete(body.ids, filter=body.filter, timeout=request.seconds_left())
    return json_answer({"deleted": deleted})


@described(Updated, takes=Change)
async def update(served: Served, request: Request) -> Answer:
    """Change fields of rows' metadata."""
    body = await body_of(request, _CHANGE)
    rows = chosen_of(served, request).rows
    updated = await rows.update_metadata(
        body.ids, body.changes, filter=body.filter, timeout=request.seconds_left()
    )
    return json_answer({"updated": updated})


# --- what they share ----------------------------------------------------------------------------


def chosen_of(served: Served, request: Request) -> ServedCollection:
    """The collection that a request's path names.

    Raises:
        Refusal: there is none of that name.
    """
    name = request.parameters["name"]
    chosen = served.collections.get(name)
    if chosen is None:
        names = ", ".join(served.collections) or "none"
        raise Refusal("not_found", f"there is no collection {name!r:.100}; there is {names}")
    return chosen


def model_of(chosen: ServedCollection) -> ServedEncoder:
    """What embeds a collection's texts.

    Raises:
        Refusal: nothing does.
    """
    if chosen.model is None:
        raise Refusal("invalid", "this collection has no model: it takes vectors, not texts")
    return chosen.model
