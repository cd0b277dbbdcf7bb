"""Bulk jobs on Ray: shards are shared out among Encoders on many machines.

Ray Data deals out the numbers of the shards, an actor pool of Encoders does them, and whoever
called keeps the journal. Each actor reads its own rows, from where the survey says that they begin,
and writes its own file, so neither texts nor vectors pass through Ray's object store, and a shard
has the bytes that one machine would have given it. Inputs and output must be seen by all machines
under the same paths. A worker that dies is replaced, and its shard done again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from flowvec.bulk.journal import Folder, ShardRecord
from flowvec.bulk.options import BulkOptions
from flowvec.bulk.repeats import Repeats
from flowvec.bulk.runner import RunTally, ShardResult, run_shard
from flowvec.encoder.encoder import Encoder
from flowvec.errors import BulkError, FlowvecError, first_line
from flowvec.optional import require
from flowvec.texts.inventory import Survey
from flowvec.texts.remote import from_anywhere
from flowvec.texts.window import Columns

__all__ = ["RayWorkers", "cause_of", "connected_ray", "cpus_of", "imported_ray", "shards_on_ray"]


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """The workers of a job.

    Attributes:
        workers: how many Encoders.
        cpus: cores for each; None shares those of the cluster out.
        gpus: for each, 0 for none; a part of 1 shares a GPU.
        address: of the cluster, `auto`, or None for the one that runs, or else one on this machine.
    """

    workers: int
    cpus: float | None = None
    gpus: float = 0.0
    address: str | None = None


def imported_ray() -> Any:
    """Ray, with what it needs for data.

    Raises:
        MissingDependencyError: it is not installed.
    """
    require("this", "cpu,files,ray", "ray", "pyarrow")
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
        # A cluster that is made here has no use for a web page.
        options = {} if workers.address else {"include_dashboard": False}
        try:
            ray.init(
                address=workers.address, log_to_driver=False, logging_level="warning", **options
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BulkError(f"cannot reach a Ray cluster: {first_line(error)}") from None
    return ray


def cause_of(error: BaseException) -> str:
    """What went wrong in a process of Ray's, in a line."""
    while (below := getattr(error, "cause", None) or error.__cause__) is not None:
        error = below
    return first_line(error)


def cpus_of(ray: Any, workers: RayWorkers, count: int) -> float:
    """Cores for each worker."""
    if workers.cpus is not None:
        return workers.cpus
    total = float(ray.cluster_resources().get("CPU", 1.0))
    return max(1.0, total // count)


class _ShardEncoder:
    """An actor: one Encoder, and the shards that it is told to do."""

    def __init__(self, job: _RayJob) -> None:
        # Ray counts cores and does not hold actors to them: threads must be as many.
        cores = imported_ray().get_runtime_context().get_assigned_resources().get("CPU", 1.0)
        streams = max(1, int(cores)) if job.is_on_cpu else None
        self._encoder = Encoder.load(
            job.bundle,
            provider=job.provider,
            compute=cast(Any, job.compute),
            streams=streams,
            max_batch_tokens=job.max_batch_tokens,
        )
        self._job = job

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Do shards; what became of each, in JSON: rows of Ray's hold plain values alone."""
        return {"done": [self._done(int(shard)) for shard in batch["shard"]]}

    def _done(self, shard: int) -> str:
        job = self._job
        try:
            result = run_shard(
                self._encoder,
                job.known,
                job.options,
                job.columns,
                Folder(Path(job.folder)),
                shard,
                strict=job.strict,
                repeats=job.repeats,
            )
        except FlowvecError as error:  # which doing it again does not help
            return json.dumps({"error": str(error)})
        return json.dumps({"record": asdict(result.record), "tally": result.tally.plain()})


@dataclass(frozen=True, slots=True)
class _RayJob:
    """What an actor must know."""

    bundle: str
    provider: str
    compute: str
    is_on_cpu: bool
    max_batch_tokens: int
    folder: str
    known: Survey
    options: BulkOptions
    columns: Columns | None
    repeats: Repeats | None
    strict: bool


def shards_on_ray(
    shards: list[int],
    encoder: Encoder,
    folder: Folder,
    known: Survey,
    options: BulkOptions,
    columns: Columns | None,
    workers: RayWorkers,
    *,
    repeats: Repeats | None,
    strict: bool,
) -> Generator[ShardResult, None, None]:
    """Do shards on Ray; what became of each, in the order in which they are done.

    Args:
        shards: their numbers.
        encoder: actors load its bundle on its provider, in its compute type.
        folder: the job's.
        known: the inputs.
        options: of the job.
        columns: what the named fields hold.
        workers: who does it.
        repeats: which rows are left out, because another has their id.
        strict: stop at a row that cannot be embedded.

    Raises:
        MissingDependencyError: Ray is not installed.
        BulkError: a shard failed for a reason that doing it again does not help.
    """
    if not shards:
        return
    ray = connected_ray(workers)
    count = min(workers.workers, len(shards))
    cpus = cpus_of(ray, workers, count)
    engine = encoder.engine
    job = _RayJob(
        encoder.bundle.handle,
        engine.provider,
        engine.compute,
        engine.device == "cpu",
        encoder.max_batch_tokens,
        str(folder.path.absolute()),
        replace(
            known,
            sources=tuple(
                replace(source, absolute=from_anywhere(source.path)) for source in known.sources
            ),
        ),
        options,
        columns,
        repeats,
        strict,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are reported below
    # One shard a task, so that what a dead worker takes with it is one shard.
    numbers = ray.data.from_items(
        [{"shard": shard} for shard in shards], override_num_blocks=len(shards)
    )
    done = numbers.map_batches(
        _ShardEncoder,
        fn_constructor_args=(job,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=count),
        num_cpus=cpus,
        num_gpus=workers.gpus or None,
    )
    try:
        for row in done.iter_rows():
            told = json.loads(row["done"])
            if "error" in told:
                raise BulkError(told["error"])
            yield ShardResult(ShardRecord(**told["record"]), RunTally(**told["tally"]))
    except ray.exceptions.RayError as error:
        raise BulkError(f"a shard failed on Ray: {cause_of(error)}") from error
