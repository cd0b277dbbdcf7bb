"""A directory that is there whole or not at all: made beside its name, then renamed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from flowvec.errors import ExportError
from flowvec.files import sync_file

__all__ = ["check_target", "staged_directory"]


@contextlib.contextmanager
def staged_directory(
    target: Path, overwrite: bool, is_ours: Callable[[Path], bool]
) -> Iterator[Path]:
    """A new directory to write into, which takes the target's place when the block ends.

    Where the block fails, neither it nor any folder made for it is left, and the target is as it
    was.

    Args:
        target: the directory to make.
        overwrite: as for `check_target`, which is asked again before the target is replaced: it
            may have come to be meanwhile.
        is_ours: as for `check_target`.

    Raises:
        ExportError: it cannot be written, or may not be replaced.
    """
    staged = target.with_name(f".{target.name}.{os.getpid()}.partial")
    made = _make_folders(staged)
    try:
        yield staged
        check_target(target, overwrite, is_ours)
        _put_in_place(staged, target)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def check_target(target: Path, overwrite: bool, is_ours: Callable[[Path], bool]) -> None:
    """Raise ExportError where the target exists and may not be replaced.

    Args:
        target: the directory to make.
        overwrite: it may be replaced where it is empty or one of ours.
        is_ours: whether a directory is.
    """
    if not (target.exists() or target.is_symlink()):
        return
    if not overwrite:
        raise ExportError(
            f"{target} exists; choose another name, or ask to overwrite it (--overwrite)"
        )
    if target.is_symlink() or not target.is_dir():
        raise ExportError(f"{target} is no directory, so it is not overwritten")
    if any(target.iterdir()) and not is_ours(target):
        raise ExportError(f"{target} was not written by this command, so it is not overwritten")


def _make_folders(staged: Path) -> list[Path]:
    """Make a directory and those above it; returns the new ones above it, the deepest first."""
    missing = [folder for folder in staged.parents if not folder.exists()]
    try:
        staged.mkdir(parents=True)
    except OSError as error:
        raise ExportError(f"cannot write to {staged.parent}: {error.strerror}") from None
    return missing


def _put_in_place(staged: Path, target: Path) -> None:
    """Rename the finished bundle to its name, keeping an old one until then."""
    for file in (path for path in staged.rglob("*") if path.is_file()):
        sync_file(file)
    if not target.exists():
        staged.rename(target)
        return
    if _exchanged(staged, target):
        shutil.rmtree(staged)  # the old one by now
        return
    # Where the system cannot exchange two names, nothing stands under this one for a moment.
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    try:
        staged.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchanged(one: Path, other: Path) -> bool:
    """Let two directories take each other's names in one step; False where that is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # Linux alone has it
        return False
    names = os.fsencode(one), os.fsencode(other)
    done: int = rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE)
    return done == 0
