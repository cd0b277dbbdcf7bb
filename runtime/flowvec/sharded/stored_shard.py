"""A shard as objects below a URL.

    shards.json                        as in a folder
    shard-000.json                     the shard's files: object, size and SHA-256 of each
    shard-000.RUN.collection.sqlite    its files; each build of a shard has names of its own
    _lease.json                        while a job writes, see `flowvec.object_store.lease`

`shard-000.json` is written last, so a shard appears whole or not at all. Objects that no such file
names are what a killed job has left.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from flowvec.bundle.bundle import record_file
from flowvec.collection.store.writer_locks import LOCK_FILES
from flowvec.errors import BulkError, CollectionError
from flowvec.object_store import ConflictError, ObjectStore

__all__ = [
    "StoredFile",
    "StoredShard",
    "clean_shards",
    "fetch",
    "is_whole",
    "publish",
    "read_shard",
]

_VERSION = 1
_OBJECT = re.compile(r"shard-\d{3,}\.[0-9a-f]{12}\..+")
# A file that arrives damaged is read again so many times.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a shard.

    Attributes:
        name: its name in the folder that it came from.
        object: its object's name.
        bytes: its size.
        sha256: its SHA-256.
    """

    name: str
    object: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredShard:
    """What `shard-000.json` says.

    Attributes:
        collection: files of the collection.
        job: manifest and dead letters of the job that filled it.
        summary: the summary of that job, as JSON values.
        tag: the object's tag, for `ObjectStore.replace`.
        made: what it has besides rows, see `ShardsManifest.made`.
    """

    collection: tuple[StoredFile, ...]
    job: tuple[StoredFile, ...]
    summary: dict[str, Any]
    tag: str
    made: dict[str, str]

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files."""
        return self.collection + self.job

    def lacks(self, made: Mapping[str, str]) -> bool:
        """Whether it has other things besides rows than these, or not all of them."""
        return any(self.made.get(name) != value for name, value in made.items())

    @property
    def version(self) -> str:
        """What tells this build of the shard apart from others."""
        return self.collection[0].object.split(".")[1]


def read_shard(store: ObjectStore, name: str) -> StoredShard | None:
    """What is recorded of a shard; None if it has not been built.

    Raises:
        CollectionError: the record is damaged, or of another version.
        BulkError: the store cannot be read.
    """
    tagged = store.read_tagged(f"{name}.json")
    if tagged is None:
        return None
    where = f"{store.url}/{name}.json"
    try:
        about = json.loads(tagged[0])
        if about["flowvec_shard"] != _VERSION:
            raise CollectionError(f"{where} was written by another version of flowvec")
        shard = StoredShard(
            tuple(StoredFile(**one) for one in about["collection"]),
            tuple(StoredFile(**one) for one in about["job"]),
            dict(about["summary"]),
            tagged[1],
            dict(about["made"]),
        )
    except (ValueError, KeyError, TypeError):
        raise CollectionError(f"{where} does not describe a shard") from None
    if not shard.collection or not all(map(_is_valid, shard.files)):
        raise CollectionError(f"{where} does not describe a shard")
    return shard


def _is_valid(file: StoredFile) -> bool:
    """Whether the fields have the right types, and the name is that of a file in a folder."""
    types = [type(value) for value in astuple(file)]
    if types != [str, str, int, str]:
        return False
    is_name = Path(file.name).name == file.name and file.name not in ("", "..")
    return is_name and _OBJECT.fullmatch(file.object) is not None


def is_whole(store: ObjectStore, shard: StoredShard) -> bool:
    """Whether all objects of a shard are there, by their sizes.

    Raises:
        BulkError: the store cannot be reached.
    """
    sizes = store.sizes()
    return all(sizes.get(file.object) == file.bytes for file in shard.files)


def publish(
    store: ObjectStore,
    name: str,
    collection: Path,
    job: Path,
    summary: dict[str, Any],
    before: StoredShard | None,
    check: Callable[[], object],
    made: Mapping[str, str] | None = None,
) -> StoredShard:
    """Upload a shard that was built here, and then record it.

    Args:
        store: where it goes.
        name: the shard's name.
        collection: folder of the closed collection.
        job: folder of the job that filled it.
        summary: the job's summary, as JSON values.
        before: the shard that this one replaces; its objects are deleted.
        check: called before each write; raises if this job has lost the right to write.
        made: what the collection has besides rows, see `ShardsManifest.made`.

    Returns:
        What is recorded: this shard, or the one that another attempt of the same job recorded
        first.

    Raises:
        BulkError: the store cannot be written, or `check` raised.
    """
    run = uuid.uuid4().hex[:12]
    files: dict[str, list[StoredFile]] = {}
    for kind, folder in (("collection", collection), ("job", job)):
        files[kind] = []
        for path in sorted(folder.iterdir()):
            if path.name in LOCK_FILES or not path.is_file():
                continue
            known = record_file(path)
            prefix = "" if kind == "collection" else "job."
            stored = StoredFile(
                path.name, f"{name}.{run}.{prefix}{path.name}", known.bytes, known.sha256
            )
            store.upload(path, stored.object, check)
            files[kind].append(stored)
    about = {
        "flowvec_shard": _VERSION,
        "summary": summary,
        "made": dict(made or {}),
        **{kind: [asdict(one) for one in its] for kind, its in files.items()},
    }
    content = (json.dumps(about, indent=1) + "\n").encode()
    check()
    try:
        if before is None:
            tag = store.create(f"{name}.json", content)
        else:
            tag = store.replace(f"{name}.json", content, before.tag)
    except ConflictError:
        store.delete(one.object for its in files.values() for one in its)
        there = read_shard(store, name)
        if there is None:
            raise BulkError(f"{store.url}/{name}.json was deleted meanwhile") from None
        return there
    if before is not None:
        store.delete(one.object for one in before.files)
    return StoredShard(
        tuple(files["collection"]), tuple(files["job"]), summary, tag, dict(made or {})
    )


def fetch(store: ObjectStore, files: Iterable[StoredFile], folder: Path) -> None:
    """Download files into a folder, and compare them with their sizes and SHA-256.

    Raises:
        FileNotFoundError: an object is missing.
        CollectionError: an object is not what was recorded.
        BulkError: the store cannot be read.
        OSError: a file cannot be written.
    """
    for file in files:
        path = folder / file.name
        for _ in range(_ATTEMPTS):
            store.download(file.object, path)
            actual = record_file(path)
            if (actual.bytes, actual.sha256) == (file.bytes, file.sha256):
                break
        else:
            path.unlink()
            raise CollectionError(
                f"{store.url}/{file.object} is not what was written: its size or SHA-256 differs"
            )


def clean_shards(
    store: ObjectStore,
    shards: int,
    names: Callable[[int], str],
    check: Callable[[], object] | None = None,
) -> Iterator[str]:
    """Delete what killed jobs have left; the caller has the lease.

    Args:
        store: where the shards are.
        shards: number of shards.
        names: the name of each.
        check: called before each deletion; raises if the lease is lost. Another job may have
            uploaded objects since then that no record names yet.

    Yields:
        What was deleted, in words.

    Raises:
        CollectionError: the record of a shard cannot be read, so nothing is deleted.
        BulkError: the store cannot be reached, or `check` raised.
    """
    recorded = [read_shard(store, names(number)) for number in range(shards)]
    named = {one.object for shard in recorded if shard is not None for one in shard.files}
    for upload in store.unfinished_uploads():
        if _OBJECT.fullmatch(upload.name):
            if check is not None:
                check()
            store.abort(upload)
            yield f"an unfinished upload of {upload.name}"
    for name in sorted(store.sizes()):
        if _OBJECT.fullmatch(name) and name not in named:
            store.delete([name], check)
            yield name
