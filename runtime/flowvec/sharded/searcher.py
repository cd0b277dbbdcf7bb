"""`ShardedSearcher`: searches a collection in shards on Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bulk import RayWorkers
from flowvec.bulk.ray_workers import connected_ray
from flowvec.collection.collection import Collection
from flowvec.collection.results import Hit
from flowvec.collection.store.filters import Filter
from flowvec.encoder.encoder import Encoder
from flowvec.errors import (
    ClosedError,
    CollectionError,
    FlowvecError,
    InputValueError,
    first_line,
)
from flowvec.sharded.manifest import place_of, read_manifest, shard_name
from flowvec.sharded.shard_cache import CachedShard
from flowvec.texts.remote import is_url, name_of

__all__ = ["ShardedHits", "ShardedSearcher"]

# Searches that a shard serves at the same time. It must be more than one: an actor with one thread
# takes calls by number, and a call that was cancelled before it was sent leaves a gap, which delays
# later calls for 30 seconds and then fails them (seen with Ray 2.60).
_AT_A_TIME = 4
# Seconds before a shard that could not be opened is opened again.
_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ShardedHits:
    """The result of a search over all shards.

    Attributes:
        hits: hits of each query, best first.
        missing: shards that were not searched, by name, and why.
    """

    hits: list[list[Hit]]
    missing: dict[str, str]

    @property
    def partial(self) -> bool:
        """Whether a shard that did not answer may have better hits."""
        return bool(self.missing)


class _Shard:
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
        self, vectors: npt.NDArray[np.float32], k: int, condition: Filter | None, exact: bool
    ) -> list[list[Hit]]:
        return self.opened().search_batch(vectors, k, filter=condition, exact=exact)

    def rows(self) -> int:
        return len(self.opened())

    def prepare(self) -> None:
        """Open the shard; a failure is told to the calls that follow."""
        with suppress(FlowvecError):
            self.opened()

    def opened(self) -> Collection:
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


class ShardedSearcher:
    """Searches all shards of a collection, each kept open by a Ray actor.

    Below a URL, each machine downloads the shards of its actors into a cache, verifies them, and
    keeps them for the next start. An actor that dies is restarted, and a shard that cannot be
    opened is tried again; until then it is missing from results, which say so. An actor serves four
    searches at a time. Any number of threads may search.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        timeout: float = 10.0,
        address: str | None = None,
        cpus_per_shard: float = 0.5,
        cache: str | Path | None = None,
    ) -> None:
        """Open the shards.

        Args:
            path: the folder that `index_shards` filled, visible to all machines, or its URL.
            encoder: embeds queries; without it, queries must be vectors.
            timeout: seconds that a shard may take to answer.
            address: address of the Ray cluster; None is a running one, or a new one on this
                machine.
            cpus_per_shard: cores that Ray reserves for each shard.
            cache: where each machine keeps the shards of a URL; None is the folder `shards` in
                flowvec's cache folder (FLOWVEC_CACHE).

        Raises:
            CollectionError: the folder is not a collection in shards.
            FingerprintMismatchError: they were made with another model.
            MissingDependencyError: Ray is not installed.
        """
        place = place_of(path)
        about = read_manifest(place)
        if encoder is not None:
            about.check_model(encoder, name_of(place))
        self._ray = ray = connected_ray(RayWorkers(1, address=address))
        self._encoder = encoder
        self._timeout = timeout
        actor = ray.remote(_Shard).options(
            num_cpus=cpus_per_shard, max_restarts=-1, max_concurrency=_AT_A_TIME
        )
        kept_in = None if cache is None else str(Path(cache).expanduser().absolute())
        self._shards: dict[str, Any] = {
            shard_name(number): actor.remote(place, shard_name(number), kept_in)
            for number in range(about.shards)
        }
        for shard in self._shards.values():
            shard.prepare.remote()

    def __enter__(self) -> ShardedSearcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shards(self) -> int:
        """How many shards the collection has; 0 after `close`."""
        return len(self._shards)

    def close(self) -> None:
        """Stop the actors; twice is harmless."""
        for shard in self._shards.values():
            self._ray.kill(shard)
        self._shards = {}

    def search(
        self,
        query: str | npt.ArrayLike,
        k: int = 10,
        *,
        filter: Filter | None = None,
        exact: bool = False,
        timeout: float | None = None,
    ) -> ShardedHits:
        """`search_batch` of one text, or of one vector float32 (dim,)."""
        if isinstance(query, str):
            return self.search_batch([query], k, filter=filter, exact=exact, timeout=timeout)
        vectors = np.asarray(query, np.float32)[None]
        return self.search_batch(vectors, k, filter=filter, exact=exact, timeout=timeout)

    def search_batch(
        self,
        queries: Sequence[str] | npt.ArrayLike,
        k: int = 10,
        *,
        filter: Filter | None = None,
        exact: bool = False,
        timeout: float | None = None,
    ) -> ShardedHits:
        """The k nearest rows of all shards.

        Args:
            queries: texts, or vectors float32 (queries, dim).
            k: hits per query.
            filter: as in `Collection.search`.
            exact: as in `Collection.search`.
            timeout: seconds that a shard may take; None is the one of this object.

        Returns:
            Hits of the shards that answered, and names of those that did not.

        Raises:
            ClosedError: after `close`.
            InputTypeError, InputValueError: as `Collection.search_batch` does.
        """
        if not self._shards:
            raise ClosedError("this ShardedSearcher is closed")
        vectors = self._vectors(queries)
        ray = self._ray
        shard_of_call = {
            shard.search.remote(vectors, k, filter, exact): name
            for name, shard in self._shards.items()
        }
        limit = self._timeout if timeout is None else timeout
        ready, late = ray.wait(list(shard_of_call), num_returns=len(shard_of_call), timeout=limit)
        missing = {shard_of_call[one]: f"no answer within {limit:g} s" for one in late}
        hits_by_shard: dict[str, list[list[Hit]]] = {}
        for one in ready:
            try:
                hits_by_shard[shard_of_call[one]] = ray.get(one)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, InputValueError | TypeError):
                    raise error.cause from None  # the query is not valid, for any shard
                missing[shard_of_call[one]] = first_line(error.cause or error)
            except ray.exceptions.RayError as error:
                missing[shard_of_call[one]] = first_line(error)
        for one in late:
            with suppress(Exception):  # it may have ended by now
                ray.cancel(one)
        answers = [hits_by_shard[name] for name in self._shards if name in hits_by_shard]
        hits = [_merged([answer[i] for answer in answers], k) for i in range(len(vectors))]
        return ShardedHits(hits, {name: missing[name] for name in self._shards if name in missing})

    def rows(self, timeout: float = 60.0) -> int:
        """Rows of all shards.

        Raises:
            CollectionError: a shard does not answer.
        """
        try:
            counts = self._ray.get(
                [shard.rows.remote() for shard in self._shards.values()], timeout=max(0.0, timeout)
            )
        except self._ray.exceptions.RayError as error:
            raise CollectionError(f"a shard does not answer: {first_line(error)}") from error
        return sum(counts)

    def _vectors(self, queries: Sequence[str] | npt.ArrayLike) -> npt.NDArray[np.float32]:
        if isinstance(queries, list | tuple) and queries and isinstance(queries[0], str):
            if self._encoder is None:
                raise InputValueError("a searcher without an encoder takes vectors")
            return np.asarray(self._encoder.encode_query(list(map(str, queries))), np.float32)
        vectors = np.asarray(queries, np.float32)
        if vectors.ndim != 2:
            raise InputValueError(f"queries must be of shape (queries, dim), not {vectors.shape}")
        return vectors


def _merged(answers: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    """The k best hits of several rankings; of hits with the same id, only the best."""
    best: dict[Any, Hit] = {}
    for hit in sorted((hit for answer in answers for hit in answer), key=lambda hit: -hit.score):
        best.setdefault(hit.id, hit)
    return list(best.values())[:k]
