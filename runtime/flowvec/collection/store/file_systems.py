"""Finds out whether a folder is on a network file system, where SQLite's log is not shared."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["MOUNTS", "network_file_system", "warn_of_network"]

logger = logging.getLogger(__name__)

MOUNTS = Path("/proc/self/mountinfo")
# SQLite's write-ahead log shares memory between its processes, which must be on one machine.
_NETWORK = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs",
        "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
        "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs",
    )
)  # fmt: skip


def network_file_system(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system that a folder is on; None if it is not on one.

    Systems without /proc do not say, and give None.
    """
    best, kind = "", None
    with suppress(OSError, ValueError, IndexError):
        path = os.path.realpath(folder)
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split()
            point = fields[4].replace("\\040", " ")
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):  # a later mount covers an earlier one
                best, kind = point, fields[fields.index("-") + 1]
    return kind if kind in _NETWORK else None


def warn_of_network(folder: Path, mounts: Path = MOUNTS) -> None:
    """Log a warning if a folder is on a network file system."""
    if kind := network_file_system(folder, mounts):
        logger.warning(
            "%s is on a network file system (%s): only processes of one machine may use it at a "
            "time, since SQLite's write-ahead log does not work across machines",
            folder,
            kind,
        )
