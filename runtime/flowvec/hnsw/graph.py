"""A graph of labelled vectors, over the native library."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Literal

import numpy as np
import numpy.typing as npt

from flowvec.hnsw.library import HnswError, address, check, library
from flowvec.hnsw.places import Places

__all__ = ["HnswGraph", "Space", "is_squared"]

Space = Literal["ip", "l2"]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class HnswGraph:
    """An HNSW graph (Malkov and Yashunin, 2018) of rows under labels from 0.

    It holds vectors in 8 bits a number, and a search compares the best nodes again, exactly, with
    the vectors of their rows, which the caller keeps.

    Any number of threads may use it: searches, `save` and `delete` run side by side; `add` and
    `resize` wait for them, and they for those. All release Python's lock. It cannot be pickled.

    Rows whose vectors are equal, or nearly (by about .012 of their length), share a node: copies
    that are nodes link to each other alone, and rows behind them are not reached any more. Each row
    has its own score.
    """

    def __init__(
        self,
        space: Space,
        dim: int,
        capacity: int,
        m: int = 16,
        ef_construction: int = 200,
        seed: int = 0,
    ) -> None:
        """An empty graph.

        Args:
            space: `ip` or `l2`.
            dim: length of the vectors.
            capacity: room for this many nodes, until `resize`.
            m: links of a node on the upper levels, and half of those on the lowest.
            ef_construction: search depth when a node is added.
            seed: for the random levels.

        Raises:
            HnswError: a size is out of range.
            MemoryError: there is not enough memory.
        """
        made = ctypes.c_void_p()
        status = library().flowvec_hnsw_create(
            dim, is_squared(space), capacity, m, ef_construction, seed, ctypes.byref(made)
        )
        check(status)
        self._own(made, dim)

    def _own(self, handle: ctypes.c_void_p, dim: int) -> None:
        self._lib, self._handle, self.dim = library(), handle, dim
        weakref.finalize(self, self._lib.flowvec_hnsw_free, handle).atexit = False

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        space: Space,
        dim: int,
        m: int = 16,
        capacity: int = 0,
    ) -> HnswGraph:
        """Read a file of `save`, and map its nodes: processes share those that they do not change.

        Every number in it is checked before it is used.

        Args:
            path: the file.
            space: `ip` or `l2`.
            dim: length of its vectors.
            m: its M.
            capacity: room for at least this many nodes.

        Raises:
            GraphFileError: it is not a whole, valid graph of these sizes.
            OSError: it cannot be read.
            MemoryError: there is not enough memory.
        """
        made = ctypes.c_void_p()
        name = os.fspath(path)
        status = library().flowvec_hnsw_load(
            os.fsencode(name), dim, is_squared(space), m, capacity, ctypes.byref(made)
        )
        check(status, name)
        graph = cls.__new__(cls)
        graph._own(made, dim)
        return graph

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph to a new file, which is not flushed to disk.

        Rows that are deleted meanwhile may or may not be deleted in the file.

        Raises:
            OSError: it could not be written whole.
        """
        name = os.fspath(path)
        check(self._lib.flowvec_hnsw_save(self._handle, os.fsencode(name)), name)

    def _sizes(self) -> list[int]:
        sizes = (ctypes.c_uint64 * 5)()
        check(self._lib.flowvec_hnsw_sizes(self._handle, ctypes.byref(sizes)))
        return list(sizes)

    def __len__(self) -> int:
        """How many rows it has, deleted ones included."""
        return self._sizes()[0]

    @property
    def nodes(self) -> int:
        """How many nodes they have."""
        return self._sizes()[4]

    @property
    def deleted(self) -> int:
        """How many of its rows are deleted."""
        return self._sizes()[1]

    @property
    def capacity(self) -> int:
        """For how many nodes there is room."""
        return self._sizes()[2]

    def _bytes(self) -> list[int]:
        sizes = (ctypes.c_uint64 * 3)()
        check(self._lib.flowvec_hnsw_bytes(self._handle, ctypes.byref(sizes)))
        return list(sizes)

    @property
    def file_bytes(self) -> int:
        """Size of its file."""
        return self._bytes()[0]

    @property
    def mapped_bytes(self) -> int:
        """How much of a file is mapped, which processes share until they change it."""
        return self._bytes()[1]

    @property
    def memory_bytes(self) -> int:
        """About its memory beside what is mapped."""
        return self._bytes()[2]

    @property
    def ef_construction(self) -> int:
        """Search depth when a node is added."""
        return self._sizes()[3]

    def labels(self) -> tuple[Labels, Mask]:
        """Labels of its rows, int64 (rows,), and which are deleted, bool (rows,).

        Raises:
            HnswError: another thread added rows at the same time.
        """
        count = len(self)
        labels, deleted = np.empty(count, np.int64), np.empty(count, np.bool_)
        check(self._lib.flowvec_hnsw_labels(self._handle, address(labels), address(deleted), count))
        return labels, deleted

    def resize(self, capacity: int) -> None:
        """Make room for this many nodes.

        Raises:
            HnswError: it has more nodes, or the capacity is out of range.
            MemoryError: there is not enough memory. The graph must not be used then.
        """
        check(self._lib.flowvec_hnsw_resize(self._handle, capacity))

    def add(self, labels: Labels, vectors: Floats, threads: int = 1) -> None:
        """Add rows.

        Args:
            labels: new ones, ascending, from 0, int64 (rows,).
            vectors: finite, float32 (rows, dim).
            threads: how many add them. With one, equal calls make equal graphs.

        Raises:
            HnswError: a label or a vector is refused, or there is no room; nothing was added.
            MemoryError: there is not enough memory. The graph must not be used then.
        """
        labels = np.ascontiguousarray(labels, np.int64)
        vectors = self._rows(vectors)
        if labels.shape != (len(vectors),):
            raise HnswError(f"{labels.shape} labels for {len(vectors)} vectors")
        check(
            self._lib.flowvec_hnsw_add(
                self._handle, address(vectors), address(labels), len(labels), threads
            )
        )

    def delete(self, labels: Labels) -> Mask:
        """Mark rows as deleted: searches pass through them, and never return them.

        Args:
            labels: int64 (rows,).

        Returns:
            Which were rows and not deleted yet, bool (rows,).
        """
        labels = np.ascontiguousarray(labels, np.int64).reshape(-1)
        marked = np.empty(len(labels), np.bool_)
        check(
            self._lib.flowvec_hnsw_delete(
                self._handle, address(labels), address(marked), len(labels)
            )
        )
        return marked

    def search(
        self,
        queries: Floats,
        k: int,
        ef: int,
        labels: Labels,
        places: Places,
        threads: int = 1,
    ) -> tuple[Labels, Floats]:
        """The k nearest rows of each query, best first; equal scores by ascending label.

        Args:
            queries: float32 (queries, dim).
            k: how many.
            ef: search depth: the best are taken from this many nodes, and at least k * 1.25 + 16.
            labels: of at least all rows that are not deleted, ascending, int64 (rows,).
            places: their vectors.
            threads: how many search, at most one for each query.

        Returns:
            Labels int64 and scores float32, (queries, k): dot products, or negative distances.
            Where fewer were reached, the label is -1 and the score is minus infinity.
        """
        queries = self._rows(queries)
        if k < 1:
            raise HnswError(f"k must be 1 or more, not {k}")
        labels = np.ascontiguousarray(labels, np.int64)
        if labels.shape != (len(places),):
            raise HnswError(f"{labels.shape} labels for {len(places)} vectors")
        found = np.empty((len(queries), k), np.int64)
        scores = np.empty((len(queries), k), np.float32)
        check(
            self._lib.flowvec_hnsw_search(
                self._handle, address(queries), len(queries), k, max(1, ef), address(labels),
                len(labels), *places.arguments(self.dim), threads, address(found), address(scores),
            )
        )  # fmt: skip
        return found, scores

    def _rows(self, vectors: Floats) -> Floats:
        rows = np.ascontiguousarray(vectors, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise HnswError(f"vectors have shape {rows.shape} instead of (rows, {self.dim})")
        return rows

    def __reduce__(self) -> str:
        raise TypeError("a graph cannot be pickled; save it to a file")


def is_squared(space: Space) -> int:
    """1 for squared Euclidean distances, and 0 for inner products."""
    if space not in ("ip", "l2"):
        raise HnswError(f"space must be 'ip' or 'l2', not {space!r}")
    return int(space == "l2")
