"""Codes of a vectors file's records, in a file beside it that all processes map.

It is a cache: who finds it missing, damaged or short makes the codes again. Little-endian:

- a header: `_HEADER`, then the `Frame`, then zeros up to a multiple of 4,096 bytes;
- chunks: of 512 records each what `Codes` has of them, then a checksum, uint64, and zeros up to a
  multiple of 64 bytes. Chunk i is of the records from 512 i on. It is never changed.

A checksum begins with those of the chunk's records, which cover their labels. So a chunk that is
torn, at another's place, or of vectors that a power failure has lost, is not used, nor are those
after it.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flowvec.collection.index.vector_file import VectorFile
from flowvec.collection.store.writer_locks import CODES_LOCK_FILE, FolderLock
from flowvec.files import staged_file
from flowvec.hnsw import Codes, Frame, checksums
from flowvec.machine import available_cores

__all__ = ["CodesFile"]

logger = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_MAGIC, _VERSION = b"flowcode", 1
_HEADER = np.dtype(
    [
        ("magic", "S8"), ("version", "<u4"), ("dim", "<u4"), ("squared", "<u4"),
        ("frame_bytes", "<u4"), ("crc", "<u4"),
    ]
)  # fmt: skip
_PAGE = 4096
_TRAILER_BYTES = 64
# A smaller number of chunks is not worth writing: they are made again in 50 ms.
_LEAST_WRITTEN = 16
# After this many seconds, whoever had the turn has written.
_RETRY_SECONDS = 5.0
# Chunks that are copied and written at once: 3 MB for 384 numbers.
_WRITTEN_AT_ONCE = 32


class CodesFile:
    """The file of one table's codes. Callers let one thread at a time call its methods.

    Attributes:
        path: the file.
    """

    def __init__(self, vectors: VectorFile, codes: Codes) -> None:
        """The file beside a vectors file, whose records the codes are of; it need not exist."""
        number = vectors.path.stem.partition("-")[2]
        self.path = vectors.path.with_name(f"codes-{number}.q4")
        self._vectors, self._codes = vectors, codes
        self._rows = codes.chunk_rows
        self._block_bytes = codes.chunk_bytes
        self._stride = -(-(self._block_bytes + 8) // _TRAILER_BYTES) * _TRAILER_BYTES
        self._header_bytes = 0  # of the file that is mapped
        self._used = 0  # chunks that are mapped
        self._mapped_file: tuple[int, int] | None = None  # which file they are of
        self._retry_at = 0.0  # when its turn may be free
        # Codes have the byte order of the processor, and floats too.
        self._is_usable = sys.byteorder == "little"

    @property
    def mapped_bytes(self) -> int:
        """Size of the codes that are mapped."""
        return self._used * self._stride

    def worth_writing(self, records: int) -> bool:
        """Whether the file lacks enough codes of the first records to be worth writing.

        Args:
            records: of the vectors file, all of which have codes.
        """
        lacking = records // self._rows - self._used
        can_write = self._is_usable and time.monotonic() >= self._retry_at
        return can_write and lacking >= _LEAST_WRITTEN

    # --- reading --------------------------------------------------------------------------------

    def read(self, records: int) -> None:
        """Use the codes that the file has of the first records, if it is a good file.

        Args:
            records: how many of the vectors file are valid.
        """
        if not self._is_usable or records // self._rows <= self._used:
            return
        try:
            if self.path.is_file() and not self.path.is_symlink():
                with self.path.open("rb") as file:
                    self._map(file, records // self._rows)
        except (OSError, ValueError) as error:
            logger.info("codes are made again: %s: %s", self.path, error)

    def _map(self, file: IO[bytes], most: int) -> None:
        """Use at most this many chunks; ValueError if the file is not one of these codes."""
        frame, header_bytes = self._frame(file)
        if self._codes.frame is None:
            self._codes.begin(frame)
        elif self._codes.frame.tobytes() != frame.tobytes():
            self._is_usable = False  # another process was first: both are right
            return
        status = os.fstat(file.fileno())
        count = min(most, (status.st_size - header_bytes) // self._stride)
        if count <= self._used:
            return
        # Of another file of this name, nothing is known yet.
        identity = status.st_dev, status.st_ino
        known = self._used if identity == self._mapped_file else 0
        chunks = self._chunks(file, header_bytes, count)
        is_right = self._are_right(chunks[known:], known)
        good = known + (len(is_right) if is_right.all() else int(np.argmin(is_right)))
        if good > self._used:
            self._codes.map(chunks[:good])
            self._used, self._mapped_file, self._header_bytes = good, identity, header_bytes

    def _frame(self, file: IO[bytes]) -> tuple[Frame, int]:
        """What a file's header says, and its size; ValueError if it is not of these codes."""
        content = file.read(_HEADER.itemsize)
        if len(content) == _HEADER.itemsize:
            most = 12 + 4 * self._codes.dim * (self._codes.dim + 1)
            frame_bytes = min(int(np.frombuffer(content, _HEADER)["frame_bytes"][0]), most)
            content += file.read(-(-(len(content) + frame_bytes) // _PAGE) * _PAGE - len(content))
            frame = Frame.frombytes(content[_HEADER.itemsize :], self._codes.dim)
            if content == self._header(frame):
                return frame, len(content)
        raise ValueError("it is damaged, or not of these vectors")

    def _chunks(self, file: IO[bytes], header_bytes: int, count: int) -> Bytes:
        """The first chunks of a file, mapped, uint8 (count, bytes)."""
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.ndarray((count, self._stride), np.uint8, mapped, header_bytes)

    def _are_right(self, chunks: Bytes, first: int) -> npt.NDArray[np.bool_]:
        """Which chunks match their checksums, bool (chunks,); the first is of this number."""
        ends = chunks[:, self._block_bytes : self._block_bytes + 8].copy().view("<u8")[:, 0]
        is_right: npt.NDArray[np.bool_] = self._checksums(chunks, first) == ends
        return is_right

    def problem(self, records: int) -> str | None:
        """What is wrong with the file, or None; chunks at its end may be unfinished.

        Args:
            records: how many of the vectors file are valid.
        """
        if not os.path.lexists(self.path):
            return None
        if self.path.is_symlink() or not self.path.is_file():
            return f"{self.path} is not a file"  # to open a pipe would wait for ever
        try:
            with self.path.open("rb") as file:
                _, header_bytes = self._frame(file)
                size = os.fstat(file.fileno()).st_size - header_bytes
                count = min(records // self._rows, size // self._stride)
                is_right = self._are_right(self._chunks(file, header_bytes, count), 0)
        except (OSError, ValueError) as error:
            return f"cannot read {self.path}: {error}"
        last = np.flatnonzero(is_right)
        if len(last) and not is_right[: last[-1]].all():
            return f"{self.path} is damaged; no row is lost, and `compact` makes it again"
        return None

    def _header(self, frame: Frame) -> bytes:
        content = frame.tobytes()
        header = np.zeros(1, _HEADER)
        header[0] = (_MAGIC, _VERSION, self._codes.dim, self._codes.squared, len(content), 0)
        header["crc"] = zlib.crc32(header.tobytes() + content)
        whole = header.tobytes() + content
        return whole.ljust(-(-len(whole) // _PAGE) * _PAGE, b"\0")

    def _checksums(self, chunks: Bytes, first: int) -> Words:
        """What the checksums of chunks should be; the first is of this number."""
        slots = np.arange(first * self._rows, (first + len(chunks)) * self._rows)
        sums = self._vectors.checksums_of(slots).reshape(len(chunks), self._rows)
        # Odd weights, which differ: a vector that changes, or changes places, changes the sum.
        weights = np.arange(self._rows, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        starts = np.einsum("ij,j->i", sums, weights)
        return checksums(chunks, self._block_bytes, starts, available_cores())

    # --- writing --------------------------------------------------------------------------------

    def write(self, records: int) -> None:
        """Write the codes that the file lacks, and use the file's. If that fails, codes stay here.

        Args:
            records: how many of the vectors file are valid; all have codes.
        """
        if not self.worth_writing(records):
            return
        try:
            with self._turn() as has_turn:
                if not has_turn:
                    self._retry_at = time.monotonic() + _RETRY_SECONDS
                elif self._vectors.path.exists():  # else a compacted collection has another file
                    self.read(records)  # what other processes have written
                    if self.worth_writing(records):
                        self._write(records // self._rows)
                        self.read(records)
                        # Otherwise what was written is not what was read.
                        self._is_usable &= not self.worth_writing(records)
        except Exception as error:  # a search must not fail, nor try again and again
            self._is_usable = False
            logger.info("codes stay in memory: %s: %s", self.path, error)

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        lock = FolderLock(self.path.with_name(CODES_LOCK_FILE))
        try:
            yield lock.acquire(time.monotonic())
        finally:
            lock.close()

    def _write(self, last: int) -> None:
        if self._used:
            with self.path.open("r+b", buffering=0) as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != self._mapped_file:
                    raise ValueError("another process has replaced it")
                self._write_chunks(file, last)
            return
        with staged_file(self.path) as staged, staged.open("wb", buffering=0) as file:
            assert self._codes.frame is not None  # there are codes
            header = self._header(self._codes.frame)
            self._header_bytes = len(header)
            _write_all(file, header)
            self._write_chunks(file, last)

    def _write_chunks(self, file: IO[bytes], last: int) -> None:
        """Write the chunks from those that are used on; what is behind them is not valid."""
        file.seek(self._header_bytes + self._used * self._stride)
        for first in range(self._used, last, _WRITTEN_AT_ONCE):
            count = min(_WRITTEN_AT_ONCE, last - first)
            chunks = np.zeros((count, self._stride), np.uint8)
            chunks[:, : self._block_bytes] = self._codes.chunks(first, count)
            sums = self._checksums(chunks, first)
            chunks[:, self._block_bytes : self._block_bytes + 8] = sums.view(np.uint8).reshape(
                -1, 8
            )
            _write_all(file, chunks.tobytes())


def _write_all(file: IO[Any], content: bytes) -> None:
    """Write without a buffer: a full disk raises here."""
    rest = memoryview(content)
    while len(rest):
        rest = rest[file.write(rest) :]
