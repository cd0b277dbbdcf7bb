"""How much space an output takes at least, and how much there is."""

from __future__ import annotations

import shutil
from pathlib import Path

from flowvec.convert.file_target import KEEP_DTYPE
from flowvec.convert.options import ConvertFormat
from flowvec.convert.source import SourceInfo

__all__ = ["free_bytes", "in_words", "vector_bytes"]


def vector_bytes(info: SourceInfo, to: ConvertFormat) -> int:
    """Bytes of the vectors alone, as a format stores them."""
    is_half = info.dtype == "float16" and to in KEEP_DTYPE
    return info.rows * info.dim * (2 if is_half else 4)


def free_bytes(folder: Path) -> int:
    """Free bytes of the file system in which a folder is, or will be.

    Raises:
        OSError: the system does not say.
    """
    there = next(one for one in (folder, *folder.parents) if one.exists())
    return shutil.disk_usage(there).free


def in_words(size: int) -> str:
    """A number of bytes in MB."""
    return f"{size / 1e6:,.1f} MB"
