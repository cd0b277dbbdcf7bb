"""A bulk job's folder below a URL: the same files as in a file system, as objects.

A shard is written into a temporary folder of this machine and then uploaded, while the next one is
made. Two objects are new: `_lease.json`, with which one process at a time does a share (see
`flowvec.object_store.lease`), and the journal, whose lines are in numbered objects of up to 256
shards, `_journal.RUN-0000.jsonl`. Each run writes journal objects of its own, whose first line
names the job, so what a run writes that was believed dead is never mistaken for another job's. Both
are gone when the job is complete.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from flowvec.bulk.file_names import row_map_name, texts_name
from flowvec.bulk.job_folder import JobFolder, Journal
from flowvec.bulk.records import (
    ShardRecord,
    job_digest,
    journal_line,
    journal_records,
    manifest_bytes,
)
from flowvec.bulk.scratch import scratch_folder
from flowvec.compat import override
from flowvec.errors import BulkError
from flowvec.object_store import ConflictError, Lease, ObjectStore

__all__ = ["BucketFolder"]

_LINES = 256  # of a journal object
_NOWHERE = Path()


class BucketFolder(JobFolder):
    """A job's folder below a URL."""

    def __init__(self, store: ObjectStore, share: tuple[int, int] = (1, 1)) -> None:
        """Name the objects, without touching them.

        Args:
            store: the objects.
            share: (i, n) is the i-th of n shares of the work, from 1.
        """
        super().__init__(_NOWHERE, store.url, share)
        self._store = store
        self._lease = Lease(store, f"_lease{self._suffix}.json")
        self._check: Callable[[], object] = self._lease.check  # that this run may write
        self._manifest_tag: str | None = None

    @override
    def with_share(self, share: tuple[int, int]) -> BucketFolder:
        return BucketFolder(self._store, share)

    @override
    @contextmanager
    def locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.path = stack.enter_context(scratch_folder())
            stack.enter_context(self._lease)
            yield

    @property
    def holder(self) -> str:
        """What tells this run's lease apart from others."""
        return self._lease.holder

    @contextmanager
    def lent(self, holder: str) -> Iterator[Callable[[ShardRecord], None]]:
        """Write shards for the process that has the lease.

        In the block, `path` is a temporary folder. The function that it gives uploads a shard's
        files from there.

        Args:
            holder: the `holder` of the folder in the process that has the lease.
        """

        def check() -> None:
            if not self._lease.is_held_by(holder):
                raise BulkError(f"{self.out} was taken over by another process meanwhile")

        self._check = check
        with scratch_folder() as self.path:
            yield lambda record: self.upload_shard(record, check)

    def upload_shard(self, record: ShardRecord, check: Callable[[], None]) -> None:
        """Upload a shard's files from `path`, and delete them there.

        Args:
            record: the shard.
            check: called before each write; raises if this run has lost the right to write.
        """
        names = [self.shard_dead_letters(record.shard)] if record.dead else []
        if record.map_sha256:
            names.append(row_map_name(record.file))
        if record.texts_sha256:
            names.append(texts_name(record.file))
        for name in (*names, record.file):
            self._store.upload(self.path / name, name, check)
            (self.path / name).unlink()

    @override
    def sizes(self) -> dict[str, int]:
        return self._store.sizes()

    @override
    def read(self, name: str) -> bytes | None:
        tagged = self._store.read_tagged(name)
        if name == self.manifest:
            self._manifest_tag = None if tagged is None else tagged[1]
        return None if tagged is None else tagged[0]

    @override
    def write(self, name: str, content: bytes) -> None:
        self._store.write(name, content, self._check)

    @override
    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write the manifest, if it is still the one that was read last.

        Raises:
            BulkError: another process has written it meanwhile.
        """
        self._lease.check()
        written = manifest_bytes(content)
        try:
            if self._manifest_tag is None:
                self._manifest_tag = self._store.create(self.manifest, written)
            else:
                self._manifest_tag = self._store.replace(self.manifest, written, self._manifest_tag)
        except ConflictError:
            raise BulkError(
                f"{self.where(self.manifest)} was written by another process meanwhile; the same "
                "command continues"
            ) from None

    @override
    def write_blocks(self, name: str, blocks: Iterable[bytes]) -> None:
        whole = self.path / name
        with whole.open("wb") as file:
            file.writelines(blocks)
        self._store.upload(whole, name, self._lease.check)
        whole.unlink()

    @override
    def delete(self, names: Iterable[str]) -> None:
        self._lease.check()
        names = list(names)
        self._store.delete(names, self._lease.check)
        if self.manifest in names:
            self._manifest_tag = None

    @override
    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        with scratch_folder() as folder:
            copy = folder / name
            self._store.download(name, copy)
            yield copy

    @override
    def finish(self, content: dict[str, Any], records: Sequence[ShardRecord]) -> None:
        if len(self.present(records)) != len(records):
            raise BulkError(f"shards of {self.out} have changed meanwhile; run the job again")
        super().finish(content, records)

    def delete_late(self, record: ShardRecord) -> None:
        """Delete what a run wrote for a shard after another one had completed the job.

        That run was paused while it wrote. While another process works, nothing is deleted: that
        process removes at its end what a complete job does not need.
        """
        with suppress(Exception):  # `flowvec verify --clean` deletes it, too
            manifest = self.read_manifest()
            if manifest is not None and manifest.get("shards") and not self._lease.is_taken():
                self._store.delete([self.shard_dead_letters(record.shard)])

    # --- the journal ------------------------------------------------------------------------------

    @override
    def read_journal(self) -> list[ShardRecord]:
        manifest = self.read_manifest()
        job = None if manifest is None else job_digest(manifest)
        records: dict[int, ShardRecord] = {}
        for name in sorted(self.journal_files()):
            first, *lines = (self._store.read(name) or b"").split(b"\n")
            if job is not None and first == _first_line(job):
                records |= {record.shard: record for record in journal_records(lines[:-1])}
        return list(records.values())

    @override
    def begin(self, records: Sequence[ShardRecord]) -> Journal:
        before = self.journal_files()
        self.delete_leftovers()
        manifest = self.read_manifest()
        assert manifest is not None  # it was written before
        journal = _JournalObjects(self, self._store, self._lease, job_digest(manifest))
        journal.write(records)
        self.delete(before)
        return journal

    def journal_object(self, run: str, number: int) -> str:
        """The name of a numbered object of a run's journal."""
        return f"{self.journal.removesuffix('.jsonl')}.{run}-{number:04}.jsonl"

    @override
    def journal_files(self) -> list[str]:
        # The name of another share's object goes on with its number.
        start = self.journal.removesuffix("jsonl")
        return [
            name for name in self.sizes()
            if name.startswith(start) and "-of-" not in name.removeprefix(start)
        ]  # fmt: skip

    # --- leftovers --------------------------------------------------------------------------------

    @override
    def delete_leftovers(self) -> list[str]:
        self._lease.check()
        uploads = [
            upload for upload in self._store.unfinished_uploads()
            if upload.name == self.dead_letters or self.has_shard_file(upload.name)
        ]  # fmt: skip
        for upload in uploads:
            self._store.abort(upload)
        return [f"an unfinished upload of {upload.name}" for upload in uploads]


class _JournalObjects:
    """A run's journal. It uploads the files of a shard on a thread of its own, then the line."""

    def __init__(self, folder: BucketFolder, store: ObjectStore, lease: Lease, job: bytes) -> None:
        self._folder = folder
        self._store = store
        self._lease = lease
        self._job = job
        self._run = uuid.uuid4().hex[:12]
        self._number = 0
        self._lines: list[bytes] = []
        self._thread = ThreadPoolExecutor(1, "flowvec-upload")
        self._pending: Future[None] | None = None

    def write(self, records: Sequence[ShardRecord]) -> None:
        """Record shards whose files are objects already."""
        for record in records:
            self._lines.append(journal_line(record))
            if len(self._lines) == _LINES:
                self._write_lines()
        self._write_lines()

    def note(self, record: ShardRecord) -> None:
        self._lines.append(journal_line(record))
        self._write_lines()

    def append(self, record: ShardRecord) -> None:
        self._wait()
        self._pending = self._thread.submit(self._upload, record)

    def close(self) -> None:
        self._thread.shutdown()
        self._wait()

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _upload(self, record: ShardRecord) -> None:
        try:
            self._folder.upload_shard(record, self._lease.check)
            self.note(record)
        except BulkError:
            if self._lease.is_lost:
                self._folder.delete_late(record)
            raise

    def _write_lines(self) -> None:
        if not self._lines:
            return
        content = b"".join((_first_line(self._job), b"\n", *self._lines))
        name = self._folder.journal_object(self._run, self._number)
        self._store.write(name, content, self._lease.check)
        try:
            self._lease.check()
        except BulkError:
            if self._lease.is_lost:
                # This process was paused while it wrote. Another one has taken the job over, and
                # may have removed all journals already.
                with suppress(Exception):
                    self._store.delete([name])
            raise
        if len(self._lines) >= _LINES:
            self._number += 1
            self._lines.clear()


def _first_line(job: bytes) -> bytes:
    return b'{"job": "' + job + b'"}'
