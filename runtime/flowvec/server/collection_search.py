"""The routes that search a collection: `/v1/collections/NAME/search` and its like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flowvec.collection.reranking import LOGITS, pairs_of, sorted_again
from flowvec.collection.results import Hit
from flowvec.collection.search_plan import SearchPlan
from flowvec.server.answer import Answer, Header, StageTimes, json_answer
from flowvec.server.answer_types import Found, FoundBatch
from flowvec.server.bodies import body_of, decoder
from flowvec.server.collection_bodies import (
    Search,
    SearchBatch,
    SearchSparse,
    SearchSparseBatch,
    hit_as_json,
    options_of,
    sparse_options_of,
    vectors_of,
)
from flowvec.server.collections import chosen_of, model_of
from flowvec.server.described import described
from flowvec.server.late_interaction import score_hits
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection
from flowvec.server.served_model import ServedMultiVector, ServedReranker
from flowvec.server.sparse_bodies import MOST_DIM, SparseChoice, SparseVector, sparse_vectors
from flowvec.server.sparse_models import chosen_sparse, embed_sparse
from flowvec.sparse.vectors import SparseVectors

__all__ = ["search", "search_batch", "search_sparse", "search_sparse_batch"]

_SEARCH, _SEARCH_BATCH = decoder(Search), decoder(SearchBatch)
_SPARSE, _SPARSE_BATCH = decoder(SearchSparse), decoder(SearchSparseBatch)


@described(Found, takes=Search)
async def search(served: Served, request: Request) -> Answer:
    """The rows nearest to a text or a vector."""
    body = await body_of(request, _SEARCH)
    if (body.query is None) == (body.vector is None):
        raise Refusal("invalid", "give either query, a text, or vector", "query")
    queries: list[Any] = [body.query]
    if body.vector is not None:
        queries = vectors_of([body.vector])
    texts = None if body.text is None else [body.text]
    sparse = [body.sparse] if isinstance(body.sparse, SparseVector) else body.sparse
    (hits,), times = await _hits(served, request, body, queries, texts, sparse)
    found = [hit_as_json(hit, body.text_limit) for hit in hits]
    return json_answer({"hits": found}, [times])


@described(FoundBatch, takes=SearchBatch)
async def search_batch(served: Served, request: Request) -> Answer:
    """The rows nearest to each of several texts or vectors."""
    body = await body_of(request, _SEARCH_BATCH)
    if (body.queries is None) == (body.vectors is None):
        raise Refusal("invalid", "give either queries, which are texts, or vectors", "queries")
    queries: list[Any] = body.queries or []
    if body.vectors is not None:
        queries = vectors_of(body.vectors)
    lines, times = await _hits(served, request, body, queries, body.texts, body.sparse)
    found = [[hit_as_json(hit, body.text_limit) for hit in line] for line in lines]
    return json_answer({"hits": found}, [times])


async def _hits(
    served: Served,
    request: Request,
    body: Search | SearchBatch,
    queries: Sequence[Any],
    texts: list[Any] | None,
    sparse: list[SparseVector] | SparseChoice | None,
) -> tuple[list[list[Hit]], Header]:
    """Hits of each query, and how long each stage took."""
    times = StageTimes(request.came)
    chosen = chosen_of(served, request)
    given, sparse_model = None, None
    if sparse and not body.hybrid:
        raise Refusal(
            "invalid",
            'sparse is for a hybrid search: add "hybrid": true, or ask search_sparse, which '
            "searches by sparse vectors alone",
            "sparse",
        )
    if isinstance(sparse, list):
        given = _given_queries(served, chosen, sparse)
    elif body.hybrid:
        sparse_model = chosen_sparse(served, chosen, sparse)
    has_sparse = given is not None or sparse_model is not None
    if body.hybrid and body.sparse_weight and not has_sparse:
        raise Refusal(
            "invalid",
            "sparse_weight needs a sparse vector of the query: give it in sparse, or name there "
            "the sparse encoder that makes it",
            "sparse",
        )
    options = options_of(body, len(queries), has_sparse=has_sparse)
    reranker = _reranker(served, chosen, body.rerank)
    plan = SearchPlan.checked(
        queries,
        texts,
        options,
        name="query" if isinstance(body, Search) else "queries",
        dim=chosen.rows.collection._dim,
        rerank=None if reranker is None else reranker.model,
        rerank_from=body.rerank_from,
        sparse=given,
        sparse_dim=None if given is None else given.dim,
    )
    model = None
    if plan.vectors is None:
        model = model_of(chosen)
        chosen.rows.collection._checked_encoder(model.encoder)
    if sparse_model is not None and plan.texts and plan.options.shares.sparse > 0:
        outcome = await embed_sparse(served, request, sparse_model, plan.texts, are_queries=True)
        plan = replace(plan, sparse=outcome.results)
        times.add_outcome(outcome)
    vectors = plan.vectors
    if vectors is None:
        assert model is not None
        prompt = model.encoder.query_prompt
        outcome = await served.embed(request, model, plan.to_embed, {"prompt_name": prompt})
        vectors = outcome.results
        times.add_outcome(outcome)
    hits = await chosen.rows._first_stage(vectors, plan, timeout=request.seconds_left())
    times.add("search")
    if reranker is None or plan.reranking is None or plan.texts is None:
        return plan.page(hits), times.header()
    rankings = plan.reranking.rankings(plan.texts, hits, plan.options)
    if isinstance(reranker, ServedMultiVector):
        logits = await score_hits(served, request, reranker, chosen, plan.texts, hits)
    else:
        pairs = pairs_of(rankings)
        logits = await served.score(request, reranker, pairs, {"activation": LOGITS})
    times.add("rerank")
    found = plan.page(sorted_again(rankings, hits, logits.results, plan.options))
    return found, times.header()


def _reranker(
    served: Served, chosen: ServedCollection, choice: bool | str
) -> ServedReranker | ServedMultiVector | None:
    """The model that sorts hits again: true is a reranker, or the model of the token vectors."""
    if not choice:
        return None
    if isinstance(choice, str):
        return served.ranker(choice)
    needs_choice = not served.rerankers and len(served.multi_vector_encoders) > 1
    return served.ranker(None, chosen.token_fingerprint if needs_choice else None)


# --- by sparse vectors alone --------------------------------------------------------------------


@described(Found, takes=SearchSparse)
async def search_sparse(served: Served, request: Request) -> Answer:
    """The rows whose sparse vectors have the largest dot product with that of a query."""
    body = await body_of(request, _SPARSE)
    sparse = [body.sparse] if isinstance(body.sparse, SparseVector) else body.sparse
    texts = None if body.query is None else [body.query]
    (hits,), times = await _sparse_hits(served, request, body, texts, sparse)
    found = [hit_as_json(hit, body.text_limit) for hit in hits]
    return json_answer({"hits": found}, [times])


@described(FoundBatch, takes=SearchSparseBatch)
async def search_sparse_batch(served: Served, request: Request) -> Answer:
    """The rows whose sparse vectors have the largest dot product with those of several queries."""
    body = await body_of(request, _SPARSE_BATCH)
    lines, times = await _sparse_hits(served, request, body, body.queries, body.sparse)
    found = [[hit_as_json(hit, body.text_limit) for hit in line] for line in lines]
    return json_answer({"hits": found}, [times])


async def _sparse_hits(
    served: Served,
    request: Request,
    body: SearchSparse | SearchSparseBatch,
    texts: list[str] | None,
    sparse: list[SparseVector] | SparseChoice | None,
) -> tuple[list[list[Hit]], Header]:
    """Hits of each query, and how long each stage took."""
    name = "query" if isinstance(body, SearchSparse) else "queries"
    times = StageTimes(request.came)
    chosen = chosen_of(served, request)
    if (texts is None) != isinstance(sparse, list):
        what = "a text" if name == "query" else "texts"
        raise Refusal(
            "invalid", f"give either {name}, {what}, or sparse with indices and values", name
        )
    queries: SparseVectors | None = None
    if isinstance(sparse, list):
        options = sparse_options_of(body, len(sparse))
        queries = _given_queries(served, chosen, sparse)
    else:
        options = sparse_options_of(body, len(texts or []))
        model = chosen_sparse(served, chosen, sparse)
        if model is None:
            raise Refusal(
                "invalid",
                "no model that is served makes sparse vectors for this collection: give a sparse "
                "vector, or name a sparse encoder in sparse",
                "sparse",
            )
        if texts:
            outcome = await embed_sparse(served, request, model, texts, are_queries=True)
            queries = outcome.results
            times.add_outcome(outcome)
    if queries is None:
        return [], times.header()
    hits = await chosen.rows.search_sparse_batch(queries, **options, timeout=request.seconds_left())
    times.add("search")
    return hits, times.header()


def _given_queries(
    served: Served, chosen: ServedCollection, sparse: list[SparseVector]
) -> SparseVectors:
    """Sparse vectors of queries, in the collection's dimensions; without any, in the most."""
    dim = chosen.rows.collection._sparse_dim() or MOST_DIM
    return sparse_vectors(sparse, dim, served.settings.max_sparse_terms, "sparse")
