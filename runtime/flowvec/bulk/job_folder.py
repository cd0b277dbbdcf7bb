"""A bulk job's folder, wherever it is: its manifest, its journal, and what belongs to it.

    _manifest.json       inputs, model and options; when the job is complete, also the shards
    _journal.jsonl       finished shards, one per line, until the job is complete
    part-000000.parquet ...
    _part-000000.dead_letter.jsonl ...   dead letters of a shard, until the job is complete
    _part-000012.RUN-0000.batches ...    work on an unfinished shard, see `saved_batches`
    _dead_letter.jsonl   all dead letters, when the job is complete

Readers of Parquet folders ignore names that start with `_` or `.`. A file of a shard appears whole;
then its dead letters; and then its line in the journal. Shards that the journal does not list are
done again. Nothing in these files depends on when or how often the job was run. A job that does a
share of the work (`--shard 2/8`) has its own manifest, journal and dead letters, with `.2-of-8` in
their names.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from flowvec.bulk.file_names import row_map_name, texts_name
from flowvec.bulk.records import (
    VERSION,
    ShardRecord,
    manifest_bytes,
    records_of,
    shares_in,
)
from flowvec.errors import BulkError
from flowvec.files import lfs_advice_of

__all__ = ["JobFolder", "Journal"]

_MOST_MANIFEST = 1 << 30
_BATCHES = ".batches"


class _OtherManifestError(BulkError):
    """A manifest is not the manifest of a bulk job."""


class Journal(Protocol):
    """Records finished shards, durably."""

    def append(self, record: ShardRecord) -> None:
        """Record a shard whose files are complete in `JobFolder.path`."""

    def note(self, record: ShardRecord) -> None:
        """Record a shard whose files another process has put into the folder."""

    def close(self) -> None:
        """End the journal, after everything that was appended is durable. Twice is harmless."""


class JobFolder(ABC):
    """A job's folder: files of a file system, or objects below a URL.

    Attributes:
        path: where this process writes the files of shards.
        out: the folder's name in messages.
        share: (i, n) is the i-th of n shares of the work, from 1.
        manifest: name of the manifest.
        journal: name of the journal.
        dead_letters: name of the file with all dead letters.
    """

    def __init__(self, path: Path, out: str, share: tuple[int, int]) -> None:
        """Name the files, without touching them."""
        self.path = path
        self.out = out
        self.share = share
        self._suffix = "" if share[1] == 1 else f".{share[0]}-of-{share[1]}"
        self.manifest = f"_manifest{self._suffix}.json"
        self.journal = f"_journal{self._suffix}.jsonl"
        self.dead_letters = f"_dead_letter{self._suffix}.jsonl"

    def where(self, name: str) -> str:
        """A file's full name, for messages."""
        return f"{self.out}/{name}"

    def shard_dead_letters(self, shard: int) -> str:
        """The name of a shard's dead letters, until the job is complete."""
        return f"_part-{shard:06}.dead_letter.jsonl"

    def batches_name(self, shard: int, part: str) -> str:
        """The name of a file with work on an unfinished shard."""
        return f"_part-{shard:06}.{part}{_BATCHES}"

    # --- what a kind of folder does ---------------------------------------------------------------

    @abstractmethod
    def locked(self) -> AbstractContextManager[None]:
        """Create the folder, and lock this share of the job against other processes.

        Raises:
            BulkError: another process has the lock, or the folder cannot be created.
        """

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Names of all files, with their sizes in bytes; folders in it have -1."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A file's content; None if there is none.

        Raises:
            OSError, BulkError: it cannot be read.
        """

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a small file, atomically and durably."""

    @abstractmethod
    def write_blocks(self, name: str, blocks: Iterable[bytes]) -> None:
        """Write a file a block at a time; it appears whole, and durably."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""

    @abstractmethod
    def local(self, name: str) -> AbstractContextManager[Path]:
        """A file of the file system with the content of a file of the folder, for reading.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def read_journal(self) -> list[ShardRecord]:
        """Finished shards, in the order in which they were finished."""

    @abstractmethod
    def begin(self, records: Sequence[ShardRecord]) -> Journal:
        """Open the journal, with exactly these shards."""

    @abstractmethod
    def with_share(self, share: tuple[int, int]) -> JobFolder:
        """The same folder, for another share of the work."""

    @abstractmethod
    def journal_files(self) -> list[str]:
        """Names of the files of this share's journal."""

    @abstractmethod
    def delete_leftovers(self) -> list[str]:
        """Delete what killed runs of this share left, and nothing needs; return what it was."""

    # --- reading ----------------------------------------------------------------------------------

    def shares(self) -> list[tuple[int, int]]:
        """Shares of the work with a manifest in the folder, as (i, n)."""
        return shares_in(self.sizes())

    def is_ours(self) -> bool:
        """Whether the manifest is of a bulk job."""
        try:
            self.read_manifest()
        except BulkError as error:
            return not isinstance(error, _OtherManifestError)
        return True

    def read_manifest(self) -> dict[str, Any] | None:
        """The manifest without its version; None if there is none.

        Raises:
            BulkError: it is damaged, or has another format.
        """
        where = self.where(self.manifest)
        try:
            content = self.read(self.manifest)
            if content is None:
                return None
            if len(content) > _MOST_MANIFEST:
                raise BulkError(f"{where} is too large")
            if advice := lfs_advice_of(where, content):
                raise BulkError(advice)
            manifest = json.loads(content.decode("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BulkError(f"{where} cannot be read: {error}") from None
        if not isinstance(manifest, dict) or "flowvec_bulk" not in manifest:
            raise _OtherManifestError(f"{where} is not the manifest of a bulk job")
        if manifest.pop("flowvec_bulk") != VERSION:
            raise BulkError(f"{where} was written by another version of flowvec")
        return manifest

    def present(
        self, records: Sequence[ShardRecord], *, are_merged: bool = False
    ) -> list[ShardRecord]:
        """Records whose files exist with the recorded size, with their dead letters.

        Args:
            records: records of finished shards.
            are_merged: the dead letters have been merged into one file.
        """
        sizes = self.sizes()

        def is_there(record: ShardRecord) -> bool:
            if record.file and sizes.get(record.file) != record.bytes:
                return False
            if record.map_sha256 and sizes.get(row_map_name(record.file), -1) < 0:
                return False
            if record.texts_sha256 and sizes.get(texts_name(record.file), -1) < 0:
                return False
            letters = self.dead_letters if are_merged else self.shard_dead_letters(record.shard)
            return not record.dead or sizes.get(letters, -1) >= 0

        return [record for record in records if is_there(record)]

    def foreign_files(self) -> list[str]:
        """Names of files that do not belong to a bulk job."""
        job_files = (
            "_manifest.", "_journal.", "_dead_letter.", "_lease.", "part-", "_part-", ".lock"
        )  # fmt: skip
        return sorted(name for name in self.sizes() if not name.startswith(job_files))

    def others(self) -> Iterator[JobFolder]:
        """Other shares of the work with a manifest in the folder."""
        return (self.with_share(share) for share in self.shares() if share != self.share)

    def saved_batches(self) -> dict[str, int]:
        """Names of files with work on shards of this share, with the shard."""
        names = (name for name in self.shard_files() if name.endswith(_BATCHES))
        return {name: int(name.partition("part-")[2].partition(".")[0]) for name in names}

    # --- writing ----------------------------------------------------------------------------------

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write the manifest atomically."""
        self.write(self.manifest, manifest_bytes(content))

    def finish(self, content: dict[str, Any], records: Sequence[ShardRecord]) -> None:
        """Merge all dead letters into one file, and write all shards to the manifest."""
        ordered = sorted(records, key=lambda record: record.shard)
        dead = [self.shard_dead_letters(record.shard) for record in ordered if record.dead]
        if dead:
            self.write_blocks(self.dead_letters, (self.read(name) or b"" for name in dead))
        else:
            self.delete([self.dead_letters])
        self.write_manifest({**content, "shards": [asdict(record) for record in ordered]})

    def split_dead_letters(
        self, records: Sequence[ShardRecord], present: Sequence[ShardRecord]
    ) -> None:
        """Split the merged dead letters by shard again, because some shards are done again.

        Args:
            records: all shards of the job.
            present: shards that are kept.
        """
        lines = (self.read(self.dead_letters) or b"").splitlines(keepends=True)
        kept = {record.shard for record in present}
        at = 0
        for record in sorted(records, key=lambda record: record.shard):
            part = lines[at : at + record.dead]
            at += record.dead
            if part and record.shard in kept:
                self.write(self.shard_dead_letters(record.shard), b"".join(part))

    def tidy(self) -> None:
        """Remove files that a complete job does not need."""
        kinds = (".dead_letter.jsonl", _BATCHES)
        others = [name for name in self.shard_files() if name.endswith(kinds)]
        self.delete([*self.journal_files(), *others])
        self.delete_leftovers()

    def clean(self) -> list[str]:
        """Delete all files of this share that nothing needs; return their names.

        The folder must be locked.
        """
        removed = self.delete_leftovers()
        manifest = self.read_manifest()
        if manifest is not None and "shards" in manifest:
            records = records_of(manifest["shards"], self.where(self.manifest))
            listed = {record.file for record in records}
            listed |= {row_map_name(name) for name in listed if name.endswith(".npy")}
            listed |= {texts_name(record.file) for record in records if record.texts_sha256}
            stale = [name for name in self.shard_files() if name not in listed]
            stale += self.journal_files()
            self.delete(stale)
            removed += stale
        return removed

    def clear(self) -> None:
        """Delete everything that this share of the job has written."""
        self.delete([self.manifest, *self.journal_files(), self.dead_letters, *self.shard_files()])
        self.delete_leftovers()

    def shard_files(self) -> list[str]:
        """Names of the files of this share's shards, with what was left of unfinished ones."""
        return [name for name in self.sizes() if self.has_shard_file(name)]

    def has_shard_file(self, name: str) -> bool:
        """Whether a name is that of a file of one of this share's shards."""
        index, count = self.share
        plain = name.removeprefix("_")
        number = plain.removeprefix("part-").partition(".")[0]
        return plain.startswith("part-") and number.isdecimal() and int(number) % count == index - 1
