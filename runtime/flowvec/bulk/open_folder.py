"""Opens a bulk job's folder: a path, or a URL."""

from __future__ import annotations

from pathlib import Path

from flowvec.arguments import path_of
from flowvec.bulk.bucket_folder import BucketFolder
from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.journal import Folder
from flowvec.object_store import open_store
from flowvec.texts.urls import is_url

__all__ = ["folder_at"]


def folder_at(out: str | Path, share: tuple[int, int] = (1, 1)) -> JobFolder:
    """A job's folder, which need not exist; nothing is read or written.

    Args:
        out: its path or URL.
        share: (i, n) is the i-th of n shares of the work, from 1.

    Raises:
        InputValueError, MissingDependencyError, BulkError: as `open_store`.
    """
    if is_url(str(out)):
        return BucketFolder(open_store(str(out)), share)
    return Folder(path_of("the folder", out), share)
