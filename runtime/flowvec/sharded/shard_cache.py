"""The shards that this machine has downloaded.

FOLDER/URL/shard-000/.lock              held while the shard is downloaded
FOLDER/URL/shard-000/RUN/collection     the collection of one build of the shard
FOLDER/URL/shard-000/RUN/user-...       locked by a process that has it open
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from flowvec.collection.collection import Collection
from flowvec.errors import CollectionError, InputValueError
from flowvec.file_lock import is_held_elsewhere, lock
from flowvec.object_store import ObjectStore, open_store
from flowvec.sharded.stored_shard import StoredShard, fetch, read_shard
from flowvec.texts.urls import recorded
from flowvec.user_cache import cache_folder

__all__ = ["CachedShard"]

_COLLECTION = "collection"
_PARTIAL = "partial"
_USER = "user-"
_WAIT_SECONDS = 0.2
# How often the record is read again because a new build of the shard replaced its objects.
_ATTEMPTS = 3


class CachedShard:
    """A shard below a URL, downloaded into this machine's cache and open.

    Attributes:
        collection: the open collection.
    """

    def __init__(self, url: str, name: str, cache: Path | None = None) -> None:
        """Download the shard, unless the cache has this build of it, and open it.

        Args:
            url: the URL of the collection in shards.
            name: the shard's name.
            cache: the folder of the cache; None is `shards` in flowvec's cache folder.

        Raises:
            CollectionError: the shard has not been built, is damaged, or does not fit on the disk.
            BulkError: the store cannot be reached, or a file cannot be written.
        """
        store = open_store(url)
        folder = (
            _folder(cache)
            / hashlib.sha256(recorded(url).encode("utf-8", "surrogateescape")).hexdigest()[:16]
            / name
        )
        self._mark: IO[bytes] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder / ".lock"):
                self.collection = self._opened(store, name, folder)
        except OSError as error:
            raise CollectionError(
                f"cannot keep {name} in {folder}: {error.strerror or error}"
            ) from error

    def _opened(self, store: ObjectStore, name: str, folder: Path) -> Collection:
        for _ in range(_ATTEMPTS):
            shard = read_shard(store, name)
            if shard is None:
                raise CollectionError(f"{store.url}/{name}.json is missing: it was not built")
            version = folder / shard.version
            try:
                collection = self._of_cache(version)
                if collection is None:
                    _download(store, shard, folder, version)
                    collection = Collection.open(version / _COLLECTION)
            except FileNotFoundError as error:
                missing = error  # the shard may have been built again meanwhile
                continue
            try:
                self._mark = _marked(version)
                _remove_others(folder, version)
            except BaseException:
                collection.close()
                raise
            return collection
        raise CollectionError(f"{store.url}/{missing} is missing")

    def _of_cache(self, version: Path) -> Collection | None:
        """The collection, if it was downloaded; it is deleted if it cannot be opened.

        Raises:
            CollectionError: it cannot be opened here, and another process has it open.
        """
        if not version.is_dir():
            return None
        try:
            return Collection.open(version / _COLLECTION)
        except CollectionError:
            if _is_in_use(version):
                raise
            shutil.rmtree(version, ignore_errors=True)
            return None

    def close(self) -> None:
        """Close the collection; it stays in the cache. Twice is harmless."""
        self.collection.close()
        if self._mark is not None:
            self._mark.close()
            with suppress(OSError):
                Path(self._mark.name).unlink()
            self._mark = None


def _folder(cache: Path | None) -> Path:
    if cache is not None:
        return cache.absolute()
    try:
        return cache_folder().absolute() / "shards"
    except (OSError, RuntimeError) as error:
        raise InputValueError(
            f"there is no folder for downloaded shards: {error}; give cache, or set FLOWVEC_CACHE"
        ) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process downloads this shard."""
    with path.open("ab+") as file:
        while True:
            try:
                lock(file)
                break
            except OSError as error:
                if not is_held_elsewhere(error):
                    raise
            time.sleep(_WAIT_SECONDS)
        yield


def _download(store: ObjectStore, shard: StoredShard, folder: Path, version: Path) -> None:
    """Download and verify a shard. The caller has its lock, so what is partial is nobody's."""
    partial = folder / _PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    wanted = sum(file.bytes for file in shard.collection)
    if (free := shutil.disk_usage(folder).free) < wanted:
        raise CollectionError(
            f"{folder} has {free / 1e6:,.0f} MB of free space, and the shard has "
            f"{wanted / 1e6:,.0f} MB"
        )
    try:
        (partial / _COLLECTION).mkdir(parents=True)
        fetch(store, shard.collection, partial / _COLLECTION)
        partial.rename(version)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _marked(version: Path) -> IO[bytes]:
    """A locked file that says that this process has this build open."""
    file = (version / f"{_USER}{os.getpid()}-{uuid.uuid4().hex[:8]}").open("ab+")
    lock(file)
    return file


def _remove_others(folder: Path, version: Path) -> None:
    """Delete other builds of the shard, except those that a process has open."""
    for other in folder.iterdir():
        if other == version or not other.is_dir():
            continue
        if not _is_in_use(other):
            shutil.rmtree(other, ignore_errors=True)


def _is_in_use(version: Path) -> bool:
    """Whether a process has a build open."""
    return any(_is_locked(one) for one in version.glob(f"{_USER}*"))


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb+") as file:
            lock(file)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
