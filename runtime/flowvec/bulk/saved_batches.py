"""What the model gave for batches of unfinished shards, kept for the next run.

A shard takes a large model many minutes. So once a shard has taken a while, what the model gives is
written beside it every few seconds, as `_part-000012.RUN-0000.batches`. A run that continues the
job makes the same batches of the same texts, takes what is there, and computes the others. So the
shard has the same bytes, whenever the runs before ended. Files of finished shards are deleted.

A file has a checksum, which only this job has, and then for each batch the digest of its tokens,
(rows, dim), and float32 numbers.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.records import job_digest
from flowvec.errors import FlowvecError

__all__ = ["SavedBatches"]

_DIGEST = 16  # bytes
_SHAPE = struct.Struct("<II")
# Seconds that a shard must have taken before its batches are kept, and seconds between two files.
# A killed run loses what it did in that time.
_SAVE_EVERY = 20.0
_MOST_BYTES = 1 << 25  # that wait to be written

_Feeds = Sequence[npt.NDArray[np.int64]]


class SavedBatches:
    """Batches of the shards of a run. Streams call `get` and `put` at the same time.

    Attributes:
        files: names of the files of each unfinished shard.
    """

    def __init__(self, folder: JobFolder, shards: Sequence[int], saved: Mapping[str, int]) -> None:
        """Open what earlier runs have saved.

        Args:
            folder: the job's folder, in which this process writes.
            shards: the shards that the run does, in their order.
            saved: names of files of these shards, with the shard.
        """
        self.files: dict[int, list[str]] = {}
        self._folder = folder
        self._job = job_digest(folder.read_manifest() or {})
        self._shards = list(shards)
        self._finished: int | None = None
        self._run = uuid.uuid4().hex[:12]
        self._written = 0  # files of this run
        self._texts: dict[int, int] = {}  # of each unfinished shard
        self._stack = ExitStack()
        self._contents: dict[str, npt.NDArray[np.uint8]] = {}
        self._places: dict[bytes, tuple[str, int, int, int]] = {}  # file, offset, rows, dim
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        for name, shard in saved.items():
            self.files.setdefault(shard, []).append(name)
            with suppress(OSError, ValueError, FlowvecError):  # its batches are computed again
                self._open(name, shard)
        self._saved = time.monotonic()
        # A shard that was begun has taken a while already.
        is_begun = bool(shards) and shards[0] in self.files
        self._keep_from = self._saved + (0.0 if is_begun else _SAVE_EVERY)

    def _open(self, name: str, shard: int) -> None:
        path = self._stack.enter_context(self._folder.local(name))
        content: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
        if content[:_DIGEST].tobytes() != self._checksum(content[_DIGEST:]):
            return
        self._contents[name] = content
        at = _DIGEST
        while at < len(content):
            key = content[at : at + _DIGEST].tobytes()
            rows, dim = _SHAPE.unpack(content[at + _DIGEST : at + _DIGEST + _SHAPE.size].tobytes())
            at += _DIGEST + _SHAPE.size
            self._places[key] = name, at, rows, dim
            self._texts[shard] = self._texts.get(shard, 0) + rows
            at += 4 * rows * dim

    def _checksum(self, content: Any) -> bytes:
        return hashlib.blake2b(content, key=self._job, digest_size=_DIGEST).digest()

    @property
    def texts(self) -> int:
        """Texts of unfinished shards whose vectors are kept."""
        return sum(self._texts.values())

    # --- on the streams ---------------------------------------------------------------------------

    def get(self, feeds: _Feeds) -> npt.NDArray[np.float32] | None:
        """What the model gave for a batch, float32 (batch, dim); None if it is not kept."""
        if not self._places:
            return None
        with self._lock:
            place = self._places.get(_key(feeds))
            if place is None:
                return None
            name, at, rows, dim = place
            numbers = self._contents[name][at : at + 4 * rows * dim].tobytes()
        return np.frombuffer(numbers, "<f4").reshape(rows, dim)

    def put(self, feeds: _Feeds, output: npt.NDArray[np.float32]) -> None:
        """Keep what the model gave for a batch, if its shard has taken a while."""
        if time.monotonic() < self._keep_from:
            return
        numbers = np.ascontiguousarray(output, "<f4")
        record = _key(feeds) + _SHAPE.pack(*numbers.shape) + numbers.tobytes()
        with self._lock:
            if not self._shards:  # closed
                return
            self._pending.append(record)
            shard = self._shards[0]
            self._texts[shard] = self._texts.get(shard, 0) + len(numbers)
            if (
                time.monotonic() - self._saved >= _SAVE_EVERY
                or sum(map(len, self._pending)) >= _MOST_BYTES
            ):
                self._save()

    def _save(self) -> None:
        content, self._pending = b"".join(self._pending), []
        shard = self._shards[0]
        name = self._folder.batches_name(shard, f"{self._run}-{self._written:04}")
        self._folder.write(name, self._checksum(content) + content)
        self.files.setdefault(shard, []).append(name)
        self._written += 1
        self._saved = time.monotonic()

    # --- on the writing thread --------------------------------------------------------------------

    def end_shard(self, shard: int) -> None:
        """Forget a shard that is finished.

        The files of the one before are deleted: of this one the journal may not be written yet.
        """
        with self._lock:
            self._pending.clear()
            self._shards = self._shards[self._shards.index(shard) + 1 :]
            self._keep_from = time.monotonic() + _SAVE_EVERY
            self._texts.pop(shard, None)
            before, self._finished = self._finished, shard
            names = [] if before is None else self.files.pop(before, [])
            for name in names:
                self._contents.pop(name, None)
            if names:
                gone = set(names)
                self._places = {k: at for k, at in self._places.items() if at[0] not in gone}
        if names:
            self._folder.delete(names)

    def close(self) -> None:
        """Save what is not written yet, and close the files. Twice is harmless."""
        with self._lock, self._stack:
            if self._pending:
                with suppress(OSError, FlowvecError):  # the run has failed, which is told
                    self._save()
            self._shards, self._pending = [], []
            self._places.clear()
            self._contents.clear()


def _key(feeds: _Feeds) -> bytes:
    """The digest of a batch's tokens."""
    hashed = hashlib.blake2b(str([feed.shape for feed in feeds]).encode(), digest_size=_DIGEST)
    for feed in feeds:
        hashed.update(np.ascontiguousarray(feed).data)
    return hashed.digest()
