"""The exported bundles in the user's cache: one folder for each model, commit and set of options.

    bundles/organization-model-1f3a.../
        bundle/           the bundle
        origin.json       what it was made from
        last_used         an empty file; its time says when the bundle was loaded last
    bundles/.locks/       a lock for each bundle that is being made
    bundles/.commits/     which commit a name and revision meant when the hub was asked last
    bundles/.checkpoints/ digests of local directories, with the sizes and times of their files
    bundles/.partial-*    what a killed process left; the next export or `remove` deletes it

A folder gets its name when it is complete, so what has a name can be loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from flowvec.bundle.origin import Origin, read_origin
from flowvec.errors import CacheError
from flowvec.file_lock import is_held_elsewhere, lock, unlock
from flowvec.files import sync_folder, write_file
from flowvec.user_cache import cache_folder, write_cached

__all__ = [
    "Entry",
    "bundles_folder",
    "cannot_write",
    "checkpoint_record",
    "entries",
    "entry_of",
    "exclusive",
    "new_entry",
    "origin_of",
    "partial_entries",
    "recorded_commit",
    "remember_commit",
    "remove",
    "remove_partial",
]

_BUNDLE, _ORIGIN, _LAST_USED = "bundle", "origin.json", "last_used"
_PARTIAL = ".partial-"
_KEY_CHARACTERS = 32
_CHECK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Entry:
    """A bundle's folder in the cache, which may not exist yet."""

    folder: Path
    origin: Origin

    @property
    def bundle(self) -> Path:
        """The bundle's directory."""
        return self.folder / _BUNDLE

    @property
    def exists(self) -> bool:
        """Whether the bundle has been made."""
        return (self.folder / _ORIGIN).is_file()

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())

    @property
    def last_used(self) -> float:
        """When it was loaded last, in seconds since 1970."""
        try:
            return (self.folder / _LAST_USED).stat().st_mtime
        except OSError:
            return self.origin.created

    def touch(self) -> None:
        """Note that it is loaded now; a cache that cannot be written is left as it is."""
        with suppress(OSError):
            (self.folder / _LAST_USED).touch()


def bundles_folder() -> Path:
    """The folder of all cached bundles, which may not exist.

    Raises:
        CacheError: the user has no home directory.
    """
    try:
        return cache_folder().absolute() / "bundles"
    except (OSError, RuntimeError) as error:
        raise CacheError(
            f"there is no folder for exported bundles ({error}): set FLOWVEC_CACHE to one that can "
            "be written"
        ) from None


def entry_of(origin: Origin) -> Entry:
    """The entry of an origin, whether it exists or not."""
    key = origin.key[:_KEY_CHARACTERS]
    stem = origin.name if origin.kind == "hub" else Path(origin.name).name
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", stem).strip("-.")[:60] or "model"
    return Entry(bundles_folder() / f"{slug}-{key}", origin)


def entries() -> list[Entry]:
    """All bundles in the cache, by name and time."""
    folder = bundles_folder()
    try:
        folders = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    read = [(path, read_origin(path / _ORIGIN)) for path in folders]
    listed = [Entry(path, origin) for path, origin in read if origin is not None]
    return sorted(listed, key=lambda entry: (entry.origin.name, entry.origin.created))


def origin_of(bundle: Path) -> Origin | None:
    """What a bundle in the cache was made from; None for any other directory."""
    try:
        is_cached = bundle.name == _BUNDLE and bundle.parent.parent == bundles_folder()
    except CacheError:
        return None
    return read_origin(bundle.parent / _ORIGIN) if is_cached else None


@contextmanager
def exclusive(entry: Entry, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an entry's lock against other processes and threads.

    Args:
        entry: the entry that is made or removed.
        on_wait: called once if another process holds the lock.

    Raises:
        CacheError: the cache cannot be written.
    """
    file = entry.folder.parent / ".locks" / f"{entry.folder.name}.lock"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = file.open("a+b", buffering=0)
    except OSError as error:
        raise cannot_write(entry.folder.parent, error) from None
    _open_locks.add(opened)
    with opened:
        is_first = True
        while True:
            try:
                lock(opened)
                break
            except OSError as error:
                if not is_held_elsewhere(error):
                    raise cannot_write(file, error) from None
            if is_first:
                on_wait()
            is_first = False
            time.sleep(_CHECK_SECONDS)
        try:
            yield
        finally:
            with suppress(OSError):
                unlock(opened)


# A child that is forked meanwhile would hold the lock for as long as it lives.
_open_locks: weakref.WeakSet[IO[bytes]] = weakref.WeakSet()


def _close_locks() -> None:
    for file in list(_open_locks):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)


@contextmanager
def new_entry(entry: Entry) -> Iterator[Path]:
    """A temporary folder whose `bundle` the block makes; it becomes the entry when the block ends.

    The caller holds the entry's lock. If the block fails, nothing is left. What a killed process
    left is removed first.

    Yields:
        The bundle's directory, which does not exist yet.

    Raises:
        CacheError: the cache cannot be written.
    """
    parent = entry.folder.parent
    remove_partial(entry)
    partial = parent / f"{_PARTIAL}{entry.folder.name}-{os.getpid()}-{os.urandom(4).hex()}"
    started = time.monotonic()
    try:
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise cannot_write(parent, error) from None
        yield partial / _BUNDLE
        try:
            made = asdict(entry.origin) | {
                "created": time.time(),
                "seconds": round(time.monotonic() - started, 2),
            }
            text = json.dumps(made, indent=2) + "\n"
            write_file(partial / _ORIGIN, text.encode("utf-8", "surrogateescape"))
            sync_folder(partial)
            partial.rename(entry.folder)
            sync_folder(parent)
        except OSError as error:
            raise cannot_write(parent, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cannot_write(where: Path, error: OSError) -> CacheError:
    """The error about a cache that cannot be written, with what to do."""
    return CacheError(
        f"cannot keep an exported bundle in {where}: {error.strerror or error}. Set FLOWVEC_CACHE "
        "to a folder that can be written and has space, or run `flowvec export` and load its output"
    )


def remove(entry: Entry) -> int:
    """Delete a bundle from the cache.

    The caller holds the entry's lock. A process that has loaded the bundle keeps working.

    Returns:
        How many bytes are freed.

    Raises:
        CacheError: it cannot be deleted.
    """
    freed = entry.bytes
    away = entry.folder.with_name(f"{_PARTIAL}{entry.folder.name}-{os.urandom(4).hex()}")
    try:
        entry.folder.rename(away)  # one step: no other process finds half of it
        shutil.rmtree(away)
    except OSError as error:
        raise CacheError(f"cannot remove {entry.folder}: {error.strerror or error}") from None
    return freed


def remove_partial(entry: Entry) -> None:
    """Delete what killed processes left of an entry; the caller holds its lock."""
    for path in entry.folder.parent.glob(f"{_PARTIAL}{entry.folder.name}-*"):
        shutil.rmtree(path, ignore_errors=True)


def partial_entries() -> list[Entry]:
    """Entries of which killed or running processes have left a part."""
    names = {
        re.sub(r"(-\d+)?-[0-9a-f]{8}$", "", path.name.removeprefix(_PARTIAL))
        for path in bundles_folder().glob(f"{_PARTIAL}*")
    }
    return [Entry(bundles_folder() / name, Origin("directory", name, "")) for name in sorted(names)]


def checkpoint_record(root: Path) -> Path | None:
    """The file that keeps the digest of a local directory; None without a cache."""
    try:
        folder = bundles_folder()
    except CacheError:
        return None
    return folder / ".checkpoints" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()}.json"


def recorded_commit(name: str, revision: str | None) -> str | None:
    """The commit that a name and revision meant when the hub was asked last."""
    try:
        content = json.loads(_commit_file(name, revision).read_text(encoding="utf-8"))
        return str(content["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember_commit(name: str, revision: str | None, commit: str) -> None:
    """Keep what a name and revision mean; a cache that cannot be written keeps nothing."""
    if recorded_commit(name, revision) != commit:
        content = {"name": name, "revision": revision, "commit": commit}
        with suppress(OSError):
            write_cached(_commit_file(name, revision), json.dumps(content).encode())


def _commit_file(name: str, revision: str | None) -> Path:
    key = hashlib.sha256(f"{name}@{revision or 'main'}".encode()).hexdigest()
    return bundles_folder() / ".commits" / f"{key}.json"
