"""The routes of collections: `/v1/collections/NAME/`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from flowvec.collection.reranking import LOGITS, pairs_of, sorted_again
from flowvec.collection.results import Hit
from flowvec.collection.search_plan import SearchPlan
from flowvec.collection.validation import last_of_each
from flowvec.server.answer import Answer, Header, StageTimes, json_answer
from flowvec.server.answer_types import (
    Added,
    CollectionAbout,
    Collections,
    Counted,
    Deleted,
    Found,
    FoundBatch,
    Listed,
    RowsById,
    Updated,
)
from flowvec.server.bodies import decoded, decoder
from flowvec.server.collection_bodies import (
    ByFilter,
    Change,
    Get,
    List,
    NewRow,
    NewRows,
    Search,
    SearchBatch,
    hit_as_json,
    options_of,
    row_as_json,
    vectors_of,
)
from flowvec.server.described import described
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection
from flowvec.server.served_model import ServedEncoder, ServedReranker

__all__ = [
    "add", "chosen_of", "collection", "collections", "count", "delete", "get", "list_rows",
    "search", "search_batch", "seconds_left", "update",
]  # fmt: skip

_SEARCH, _SEARCH_BATCH, _ADD = decoder(Search), decoder(SearchBatch), decoder(NewRows)
_GET, _BY_FILTER, _CHANGE, _LIST = decoder(Get), decoder(ByFilter), decoder(Change), decoder(List)


@described(Collections)
async def collections(served: Served, request: Request) -> Answer:
    """All collections."""
    data = [each.described() for each in served.collections.values()]
    return json_answer({"object": "list", "data": data})


@described(CollectionAbout)
async def collection(served: Served, request: Request) -> Answer:
    """A collection's settings and figures."""
    chosen = chosen_of(served, request)
    info = asdict(await chosen.rows.info(timeout=seconds_left(request)))
    del info["path"]  # folders of the server are nobody's business
    return json_answer(chosen.described() | info | {"model": chosen.described()["model"]})


# --- searching ----------------------------------------------------------------------------------


@described(Found, takes=Search)
async def search(served: Served, request: Request) -> Answer:
    """The rows nearest to a text or a vector."""
    body = decoded(_SEARCH, await request.body())
    if (body.query is None) == (body.vector is None):
        raise Refusal("invalid", "give either query, a text, or vector", "query")
    queries: list[Any] = [body.query]
    if body.vector is not None:
        queries = vectors_of([body.vector])
    texts = None if body.text is None else [body.text]
    (hits,), times = await _hits(served, request, body, queries, texts)
    found = [hit_as_json(hit, body.text_limit) for hit in hits]
    return json_answer({"hits": found}, [times])


@described(FoundBatch, takes=SearchBatch)
async def search_batch(served: Served, request: Request) -> Answer:
    """The rows nearest to each of several texts or vectors."""
    body = decoded(_SEARCH_BATCH, await request.body())
    if (body.queries is None) == (body.vectors is None):
        raise Refusal("invalid", "give either queries, which are texts, or vectors", "queries")
    queries: list[Any] = body.queries or []
    if body.vectors is not None:
        queries = vectors_of(body.vectors)
    lines, times = await _hits(served, request, body, queries, body.texts)
    found = [[hit_as_json(hit, body.text_limit) for hit in line] for line in lines]
    return json_answer({"hits": found}, [times])


async def _hits(
    served: Served,
    request: Request,
    body: Search | SearchBatch,
    queries: Sequence[Any],
    texts: list[Any] | None,
) -> tuple[list[list[Hit]], Header]:
    """Hits of each query, and how long each stage took."""
    times = StageTimes(request.came)
    chosen = chosen_of(served, request)
    options = options_of(body, len(queries))
    reranker: ServedReranker | None = None
    if body.rerank:
        reranker = served.reranker(None if body.rerank is True else body.rerank)
    plan = SearchPlan.checked(
        queries,
        texts,
        options,
        name="queries",
        dim=chosen.rows.collection._dim,
        rerank=None if reranker is None else reranker.reranker,
        rerank_from=body.rerank_from,
    )
    vectors = plan.vectors
    if vectors is None:
        model = _model_of(chosen)
        chosen.rows.collection._checked_encoder(model.encoder)
        prompt = model.encoder.query_prompt
        outcome = await served.embed(request, model, plan.to_embed, {"prompt_name": prompt})
        vectors = outcome.results
        times.add_outcome(outcome)
    hits = await chosen.rows._first_stage(vectors, plan, timeout=seconds_left(request))
    times.add("search")
    if reranker is None or plan.reranking is None or plan.texts is None:
        return plan.page(hits), times.header()
    rankings = plan.reranking.rankings(plan.texts, hits, plan.options)
    pairs = pairs_of(rankings)
    logits = await served.score(request, reranker, pairs, {"activation": LOGITS})
    times.add("rerank")
    found = plan.page(sorted_again(rankings, hits, logits.results, plan.options))
    return found, times.header()


# --- rows ---------------------------------------------------------------------------------------


@described(Added, takes=NewRows)
async def add(served: Served, request: Request) -> Answer:
    """Add rows; rows with the same ids are replaced. On disk when it answers."""
    body = decoded(_ADD, await request.body())
    chosen = chosen_of(served, request)
    rows = body.rows
    given = [row.vector for row in rows if row.vector is not None]
    if not given:
        return await _add_texts(served, request, chosen, rows)
    if len(given) < len(rows):
        raise Refusal("invalid", "either all rows have a vector, or none has", "rows")
    added = await chosen.rows.add_vectors(
        [row.id for row in rows],
        vectors_of(given),
        [row.text for row in rows],
        [row.metadata for row in rows],
        timeout=seconds_left(request),
    )
    return json_answer(asdict(added))


async def _add_texts(
    served: Served, request: Request, chosen: ServedCollection, rows: list[NewRow]
) -> Answer:
    model = _model_of(chosen)
    for index, row in enumerate(rows):
        if row.text is None:
            raise Refusal("invalid", f"row {index} has neither a text nor a vector", "rows")
    kept = [rows[i] for i in last_of_each([row.id for row in rows])]
    texts = [row.text or "" for row in kept]
    prompt = model.encoder.document_prompt
    outcome = await served.embed(request, model, texts, {"prompt_name": prompt})
    added = await chosen.rows._add_embedded(
        [row.id for row in kept],
        texts,
        [row.metadata for row in kept],
        model.encoder,
        outcome.results,
        outcome.truncated,
        timeout=seconds_left(request),
    )
    return json_answer(asdict(added))


@described(RowsById, takes=Get)
async def get(served: Served, request: Request) -> Answer:
    """Rows by id; null for an unknown one."""
    body = decoded(_GET, await request.body())
    items = await chosen_of(served, request).rows.get(body.ids, timeout=seconds_left(request))
    shown = partial(row_as_json, with_vectors=body.with_vectors, text_limit=body.text_limit)
    rows = [item and shown(item) for item in items]
    return json_answer({"rows": rows})


@described(Listed, takes=List)
async def list_rows(served: Served, request: Request) -> Answer:
    """A page of rows, in the order in which they were added."""
    body = decoded(_LIST, await request.body())
    rows = await chosen_of(served, request).rows.list(
        body.filter,
        body.limit,
        body.after,
        with_vectors=body.with_vectors,
        timeout=seconds_left(request),
    )
    after = rows[-1].label if rows and len(rows) == body.limit else None
    listed = [row_as_json(row, with_vectors=body.with_vectors) for row in rows]
    return json_answer({"rows": listed, "after": after})


@described(Counted, takes=ByFilter)
async def count(served: Served, request: Request) -> Answer:
    """How many rows meet a filter."""
    body = decoded(_BY_FILTER, await request.body())
    if body.ids is not None:
        raise Refusal("invalid", "count takes a filter: {'$id': {'in': ids}} names ids", "ids")
    rows = chosen_of(served, request).rows
    return json_answer({"count": await rows.count(body.filter, timeout=seconds_left(request))})


@described(Deleted, takes=ByFilter)
async def delete(served: Served, request: Request) -> Answer:
    """Delete rows by id or by a filter."""
    body = decoded(_BY_FILTER, await request.body())
    rows = chosen_of(served, request).rows
    deleted = await rows.delete(body.ids, filter=body.filter, timeout=seconds_left(request))
    return json_answer({"deleted": deleted})


@described(Updated, takes=Change)
async def update(served: Served, request: Request) -> Answer:
    """Change fields of rows' metadata."""
    body = decoded(_CHANGE, await request.body())
    rows = chosen_of(served, request).rows
    updated = await rows.update_metadata(
        body.ids, body.changes, filter=body.filter, timeout=seconds_left(request)
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


def _model_of(chosen: ServedCollection) -> ServedEncoder:
    if chosen.model is None:
        raise Refusal("invalid", "this collection has no model: it takes vectors, not texts")
    return chosen.model


def seconds_left(request: Request) -> float:
    """Seconds until the request's deadline.

    Raises:
        Refusal: it has passed.
    """
    left = request.end() - time.perf_counter()
    if left <= 0:
        raise Refusal("late", "the request was not answered before its deadline")
    return left
