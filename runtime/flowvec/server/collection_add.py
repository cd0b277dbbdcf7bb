"""The routes that add rows to a collection, and give rows their sparse vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from flowvec.collection.collection import SparseAndModel
from flowvec.collection.results import Added as Written
from flowvec.collection.validation import last_of_each
from flowvec.server.answer import Answer, json_answer
from flowvec.server.answer_types import Added, Updated
from flowvec.server.bodies import body_of, decoder
from flowvec.server.collection_bodies import NewRow, NewRows, NewSparse, vectors_of
from flowvec.server.collections import chosen_of, model_of
from flowvec.server.described import described
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection
from flowvec.server.sparse_bodies import SparseVector, sparse_vectors
from flowvec.server.sparse_models import chosen_sparse, embed_sparse, own_sparse
from flowvec.sparse.vectors import SparseVectors

__all__ = ["add", "set_sparse"]

_ADD, _SPARSE = decoder(NewRows), decoder(NewSparse)


@described(Added, takes=NewRows)
async def add(served: Served, request: Request) -> Answer:
    """Add rows; rows with the same ids are replaced. On disk when it answers."""
    body = await body_of(request, _ADD)
    chosen = chosen_of(served, request)
    given = [row.vector for row in body.rows if row.vector is not None]
    if not given:
        return json_answer(asdict(await _add_texts(served, request, chosen, body)))
    if len(given) < len(body.rows):
        raise Refusal("invalid", "either all rows have a vector, or none has", "rows")
    vectors = vectors_of(given)
    sparse: SparseAndModel = (None, None)
    if body.sparse or _has_sparse(body.rows):
        sparse = await _sparse_of(served, request, chosen, body, body.rows)
    added = await chosen.rows._add_vectors(
        [row.id for row in body.rows],
        vectors,
        [row.text for row in body.rows],
        [row.metadata for row in body.rows],
        sparse,
        timeout=request.seconds_left(),
    )
    return json_answer(asdict(added))


async def _add_texts(
    served: Served, request: Request, chosen: ServedCollection, body: NewRows
) -> Written:
    model = model_of(chosen)
    for index, row in enumerate(body.rows):
        if row.text is None:
            raise Refusal("invalid", f"row {index} has neither a text nor a vector", "rows")
    _has_sparse(body.rows)  # or refuses them all
    kept = [body.rows[i] for i in last_of_each([row.id for row in body.rows])]
    sparse = await _sparse_of(served, request, chosen, body, kept)
    texts = [row.text or "" for row in kept]
    prompt = model.encoder.document_prompt
    outcome = await served.embed(request, model, texts, {"prompt_name": prompt})
    return await chosen.rows._add_embedded(
        [row.id for row in kept],
        texts,
        [row.metadata for row in kept],
        model.encoder,
        outcome.results,
        outcome.truncated,
        sparse,
        timeout=request.seconds_left(),
    )


@described(Updated, takes=NewSparse)
async def set_sparse(served: Served, request: Request) -> Answer:
    """Give rows that are there their sparse vectors, or other ones. On disk when it answers."""
    body = await body_of(request, _SPARSE)
    chosen = chosen_of(served, request)
    vectors = _given(served, chosen, body.sparse, body.sparse_dim, "sparse")
    updated = await chosen.rows.set_sparse(body.ids, vectors, timeout=request.seconds_left())
    return json_answer({"updated": updated})


# --- sparse vectors of rows ---------------------------------------------------------------------


def _has_sparse(rows: Sequence[NewRow]) -> bool:
    """Whether rows have sparse vectors.

    Raises:
        Refusal: only some have one.
    """
    count = sum(row.sparse is not None for row in rows)
    if 0 < count < len(rows):
        raise Refusal("invalid", "either all rows have a sparse vector, or none has", "rows")
    return count > 0


async def _sparse_of(
    served: Served,
    request: Request,
    chosen: ServedCollection,
    body: NewRows,
    rows: Sequence[NewRow],
) -> SparseAndModel:
    """The sparse vectors of rows, which they have or a model makes of their texts."""
    given = [row.sparse for row in rows if row.sparse is not None]
    if given:
        if body.sparse:
            raise Refusal("invalid", "leave sparse out: the rows have sparse vectors", "sparse")
        return _given(served, chosen, given, body.sparse_dim, "rows"), None
    model = chosen_sparse(served, chosen, body.sparse)
    if model is None or not rows:
        return None, None
    for row in rows:
        if row.text is None:
            raise Refusal(
                "invalid", f"the row {row.id!r:.100} has no text to make a sparse vector of", "rows"
            )
    texts = [row.text or "" for row in rows]
    outcome = await embed_sparse(served, request, model, texts, are_queries=False)
    return outcome.results, model.encoder


def _given(
    served: Served,
    chosen: ServedCollection,
    sparse: Sequence[SparseVector],
    dim: int | None,
    field: str,
) -> SparseVectors:
    """Sparse vectors of a body, in its dimensions or those of the collection.

    Raises:
        Refusal: they are not valid, or nothing says how many dimensions they have.
    """
    if dim is None:
        dim = chosen.rows.collection._sparse_dim()
    if dim is None and (own := own_sparse(served, chosen)) is not None:
        dim = own.encoder.dim
    if dim is None:
        raise Refusal(
            "invalid",
            "these are the collection's first sparse vectors: say how many dimensions they have, "
            "for example the size of the vocabulary",
            "sparse_dim",
        )
    return sparse_vectors(sparse, dim, served.settings.max_sparse_terms, field)
