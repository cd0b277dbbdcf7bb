"""Everything that a server serves, by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from flowvec.encoder.loaded_model import LoadedModel
from flowvec.reranker.scores import ScoreOptions
from flowvec.server.generations import Generations
from flowvec.server.measures import Measures
from flowvec.server.model_queue import Outcome, QueuedCall
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
from flowvec.tokenizer.given_ids import GivenIds
from flowvec.tokenizer.pairs import TextPair

__all__ = ["Served"]

# Seconds in which models that were replaced are closed at the end.
_PATIENCE = 10.0

# A kind of model in messages, and the route to name for it.
_KINDS: dict[ModelKind, tuple[str, str]] = {
    "embedding": ("embedding model", "/embed"),
    "reranker": ("reranker", "/rerank"),
    "sparse": ("sparse encoder", "/embed_sparse"),
    "multi_vector": ("multi-vector encoder", "/embed_all and /rerank"),
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
    def multi_vector_encoders(self) -> dict[str, ServedMultiVector]:
        """Multi-vector encoders by name."""
        return _of(ServedMultiVector, self.models)

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

    def ranker(
        self, name: str | None, fingerprint: str | None = None
    ) -> ServedReranker | ServedMultiVector:
        """The model of that name that sorts documents: a reranker or a multi-vector encoder.

        Args:
            name: None names the first reranker; without any, the multi-vector encoder with that
                fingerprint, or else the first.
            fingerprint: of the model that made a collection's token vectors; None without.

        Raises:
            Refusal: there is none.
        """
        rerankers, encoders = self.rerankers, self.multi_vector_encoders
        if name is not None and name in encoders:
            return encoders[name]
        if encoders and not rerankers and (name is None or self._takes_any(encoders)):
            of_tokens = (e for e in encoders.values() if e.encoder.fingerprint == fingerprint)
            return next(of_tokens, next(iter(encoders.values())))
        return self._named(ServedReranker, name, ServedMultiVector)

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
        if texts and (name is None or self._takes_any(texts)):
            return next(iter((self.encoders or texts).values()))
        return self.encoder(name)  # which says what is wrong

    def _takes_any(self, models: Sized) -> bool:
        """Whether the only one of these models answers requests for other names."""
        return self.settings.any_model and len(models) == 1

    def _named(self, kind: type[M], name: str | None, *others: type[ServedModel]) -> M:
        """The model of that kind and name; messages list the names of `others` too."""
        models = _of(kind, self.models)
        if name is None or self._takes_any(models):
            if models:
                return next(iter(models.values()))
            raise self._missing(kind, name, *others)
        model = models.get(name)
        if model is None:
            raise self._missing(kind, name, *others)
        return model

    def _missing(
        self, kind: type[ServedModel], name: str | None, *others: type[ServedModel]
    ) -> Refusal:
        """No model of a kind, or none of that name."""
        what, _ = _KINDS[kind.kind]
        other = next((model for model in self.models if model.name == name), None)
        if other is not None:
            is_what, route = _KINDS[other.kind]
            message = f"{other.name} is not {_an(what)} but {_an(is_what)}, for {route}"
        elif name is None:
            here = dict.fromkeys(_KINDS[model.kind] for model in self.models)
            hint = "".join(
                f"; {route} {'are' if ' and ' in route else 'is'} for its {each}"
                for each, route in here
            )
            message = f"this server has no {what}{hint}"
        else:
            fitting = (model.name for model in self.models if isinstance(model, (kind, *others)))
            names = ", ".join(fitting) or "none"
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
        self,
        request: Request,
        model: ServedTexts,
        texts: Sequence[str | GivenIds],
        options: Mapping[str, Any],
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
        if not texts and isinstance(model, ServedEncoder):
            vectors = model.encoder.encode([], **options)
            return Outcome(vectors, 0, 0, 0.0, 0.0, 0.0)
        call = self.put(request, model, texts, options)
        return await self.outcome(request, model, call, len(texts))

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
        if not pairs:
            return Outcome(np.empty(0, np.float32), 0, 0, 0.0, 0.0, 0.0)
        call = self.put(request, model, pairs, options)
        return await self.outcome(request, model, call, len(pairs))

    def put(
        self,
        request: Request,
        model: ServedModel,
        items: Sequence[str | GivenIds] | Sequence[TextPair],
        options: Mapping[str, Any],
    ) -> QueuedCall:
        """Put texts or pairs, at least one, into the queue of a model.

        Raises:
            Refusal: a text is too long, there is no room, or it is too late.
        """
        _check_lengths(items, self.settings.max_text_characters)
        if self.unsent_bytes > self.settings.max_unsent_bytes:
            raise Refusal("overloaded", "callers do not read their answers", retry_after=1.0)
        costs = model.costs(items)
        call = model.queue.put(
            request.key, list(items), costs, dict(options), came=request.came, end=request.end()
        )
        if repaired := request.repaired:
            texts = (item if isinstance(item, tuple) else (item,) for item in items)
            self.count_replaced(request, model, sum(not repaired.isdisjoint(t) for t in texts))
        return call

    async def outcome(
        self, request: Request, model: ServedModel, call: QueuedCall, items: int
    ) -> Outcome:
        """Wait for a call of `put` with so many items, and count it.

        Raises:
            Refusal: an option is not valid, it is too late, or the model failed.
            ClientGone: the client left.
        """
        outcome = await request.outcome(model.queue, call)
        self.count(request, model, items, outcome)
        return outcome

    def count_replaced(self, request: Request, model: ServedModel, items: int) -> None:
        """Count texts or pairs in which lone surrogates became U+FFFD."""
        model.measures.replaced += items
        request.spent.replaced += items

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


def _check_lengths(items: Sequence[str | GivenIds] | Sequence[TextPair], most: int) -> None:
    """Refuse texts that are longer than any model reads; those of pairs are counted in order."""
    texts = [text for item in items for text in (item if isinstance(item, tuple) else (item,))]
    longest = max(map(len, texts), default=0)
    if longest > most:
        index = int(np.argmax([len(text) for text in texts]))
        units = "characters" if isinstance(texts[index], str) else "token ids"
        raise Refusal(
            "too_large", f"text {index} has {longest:,} {units}, and at most {most:,} are taken"
        )
