"""A temporary folder of a process; those of processes that were killed are deleted."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from flowvec.file_lock import lock

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
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (folder / _LOCK).open("wb+") as file:
            lock(file)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
