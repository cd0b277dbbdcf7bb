"""Codes of vectors, and the nearest rows by a scan of them, in the native library."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import numpy.typing as npt

from flowvec.hnsw.frame import Frame
from flowvec.hnsw.library import HnswError, address, check, library
from flowvec.hnsw.places import Places

__all__ = ["Codes", "checksums", "has_fast_scan"]

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


def has_fast_scan() -> bool:
    """Whether this processor has instructions that scans are written for: AVX2 or ARM dotprod."""
    return bool(library().flowvec_hnsw_scan_simd() != b"base")


def checksums(blocks: Bytes, size: int, starts: Words, threads: int = 1) -> Words:
    """A checksum of each block, uint64 (blocks,).

    Args:
        blocks: uint8 (blocks, bytes), contiguous.
        size: how many bytes of a block count, a multiple of 8.
        starts: what each checksum begins with, uint64 (blocks,).
        threads: how many compute them.

    Raises:
        HnswError: the arguments do not fit together.
    """
    starts = np.ascontiguousarray(starts, np.uint64)
    if size % 8 or blocks.ndim != 2 or size > blocks.shape[1] or len(starts) != len(blocks):
        raise HnswError(f"no checksums of {size} bytes of blocks of shape {blocks.shape}")
    sums = np.empty(len(blocks), np.uint64)
    check(
        library().flowvec_hnsw_checksums(
            address(blocks), size, blocks.strides[0], len(blocks), address(starts), threads,
            address(sums),
        )
    )  # fmt: skip
    return sums


class Codes:
    """Codes of 4 bits for each number of rows, with which a scan finds the nearest.

    They are codes of the differences from a mean, turned: see `Frame`. A scan estimates all scores
    from codes, and computes those that may be among the best from the vectors. So the scores it
    returns are exact, and it misses a row only if its estimate is wrong by more than `reach`
    standard deviations. Estimates are as in RaBitQ (arXiv 2405.12497), with 4 bits (arXiv
    2409.09913).

    Any number of threads may search, also while one adds rows. Python's lock is released.

    Attributes:
        frame: how vectors are turned before they are encoded; None before the first rows.
    """

    def __init__(self, dim: int, *, squared: bool, seed: int = 0) -> None:
        """No codes yet.

        Args:
            dim: length of the vectors.
            squared: whether rows are compared by their Euclidean distance instead of the dot
                product.
            seed: for the random rotation.

        Raises:
            HnswError: a size is out of range.
        """
        self.dim, self.squared = dim, squared
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(
            self._lib.flowvec_hnsw_codes_create(
                dim, squared, seed & (1 << 64) - 1, ctypes.byref(self._handle)
            )
        )
        weakref.finalize(self, self._lib.flowvec_hnsw_codes_free, self._handle).atexit = False
        self.frame: Frame | None = None
        self._mapped: list[Bytes] = []  # kept for the library, which reads them

    def _sizes(self) -> list[int]:
        sizes = (ctypes.c_uint64 * 4)()
        check(self._lib.flowvec_hnsw_codes_sizes(self._handle, ctypes.byref(sizes)))
        return list(sizes)

    def __len__(self) -> int:
        """How many rows there are."""
        return self._sizes()[0]

    @property
    def nbytes(self) -> int:
        """Their memory; what is mapped is not counted."""
        return self._sizes()[1]

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk: codes of `chunk_rows` rows, and what else a scan needs of them."""
        return self._sizes()[2]

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return self._sizes()[3]

    def begin(self, frame: Frame) -> None:
        """Say how vectors are turned before they are encoded; `add` does so if nobody has.

        Raises:
            HnswError: there are rows, or the frame does not fit.
        """
        square = (self.dim, self.dim)
        basis = None if frame.basis is None else np.ascontiguousarray(frame.basis, np.float32)
        centre = np.ascontiguousarray(frame.centre, np.float32)
        if centre.shape != (self.dim,) or (basis is not None and basis.shape != square):
            raise HnswError(f"this frame is not for vectors of length {self.dim}")
        check(
            self._lib.flowvec_hnsw_codes_begin(
                self._handle, address(centre), None if basis is None else address(basis),
                frame.part, frame.margin,
            )
        )  # fmt: skip
        self.frame = frame

    def chunks(self, first: int, count: int) -> Bytes:
        """Whole chunks, a copy, uint8 (count, chunk_bytes).

        Raises:
            HnswError: there are fewer.
        """
        copies = np.empty((count, self.chunk_bytes), np.uint8)
        check(self._lib.flowvec_hnsw_codes_copy(self._handle, first, count, address(copies)))
        return copies

    def map(self, chunks: Bytes) -> None:
        """Use these chunks for the first rows, instead of those that are there.

        Args:
            chunks: of the same rows, uint8 (chunks, `chunk_bytes` or more), contiguous, at an
                address and with a size that are multiples of 64, made with this `frame`. They stay
                in use: they are not copied.

        Raises:
            HnswError: they do not fit, or there is no frame.
        """
        if chunks.ndim != 2 or chunks.shape[1] < self.chunk_bytes:
            raise HnswError(f"chunks of shape {chunks.shape} do not fit")
        if address(chunks) % 64 or chunks.strides[0] % 64 or not chunks.flags.c_contiguous:
            raise HnswError("chunks must be contiguous, and begin at multiples of 64 bytes")
        self._mapped.append(chunks)  # if Ctrl-C interrupts this, all are still there
        check(
            self._lib.flowvec_hnsw_codes_map(
                self._handle, address(chunks), chunks.strides[0], len(chunks)
            )
        )
        self._mapped = [chunks]  # nothing reads the earlier ones from now on

    def add(self, vectors: Floats, threads: int = 1) -> bool:
        """Add rows; one thread at a time.

        Args:
            vectors: finite, float32 (rows, dim).
            threads: how many compute them.

        Returns:
            False if a row is so long (1e18) that estimates may be infinite: do not search then.

        Raises:
            MemoryError: there is not enough memory. No row was added.
        """
        rows = np.ascontiguousarray(vectors, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise HnswError(f"vectors have shape {rows.shape} instead of (rows, {self.dim})")
        if self.frame is None and len(rows):
            self.begin(Frame.fit(rows, squared=self.squared))
        are_short = ctypes.c_int()
        check(
            self._lib.flowvec_hnsw_codes_add(
                self._handle, address(rows), len(rows), threads, ctypes.byref(are_short)
            )
        )
        return bool(are_short.value)

    def search(
        self,
        queries: Floats,
        k: int,
        places: Places,
        *,
        first: int = 0,
        last: int,
        allowed: npt.NDArray[np.bool_] | None = None,
        reach: float,
        threads: int = 1,
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """The k nearest rows of each query, best first; equal scores in the order of rows.

        Args:
            queries: finite, float32 (queries, dim).
            k: how many; at least so many rows may be returned.
            places: the vectors of all rows.
            first: the first row that may be returned.
            last: the row after the last one.
            allowed: which rows may be returned, bool (at least `last`,); None is all.
            reach: how many standard deviations an estimate may be wrong.
            threads: how many search.

        Returns:
            Rows int64 and scores float32, (queries, k): dot products, or negative distances.

        Raises:
            HnswError: the arguments do not fit together.
            MemoryError: there is not enough memory.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise HnswError(f"queries have shape {queries.shape} instead of (n, {self.dim})")
        if not 0 <= first <= last <= len(places):
            raise HnswError(f"rows {first} to {last} are not all there")
        if allowed is not None:
            allowed = np.ascontiguousarray(allowed, np.bool_)
            if len(allowed) < last:
                raise HnswError(f"{len(allowed)} marks for {last} rows")
        rows = np.empty((len(queries), k), np.int64)
        scores = np.empty((len(queries), k), np.float32)
        check(
            self._lib.flowvec_hnsw_codes_search(
                self._handle, address(queries), len(queries), k, first, last,
                None if allowed is None else address(allowed), reach,
                *places.arguments(self.dim), threads, address(rows), address(scores),
            )
        )  # fmt: skip
        return rows, scores

    def __reduce__(self) -> str:
        raise TypeError("codes cannot be pickled; make them again from the vectors")
