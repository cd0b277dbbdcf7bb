"""Scores of a served multi-vector encoder: MaxSim of queries with documents, or with hits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.reranking import late_scores, texts_of_hits
from flowvec.collection.results import Hit
from flowvec.server.queued_call import Outcome, QueuedCall
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection
from flowvec.server.served_model import ServedMultiVector

__all__ = ["score_hits", "score_texts"]

Floats = npt.NDArray[np.float32]

# Most hits, and most bytes of their stored token vectors, that a request reads at a time.
_MOST_HITS = 256
_MOST_BYTES = 64 << 20
_FLOAT_BYTES = 4


async def score_texts(
    served: Served,
    request: Request,
    model: ServedMultiVector,
    queries: Sequence[str],
    documents: Sequence[Sequence[str]],
    options: Mapping[str, Any],
) -> Outcome:
    """MaxSim of each query with each of its documents, float32 (pairs,).

    A text that stands several times is encoded once. Queries and documents wait in the model's
    queue side by side, and share batches with other requests.

    Args:
        served: what the request is counted in.
        request: whose texts they are.
        model: the encoder.
        queries: texts.
        documents: the texts of each query.
        options: of the encoder, as for its `encode_query`.

    Raises:
        Refusal, ClientGone: as `Served.embed`.
    """
    places: dict[str, int] = {}
    for place, text in enumerate(text for line in documents for text in line):
        places.setdefault(text, place)
    encoded = await _encoded(served, request, model, queries, list(places), options, places)
    vectors, made, outcome = encoded
    tokens = dict(zip(places, made, strict=True))
    scores = await asyncio.to_thread(late_scores, vectors, documents, tokens)
    return replace(outcome, results=scores)


async def score_hits(
    served: Served,
    request: Request,
    model: ServedMultiVector,
    chosen: ServedCollection,
    queries: Sequence[str],
    hits: Sequence[Sequence[Hit]],
) -> Outcome:
    """MaxSim of each query with each of its hits, float32 (pairs,).

    The collection's token vectors are read if this model made them; hits that have none are
    encoded.

    Raises:
        Refusal, ClientGone: as `Served.embed`.
        InputValueError: a row has no text.
        FlowvecError: the collection cannot be read.
    """
    texts = texts_of_hits(hits)
    vectors: list[Floats] = []
    scores: list[Floats] = []
    outcomes: list[Outcome] = []
    for place, part in enumerate(_parts(hits, _most_hits(model))):
        lines = [line for _, line in part]
        stored = await chosen.rows._stored_tokens(
            model.encoder, lines, timeout=request.seconds_left()
        )
        if stored is None:
            # None are there, or another process has dropped them: scores of both cannot be mixed.
            return await score_texts(served, request, model, queries, texts, {})
        encoded = await _encoded(
            served, request, model, [] if place else queries, stored.missing, {}
        )
        made_queries, made, outcome = encoded
        vectors = vectors or made_queries
        outcomes.append(outcome)
        tokens = stored.completed(made)
        of_part = [vectors[query] for query, _ in part]
        scored = await asyncio.to_thread(late_scores, of_part, texts_of_hits(lines), tokens)
        scores.append(scored)
    results = np.concatenate([np.empty(0, np.float32), *scores])
    return replace(_summed(outcomes), results=results)


def _most_hits(model: ServedMultiVector) -> int:
    """How many hits' token vectors are read at a time, if all are as long as they may be."""
    encoder = model.encoder
    size = _FLOAT_BYTES * encoder.dim * encoder.late_interaction.document_length
    return max(1, min(_MOST_HITS, _MOST_BYTES // size))


def _parts(hits: Sequence[Sequence[Hit]], most: int) -> Iterator[list[tuple[int, Sequence[Hit]]]]:
    """At most so many hits at a time, those of a query with its number."""
    part: list[tuple[int, Sequence[Hit]]] = []
    room = most
    for query, line in enumerate(hits):
        for start in range(0, len(line), most):
            piece = line[start : start + most]
            if len(piece) > room:
                yield part
                part, room = [], most
            part.append((query, piece))
            room -= len(piece)
    if part:
        yield part


async def _encoded(
    served: Served,
    request: Request,
    model: ServedMultiVector,
    queries: Sequence[str],
    documents: Sequence[str],
    options: Mapping[str, Any],
    places: Mapping[str, int] | None = None,
) -> tuple[list[Floats], list[Floats], Outcome]:
    """Token vectors of queries and of documents; `places` are those of documents for messages."""
    calls: list[QueuedCall] = []
    outcomes: list[Outcome] = []
    numbers = None if places is None else list(places.values())
    sides = [
        (list(queries), True, ["the query"] if len(queries) == 1 else None),
        (list(documents), False, numbers),
    ]
    used = [side for side in sides if side[0]]
    try:
        for texts, is_query, names in used:
            with _naming(names):
                given = {**options, "is_query": is_query}
                calls.append(served.put(request, model, texts, given))
        for call, (texts, _, names) in zip(calls, used, strict=True):
            with _naming(names):
                outcomes.append(await served.outcome(request, model, call, len(texts)))
    except BaseException:
        for call in calls:
            model.queue.drop(call)
            if call.done.done() and not call.done.cancelled():
                call.done.exception()  # of this one nobody is told
        raise
    results = iter(outcomes)
    vectors = [next(results).results if texts else [] for texts, _, _ in sides]
    return vectors[0], vectors[1], _summed(outcomes)


@contextmanager
def _naming(names: Sequence[int | str] | None) -> Iterator[None]:
    """Say in a refusal which text of the body it is about, by the text's number in the call."""
    try:
        yield
    except Refusal as refusal:
        if names is not None:
            refusal.message = re.sub(
                r"\b(item|text) (\d+)",
                lambda match: _named(match, names),
                refusal.message,
            )
        raise


def _named(match: re.Match[str], names: Sequence[int | str]) -> str:
    """The name of a text that a message counts; what is not one stays as it is."""
    number = int(match[2])
    if number >= len(names):
        return match[0]
    name = names[number]
    return name if isinstance(name, str) else f"{match[1]} {name}"


def _summed(outcomes: Sequence[Outcome]) -> Outcome:
    """What several calls of a request took together, without their results."""
    return Outcome(
        None,
        sum(each.tokens for each in outcomes),
        sum(each.truncated for each in outcomes),
        sum(each.tokenize_seconds for each in outcomes),
        max((each.queue_seconds for each in outcomes), default=0.0),
        max((each.compute_seconds for each in outcomes), default=0.0),
    )
