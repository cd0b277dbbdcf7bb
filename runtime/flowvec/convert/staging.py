"""Makes an output whole or not at all: written beside its name, then renamed.

Until then everything is in `.NAME.converting` beside it. A killed conversion leaves that folder;
the next one to the same name deletes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowvec.convert.description import is_ours
from flowvec.errors import ConvertError
from flowvec.file_lock import is_held_elsewhere, lock
from flowvec.files import sync_file, sync_folder

__all__ = ["check_target", "staged"]

_NEW, _OLD, _SCRATCH, _LOCK = "new", "old", "scratch", ".lock"


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that must not be written.

    Raises:
        ConvertError: it exists and may not be replaced.
    """
    if not (target.exists() or target.is_symlink()):
        return
    if not overwrite:
        raise ConvertError(
            f"{target} exists: name another target, or give --overwrite (overwrite=True) to "
            "replace it"
        )
    if target.is_dir() and not is_ours(target):
        raise ConvertError(
            f"{target} is a folder that `flowvec convert` did not write, so it is not replaced"
        )


@contextmanager
def staged(target: Path, *, overwrite: bool) -> Iterator[tuple[Path, Path]]:
    """A name to write an output to, file or folder, and a folder for temporary files.

    When the block ends, the output is flushed to disk and renamed to `target`. If the block fails,
    nothing is left.

    Args:
        target: the output's name.
        overwrite: replace what is there.

    Raises:
        ConvertError: the target may not be replaced, or another process converts to it.
        OSError: it cannot be written.
    """
    check_target(target, overwrite=overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.converting"
    with _locked(work, target):
        if (work / _OLD).exists() and not target.exists():
            (work / _OLD).rename(target)  # killed between the two renames
            check_target(target, overwrite=overwrite)
        _clear(work)
        try:
            (work / _SCRATCH).mkdir()
            yield work / _NEW, work / _SCRATCH
            _flush(work / _NEW)
            check_target(target, overwrite=overwrite)  # it may have appeared meanwhile
            if target.is_dir():
                target.rename(work / _OLD)
            (work / _NEW).replace(target)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(work, ignore_errors=os.name != "nt")


@contextmanager
def _locked(work: Path, target: Path) -> Iterator[None]:
    busy = f"another process is converting to {target}"
    work.mkdir(exist_ok=True)
    path = work / _LOCK
    try:
        file = path.open("ab+")
    except FileNotFoundError:  # the other process has just removed it
        raise ConvertError(busy) from None
    with file:
        try:
            lock(file)
        except OSError as error:
            if not is_held_elsewhere(error):
                raise
            raise ConvertError(busy) from None
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
            raise ConvertError(busy)
        yield


def _clear(work: Path) -> None:
    for path in work.iterdir():
        if path.name == _LOCK:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _flush(path: Path) -> None:
    if not path.is_dir():
        sync_file(path)
        return
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(PermissionError):  # not writable, so not written here
                sync_file(Path(folder) / name)
        sync_folder(Path(folder))
