"""Collections that are too large for one machine: built and searched in shards, on Ray.

    out/shards.json      how many shards there are, and of which model
    out/shard-000 ...    a Collection each
    out/shard-000.job    what the job that filled it keeps of itself, dead letters among it

Every shard holds the rows of some of the input's blocks, so that each is built without a look at
the others' rows. A search asks all of them, and merges their answers by score.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bulk import BulkSummary, RayWorkers, encode_files
from flowvec.bulk.ray_workers import cause_of, connected_ray, cpus_of
from flowvec.collection.collection import Collection
from flowvec.collection.results import Hit
from flowvec.collection.store.filters import Filter
from flowvec.encoder.encoder import Encoder
from flowvec.errors import (
    ClosedError,
    CollectionError,
    FingerprintMismatchError,
    InputValueError,
    first_line,
)
from flowvec.texts.remote import from_anywhere

__all__ = ["ShardedHits", "ShardedSearcher", "index_shards", "is_sharded", "shards_model"]

_FILE = "shards.json"
_VERSION = 1

# Searches that a shard serves at a time. It must be more than one: an actor of one thread takes
# calls by their numbers, and one that was cancelled before it was sent leaves a gap in them, which
# holds up the calls after it for 30 seconds and then fails them (seen with Ray 2.60).
_AT_A_TIME = 4


@dataclass(frozen=True, slots=True)
class ShardedHits:
    """What a search of all shards found.

    Attributes:
        hits: of each query, best first.
        missing: the shards whose rows were not searched, and why; their names are their folders'.
    """

    hits: list[list[Hit]]
    missing: dict[str, str]

    @property
    def partial(self) -> bool:
        """Whether there may be better hits in a shard that did not answer."""
        return bool(self.missing)


def is_sharded(path: Path) -> bool:
    """Whether a folder holds a collection in shards."""
    return (path / _FILE).is_file()


def shards_model(path: Path) -> str:
    """The name or directory of the bundle that shards were made with.

    Raises:
        CollectionError: there are none.
    """
    return str(_read(path)["model"])


def index_shards(
    encoder: Encoder,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    shards: int,
    workers: RayWorkers,
    **options: Any,
) -> list[BulkSummary]:
    """Build a collection in shards, each in a task on Ray; calling it again completes what is left.

    Ids must be distinct over the whole input: a row replaces another of its id in its own shard
    alone.

    Args:
        encoder: tasks load its bundle on its provider, in its compute type.
        inputs: as in `encode_files`.
        out: the folder.
        shards: how many collections.
        workers: how many tasks at a time, with which cores.
        options: further arguments of `encode_files`: `text_field`, `id_field`, `keep` and so on.

    Returns:
        What became of each shard.

    Raises:
        InputValueError: the folder holds another number of shards, or as `encode_files`.
        FingerprintMismatchError: it holds those of another model.
        MissingDependencyError: Ray is not installed.
    """
    if shards < 1:
        raise InputValueError(f"shards must be at least 1, but is {shards}")
    ray = connected_ray(workers)
    folder = Path(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    about = {"flowvec_shards": _VERSION, "shards": shards, "model": encoder.bundle.handle,
             "fingerprint": encoder.fingerprint}  # fmt: skip
    if is_sharded(folder):
        before = _read(folder)
        if before["shards"] != shards:
            raise InputValueError(f"{folder} has {before['shards']} shards, not {shards}")
        if before["fingerprint"] != encoder.fingerprint:
            raise FingerprintMismatchError(f"{folder} was made with another model")
    else:
        (folder / _FILE).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    engine = encoder.engine
    cpus = cpus_of(ray, workers, min(shards, workers.workers))
    arguments = {
        "provider": engine.provider,
        "compute": engine.compute,
        "max_batch_tokens": encoder.max_batch_tokens,
        "streams": max(1, int(cpus)) if engine.device == "cpu" else None,
    }
    task = ray.remote(_build).options(num_cpus=cpus, num_gpus=workers.gpus, max_retries=3)
    paths = [from_anywhere(str(one)) for one in inputs]
    waiting = [
        task.remote(encoder.bundle.handle, arguments, paths, str(folder), number, shards, options)
        for number in range(shards)
    ]
    try:
        return [BulkSummary(**found) for found in ray.get(waiting)]
    except ray.exceptions.RayError as error:
        for one in waiting:
            with suppress(Exception):
                ray.cancel(one)
        raise CollectionError(f"a shard was not built: {cause_of(error)}") from error


def _build(
    bundle: str,
    engine: dict[str, Any],
    inputs: list[str],
    folder: str,
    number: int,
    shards: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Fill one shard, or go on with it; in a process of Ray's."""
    with Encoder.load(bundle, **engine) as encoder:
        done = encode_files(
            encoder,
            inputs,
            Path(folder) / _name(number),
            out_format="collection",
            share=(number + 1, shards),
            **options,
        )
    return asdict(done)


def _name(number: int) -> str:
    return f"shard-{number:03}"


def _read(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CollectionError(f"{folder} holds no collection in shards: {error}") from None
    if not isinstance(found, dict) or found.get("flowvec_shards") != _VERSION:
        raise CollectionError(f"{folder / _FILE} is not of this version of flowvec")
    return found


class _Shard:
    """An actor: one open Collection."""

    def __init__(self, path: str) -> None:
        self._collection = Collection.open(path)

    def search(
        self, vectors: npt.NDArray[np.float32], k: int, condition: Filter | None, exact: bool
    ) -> list[list[Hit]]:
        return self._collection.search_batch(vectors, k, filter=condition, exact=exact)

    def rows(self) -> int:
        return len(self._collection)


class ShardedSearcher:
    """Searches all shards of a collection, each held open by an actor on Ray.

    An actor that dies is started again; until then its shard is missing from results, which say so.
    An actor serves four searches at a time; any number of threads may search.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        encoder: Encoder | None = None,
        timeout: float = 10.0,
        address: str | None = None,
        cpus_per_shard: float = 0.5,
    ) -> None:
        """Open the shards.

        Args:
            path: the folder that `index_shards` filled, seen by all machines.
            encoder: embeds queries; None takes vectors alone.
            timeout: seconds that a shard may take to answer.
            address: of the Ray cluster; None takes the one that runs, or makes one here.
            cpus_per_shard: cores that Ray keeps for each shard.

        Raises:
            CollectionError: there are no shards.
            FingerprintMismatchError: they were made with another model than the encoder's.
            MissingDependencyError: Ray is not installed.
        """
        folder = Path(path).absolute()
        about = _read(folder)
        if encoder is not None and encoder.fingerprint != about["fingerprint"]:
            raise FingerprintMismatchError(f"{folder} was made with another model")
        self._ray = ray = connected_ray(RayWorkers(1, address=address))
        self._encoder = encoder
        self._timeout = timeout
        actor = ray.remote(_Shard).options(
            num_cpus=cpus_per_shard, max_restarts=-1, max_concurrency=_AT_A_TIME
        )
        self._shards = {
            _name(number): actor.remote(str(folder / _name(number)))
            for number in range(about["shards"])
        }

    def __enter__(self) -> ShardedSearcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the actors go; twice is harmless."""
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
            k: hits of each.
            filter: as in `Collection.search`.
            exact: as there.
            timeout: seconds that a shard may take; None is the searcher's.

        Returns:
            Hits of the shards that answered, and the names of those that did not.

        Raises:
            ClosedError: after `close`.
            InputTypeError, InputValueError: as `Collection.search_batch` does.
        """
        if not self._shards:
            raise ClosedError("this ShardedSearcher is closed")
        vectors = self._vectors(queries)
        ray = self._ray
        asked = {
            shard.search.remote(vectors, k, filter, exact): name
            for name, shard in self._shards.items()
        }
        limit = self._timeout if timeout is None else timeout
        ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=limit)
        missing = {asked[one]: f"no answer within {limit:g} s" for one in late}
        found: dict[str, list[list[Hit]]] = {}
        for one in ready:
            try:
                found[asked[one]] = ray.get(one)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, InputValueError | TypeError):
                    raise error.cause from None  # the question is wrong, and wrong to all
                missing[asked[one]] = first_line(error.cause or error)
            except ray.exceptions.RayError as error:
                missing[asked[one]] = first_line(error)
        for one in late:
            with suppress(Exception):  # it may have come to its end by now
                ray.cancel(one)
        answers = [found[name] for name in self._shards if name in found]
        hits = [_merged([answer[i] for answer in answers], k) for i in range(len(vectors))]
        return ShardedHits(hits, {name: missing[name] for name in self._shards if name in missing})

    def rows(self, timeout: float = 60.0) -> int:
        """Rows of all shards.

        Raises:
            CollectionError: a shard does not answer.
        """
        begun = time.monotonic()
        try:
            counts = self._ray.get(
                [shard.rows.remote() for shard in self._shards.values()],
                timeout=max(0.0, timeout - (time.monotonic() - begun)),
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
    """The k best of several rankings; of one id only the best."""
    best: dict[Any, Hit] = {}
    for hit in sorted((hit for answer in answers for hit in answer), key=lambda hit: -hit.score):
        best.setdefault(hit.id, hit)
    return list(best.values())[:k]
