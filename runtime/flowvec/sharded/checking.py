"""`verify_shards`: whether a collection in shards is complete and intact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flowvec.bulk.scratch import scratch_folder
from flowvec.collection.collection import Collection
from flowvec.collection.part_search import PartSearcher
from flowvec.errors import CollectionError
from flowvec.object_store import Lease, ObjectStore, open_store
from flowvec.sharded.manifest import LEASE, ShardsManifest, place_of, read_manifest, shard_name
from flowvec.sharded.stored_shard import StoredShard, clean_shards, fetch, read_shard
from flowvec.texts.urls import is_url

__all__ = ["ShardsCheck", "verify_shards"]


@dataclass(frozen=True, slots=True)
class ShardsCheck:
    """The result of `verify_shards`.

    Attributes:
        rows: rows of the shards that are there.
        shards: shards that should be there.
        problems: what is wrong, one line per problem.
        removed: what `clean` deleted.
    """

    rows: int
    shards: int
    problems: tuple[str, ...]
    removed: tuple[str, ...] = ()


def verify_shards(path: str | Path, *, clean: bool = False) -> ShardsCheck:
    """Check every shard: in a folder as `Collection.verify`, below a URL the SHA-256 of each file.

    Args:
        path: the folder that `index_shards` filled, or its URL.
        clean: first delete what killed jobs left below a URL and nothing needs.

    Raises:
        CollectionError: it is not a collection in shards.
        BulkError: the store cannot be reached; to clean it, a job writes there.
    """
    place = place_of(path)
    manifest = read_manifest(place)
    shards = manifest.shards
    removed: list[str] = []
    problems: list[str] = []
    rows = 0
    store = open_store(place) if is_url(place) else None
    if store is not None and clean:
        with Lease(store, LEASE) as lease:
            removed += clean_shards(store, shards, shard_name, lease.check)
    for number in range(shards):
        name = shard_name(number)
        try:
            if store is None:
                with Collection.open(Path(place) / name) as collection:
                    rows += len(collection)
                    problems += (f"{name}: {one}" for one in collection.verify())
                    if _is_incomplete(collection, manifest):
                        problems.append(_incomplete(name, manifest))
            else:
                shard = read_shard(store, name)
                if shard is None:
                    problems.append(f"{name} is missing; run the job again")
                    continue
                rows += int(shard.summary.get("rows", 0))
                if shard.lacks(manifest.made):
                    problems.append(_incomplete(name, manifest))
                if found := list(_problems(store, shard)):
                    problems += [*found, f"{name} is damaged; index with --rebuild restores it"]
        except CollectionError as error:
            problems.append(f"{name}: {error}")
    return ShardsCheck(rows, shards, tuple(problems), tuple(removed))


def _is_incomplete(collection: Collection, manifest: ShardsManifest) -> bool:
    """Whether a shard lacks what it should have besides rows."""
    info, model = collection.info(), manifest.sparse_fingerprint
    if model is not None and info.rows:
        made_by = PartSearcher(collection).sparse_fingerprint
        if made_by != model or info.sparse_rows < info.rows:
            return True
    return manifest.full_text not in (None, info.full_text)


def _incomplete(name: str, manifest: ShardsManifest) -> str:
    kinds = {"sparse vectors": manifest.sparse_model, "the full-text index": manifest.full_text}
    wanted = " or ".join(kind for kind, value in kinds.items() if value is not None)
    return f"{name} lacks {wanted}; run the job again"


def _problems(store: ObjectStore, shard: StoredShard) -> Iterator[str]:
    for file in shard.files:
        with scratch_folder() as folder:
            try:
                fetch(store, [file], folder)
            except FileNotFoundError:
                yield f"{file.object} is missing"
            except CollectionError as error:
                yield str(error)
