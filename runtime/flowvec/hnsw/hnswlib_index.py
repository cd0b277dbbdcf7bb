"""A graph of float32 vectors, whose file the package hnswlib reads."""

from __future__ import annotations

import ctypes
import os
import weakref

import numpy as np
import numpy.typing as npt

from flowvec.hnsw.graph import Space, is_squared
from flowvec.hnsw.library import HnswError, address, check, library

__all__ = ["HnswlibIndex"]


class HnswlibIndex:
    """Builds an index of the package hnswlib, and writes its file; one thread at a time."""

    def __init__(
        self, space: Space, dim: int, capacity: int, m: int = 16, ef_construction: int = 200
    ) -> None:
        """An empty index with room for this many rows.

        Raises:
            HnswError: a size is out of range.
            MemoryError: there is not enough memory.
        """
        self.dim, self._lib, self._handle = dim, library(), ctypes.c_void_p()
        check(
            self._lib.flowvec_hnsw_hnswlib_create(
                dim, is_squared(space), capacity, m, ef_construction, ctypes.byref(self._handle)
            )
        )
        weakref.finalize(self, self._lib.flowvec_hnsw_hnswlib_free, self._handle).atexit = False

    def add(
        self, labels: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32], threads: int = 1
    ) -> None:
        """Add rows.

        Args:
            labels: new ones, ascending, from 0, int64 (rows,).
            vectors: finite, float32 (rows, dim).
            threads: how many add them.

        Raises:
            HnswError: a label or a vector is refused, or there is no room; nothing was added.
            MemoryError: there is not enough memory. It must not be used then.
        """
        labels = np.ascontiguousarray(labels, np.int64)
        vectors = np.ascontiguousarray(vectors, np.float32)
        if vectors.shape != (len(labels), self.dim):
            raise HnswError(f"{labels.shape} labels for vectors of shape {vectors.shape}")
        check(
            self._lib.flowvec_hnsw_hnswlib_add(
                self._handle, address(vectors), address(labels), len(labels), threads
            )
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, which is not flushed to disk.

        Raises:
            OSError: it could not be written whole.
        """
        name = os.fspath(path)
        check(self._lib.flowvec_hnsw_hnswlib_save(self._handle, os.fsencode(name)), name)
