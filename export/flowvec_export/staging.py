"""Writes a directory atomically: under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from flowvec.errors import ExportError
from flowvec.files import sync_file, sync_folder

__all__ = ["check_target", "staged_directory"]


@contextlib.contextmanager
def staged_directory(
    target: Path, overwrite: bool, is_ours: Callable[[Path], bool]
) -> Iterator[Path]:
    """A new directory to write to, which replaces the target when the block ends.

    The directory is flushed to disk before it gets its name, and the name is flushed after that. If
    the block fails, it and all folders created for it are removed, and the target is unchanged.

    Args:
        target: the directory to create.
        overwrite: as for `check_target`, which is called again before the target is replaced, since
            it may have been created meanwhile.
        is_ours: as for `check_target`.

    Raises:
        ExportError: it cannot be written, or may not be replaced.
    """
    staged = target.with_name(f".{target.name}.{os.getpid()}.partial")
    created = _make_folders(staged)
    try:
        yield staged
        check_target(target, overwrite, is_ours)
        _put_in_place(staged, target)
        for folder in created:
            sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        for folder in created:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def check_target(target: Path, overwrite: bool, is_ours: Callable[[Path], bool]) -> None:
    """Raise ExportError if the target exists and may not be replaced.

    Args:
        target: the directory to create.
        overwrite: it may be replaced if it is empty or written by flowvec.
        is_ours: whether a directory was written by flowvec.
    """
    if not (target.exists() or target.is_symlink()):
        return
    if not overwrite:
        raise ExportError(
            f"{target} exists; choose another name, or ask to overwrite it (--overwrite)"
        )
    if target.is_symlink() or not target.is_dir():
        raise ExportError(f"{target} is not a directory, so it is not overwritten")
    if any(target.iterdir()) and not is_ours(target):
        raise ExportError(f"{target} was not written by this command, so it is not overwritten")


def _make_folders(staged: Path) -> list[Path]:
    """Create a directory and its parents; returns the new parents, the deepest first."""
    missing = [folder for folder in staged.parents if not folder.exists()]
    try:
        staged.mkdir(parents=True)
    except OSError as error:
        raise ExportError(f"cannot write to {staged.parent}: {error.strerror}") from None
    return missing


def _put_in_place(staged: Path, target: Path) -> None:
    """Flush the finished directory to disk and rename it, keeping an old one until then."""
    for path in (*staged.rglob("*"), staged):
        (sync_folder if path.is_dir() else sync_file)(path)
    if not target.exists():
        staged.rename(target)
        sync_folder(target.parent)
        return
    if _exchanged(staged, target):
        sync_folder(target.parent)
        shutil.rmtree(staged)  # now the old one
        return
    # If the system cannot exchange two names, the name does not exist for a moment.
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    try:
        staged.rename(target)
    except OSError:
        old.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two directories in one step; False if that is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # only Linux has it
        return False
    names = os.fsencode(one), os.fsencode(other)
    result: int = rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return result == 0
