"""A temporary folder of a process; those of processes that were killed are deleted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowvec.file_lock import lock

__all__ = ["scratch_folder"]

_PREFIX = "flowvec-bulk-"
_LOCK = ".lock"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder in the system's temporary one (TMPDIR), deleted at the end of the block.

    Raises:
        OSError: it cannot be created.
    """
    parent = Path(tempfile.gettempdir())
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
