"""What a wrapper holds: a model that loads late, and a collection that opens late."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from flowvec.arguments import path_of
from flowvec.bundle.bundle import absolute_path
from flowvec.bundle.exported import open_bundle
from flowvec.collection.collection import Collection
from flowvec.collection.creation import is_collection
from flowvec.compat import override
from flowvec.encoder.async_encoder import AsyncEncoder
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.loaded_model import LoadedModel
from flowvec.errors import ClosedError, CollectionError, InputTypeError, InputValueError
from flowvec.multi_vector.encoder import MultiVectorEncoder
from flowvec.reranker.reranker import Reranker
from flowvec.sparse.vectors import SparseVectors

__all__ = [
    "AnyReranker",
    "LateCollection",
    "LateEncoder",
    "LateModel",
    "LateReranker",
    "load_kind",
    "weights_of",
]

M = TypeVar("M", bound=LoadedModel)

# What sorts texts by how well they answer a query: both have `rank`, `predict` and `head`.
AnyReranker = Reranker | MultiVectorEncoder

# Those of `Collection.create` that `Collection.open` has not.
_OF_CREATE = ("metric", "vector_dtype")
# Those of `load` that say which bundle is opened, and how a checkpoint becomes one.
_OF_OPENING = ("revision", "local_files_only", "trust_remote_code", "allow_pickle")


class LateModel(Generic[M]):
    """A model that is loaded at its first use, once for all threads."""

    def __init__(
        self, *kinds: type[M], model: str | Path | M, options: Mapping[str, Any] | None = None
    ) -> None:
        """Remember what to load.

        Args:
            *kinds: classes of models that are accepted. A name or a directory is loaded by the
                first one, unless a subclass chooses.
            model: what their `load` takes, or a loaded model, which `close` leaves open.
            options: those of `load`.

        Raises:
            InputTypeError: the model is neither.
            InputValueError: there are options for a loaded model.
        """
        self._kinds = kinds
        self.options = dict(options or {})
        self._lock = threading.Lock()
        self._model: M | None = None
        self._is_own = False
        if isinstance(model, kinds):
            if self.options:
                raise InputValueError(
                    f"{', '.join(self.options)} cannot be set: the {type(model).__name__} is loaded"
                )
            self._model = model
            self.name = str(model.bundle.handle)
        elif isinstance(model, str | Path):
            self.name = str(model)
        else:
            raise InputTypeError(
                f"model must be a name, a directory{_or(kinds)}, not {type(model).__name__}"
            )

    def get(self) -> M:
        """The model.

        Raises:
            FlowvecError: as its `load`.
        """
        with self._lock:
            if self._model is None:
                self._model = self._load()
                self._is_own = True
            return self._model

    def _load(self) -> M:
        return self._kinds[0].load(self.name, **self.options)

    def close(self) -> None:
        """Close the model if it was loaded here; twice is harmless."""
        with self._lock:
            if self._is_own and self._model is not None:
                self._model.close()


class LateEncoder(LateModel[Encoder]):
    """An Encoder that is loaded at its first use, and its queue for asyncio tasks."""

    def __init__(
        self, model: str | Path | Encoder, options: Mapping[str, Any] | None = None
    ) -> None:
        """Arguments and errors are those of `LateModel`."""
        super().__init__(Encoder, model=model, options=options)
        self._queue_lock = threading.Lock()
        self._asynchronous: AsyncEncoder | None = None

    @property
    def asynchronous(self) -> AsyncEncoder:
        """The queue that asyncio tasks share, so that their texts share batches."""
        with self._queue_lock:
            if self._asynchronous is None:
                self._asynchronous = AsyncEncoder(self.get())
            return self._asynchronous

    @override
    def close(self) -> None:
        with self._queue_lock:
            if self._asynchronous is not None:
                self._asynchronous.shared.close()
        super().close()


class LateReranker(LateModel[AnyReranker]):
    """A Reranker or a MultiVectorEncoder, whichever a bundle is, loaded at its first use."""

    def __init__(
        self, model: str | Path | AnyReranker, options: Mapping[str, Any] | None = None
    ) -> None:
        """Arguments and errors are those of `LateModel`."""
        super().__init__(Reranker, MultiVectorEncoder, model=model, options=options)

    @override
    def _load(self) -> AnyReranker:
        kinds: dict[str, type[AnyReranker]] = {"multi_vector": MultiVectorEncoder}
        return load_kind(self.name, self.options, kinds, Reranker)


class LateCollection:
    """One collection of a wrapper: opened at its first use, created at its first rows.

    It is kept open, for any number of threads, until `close`. It does not survive a fork after its
    first use.
    """

    def __init__(
        self,
        collection: str | Path | Collection,
        encoder: LateEncoder | None = None,
        **options: Any,
    ) -> None:
        """Remember what to open.

        Args:
            collection: a directory, or an open Collection, which `close` leaves open.
            encoder: embeds texts of the collection; None if its vectors come from elsewhere.
            **options: those of `Collection.create`. They have no effect on an open Collection.

        Raises:
            InputTypeError: it is neither a path nor a Collection.
        """
        self._encoder = encoder
        self._options = options
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_own = not isinstance(collection, Collection)
        self._collection = collection if isinstance(collection, Collection) else None
        self.path = (
            Path(collection.info().path)
            if isinstance(collection, Collection)
            else absolute_path(path_of("collection", collection))
        )

    def opened(self) -> Collection | None:
        """The collection; None as long as there is none.

        Raises:
            FlowvecError: as `Collection.open`.
            ClosedError: after `close`.
        """
        with self._lock:
            self._check()
            if self._collection is None and self.path.is_file():
                raise CollectionError(f"{self.path} is a file; a collection is a directory")
            if self._collection is None and is_collection(self.path):
                options = {k: v for k, v in self._options.items() if k not in _OF_CREATE}
                self._collection = Collection.open(self.path, encoder=self._model(), **options)
            return self._collection

    def created(self, dim: int) -> Collection:
        """The collection, which is created if there is none.

        Args:
            dim: length of its vectors, if there is no encoder.

        Raises:
            FlowvecError: as `Collection.open_or_create`; an existing one has another dim or other
                options.
            ClosedError: after `close`.
        """
        with self._lock:
            self._check()
            if self._collection is None:
                model = self._model()
                self._collection = Collection.open_or_create(
                    self.path, encoder=model, dim=dim if model is None else None, **self._options
                )
            return self._collection

    def close(self) -> None:
        """Close the collection if it was opened here; twice is harmless."""
        with self._lock:
            self._is_closed = True
            if self._is_own and self._collection is not None:
                self._collection.close()

    def _model(self) -> Encoder | None:
        return None if self._encoder is None else self._encoder.get()

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the store of {self.path} is closed")


def load_kind(
    name: str, options: Mapping[str, Any], kinds: Mapping[str, type[M]], otherwise: type[M]
) -> M:
    """Load a model by the class that fits its bundle.

    Args:
        name: what `load` takes.
        options: those of `load`.
        kinds: classes by the kind in a manifest.
        otherwise: the class for other kinds, which refuses what it cannot open.

    Raises:
        FlowvecError: as `load`.
    """
    opening = {key: options[key] for key in _OF_OPENING if key in options}
    others = {key: value for key, value in options.items() if key not in opening}
    bundle = open_bundle(name, **opening)
    return kinds.get(bundle.manifest.kind, otherwise).load(bundle.path, **others)


def weights_of(vectors: SparseVectors) -> list[tuple[list[int], list[float]]]:
    """The token ids, which ascend, and the weights of each sparse vector, as plain lists."""
    return [(row.indices.tolist(), row.values.tolist()) for row in vectors]


def _or(kinds: tuple[type[LoadedModel], ...]) -> str:
    """The end of a list: `, a Reranker or a MultiVectorEncoder`, or ` or an Encoder`."""
    *first, last = [f"{'an' if k.__name__[0] in 'AEIOU' else 'a'} {k.__name__}" for k in kinds]
    return "".join(f", {name}" for name in first) + f" or {last}"
