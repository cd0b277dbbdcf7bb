"""Everything that a server serves, by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from flowvec.encoder.loaded_model import LoadedModel
from flowvec.reranker.scores import ScoreOptions
from flowvec.server.generations import Generations
from flowvec.server.measures import Measures
from flowvec.server.model_queue import Outcome
from flowvec.server.refusal import Refusal
from flowvec.server.request import Request
from flowvec.server.served_collection import ServedCollection
from flowvec.server.served_model import (
    ModelKind,
    ServedEncoder,
    ServedModel,
    ServedMultiVector,
    ServedReranker,
    ServedSparse,
    ServedTexts,
)
from flowvec.server.settings import Settings
from flowvec.tokenizer.pairs import TextPair

__all__ = ["Served"]

# Seconds in which models that were replaced are closed at the end.
_PATIENCE = 10.0

# A kind of model in messages, and the route to name for it.
_KINDS: dict[ModelKind, tuple[str, str]] = {
    "embedding": ("embedding model", "/embed"),
    "reranker": ("reranker", "/rerank"),
    "sparse": ("sparse encoder", "/embed_sparse"),
    "multi_vector": ("multi-vector encoder", "/embed_all"),
}

M = TypeVar("M", bound=ServedModel)


@dataclass(slots=True, eq=False)
class Served:
    """What a server serves.

    Attributes:
        settings: its limits.
        models: those that requests can name; of each kind, the first answers requests that name
            none.
        collections: by name.
        measures: counts of its requests.
        started: when it was made, in seconds since the epoch.
        is_leaving: `/ready` fails, so that no more requests are sent here.
        is_stopping: new work is refused.
        running: requests for work that are not answered yet.
        unsent_bytes: vectors of answers that are being sent.
        generations: requests by when they began.
        load: loads a model again by its name; None if that cannot be done.
        is_reloading: whether models are being loaded again.
        owned: models that are closed when they are replaced, or at the end.
        closing: waits for requests of models that were replaced.
    """

    settings: Settings
    models: list[ServedModel]
    collections: dict[str, ServedCollection] = field(default_factory=dict)
    measures: Measures = field(default_factory=Measures)
    started: int = field(default_factory=lambda: int(time.time()))
    is_leaving: bool = False
    is_stopping: bool = False
    running: int = 0
    unsent_bytes: int = 0
    generations: Generations = field(default_factory=Generations)
    load: Callable[[str], LoadedModel] | None = None
    is_reloading: bool = False
    owned: set[LoadedModel] = field(default_factory=set)
    closing: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def encoders(self) -> dict[str, ServedEncoder]:
        """Embedding models by name."""
        return _of(ServedEncoder, self.models)

    @property
    def rerankers(self) -> dict[str, ServedReranker]:
        """Rerankers by name."""
        return _of(ServedReranker, self.models)

    @property
    def sparse_encoders(self) -> dict[str, ServedSparse]:
        """Sparse encoders by name."""
        return _of(ServedSparse, self.models)

    @property
    def queues(self) -> list[ServedModel]:
        """All models, also those that serve a collection only."""
        own = (model for each in self.collections.values() for model in each.models)
        return list(dict.fromkeys([*self.models, *own]))

    def encoder(self, name: str | None) -> ServedEncoder:
        """The encoder of that name; None names the first.

        Raises:
            Refusal: there is none.
        """
        return self._named(ServedEncoder, name)

    def reranker(self, name: str | None) -> ServedReranker:
        """The reranker of that name; None names the first.

        Raises:
            Refusal: there is none.
        """
        return self._named(ServedReranker, name)

    def sparse(self, name: str | None) -> ServedSparse:
        """The sparse encoder of that name; None names the first.

        Raises:
            Refusal: there is none.
        """
        return self._named(ServedSparse, name)

    def multi_vector(self, name: str | None) -> ServedMultiVector:
        """The multi-vector encoder of that name; None names the first.

        Raises:
            Refusal: there is none.
        """
        return self._named(ServedMultiVector, name)

    def reads_texts(self, name: str | None) -> ServedTexts:
        """The model of that name that reads single texts, of whatever kind; None names the first.

        Raises:
            Refusal: there is none.
        """
        texts = _of(ServedTexts, self.models)
        if name is not None and name in texts:
            return texts[name]
        if texts and (name is None or (self.settings.any_model and len(texts) == 1)):
            return next(iter((self.encoders or texts).values()))
        return self.encoder(name)  # which says what is wrong

    def _named(self, kind: type[M], name: str | None) -> M:
        models = _of(kind, self.models)
        if name is None or (self.settings.any_model and len(models) == 1):
            if models:
                return next(iter(models.values()))
            raise self._missing(kind, name)
        model = models.get(name)
        if model is None:
            raise self._missing(kind, name)
        return model

    def _missing(self, kind: type[ServedModel], name: str | None) -> Refusal:
        """No model of a kind, or none of that name."""
        what, _ = _KINDS[kind.kind]
        other = next((model for model in self.models if model.name == name), None)
        if other is not None:
            is_what, route = _KINDS[other.kind]
            message = f"{other.name} is not {_an(what)} but {_an(is_what)}, for {route}"
        elif name is None:
            here = dict.fromkeys(_KINDS[model.kind] for model in self.models)
            hint = "".join(f"; {route} is for its {each}" for each, route in here)
            message = f"this server has no {what}{hint}"
        else:
            names = ", ".join(_of(kind, self.models)) or "none"
            message = f"there is no {what} {name!r:.100}; this server has {names}"
        return Refusal("no_such_model", message, "model")

    def replace(self, old: ServedModel, new: ServedModel) -> None:
        """Serve a model in the place of one of the same name, which is closed when the last
        request that has begun is answered."""
        self.models = [new if model is old else model for model in self.models]
        for collection in self.collections.values():
            collection.take(old, new)
        self.owned.add(new.model)
        task = asyncio.get_running_loop().create_task(self._close(old))
        self.closing.add(task)
        task.add_done_callback(self.closing.discard)

    async def _close(self, old: ServedModel) -> None:
        try:
            await self.generations.earlier()
        finally:
            await old.close()
        is_used = any(model.model is old.model for model in self.queues)
        if old.model in self.owned and not is_used:
            self.owned.discard(old.model)
            await asyncio.to_thread(old.model.close)

    async def close(self) -> None:
        """Stop the queues, and close models that were loaded here."""
        if self.closing:  # a model must not be closed by two threads at once
            await asyncio.wait(self.closing, timeout=_PATIENCE)
        for collection in self.collections.values():
            await collection.close()
        for model in self.queues:
            await model.close()
        for model_here in self.owned:
            await asyncio.to_thread(model_here.close)

    async def embed(
        self, request: Request, model: ServedTexts, texts: list[str], options: Mapping[str, Any]
    ) -> Outcome:
        """Vectors of texts: (texts, dim), SparseVectors, or the tokens' vectors of each text.

        Args:
            request: whose texts they are.
            model: an embedding model, a sparse or a multi-vector encoder.
            texts: what to embed; no texts only of an embedding model.
            options: of the model, as for its `encode`.

        Raises:
            Refusal: an option is not valid, there is no room, it is too late, or the model failed.
            ClientGone: the client left.
        """
        _check_lengths(texts, self.settings.max_text_characters)
        if not texts and isinstance(model, ServedEncoder):
            vectors = model.encoder.encode([], **options)
            return Outcome(vectors, 0, 0, 0.0, 0.0, 0.0)
        return await self._outcome(request, model, texts, dict(options))

    async def score(
        self,
        request: Request,
        model: ServedReranker,
        pairs: list[TextPair],
        options: ScoreOptions,
    ) -> Outcome:
        """Scores of pairs, (pairs,) or (pairs, labels).

        Raises:
            Refusal, ClientGone: as `embed`.
        """
        _check_lengths([text for pair in pairs for text in pair], self.settings.max_text_characters)
        if not pairs:
            return Outcome(np.empty(0, np.float32), 0, 0, 0.0, 0.0, 0.0)
        return await self._outcome(request, model, pairs, dict(options))

    async def _outcome(
        self, request: Request, model: ServedModel, items: list[Any], options: dict[str, Any]
    ) -> Outcome:
        if self.unsent_bytes > self.settings.max_unsent_bytes:
            raise Refusal("overloaded", "callers do not read their answers", retry_after=1.0)
        call = model.queue.put(
            request.key, items, model.costs(items), options, came=request.came, end=request.end()
        )
        outcome = await request.outcome(model.queue, call)
        self.count(request, model, len(items), outcome)
        return outcome

    def count(self, request: Request, model: ServedModel, items: int, outcome: Outcome) -> None:
        """Count what was computed for a request, and ends now."""
        measures = model.measures
        measures.items += items
        measures.tokens += outcome.tokens
        measures.truncated += outcome.truncated
        measures.tokenize.add(outcome.tokenize_seconds)
        measures.queue.add(outcome.queue_seconds)
        measures.compute.add(outcome.compute_seconds)
        spent = request.spent
        spent.model = model.name
        spent.items += items
        spent.tokens += outcome.tokens
        if isinstance(model, ServedEncoder):
            spent.dim = outcome.results.shape[1]
        spent.add(outcome.stages(model.name, time.perf_counter()))


def _of(kind: type[M], models: list[ServedModel]) -> dict[str, M]:
    """The models of a kind by name."""
    return {model.name: model for model in models if isinstance(model, kind)}


def _an(what: str) -> str:
    return f"an {what}" if what.startswith("e") else f"a {what}"


def _check_lengths(texts: list[str], most: int) -> None:
    """Refuse texts that are longer than any model reads."""
    longest = max(map(len, texts), default=0)
    if longest > most:
        index = int(np.argmax([len(text) for text in texts]))
        raise Refusal(
            "too_large", f"text {index} has {longest:,} characters, and at most {most:,} are taken"
        )
