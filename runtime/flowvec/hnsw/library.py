"""The native library: found, loaded, and its errors as exceptions.

ctypes releases Python's lock in every call, so other threads go on.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.errors import FlowvecError
from flowvec.shared_library import load_library

__all__ = ["LIBRARY", "SIGNATURES", "GraphFileError", "HnswError", "address", "check", "library"]

# The name says nothing of a Python version, since the library does not use Python.
LIBRARY = {"win32": "_hnsw.dll", "darwin": "_hnsw.dylib"}.get(sys.platform, "_hnsw.so")
_VERSION = 7  # of the interface in native/hnsw.cpp
_BAD_ARGUMENT, _BAD_FILE, _SYSTEM, _NO_MEMORY = 1, 2, 3, 4

SIGNATURES: dict[str, tuple[Any, ...]] = {
    "create": (c_size_t, c_int, c_size_t, c_size_t, c_size_t, c_size_t, c_void_p),
    "load": (c_char_p, c_size_t, c_int, c_size_t, c_size_t, c_void_p),
    "save": (c_void_p, c_char_p),
    "sizes": (c_void_p, c_void_p),
    "bytes": (c_void_p, c_void_p),
    "labels": (c_void_p, c_void_p, c_void_p, c_size_t),
    "resize": (c_void_p, c_size_t),
    "add": (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "delete": (c_void_p, c_void_p, c_void_p, c_size_t),
    "search": (
        c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t,
        c_size_t, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p,
    ),
    "hnswlib_create": (c_size_t, c_int, c_size_t, c_size_t, c_size_t, c_void_p),
    "hnswlib_add": (c_void_p, c_void_p, c_void_p, c_size_t, c_size_t),
    "hnswlib_save": (c_void_p, c_char_p),
    "best_rows": (
        c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_void_p, c_size_t,
        c_void_p, c_void_p, c_void_p,
    ),
    "codes_create": (c_size_t, c_int, c_uint64, c_void_p),
    "codes_sizes": (c_void_p, c_void_p),
    "codes_begin": (c_void_p, c_void_p, c_void_p, c_size_t, c_float),
    "codes_copy": (c_void_p, c_size_t, c_size_t, c_void_p),
    "codes_map": (c_void_p, c_void_p, c_size_t, c_size_t),
    "checksums": (c_void_p, c_size_t, c_size_t, c_size_t, c_void_p, c_size_t, c_void_p),
    "codes_add": (c_void_p, c_void_p, c_size_t, c_size_t, c_void_p),
    "codes_search": (
        c_void_p, c_void_p, c_size_t, c_size_t, c_size_t, c_size_t, c_void_p, c_float, c_void_p,
        c_size_t, c_size_t, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p,
    ),
    "pairs_create": (c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p),
    "pairs_add": (c_void_p, c_size_t, c_size_t),
    "pairs_best": (
        c_void_p, c_size_t, c_size_t, c_size_t, c_float, c_size_t, c_size_t, c_void_p, c_void_p,
        c_void_p,
    ),
}  # fmt: skip


class HnswError(FlowvecError, RuntimeError):
    """A graph or codes refuse what they are asked for, or a change of a graph failed."""


class GraphFileError(HnswError):
    """A file is not a whole, valid graph of these sizes."""


@cache
def library() -> ctypes.CDLL:
    """The library, with the types of its functions.

    Raises:
        MissingDependencyError: it was not built, or is of another version.
    """
    path = Path(__file__).with_name(LIBRARY)
    lib = load_library(path, "flowvec_hnsw_", _VERSION, SIGNATURES)
    for name in ("free", "codes_free", "pairs_free", "hnswlib_free"):
        free = getattr(lib, f"flowvec_hnsw_{name}")
        free.argtypes, free.restype = (c_void_p,), None
    for name in ("error", "simd", "scan_simd"):
        getattr(lib, f"flowvec_hnsw_{name}").restype = c_char_p
    return lib


def check(status: int, path: str | None = None) -> None:
    """Raise what the last call in this thread failed with.

    Args:
        status: what it returned.
        path: the file that it read or wrote.

    Raises:
        HnswError: a wrong argument, or the graph is broken.
        GraphFileError: the file is not a graph.
        OSError: it could not be read or written.
        MemoryError: there is not enough memory.
    """
    if not status:
        return
    lib = library()
    text = lib.flowvec_hnsw_error().decode("utf-8", "replace")
    if status == _SYSTEM:
        number = int(lib.flowvec_hnsw_errno())
        raise OSError(number, os.strerror(number), path)
    if status == _NO_MEMORY:
        raise MemoryError(text)
    if status == _BAD_FILE:
        raise GraphFileError(f"{path} is not a graph: {text}")
    raise HnswError(text)


def address(array: npt.NDArray[np.generic]) -> int:
    """Address of an array's first number; `array.ctypes` takes ten times as long."""
    return int(array.__array_interface__["data"][0])
