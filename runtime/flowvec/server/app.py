"""The ASGI application: finds the route, guards it, and answers in its dialect."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowvec.collection.collection import Collection
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.errors import FlowvecError, InputTypeError, InputValueError
from flowvec.reranker.reranker import Reranker
from flowvec.server.answer import Answer, Header
from flowvec.server.dialects import worded
from flowvec.server.guard import PREFLIGHT, Guard
from flowvec.server.logs import log_access, log_failure
from flowvec.server.metrics import metrics
from flowvec.server.model_kinds import CLASSES, served_model
from flowvec.server.refusal import AnswerCut, ClientGone, Refusal, refusal_of, stopping
from flowvec.server.request import Incoming, Receive, Request, Scope, Send
from flowvec.server.route import Route
from flowvec.server.routes import Routes, routes_of
from flowvec.server.served import Served
from flowvec.server.served_collection import ServedCollection
from flowvec.server.served_model import ServedEncoder, ServedSparse
from flowvec.server.settings import Settings
from flowvec.server.tracing import Traces
from flowvec.sparse.encoder import SparseEncoder

__all__ = ["App", "create_app"]

# What the metrics say of a request whose client left, as nginx does.
_CLIENT_GONE = 499
# Bodies of the largest size that may be in memory while they come.
_BODIES = 8


def create_app(
    models: LoadedModel | Mapping[str, LoadedModel] | Iterable[LoadedModel],
    rerankers: Reranker | Mapping[str, Reranker] | Iterable[Reranker] = (),
    collections: Mapping[str, Collection] | None = None,
    *,
    settings: Settings | None = None,
    reload: Callable[[str], LoadedModel] | None = None,
) -> App:
    """An ASGI application that serves models.

    It can be run by any ASGI server, or mounted in another application. It must be used on one
    event loop.

        >>> from flowvec.server import create_app
        >>> app = create_app({"mini": Encoder.load("mini")})

    Args:
        models: models by the name that requests use; without names, that of their bundles. Each is
            an Encoder, Reranker, SparseEncoder or MultiVectorEncoder; of each kind, the first
            answers requests that name none.
        rerankers: more of them, only Rerankers.
        collections: open collections by name. One whose Encoder is among the models shares its
            queue, and any other Encoder gets a queue of its own; likewise its SparseEncoder.
        settings: limits and deadlines.
        reload: loads the model of a name again, on a thread, for `POST /v1/admin/reload`. What it
            returns is closed when it is replaced, or by `close`.

    Raises:
        InputTypeError: something else was given.
        InputValueError: two models have the same name, or a collection's name is not valid.
    """
    settings = settings or Settings()
    pairs = [*_named(models, tuple(CLASSES.values())), *_named(rerankers, (Reranker,))]
    if len(dict(pairs)) < len(pairs):
        raise InputValueError("two models have the same name: give them as a dict with names")
    is_shared = settings.keys is not None and settings.keys.are_several
    served = Served(
        settings,
        [served_model(name, model, settings, is_shared=is_shared) for name, model in pairs],
        load=reload,
    )
    for name, collection in (collections or {}).items():
        encoder = getattr(collection, "encoder", None)
        model = next((m for m in served.encoders.values() if m.encoder is encoder), None)
        if model is None and isinstance(encoder, Encoder):
            model = ServedEncoder(name, encoder, settings, is_shared=is_shared)
        encoder = getattr(collection, "sparse_encoder", None)
        sparse = next((m for m in served.sparse_encoders.values() if m.encoder is encoder), None)
        if sparse is None and isinstance(encoder, SparseEncoder):
            sparse = ServedSparse(f"{name}.sparse", encoder, settings, is_shared=is_shared)
        served.collections[name] = ServedCollection(name, collection, model, sparse)
    return App(served)


def _named(models: Any, kinds: tuple[type[LoadedModel], ...]) -> list[tuple[str, LoadedModel]]:
    """Models and their names."""
    what = " or ".join(kind.__name__ for kind in kinds)
    if isinstance(models, kinds):
        models = [models]
    if isinstance(models, Mapping):
        pairs = list(models.items())
    elif isinstance(models, Iterable) and not isinstance(models, str):
        pairs = [(getattr(model, "bundle", model), model) for model in models]
        pairs = [(getattr(bundle, "manifest", bundle), model) for bundle, model in pairs]
        pairs = [(getattr(manifest, "name", ""), model) for manifest, model in pairs]
    else:
        raise InputTypeError(f"models must be of {what}, not {type(models).__name__}")
    for name, model in pairs:
        if not isinstance(model, kinds):
            is_name = isinstance(model, str)
            hint = f": write {kinds[0].__name__}.load({model!r})" if is_name else ""
            raise InputTypeError(
                f"model {name!r} must be of {what}, not {type(model).__name__}{hint}"
            )
    return pairs


class App:
    """The ASGI application of `create_app`."""

    def __init__(self, served: Served) -> None:
        self._served = served
        settings = served.settings
        self._guard = Guard(settings.keys, settings.hosts, settings.origins)
        provider = settings.tracer_provider
        self._traces = None if provider is None else Traces(provider)
        self._routes = Routes(routes_of(settings))
        self._incoming = Incoming(most=_BODIES * settings.max_body_bytes)
        start = os.urandom(6).hex()
        self._ids = (f"{start}-{number}" for number in itertools.count(1))

    @property
    def served(self) -> Served:
        """What it serves."""
        return self._served

    def end_bodies(self) -> None:
        """Refuse requests whose bodies are not complete, for a server that stops."""
        self._incoming.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or follow the server's start and end."""
        kind = scope["type"]
        if kind == "http":
            settings, incoming = self._served.settings, self._incoming
            request = Request(scope, receive, settings, incoming, next(self._ids))
            await self._answer(request, send)
        elif kind == "lifespan":
            await self._follow(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003})

    # --- requests -------------------------------------------------------------------------------

    async def _answer(self, request: Request, send: Send) -> None:
        served = self._served
        methods = self._routes.find(request)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if methods:
            request.dialect = (route or next(iter(methods.values()))).dialect
        is_work = route is not None and route.is_work
        served.running += is_work
        generation = served.generations.begin()
        status = _CLIENT_GONE
        try:
            try:
                self._guard.check_origin(request)
                answer = await self._run(request, methods, route)
            except ClientGone:
                return
            except Exception as error:
                status, body, headers = _refused(request, route, error)
                answer = Answer(body, status, headers=headers)
            answer.headers += self._guard.cors_headers(request)
            status = answer.status
            served.unsent_bytes += answer.held_bytes
            try:
                await answer.send(request, send)
            except ClientGone:
                status = _CLIENT_GONE
            except AnswerCut as cut:
                status = cut.refusal.status
            finally:
                served.unsent_bytes -= answer.held_bytes
        finally:
            served.running -= is_work
            served.generations.end(generation)
            seconds = time.perf_counter() - request.came
            served.measures.add(_name_of(route), status, seconds, is_work=is_work)
            log_access(request, _name_of(route), status, seconds)
            if route is not None and is_work and self._traces is not None:
                self._traces.add(request, route.method, route.path, status)

    async def _run(
        self, request: Request, methods: dict[str, Route], route: Route | None
    ) -> Answer:
        if request.method == "OPTIONS" and self._guard.cors_headers(request):
            return Answer(b"", headers=list(PREFLIGHT))
        is_open = route is not None and route.is_open
        if route is not None and route.run is metrics:
            is_open = self._served.settings.open_metrics
        if not is_open:
            self._guard.check_key(request)
        if not methods:
            raise Refusal("not_found", f"there is no route {request.path!r:.200}")
        if route is None:
            raise Refusal(
                "wrong_method",
                f"{request.path} takes {' and '.join(methods)}, not {request.method:.20}",
                allow=", ".join(methods),
            )
        if route.is_work and self._served.is_stopping:
            raise stopping()
        return await route.run(self._served, request)

    # --- life -----------------------------------------------------------------------------------

    async def _follow(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def close(self) -> None:
        """Stop the queues; models and collections that were given stay open. Calling it twice is
        harmless."""
        self._served.is_leaving = self._served.is_stopping = True
        await self._served.close()


def _name_of(route: Route | None) -> str:
    """A route in logs and metrics, in which unknown paths do not appear."""
    return "other" if route is None else f"{route.method} {route.path}"


def _refused(
    request: Request, route: Route | None, error: Exception
) -> tuple[int, bytes, list[Header]]:
    """Status, body and headers of the answer to a request that failed."""
    if isinstance(error, Refusal):
        refusal = error
    elif isinstance(error, FlowvecError):
        refusal = refusal_of(error)
        if refusal.status >= 500:
            log_failure(request, _name_of(route), error, is_expected=True)
    else:
        log_failure(request, _name_of(route), error, is_expected=False)
        refusal = Refusal("internal", "internal error; the server's log says more")
    return *worded(refusal, request.dialect), refusal.headers()
