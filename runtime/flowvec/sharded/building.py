"""`index_shards`: builds a collection in shards on Ray."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from flowvec.arguments import choice, whole_number
from flowvec.bulk import BulkSummary, RayWorkers, encode_files
from flowvec.bulk.collection_output import ADVICE, open_collection
from flowvec.bulk.options import as_inputs
from flowvec.bulk.own_files import OwnFiles
from flowvec.bulk.ray_workers import cause_of, connected_ray, cpus_of
from flowvec.bulk.scratch import scratch_folder
from flowvec.collection.collection import Collection
from flowvec.collection.model import check_sparse_encoder_or_none
from flowvec.collection.store.full_text import TOKENIZERS, TextTokenizer
from flowvec.encoder.encoder import Encoder
from flowvec.errors import BulkError, CollectionError, InputValueError
from flowvec.object_store import Lease, ObjectStore, open_store
from flowvec.sharded.manifest import (
    LEASE,
    ShardsManifest,
    claim_manifest,
    is_sharded,
    place_of,
    shard_name,
)
from flowvec.sharded.stored_shard import (
    clean_shards,
    fetch,
    is_whole,
    publish,
    read_shard,
)
from flowvec.sparse.encoder import SparseEncoder
from flowvec.texts.sources import STDIN
from flowvec.texts.urls import from_anywhere, is_url, shown

__all__ = ["TaskModel", "build_shard", "index_shards"]

Model = TypeVar("Model", Encoder, SparseEncoder)

_ADVICE = "Give --rebuild (resume=False) to build all shards again"


def index_shards(
    encoder: Encoder,
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    shards: int,
    workers: RayWorkers,
    sparse_encoder: SparseEncoder | None = None,
    full_text: TextTokenizer | None = None,
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
        sparse_encoder: makes sparse vectors of all texts too, for `ShardedSearcher.search_sparse`
            and hybrid searches; tasks load its bundle as the encoder's. Shards that were built
            without it get theirs; below a URL they are downloaded and uploaded again for that.
        full_text: makes the full-text indexes of hybrid searches, with this tokenizer; None leaves
            that to the first such search, unless the shards that are there have one.
        options: other arguments of `encode_files`: `text_field`, `id_field`, `keep` and so on.
            `resume=False` builds all shards again; below a URL, each replaces the old one when it
            is complete.

    Returns:
        A summary of each shard.

    Raises:
        InputValueError: the folder has another number of shards, or holds something else; or as
            `encode_files`.
        InputTypeError: `sparse_encoder` is not a SparseEncoder.
        FingerprintMismatchError: the folder is of another model.
        CollectionError: a shard could not be built.
        BulkError: another job writes below the URL, or the store cannot be reached.
        MissingDependencyError: Ray, or the library of the URL's scheme, is not installed.
    """
    whole_number("shards", shards)
    check_sparse_encoder_or_none(sparse_encoder)
    if full_text is not None:
        choice("full_text", full_text, TOKENIZERS)
    ray = connected_ray(workers)
    place = place_of(out)
    paths = _inputs_of(inputs, options.get("input_format"), place, (encoder, sparse_encoder))
    cpus = cpus_of(ray, workers, min(shards, workers.workers))
    dense = TaskModel.like(encoder, cpus)
    sparse = None if sparse_encoder is None else TaskModel.like(sparse_encoder, cpus)
    resume = bool(options.get("resume", True))
    with ExitStack() as stack:
        holder = None
        if is_url(place):
            store = open_store(place)
            lease = stack.enter_context(Lease(store, LEASE))
            holder = lease.holder
            manifest = claim_manifest(
                place, shards, encoder, sparse_encoder, full_text, resume=resume
            )
            for _ in clean_shards(store, shards, shard_name, lease.check):
                pass
        else:
            manifest = claim_manifest(
                place, shards, encoder, sparse_encoder, full_text, resume=resume
            )
        task = ray.remote(build_shard).options(num_cpus=cpus, num_gpus=workers.gpus, max_retries=3)
        waiting = [
            task.remote(dense, sparse, manifest, paths, place, number, options, holder)
            for number in range(shards)
        ]
        try:
            return [BulkSummary(**summary) for summary in ray.get(waiting)]
        except ray.exceptions.RayError as error:
            for one in waiting:
                with suppress(Exception):
                    ray.cancel(one)
            raise CollectionError(f"a shard was not built: {cause_of(error)}") from error


def _inputs_of(
    inputs: Sequence[str | Path],
    input_format: str | None,
    place: str,
    models: Iterable[Encoder | SparseEncoder | None],
) -> list[str]:
    """The files to read, without those of the shards, and apart from what is written.

    Raises:
        InputValueError: an input cannot be read, or is or is in the place of the shards; or the
            place is or is in a model.
    """
    own = OwnFiles(place, is_of_job=is_sharded)
    sources = own.sources(as_inputs(inputs), input_format)
    if sources[0].path == STDIN:
        raise InputValueError("standard input cannot be divided into shards")
    for model in models:
        own.check_apart_from(model)
    return [from_anywhere(source.path) for source in sources]


@dataclass(frozen=True, slots=True)
class TaskModel:
    """How a task loads a model: on the engine on which the caller has it."""

    bundle: str
    provider: str
    compute: str
    max_batch_tokens: int
    streams: int | None

    @classmethod
    def like(cls, encoder: Encoder | SparseEncoder, cpus: float) -> TaskModel:
        """A model on the engine of the caller's, with a stream for each of a task's cores."""
        engine = encoder.engine
        streams = max(1, int(cpus)) if engine.device == "cpu" else None
        handle = encoder.bundle.handle
        return cls(handle, engine.provider, engine.compute, encoder.max_batch_tokens, streams)

    def load(self, kind: type[Model]) -> Model:
        """Load it in this process."""
        return kind.load(
            self.bundle, provider=self.provider, compute=cast(Any, self.compute),
            max_batch_tokens=self.max_batch_tokens, streams=self.streams,
        )  # fmt: skip


def build_shard(
    dense: TaskModel,
    sparse: TaskModel | None,
    manifest: ShardsManifest,
    inputs: list[str],
    place: str,
    number: int,
    options: dict[str, Any],
    holder: str | None,
) -> dict[str, Any]:
    """Fill or continue one shard, in a Ray process; `holder` has the lease of a URL."""
    name = shard_name(number)

    def fill(folder: Path, is_stored: bool = False) -> BulkSummary:
        with dense.load(Encoder) as encoder:
            if is_stored:  # a job's notes only hold beside a collection: an empty one will do
                open_collection(folder, encoder, options.get("precision", "float32")).close()
            try:
                return encode_files(
                    encoder, inputs, folder, out_format="collection",
                    share=(number + 1, manifest.shards), **options,
                )  # fmt: skip
            except BulkError as error:
                raise BulkError(str(error).replace(ADVICE, _ADVICE)) from None
            except CollectionError as error:
                raise CollectionError(f"{error}. {_ADVICE}") from None

    def complete(folder: Path) -> None:
        """Make what the shard has besides rows, as far as it is missing."""
        with ExitStack() as stack:
            encoder = None if sparse is None else stack.enter_context(sparse.load(SparseEncoder))
            collection = stack.enter_context(Collection.open(folder, sparse_encoder=encoder))
            if manifest.full_text is not None:
                collection.index_texts(tokenizer=manifest.full_text)
            if encoder is not None:
                collection.add_missing_sparse()

    if holder is None:
        if not options.get("resume", True):
            for folder in (Path(place) / name, Path(place) / f"{name}.job"):
                shutil.rmtree(folder, ignore_errors=True)
        done = fill(Path(place) / name)
        if manifest.made:
            complete(Path(place) / name)
        return asdict(done)
    store = open_store(place)
    lease = Lease(store, LEASE)

    def check() -> None:
        if not lease.is_held_by(holder):
            raise BulkError(f"{shown(place)} was taken over by another process meanwhile")

    resume = bool(options.get("resume", True))
    return asdict(
        _build_below_url(store, name, fill, complete, check, manifest.made, resume=resume)
    )


def _build_below_url(
    store: ObjectStore,
    name: str,
    fill: Callable[[Path, bool], BulkSummary],
    complete: Callable[[Path], object],
    check: Callable[[], object],
    made: dict[str, str],
    *,
    resume: bool,
) -> BulkSummary:
    """Build a shard here and upload it, unless there is one of the same job.

    Args:
        store: where the shards are.
        name: the shard's name.
        fill: fills the collection in a folder; its job is in the folder `NAME.job` beside it. Its
            second argument is whether the filled collection is in the store already.
        complete: makes what the collection has besides rows, as far as it is missing.
        check: called before each write; raises if this job has lost the right to write.
        made: what the collection is to have besides rows.
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
            done = replace(fill(folder, is_there), out=f"{store.url}/{name}")
        except BulkError as error:
            raise BulkError(str(error).replace(str(folder), f"{store.url}/{name}")) from None
        if is_there and before is not None and before.lacks(made):
            # The rows stay, and what they lack is made of them.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fetch(store, before.collection, folder)
            complete(folder)
            publish(store, name, folder, job, before.summary, before, check, before.made | made)
        elif not is_there:
            if made:
                complete(folder)
            publish(store, name, folder, job, asdict(done), before, check, made)
        return done
