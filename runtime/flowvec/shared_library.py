"""Loads a native library that lies beside its Python modules."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowvec.errors import MissingDependencyError

__all__ = ["load_library"]


def load_library(
    path: Path, prefix: str, version: int, signatures: Mapping[str, tuple[Any, ...]]
) -> ctypes.CDLL:
    """Load a library, and give its functions their types.

    Args:
        path: its file.
        prefix: what the names of its functions begin with.
        version: the interface that the Python modules know.
        signatures: arguments of the functions that return a status, by name without the prefix.

    Raises:
        MissingDependencyError: it was not built, or is of another version.
    """
    try:
        library = ctypes.CDLL(os.fspath(path))
        found = int(getattr(library, f"{prefix}version")())
    except (OSError, AttributeError) as error:
        raise MissingDependencyError(f"cannot load {path}: {error}. {_advice()}") from None
    if found != version:
        raise MissingDependencyError(f"{path} is of another version of flowvec. {_advice()}")
    for name, types in signatures.items():
        function = getattr(library, f"{prefix}{name}")
        function.argtypes, function.restype = types, ctypes.c_int
    return library


def _advice() -> str:
    root = Path(__file__).resolve().parents[2]
    if (root / "native" / "hnsw.cpp").is_file():
        return f"Build it: python {root / 'hatch_build.py'}"
    return (
        "Install flowvec again, for this platform, from its wheel or clone: pip's --force-reinstall"
    )
