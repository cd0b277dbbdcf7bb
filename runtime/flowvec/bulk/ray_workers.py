"""Bulk jobs on Ray: Encoders on many machines encode the shards.

Each worker is an actor with one Encoder. It gets the numbers of shards with what it needs to read
them, however many inputs the job has, and writes their files. So texts and vectors never pass
through Ray's object store, and a shard has the same bytes as in a local job. Below a URL, a worker
writes into a temporary folder and uploads; in a file system, all machines must see inputs and
output under the same paths. The calling process has the lease, the journal and the manifest.

A worker has two shards at a time, of which it encodes one while it uploads the other. If it dies,
or its machine does, another worker takes its place, and these shards are done again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from flowvec.bulk.bucket_folder import BucketFolder
from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.open_folder import folder_at
from flowvec.bulk.options import BulkOptions
from flowvec.bulk.records import ShardRecord
from flowvec.bulk.repeats import Repeats
from flowvec.bulk.runner import ShardResult, run_shard
from flowvec.encoder.encoder import Encoder
from flowvec.errors import BulkError, FlowvecError, first_line
from flowvec.optional import require
from flowvec.texts.inventory import Survey
from flowvec.texts.urls import from_anywhere
from flowvec.texts.window import Columns

__all__ = [
    "RayWorkers",
    "cause_of",
    "connected_ray",
    "cpus_of",
    "disconnect_ray",
    "imported_ray",
    "shards_on_ray",
    "take_assigned_cores",
]


_TOKENS_LOGGER = "ray._private.authentication.authentication_token_setup"


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """The Ray workers of a job.

        >>> workers = RayWorkers(4, cpus=8)  # encode_files(..., workers=workers)
        >>> workers.gpus
        0.0

    Attributes:
        workers: how many Encoders.
        cpus: cores per worker; None divides the cluster's cores.
        gpus: GPUs per worker; 0 for none, and a fraction such as 0.5 to share one.
        address: the cluster's address; `auto`; or None: a running cluster, else a local one.
    """

    workers: int
    cpus: float | None = None
    gpus: float = 0.0
    address: str | None = None


def imported_ray() -> Any:
    """Ray, with Ray Data.

    Raises:
        MissingDependencyError: it is not installed.
    """
    require("work on Ray", "cpu,files,ray", "ray", "pyarrow")
    import ray
    import ray.data

    return ray


def connected_ray(workers: RayWorkers) -> Any:
    """Ray, connected to its cluster.

    Raises:
        MissingDependencyError: it is not installed.
        BulkError: there is no cluster at the address.
    """
    ray = imported_ray()
    if not ray.is_initialized():
        # A cluster started here needs no dashboard.
        options = {} if workers.address else {"include_dashboard": False}
        try:
            with _without_notice_of_tokens():
                ray.init(
                    address=workers.address, log_to_driver=False, logging_level="warning", **options
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BulkError(f"cannot reach a Ray cluster: {first_line(error)}") from None
    return ray


@contextmanager
def _without_notice_of_tokens() -> Iterator[None]:
    """Leave out Ray's warning that a cluster started here asks for a token.

    That is Ray's own default, it is the safe one, and nobody has to do anything. Naming it in
    RAY_AUTH_MODE leaves the warning out too, but would be asked of a running cluster that has none.
    The warning about a cluster without tokens is another one, and stays.
    """
    logger = logging.getLogger(_TOKENS_LOGGER)
    logger.addFilter(_is_no_notice)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_notice)


def _is_no_notice(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Token authentication is enabled")


def disconnect_ray() -> None:
    """End this process's connection to Ray, if there is one; a cluster that it started ends too."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()


def take_assigned_cores(ray: Any) -> int:
    """The number of cores that Ray gives this worker, at least 1; take it for engine streams.

    Ray does not limit threads. Tokenizing is limited to this many from here on, if this process
    has not tokenized yet.
    """
    assigned = ray.get_runtime_context().get_assigned_resources()
    cores = max(1, int(assigned.get("CPU", 1.0)))
    os.environ["RAYON_NUM_THREADS"] = str(cores)
    return cores


def cause_of(error: BaseException) -> str:
    """The first line of the error that made a Ray task fail, without Ray's wrappers."""
    while (inner := getattr(error, "cause", None) or error.__cause__) is not None:
        error = inner
    return first_line(error)


def cpus_of(ray: Any, workers: RayWorkers, count: int) -> float:
    """Cores for each worker."""
    if workers.cpus is not None:
        return workers.cpus
    total = float(ray.cluster_resources().get("CPU", 1.0))
    return max(1.0, total // count)


# So many deaths of its workers end a shard, and so many in a row at their start end the job.
_MOST_DEATHS = 6
# Shards that a worker has at once.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class _RayJob:
    """A job as its workers need it.

    Attributes:
        bundle: the model; workers load it on the same provider, in the same compute type.
        provider: the provider.
        compute: the compute type.
        is_on_cpu: whether the provider runs on cores.
        max_batch_tokens: as the Encoder's.
        out: the output's absolute path or URL.
        share: the job's share of the work.
        holder: of the calling process's lease; None in a file system.
        options: options of the job.
        columns: types of the fields.
        strict: stop at the first row that cannot be embedded.
    """

    bundle: str
    provider: str
    compute: str
    is_on_cpu: bool
    max_batch_tokens: int
    out: str
    share: tuple[int, int]
    holder: str | None
    options: BulkOptions
    columns: Columns | None
    strict: bool


@dataclass(frozen=True, slots=True)
class _Task:
    """A shard, with its own files and its own repeated rows alone, and names of files with earlier
    work on it."""

    shard: int
    survey: Survey
    repeats: Repeats | None
    saved: tuple[str, ...]


class _ShardEncoder:
    """A Ray actor with one Encoder."""

    def __init__(self, job: _RayJob) -> None:
        self._job = job
        self._encoding = threading.Lock()
        self._error: str | None = None
        cores = take_assigned_cores(imported_ray())
        try:
            self._folder = folder_at(job.out, job.share)
            self._encoder = Encoder.load(
                job.bundle,
                provider=job.provider,
                compute=cast(Any, job.compute),
                streams=cores if job.is_on_cpu else None,
                max_batch_tokens=job.max_batch_tokens,
            )
        except FlowvecError as error:  # a replacement would fail the same way
            self._error = str(error)

    def ready(self) -> str | None:
        """None once the Encoder is loaded, or why it cannot be."""
        return self._error

    def encode(self, task: _Task) -> ShardResult | str:
        """Encode a shard and deliver its files; an error's message if a retry would give it too."""
        job = self._job
        try:
            with _working_folder(self._folder, job) as (folder, deliver):
                with self._encoding:  # another shard may be uploaded meanwhile
                    result = run_shard(
                        self._encoder, task.survey, job.options, job.columns, folder, task.shard,
                        strict=job.strict, repeats=task.repeats, saved=task.saved,
                    )  # fmt: skip
                deliver(result.record)
        except FlowvecError as error:
            return str(error)
        return result


@contextmanager
def _working_folder(
    folder: JobFolder, job: _RayJob
) -> Iterator[tuple[JobFolder, Callable[[ShardRecord], object]]]:
    """Where a worker writes a shard, and a function that puts its files where they belong."""
    folder = folder.with_share(job.share)  # two shards at once have a temporary folder each
    if isinstance(folder, BucketFolder):
        with folder.lent(job.holder or "") as upload:
            yield folder, upload
    else:
        yield folder, lambda record: None


class _Workers:
    """Actors that do shards."""

    def __init__(self, ray: Any, start: Callable[[], Any], count: int) -> None:
        """Start them; those that wait for a machine are no reason to wait for the others.

        Args:
            ray: Ray.
            start: starts an actor.
            count: how many.
        """
        self._ray = ray
        self._start = start
        self._shards: dict[Any, set[int]] = {}  # of each actor that can encode
        self._running: dict[Any, tuple[Any, int | None]] = {}  # by reference: actor, shard
        self._deaths: Counter[int] = Counter()
        self._early_deaths = 0
        self._lost: list[int] = []
        for _ in range(count):
            self._add()

    def _add(self) -> None:
        actor = self._start()
        self._running[actor.ready.remote()] = actor, None

    def results(
        self, shards: list[int], task_of: Callable[[int, bool], _Task]
    ) -> Generator[ShardResult, None, None]:
        """Do shards; yield their results in the order in which they finish.

        Args:
            shards: their numbers.
            task_of: the task for a shard, and whether a worker that had it died.
        """
        waiting = deque(shards)
        left = len(shards)
        while left:
            self._hand_out(waiting, task_of)
            (reference,), _ = self._ray.wait(list(self._running), num_returns=1)
            if (result := self._taken(reference)) is not None:
                left -= 1
                yield result
            waiting.extendleft(sorted(self._lost, reverse=True))
            self._lost.clear()

    def _hand_out(self, waiting: deque[int], task_of: Callable[[int, bool], _Task]) -> None:
        for most in range(_AHEAD):  # every worker gets one before any gets two
            for actor, has in self._shards.items():
                if waiting and len(has) <= most:
                    shard = waiting.popleft()
                    has.add(shard)
                    task = task_of(shard, self._deaths[shard] > 0)
                    self._running[actor.encode.remote(task)] = actor, shard

    def _taken(self, reference: Any) -> ShardResult | None:
        """The result of a task that has ended; None if it is not that of a shard."""
        actor, shard = self._running.pop(reference)
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise BulkError(f"a shard failed on Ray: {cause_of(error)}") from error
        except self._ray.exceptions.RayError as error:
            self._replace(actor, shard, error)
            return None
        if isinstance(answer, str):
            raise BulkError(answer)
        if shard is None:
            self._early_deaths = 0
            self._shards[actor] = set()
            return None
        self._shards[actor].discard(shard)
        return cast(ShardResult, answer)

    def _replace(self, actor: Any, shard: int | None, error: Exception) -> None:
        """Start another worker in place of one that died."""
        self._ray.kill(actor)  # if it only cannot be reached, nobody waits for it
        has = self._shards.pop(actor, None)
        if has is None:
            self._early_deaths += 1
        lost = has or set()
        self._deaths.update(lost)
        for one in lost:
            if self._deaths[one] >= _MOST_DEATHS:
                raise BulkError(
                    f"shard {one} was given up: {_MOST_DEATHS} workers that had it died; the last: "
                    f"{cause_of(error)}"
                ) from error
        if self._early_deaths >= _MOST_DEATHS:
            raise BulkError(f"workers die on Ray at their start: {cause_of(error)}") from error
        for other in [one for one, (its, _) in self._running.items() if its is actor]:
            del self._running[other]
        self._lost.extend(lost)
        self._add()

    def close(self) -> None:
        """End all workers."""
        for actor in {*self._shards, *(actor for actor, _ in self._running.values())}:
            self._ray.kill(actor)


def shards_on_ray(
    shards: list[int],
    encoder: Encoder,
    folder: JobFolder,
    out: str,
    survey: Survey,
    options: BulkOptions,
    columns: Columns | None,
    workers: RayWorkers,
    *,
    repeats: Repeats | None,
    strict: bool,
) -> Generator[ShardResult, None, None]:
    """Encode shards on Ray; yield their results in the order in which they finish.

    Args:
        shards: numbers of the shards.
        encoder: workers load its bundle on the same provider, in the same compute type.
        folder: the job's folder, locked.
        out: its absolute path or its URL.
        survey: the inputs.
        options: options of the job.
        columns: types of the fields.
        workers: the workers.
        repeats: rows that are left out because another row has the same id.
        strict: stop at the first row that cannot be embedded.

    Raises:
        MissingDependencyError: Ray is not installed.
        BulkError: a shard failed, and a retry would fail the same way; or its workers died too
            often.
    """
    if not shards:
        return
    ray = connected_ray(workers)
    count = min(workers.workers, len(shards))
    engine = encoder.engine
    job = ray.put(
        _RayJob(
            encoder.bundle.handle,
            engine.provider,
            engine.compute,
            engine.device == "cpu",
            encoder.max_batch_tokens,
            out,
            folder.share,
            folder.holder if isinstance(folder, BucketFolder) else None,
            options,
            columns,
            strict,
        )
    )
    actors = ray.remote(_ShardEncoder).options(
        num_cpus=cpus_of(ray, workers, count), num_gpus=workers.gpus or None, max_concurrency=_AHEAD
    )

    saved = folder.saved_batches()

    def task_of(shard: int, is_again: bool) -> _Task:
        nonlocal saved
        if is_again:
            saved = folder.saved_batches()
        first, size = shard * options.rows_per_shard, options.rows_per_shard
        span = survey.span_of(shard)
        mine = None if repeats is None else repeats.part_of(first, first + size, span)
        part = survey.part_of(shard)
        sources = (replace(one, absolute=from_anywhere(one.path)) for one in part.sources)
        its = tuple(name for name, number in saved.items() if number == shard)
        return _Task(shard, replace(part, sources=tuple(sources)), mine, its)

    pool = _Workers(ray, lambda: actors.remote(job), count)
    try:
        yield from pool.results(shards, task_of)
    finally:
        pool.close()
