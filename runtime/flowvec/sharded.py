"""Collections that are too large for one machine: built and searched in shards on Ray.

    out/shards.json      number of shards, and their model
    out/shard-000 ...    one Collection each
    out/shard-000.job    journal and dead letters of the job that filled it

Every shard holds the rows of some blocks of the input, so it can be built without the other shards.
A search asks all shards and merges their answers by score.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
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
from flowvec.files import write_file
from flowvec.texts.remote import from_anywhere

__all__ = ["ShardedHits", "ShardedSearcher", "index_shards", "is_sharded", "shards_model"]

_FILE = "shards.json"
_VERSION = 1

# Searches that a shard serves at the same time. It must be more than one: an actor with one thread
# takes calls by number, and a call that was cancelled before it was sent leaves a gap, which delays
# later calls for 30 seconds and then fails them (seen with Ray 2.60).
_AT_A_TIME = 4


@dataclass(frozen=True, slots=True)
class ShardedHits:
    """The result of a search over all shards.

    Attributes:
        hits: hits of each query, best first.
        missing: shards that were not searched, by folder name, and why.
    """

    hits: list[list[Hit]]
    missing: dict[str, str]

    @property
    def partial(self) -> bool:
        """Whether a shard that did not answer may have better hits."""
        return bool(self.missing)


def is_sharded(path: Path) -> bool:
    """Whether a folder is a collection in shards."""
    return (path / _FILE).is_file()


def shards_model(path: Path) -> str:
    """Name or directory of the bundle that made the vectors of the shards.

    Raises:
        CollectionError: the folder is not a collection in shards.
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
    """Build a collection in shards, each in a Ray task. Call it again to complete what is missing.

    Ids must be distinct over the whole input: a row only replaces a row with the same id in its own
    shard.

    Args:
        encoder: tasks load its bundle on the same provider, in the same compute type.
        inputs: as in `encode_files`.
        out: the folder that holds the shards.
        shards: number of shards.
        workers: how many tasks run at a time, with how many cores.
        options: other arguments of `encode_files`: `text_field`, `id_field`, `keep` and so on.

    Returns:
        A summary of each shard.

    Raises:
        InputValueError: the folder has another number of shards; or as `encode_files`.
        FingerprintMismatchError: the folder is of another model.
        MissingDependencyError: Ray is not installed.
    """
    whole_number("shards", shards)
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
        write_file(folder / _FILE, (json.dumps(about, indent=1) + "\n").encode())
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
        return [BulkSummary(**summary) for summary in ray.get(waiting)]
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
    """Fill or continue one shard, in a Ray process."""
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
        manifest = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CollectionError(f"{folder} is not a collection in shards: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("flowvec_shards") != _VERSION:
        raise CollectionError(f"{folder / _FILE} was written by another version of flowvec")
    return manifest


class _Shard:
    """A Ray actor with one open Collection."""

    def __init__(self, path: str) -> None:
        self._collection = Collection.open(path)

    def search(
        self, vectors: npt.NDArray[np.float32], k: int, condition: Filter | None, exact: bool
    ) -> list[list[Hit]]:
        return self._collection.search_batch(vectors, k, filter=condition, exact=exact)

    def rows(self) -> int:
        return len(self._collection)


class ShardedSearcher:
    """Searches all shards of a collection, each kept open by a Ray actor.

    An actor that dies is restarted; until then its shard is missing from results, which say so. An
    actor serves four searches at a time. Any number of threads may search.
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
            path: the folder that `index_shards` filled, visible to all machines.
            encoder: embeds queries; without it, queries must be vectors.
            timeout: seconds that a shard may take to answer.
            address: address of the Ray cluster; None is a running one, or a new one on this
                machine.
            cpus_per_shard: cores that Ray reserves for each shard.

        Raises:
            CollectionError: the folder is not a collection in shards.
            FingerprintMismatchError: they were made with another model.
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
