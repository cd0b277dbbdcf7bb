"""Locks an open file against other processes; the system releases it when the process ends."""

from __future__ import annotations

import errno
import sys
from typing import IO

__all__ = ["is_held_elsewhere", "lock", "unlock"]

# What the systems answer while another process has the lock; 36 is EDEADLOCK of Windows.
_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK, 36)


def is_held_elsewhere(error: OSError) -> bool:
    """Whether `lock` failed because another holder has the lock, so that trying again can help."""
    return error.errno in _HELD


if sys.platform == "win32":
    import msvcrt

    # Far behind the content: other processes cannot read locked bytes.
    _PLACE = 1 << 20

    def lock(file: IO[bytes]) -> None:
        """Acquire the lock without waiting.

        Raises:
            OSError: another handle has it, or the file system has no locks.
        """
        file.seek(_PLACE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def unlock(file: IO[bytes]) -> None:
        """Release the lock.

        Raises:
            OSError: it is not held.
        """
        file.seek(_PLACE)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def lock(file: IO[bytes]) -> None:
        """Acquire the lock without waiting.

        Raises:
            OSError: another handle has it, or the file system has no locks.
        """
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(file: IO[bytes]) -> None:
        """Release the lock.

        Raises:
            OSError: it is not held.
        """
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
