"""Imports pyarrow, which is in the extra `[files]`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from flowvec.optional import require

__all__ = ["file_for_arrow", "imported_arrow"]


def imported_arrow(feature: str = "Parquet") -> Any:
    """pyarrow, with its Parquet module.

    Args:
        feature: what needs it, for the message.

    Raises:
        MissingDependencyError: it is not installed.
    """
    require(feature, "cpu,files", "pyarrow")
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    return pyarrow


def file_for_arrow(path: str | Path, mode: Literal["rb", "wb"] = "rb") -> Any:
    """What pyarrow takes as a file: its path, or for a name that is not UTF-8 the open file."""
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:  # pyarrow takes the bytes of such a name here alone
        return imported_arrow().OSFile(os.fsencode(text), mode)
    return text
