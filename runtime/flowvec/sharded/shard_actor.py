"""What searches one shard, in a process of Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flowvec.collection.collection import Collection
from flowvec.collection.part_search import Candidates, PartSearcher, Words
from flowvec.collection.query import Queries, SearchOptions
from flowvec.collection.results import Hit
from flowvec.collection.store.bm25 import WordStatistics
from flowvec.collection.store.filters import Filter
from flowvec.collection.store.rows import Id, Item
from flowvec.errors import CollectionError, FlowvecError
from flowvec.sharded.shard_cache import CachedShard
from flowvec.sparse.vectors import SparseVectors
from flowvec.texts.urls import is_url
from flowvec.vectors import Metric

__all__ = ["ShardActor"]

# Seconds before a shard that could not be opened is opened again.
_PAUSE_SECONDS = 5.0


class ShardActor:
    """A Ray actor with one open Collection.

    A shard that cannot be opened is opened again by a later call: it may come back.
    """

    def __init__(self, place: str, name: str, cache: str | None) -> None:
        self._place, self._name = place, name
        self._cache = None if cache is None else Path(cache)
        self._lock = threading.Lock()
        self._collection: Collection | None = None
        self._cached: CachedShard | None = None
        self._failure: FlowvecError | None = None
        self._failed = 0.0

    def search(
        self,
        vectors: npt.NDArray[np.float32],
        k: int,
        condition: Filter | None,
        exact: bool,
        ef: int | None,
        group_by: str | None,
        with_vectors: bool,
    ) -> list[list[Hit]]:
        """`Collection.search_batch`."""
        return self.opened().search_batch(
            vectors,
            k,
            filter=condition,
            exact=exact,
            ef=ef,
            group_by=group_by,
            with_vectors=with_vectors,
        )

    def search_sparse(
        self,
        vectors: SparseVectors,
        fingerprint: str | None,
        k: int,
        condition: Filter | None,
        with_vectors: bool,
    ) -> list[list[Hit]]:
        """`Collection.search_sparse_batch`, of vectors that a model made."""
        collection = self.opened()
        PartSearcher(collection).check_sparse_model(vectors.dim, fingerprint)
        return collection.search_sparse_batch(
            vectors, k, filter=condition, with_vectors=with_vectors
        )

    def rankings(
        self, queries: Queries, fingerprint: str | None, options: SearchOptions
    ) -> list[Candidates]:
        """`PartSearcher.rankings`, of sparse vectors that a model made."""
        part = PartSearcher(self.opened())
        if queries.sparse is not None:
            part.check_sparse_model(queries.sparse.dim, fingerprint)
        return part.rankings(queries, options)

    def words(
        self,
        queries: Queries,
        statistics: Sequence[WordStatistics | None],
        options: SearchOptions,
    ) -> list[Words]:
        """`PartSearcher.words`."""
        return PartSearcher(self.opened()).words(queries, statistics, options)

    def get(self, ids: Sequence[Id]) -> list[Item]:
        """The rows with these ids that there are here."""
        return [item for item in self.opened().get(ids) if item is not None]

    def items(self, labels: Sequence[int]) -> dict[int, Item]:
        """`PartSearcher.items`."""
        return PartSearcher(self.opened()).items(labels)

    def metric(self) -> Metric:
        """How its vectors are compared."""
        return PartSearcher(self.opened()).metric

    def rows(self) -> int:
        """How many rows it has."""
        return len(self.opened())

    def prepare(self) -> None:
        """Open the shard; a failure is told to the calls that follow."""
        with suppress(FlowvecError):
            self.opened()

    def opened(self) -> Collection:
        """The shard's collection.

        Raises:
            FlowvecError: it cannot be opened.
        """
        with self._lock:
            if self._collection is not None:
                return self._collection
            if self._failure is not None and time.monotonic() - self._failed < _PAUSE_SECONDS:
                raise CollectionError(str(self._failure))
            try:
                if is_url(self._place):
                    self._cached = CachedShard(self._place, self._name, self._cache)
                    self._collection = self._cached.collection
                else:
                    self._collection = Collection.open(Path(self._place) / self._name)
            except FlowvecError as error:
                self._failure, self._failed = error, time.monotonic()
                raise
            return self._collection
