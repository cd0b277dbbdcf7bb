"""Creates the directory of a collection, or finds that there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowvec.bundle.bundle import absolute_path
from flowvec.collection.store.absence import SHARDS_FILE
from flowvec.collection.store.settings import CollectionSettings
from flowvec.collection.store.store import FILE, Store, UnfinishedError
from flowvec.collection.store.writer_locks import LOCK_FILES, WRITE_TIMEOUT, WriterTurn
from flowvec.errors import CollectionError
from flowvec.files import sync_folder

__all__ = ["create_store", "is_collection"]

# Files that a kill during `create` can leave.
_OF_CREATE = LOCK_FILES | {FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal"}


def create_store(folder: Path, settings: CollectionSettings) -> Store | None:
    """Create a collection's directory and its SQLite file, both on disk when this returns.

    Args:
        folder: an absolute path; it may hold an interrupted creation.
        settings: what the vectors are.

    Returns:
        The open store; None if there is a collection already.

    Raises:
        CollectionError: the directory holds something else, or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _creating(folder) as exists:
            if exists:
                return None
            store = Store(folder / FILE, create=settings)
            try:
                for level in (folder, folder.parent):
                    sync_folder(level)
            except BaseException:
                store.close()
                raise
            return store
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise CollectionError(f"cannot create {folder}: {reason}") from error


@contextmanager
def _creating(folder: Path) -> Iterator[bool]:
    """Whether a collection exists. If not, no other process creates one during the block."""
    names = {file.name for file in folder.iterdir()}
    if FILE in names and not _is_unfinished(folder):
        yield True
        return
    if SHARDS_FILE in names:
        raise CollectionError(
            f"{folder} is a collection in shards, which only `flowvec index --engine ray` writes"
        )
    if "_manifest.json" in names:
        raise CollectionError(
            f"{folder} is the folder of a bulk job: name another one. Collection.from_parquet "
            "makes a collection of a job"
        )
    if foreign := sorted(names - _OF_CREATE):
        raise CollectionError(f"{folder} is not empty: it holds {foreign[0]}")
    turn = WriterTurn(folder)
    try:
        turn.acquire(WRITE_TIMEOUT)
    except CollectionError:
        turn.close()
        # The one that has the turn may have created the collection meanwhile, and be writing to it.
        if FILE not in {file.name for file in folder.iterdir()} or _is_unfinished(folder):
            raise
        yield True
        return
    try:
        yield (folder / FILE).exists() and not _is_unfinished(folder)
    finally:
        turn.close()


def is_collection(folder: Path) -> bool:
    """Whether a directory holds a collection; an interrupted creation is not one."""
    folder = absolute_path(folder)
    return (folder / FILE).is_file() and not _is_unfinished(folder)


def _is_unfinished(folder: Path) -> bool:
    """Whether a directory holds only what a kill during `create_store` can leave."""
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    if FILE not in names or not names <= _OF_CREATE:
        return False
    try:
        Store(folder / FILE).close()
    except UnfinishedError:
        return True
    except CollectionError:
        pass  # a collection, though there is something wrong with it
    return False
