"""Imports pyarrow, which is in the extra `[files]`."""

from __future__ import annotations

from typing import Any

from flowvec.optional import require

__all__ = ["imported_arrow"]


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
