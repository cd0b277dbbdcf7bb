"""Bulk jobs on Ray: Encoders on many machines encode the shards.

Ray Data distributes shard numbers to a pool of Encoders; the calling process writes the journal.
Each Encoder reads its rows, from where the survey found their start, and writes its file. So texts
and vectors never pass through Ray's object store, and a shard has the same bytes as in a local job.
All machines must see inputs and output under the same paths. A worker that dies is replaced, and
its shard is done again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.journal import Folder
from flowvec.bulk.options import BulkOptions
from flowvec.bulk.records import ShardRecord
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
            ray.init(
                address=workers.address, log_to_driver=False, logging_level="warning", **options
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BulkError(f"cannot reach a Ray cluster: {first_line(error)}") from None
    return ray


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


class _ShardEncoder:
    """A Ray actor with one Encoder."""

    def __init__(self, job: _RayJob) -> None:
        # Ray does not limit threads, so start one stream per assigned core.
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
        """Encode shards; return each result as JSON, since Ray rows hold plain values."""
        return {"done": [self._encode_shard(int(shard)) for shard in batch["shard"]]}

    def _encode_shard(self, shard: int) -> str:
        job = self._job
        try:
            result = run_shard(
                self._encoder,
                job.survey,
                job.options,
                job.columns,
                Folder(Path(job.folder)),
                shard,
                strict=job.strict,
                repeats=job.repeats,
            )
        except FlowvecError as error:  # a retry would fail the same way
            return json.dumps({"error": str(error)})
        return json.dumps({"record": result.record.plain(), "tally": result.tally.plain()})


@dataclass(frozen=True, slots=True)
class _RayJob:
    """A job as its actors need it."""

    bundle: str
    provider: str
    compute: str
    is_on_cpu: bool
    max_batch_tokens: int
    folder: str
    survey: Survey
    options: BulkOptions
    columns: Columns | None
    repeats: Repeats | None
    strict: bool


def shards_on_ray(
    shards: list[int],
    encoder: Encoder,
    folder: JobFolder,
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
        encoder: actors load its bundle on the same provider, in the same compute type.
        folder: the job's folder.
        survey: the inputs.
        options: options of the job.
        columns: types of the fields.
        workers: the workers.
        repeats: rows that are left out because another row has the same id.
        strict: stop at the first row that cannot be embedded.

    Raises:
        MissingDependencyError: Ray is not installed.
        BulkError: a shard failed, and a retry would fail the same way.
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
            survey,
            sources=tuple(
                replace(source, absolute=from_anywhere(source.path)) for source in survey.sources
            ),
        ),
        options,
        columns,
        repeats,
        strict,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are reported below
    # One shard per task: a dead worker loses only one.
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
            answer = json.loads(row["done"])
            if "error" in answer:
                raise BulkError(answer["error"])
            yield ShardResult(ShardRecord(**answer["record"]), RunTally(**answer["tally"]))
    except ray.exceptions.RayError as error:
        raise BulkError(f"a shard failed on Ray: {cause_of(error)}") from error
