"""A collection that is served: its texts are embedded by the queue of a served model."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from flowvec.collection.async_collection import AsyncCollection
from flowvec.collection.collection import Collection
from flowvec.errors import InputTypeError, InputValueError
from flowvec.server.background_job import BackgroundJob
from flowvec.server.served_model import ServedEncoder, ServedModel, ServedSparse

__all__ = ["ServedCollection"]

_NAME = re.compile(r"[\w.-]{1,64}")


class ServedCollection:
    """A Collection that is served under a name.

    Attributes:
        name: in the paths of its routes.
        rows: its rows, for the event loop.
        model: embeds its texts; None for a collection of vectors.
        sparse: makes its sparse vectors; None without one, or until it is known.
        jobs: long work over its rows, by kind.
    """

    def __init__(
        self,
        name: str,
        collection: Collection,
        model: ServedEncoder | None,
        sparse: ServedSparse | None = None,
    ) -> None:
        """Serve an open Collection; closing this does not close it.

        Args:
            name: letters, digits and `._-`.
            collection: the collection.
            model: serves the collection's own Encoder; None without one.
            sparse: serves its own SparseEncoder; None without one.

        Raises:
            InputTypeError: it is not a Collection.
            InputValueError: the name is not valid.
        """
        if _NAME.fullmatch(name) is None:
            raise InputValueError(
                f"{name!r} cannot be a collection's name: up to 64 letters, digits and ._- can"
            )
        if not isinstance(collection, Collection):
            raise InputTypeError(
                f"collection {name!r} must be a Collection, not {type(collection).__name__}"
            )
        self.name = name
        self.model = model
        self.sparse = sparse
        self.rows = AsyncCollection(collection)
        self.jobs: dict[str, BackgroundJob[Any]] = {}

    @property
    def fingerprint(self) -> str | None:
        """Of the model that made its vectors; None if there are none of a model."""
        return self.rows.collection._store.settings.fingerprint

    @property
    def sparse_fingerprint(self) -> str | None:
        """Of the model that made its sparse vectors; None if it is not known."""
        return self.rows.collection._sparse_fingerprint()

    @property
    def token_fingerprint(self) -> str | None:
        """Of the model that made its token vectors; None without any."""
        return self.rows.collection._token_fingerprint()

    @property
    def models(self) -> list[ServedModel]:
        """What embeds its texts."""
        return [model for model in (self.model, self.sparse) if model is not None]

    def take(self, old: ServedModel, new: ServedModel) -> None:
        """Embed with another model of the same kind, if this embeds with the old one."""
        collection = self.rows.collection
        if self.model is old and isinstance(new, ServedEncoder):
            self.model = new
            collection._encoder = new.encoder
        if self.sparse is old and isinstance(new, ServedSparse):
            self.sparse = new
            if collection._sparse_encoder is not None:
                collection._sparse_encoder = new.encoder

    def described(self) -> dict[str, Any]:
        """What lists of collections say."""
        return {
            "id": self.name,
            "object": "collection",
            "dim": self.rows.collection._dim,
            "model": None if self.model is None else self.model.name,
            "sparse_model": None if self.sparse is None else self.sparse.name,
        }

    @property
    def dead_threads(self) -> int:
        """Threads of its reads and changes that have ended."""
        return self.rows._calls.dead_threads

    async def end_job(self, kind: str) -> None:
        """Stop a job and forget it; another one that was started meanwhile stays."""
        job = self.jobs.get(kind)
        if job is not None:
            await asyncio.to_thread(job.stop)
            if self.jobs.get(kind) is job:
                del self.jobs[kind]

    async def close(self) -> None:
        """Stop its threads; changes that have begun are made."""
        for job in list(self.jobs.values()):
            await asyncio.to_thread(job.stop)
        await self.rows.close()
