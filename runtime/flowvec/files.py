"""Writes files atomically and durably: they survive a power cut. Tells pointers of git-lfs."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = [
    "BYTE_ORDER_MARK",
    "lfs_advice",
    "lfs_advice_of",
    "rename_durably",
    "staged_file",
    "sync_file",
    "sync_folder",
    "write_file",
]

# What some editors write before UTF-8.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MOST_LFS_BYTES = 1024


def lfs_advice(path: Path) -> str | None:
    """What to do about a file that git-lfs has not downloaded; None for other files.

    Such a file holds three lines of text, which name the content that git-lfs keeps elsewhere.
    """
    try:
        if path.stat().st_size > _MOST_LFS_BYTES:
            return None
        with path.open("rb") as file:
            content = file.read(len(_LFS_POINTER))
    except OSError:
        return None  # whoever reads it reports it
    return lfs_advice_of(str(path), content)


def lfs_advice_of(name: str, content: bytes) -> str | None:
    """The same of a file of this name that begins with these bytes."""
    if not content.startswith(_LFS_POINTER):
        return None
    return f"{name} is a pointer of git-lfs, not the file itself: run `git lfs pull` in its clone"


@contextmanager
def staged_file(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """A temporary name to write a file to; it is renamed to `path` when the block ends.

    The file is flushed to disk before the rename, and its directory after it. If the block fails,
    the temporary file is removed and an older file stays as it was.

    Args:
        path: the file's name.
        partial: the temporary name, in the same directory; None makes one from the process's
            number.

    Raises:
        OSError: it cannot be written.
    """
    if not path.parent.exists():  # the temporary name would tell nobody anything
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if partial is None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        rename_durably(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_file(path: Path, content: bytes, partial: Path | None = None) -> None:
    """Write a small file through `staged_file`."""
    with staged_file(path, partial) as staged:
        staged.write_bytes(content)


def rename_durably(partial: Path, path: Path) -> None:
    """Give a file that was written and closed its final name, in the same directory.

    Raises:
        OSError: it cannot be flushed or renamed.
    """
    sync_file(partial)
    partial.replace(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Flush a file that was written and closed to disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a directory, so that a rename in it survives a power cut.

    It does nothing on Windows, and for a directory that cannot be listed.
    """
    if os.name == "nt":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
