"""pyarrow, which comes with an extra."""

from __future__ import annotations

from typing import Any

from flowvec.errors import MissingDependencyError
from flowvec.version import install_line

__all__ = ["imported_arrow"]


def imported_arrow() -> Any:
    """pyarrow, with what reads and writes Parquet.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError(f"this needs pyarrow: {install_line('cpu,files')}") from None
    return pyarrow
