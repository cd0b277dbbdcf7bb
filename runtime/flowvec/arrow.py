"""pyarrow, which comes with an extra."""

from __future__ import annotations

from typing import Any

from flowvec.errors import MissingDependencyError

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
        raise MissingDependencyError(
            'this needs pyarrow: python -m pip install "flowvec[cpu,files]"'
        ) from None
    return pyarrow
