"""`index_shards`: builds a collection in shards on Ray."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flowvec.arguments import whole_number
from flowvec.bulk import BulkSummary, RayWorkers, encode_files
from flowvec.bulk.collection_output import ADVICE
from flowvec.bulk.ray_workers import cause_of, connected_ray, cpus_of
from flowvec.bulk.scratch import scratch_folder
from flowvec.encoder.encoder import Encoder
from flowvec.errors import BulkError, CollectionError
from flowvec.object_store import Lease, ObjectStore, open_store
from flowvec.sharded.manifest import LEASE, claim_manifest, place_of, shard_name
from flowvec.sharded.stored_shard import (
    clean_shards,
    fetch,
    is_whole,
    publish,
    read_shard,
)
from flowvec.texts.remote import from_anywhere, is_url, name_of

__all__ = ["index_shards"]

_ADVICE = "Give --rebuild (resume=False) to build all shards again"


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

    Rows are dealt out to the shards in blocks of `rows_per_shard`, by default 32,768.
    Ids must be distinct over the whole input: a row only replaces a row with the same id in its own
    shard.

    Below a URL, a task builds its shard in a temporary folder of its machine (TMPDIR), which needs
    room for it, and uploads it; a task that dies starts its shard again. One job at a time writes
    there.

    Args:
        encoder: tasks load its bundle on the same provider, in the same compute type.
        inputs: as in `encode_files`.
        out: the folder that holds the shards, or a URL as in `encode_files`.
        shards: number of shards.
        workers: how many tasks run at a time, with how many cores.
        options: other arguments of `encode_files`: `text_field`, `id_field`, `keep` and so on.
            `resume=False` builds all shards again; below a URL, each replaces the old one when it
            is complete.

    Returns:
        A summary of each shard.

    Raises:
        InputValueError: the folder has another number of shards, or holds something else; or as
            `encode_files`.
        FingerprintMismatchError: the folder is of another model.
        CollectionError: a shard could not be built.
        BulkError: another job writes below the URL, or the store cannot be reached.
        MissingDependencyError: Ray, or the library of the URL's scheme, is not installed.
    """
    whole_number("shards", shards)
    ray = connected_ray(workers)
    place = place_of(out)
    engine = encoder.engine
    cpus = cpus_of(ray, workers, min(shards, workers.workers))
    arguments = {
        "provider": engine.provider,
        "compute": engine.compute,
        "max_batch_tokens": encoder.max_batch_tokens,
        "streams": max(1, int(cpus)) if engine.device == "cpu" else None,
    }
    paths = [from_anywhere(str(one)) for one in inputs]
    with ExitStack() as stack:
        holder = None
        if is_url(place):
            store = open_store(place)
            holder = stack.enter_context(Lease(store, LEASE)).holder
            claim_manifest(place, shards, encoder)
            for _ in clean_shards(store, shards, shard_name):
                pass
        else:
            claim_manifest(place, shards, encoder)
        task = ray.remote(_build).options(num_cpus=cpus, num_gpus=workers.gpus, max_retries=3)
        waiting = [
            task.remote(
                encoder.bundle.handle, arguments, paths, place, number, shards, options, holder
            )
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
    place: str,
    number: int,
    shards: int,
    options: dict[str, Any],
    holder: str | None,
) -> dict[str, Any]:
    """Fill or continue one shard, in a Ray process; `holder` has the lease of a URL."""
    name = shard_name(number)

    def fill(folder: Path) -> BulkSummary:
        with Encoder.load(bundle, **engine) as encoder:
            try:
                return encode_files(
                    encoder, inputs, folder, out_format="collection", share=(number + 1, shards),
                    **options,
                )  # fmt: skip
            except BulkError as error:
                raise BulkError(str(error).replace(ADVICE, _ADVICE)) from None
            except CollectionError as error:
                raise CollectionError(f"{error}. {_ADVICE}") from None

    if holder is None:
        if not options.get("resume", True):
            for folder in (Path(place) / name, Path(place) / f"{name}.job"):
                shutil.rmtree(folder, ignore_errors=True)
        return asdict(fill(Path(place) / name))
    store = open_store(place)
    lease = Lease(store, LEASE)

    def check() -> None:
        if not lease.is_held_by(holder):
            raise BulkError(f"{name_of(place)} was taken over by another process meanwhile")

    return asdict(_build_below_url(store, name, fill, check, resume=options.get("resume", True)))


def _build_below_url(
    store: ObjectStore,
    name: str,
    fill: Callable[[Path], BulkSummary],
    check: Callable[[], object],
    *,
    resume: bool,
) -> BulkSummary:
    """Build a shard here and upload it, unless there is one of the same job.

    Args:
        store: where the shards are.
        name: the shard's name.
        fill: fills the collection in a folder; its job is in the folder `NAME.job` beside it.
        check: called before each write; raises if this job has lost the right to write.
        resume: False builds the shard again in any case.
    """
    with scratch_folder() as scratch:
        folder, job = scratch / name, scratch / f"{name}.job"
        before = read_shard(store, name)
        is_there = before is not None and resume and is_whole(store, before)
        if is_there and before is not None:
            # The manifest of a complete job: the same job does nothing, and another one is refused.
            job.mkdir()
            fetch(store, before.job, job)
        try:
            done = replace(fill(folder), out=f"{store.url}/{name}")
        except BulkError as error:
            raise BulkError(str(error).replace(str(folder), f"{store.url}/{name}")) from None
        if not is_there:
            publish(store, name, folder, job, asdict(done), before, check)
        return done
