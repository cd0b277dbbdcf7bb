"""Which path and method is answered by what."""

from __future__ import annotations

from typing import Any

from flowvec.server import (
    cohere,
    collection_add,
    collection_search,
    collections,
    embed_stream,
    health,
    metrics,
    ollama,
    openai,
    predict,
    reload,
    rerank,
    tei,
    tei_vectors,
)  # fmt: skip
from flowvec.server.answer import Answer, json_answer
from flowvec.server.answer_types import (
    JinaReranked,
    TeiEmbedded,
    TeiLabelled,
    TeiReranked,
    TeiSparse,
    TeiTokenVectors,
)
from flowvec.server.described import described
from flowvec.server.dialects import Dialect
from flowvec.server.openapi import document_of
from flowvec.server.page import assets, live, maps, space
from flowvec.server.page import fields as page_fields
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.route import Route, Run
from flowvec.server.served import Served
from flowvec.server.served_model import ModelKind
from flowvec.server.settings import Settings

__all__ = ["ROUTES", "Routes", "routes_of"]


def _get(path: str, run: Run, dialect: Dialect = "openai", *, is_open: bool = False) -> Route:
    return Route("GET", path, run, dialect, is_work=False, is_open=is_open)


# What TEI's base URL answers, by the kind of the model. Of several kinds the first here counts.
_EMBED: tuple[str, Run] = ("/embed", tei.embed)
_BY_KIND: dict[ModelKind, tuple[str, Run]] = {
    "embedding": _EMBED,
    "reranker": ("/rerank", rerank.either_rerank),
    "sparse": ("/embed_sparse", tei_vectors.embed_sparse),
    "multi_vector": ("/embed_all", tei_vectors.embed_all),
}


@described(
    TeiEmbedded, TeiReranked, JinaReranked, list[TeiLabelled], list[list[TeiLabelled]], TeiSparse,
    TeiTokenVectors,
    takes=(
        tei.TeiEmbed, rerank.Rerank, predict.Predict, tei_vectors.TeiEmbedSparse,
        tei_vectors.TeiEmbedAll,
    ),
)  # fmt: skip
async def _by_kind(served: Served, request: Request) -> Answer:
    """What TEI's base URL answers: by the kind of the model."""
    kinds = {model.kind for model in served.models}
    path, run = next((run for kind, run in _BY_KIND.items() if kind in kinds), _EMBED)
    # TEI calls a model of several labels a classifier.
    if path == "/rerank" and len(served.reranker(None).reranker.head.labels) > 1:
        path, run = "/predict", predict.predict
    try:
        return await run(served, request)
    except Refusal as refusal:
        if refusal.reason == "invalid" and path != "/embed":
            refusal.message += (
                f" ({request.path} is {path} on this server, which has no embedding model)"
            )
        raise


ROUTES: list[Route] = [
    _get("/", assets.home, "tei", is_open=True),
    _get("/live", health.live, is_open=True),
    _get("/ready", health.ready, is_open=True),
    _get("/health", health.health, "tei", is_open=True),
    _get("/ping", health.health, "tei", is_open=True),
    _get("/metrics", metrics.metrics),
    _get("/v1/models", openai.models),
    _get("/v1/models/{name*}", openai.model),
    Route("POST", "/v1/embeddings", openai.embeddings),
    Route("POST", "/embeddings", openai.embeddings),
    Route("POST", "/v1/embed-stream", embed_stream.embed_stream),
    _get("/v1/collections", collections.collections),
    _get("/v1/collections/{name}", collections.collection),
    Route("POST", "/v1/collections/{name}/search", collection_search.search),
    Route("POST", "/v1/collections/{name}/search_batch", collection_search.search_batch),
    Route("POST", "/v1/collections/{name}/search_sparse", collection_search.search_sparse),
    Route(
        "POST", "/v1/collections/{name}/search_sparse_batch", collection_search.search_sparse_batch
    ),
    Route("POST", "/v1/collections/{name}/rows", collection_add.add),
    Route("POST", "/v1/collections/{name}/rows/set_sparse", collection_add.set_sparse),
    Route("POST", "/v1/collections/{name}/rows/get", collections.get),
    Route("POST", "/v1/collections/{name}/rows/list", collections.list_rows),
    Route("POST", "/v1/collections/{name}/rows/count", collections.count),
    Route("POST", "/v1/collections/{name}/rows/delete", collections.delete),
    Route("POST", "/v1/collections/{name}/rows/update", collections.update),
    Route("POST", "/v1/admin/reload", reload.reload),
    _get("/info", tei.info, "tei"),
    Route("POST", "/", _by_kind, "tei"),
    Route("POST", "/embed", tei.embed, "tei"),
    Route("POST", "/invocations", _by_kind, "tei"),
    Route("POST", "/embed_all", tei_vectors.embed_all, "tei"),
    Route("POST", "/embed_sparse", tei_vectors.embed_sparse, "tei"),
    Route("POST", "/rerank", rerank.either_rerank, "tei"),
    Route("POST", "/predict", predict.predict, "tei"),
    Route("POST", "/v1/rerank", rerank.jina_rerank, "jina"),
    Route("POST", "/v2/rerank", rerank.cohere_rerank, "cohere"),
    Route("POST", "/v2/embed", cohere.cohere_embed, "cohere"),
    Route("POST", "/api/embed", ollama.embed, "ollama"),
    Route("POST", "/api/embeddings", ollama.embeddings, "ollama"),
    _get("/api/version", ollama.version, "ollama"),
    Route("POST", "/similarity", tei.similarity, "tei"),
    Route("POST", "/tokenize", tei.tokenize, "tei"),
    Route("POST", "/decode", tei.decode, "tei"),
]


@described(dict[str, Any])
async def _openapi(served: Served, request: Request) -> Answer:
    """This document."""
    return json_answer(document_of(_documented(served.settings)))


ROUTES.append(_get("/openapi.json", _openapi))

# Routes that only the page uses, and files of the page, which are not part of the API.
_OF_PAGE: list[Route] = [
    _get("/v1/collections/{name}/fields", page_fields.fields),
    Route("POST", "/v1/collections/{name}/map", maps.start),
    _get("/v1/collections/{name}/map", maps.state),
    _get("/v1/collections/{name}/map/positions", maps.positions),
    Route("POST", "/v1/collections/{name}/map/values", maps.values),
    Route("POST", "/v1/collections/{name}/map/rows", maps.rows),
    Route("POST", "/v1/collections/{name}/map/points", maps.points),
    Route("DELETE", "/v1/collections/{name}/map", maps.forget, is_work=False),
    Route("POST", "/v1/collections/{name}/space", space.start),
    _get("/v1/collections/{name}/space", space.state),
    _get("/v1/live", live.live),
]
_FILES = [_get("/page/{file*}", assets.file, is_open=True)]
ROUTES += _OF_PAGE


def _documented(settings: Settings) -> list[Route]:
    return [r for r in ROUTES if settings.page or r not in _OF_PAGE]


def routes_of(settings: Settings) -> list[Route]:
    """The routes of a server: without a page, those that it uses are left out."""
    return _documented(settings) + (_FILES if settings.page else [])


class Routes:
    """Finds the route of a request."""

    def __init__(self, routes: list[Route] = ROUTES) -> None:
        """Index the routes by their path."""
        self._plain: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[list[str], dict[str, Route]]] = []
        for route in routes:
            if "{" not in route.path:
                self._plain.setdefault(route.path, {})[route.method] = route
                continue
            pattern = route.path.split("/")
            methods = next((m for known, m in self._patterns if known == pattern), None)
            if methods is None:
                methods = {}
                self._patterns.append((pattern, methods))
            methods[route.method] = route

    def find(self, request: Request) -> dict[str, Route]:
        """The routes of a request's path by method; none if the path is unknown. Parameters of
        the path are set in the request."""
        methods = self._plain.get(request.path)
        if methods is not None:
            return methods
        for pattern, methods in self._patterns:
            segments = request.path.split("/", len(pattern) - 1)
            parameters = _matched(pattern, segments)
            if parameters is not None:
                request.parameters = parameters
                return methods
        return {}


def _matched(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    """The parameters of a path; None if it is not of this pattern."""
    if len(pattern) != len(segments):
        return None
    parameters: dict[str, str] = {}
    for wanted, segment in zip(pattern, segments, strict=True):
        if not wanted.startswith("{"):
            if wanted != segment:
                return None
            continue
        if not wanted.endswith("*}") and "/" in segment:
            return None
        parameters[wanted.strip("{*}")] = segment
    return parameters
