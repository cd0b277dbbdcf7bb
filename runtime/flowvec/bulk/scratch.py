"""A temporary folder of a process; those of processes that were killed are deleted."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO

from flowvec.file_lock import is_held_elsewhere, lock

__all__ = ["scratch_folder"]

logger = logging.getLogger(__name__)

_PREFIX = "flowvec-bulk-"
_LOCK = ".lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder in the system's temporary one (TMPDIR), deleted at the end of the block.

    Raises:
        OSError: it cannot be created.
    """
    parent = Path(tempfile.gettempdir())
    for name in ("TMPDIR", "TEMP", "TMP"):  # as Python reads them
        if named := os.environ.get(name):
            _warn_if_unusable(name, named, parent)
            break
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), (folder / _LOCK).open("rb+") as file:
            lock(file)  # its process has ended
            shutil.rmtree(folder, ignore_errors=True)
    held: IO[bytes] | None = None
    while held is None:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        held = _locked(folder)
    try:
        with held:
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: Path) -> IO[bytes] | None:
    """The locked file of a new folder; None if another process was faster, and deletes it.

    Until it is locked, the folder looks like that of a process that has ended.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context((folder / _LOCK).open("wb+"))
            lock(file)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or is_held_elsewhere(error):
                return None
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not (folder / _LOCK).exists():
            return None
        stack.pop_all()
        return file


@cache
def _warn_if_unusable(name: str, named: str, parent: Path) -> None:
    """Say once that a folder that the user named is not used; Python replaces it silently."""
    if Path(named).absolute() == parent:
        return
    try:
        with tempfile.TemporaryFile(dir=named) as file:
            file.write(b"\0")
    except OSError as error:
        reason = error.strerror or error
        logger.warning(
            "%s is %s, which cannot be used (%s): temporary files go to %s",
            name, named, reason, parent,
        )  # fmt: skip
