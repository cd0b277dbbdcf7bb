"""A bulk job's folder in a file system, with which it continues after a kill at any moment.

A shard is written to a temporary file, synced and renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flowvec.bulk.file_names import write_whole, written_whole
from flowvec.bulk.job_folder import JobFolder, Journal
from flowvec.bulk.records import ShardRecord, journal_line, journal_records
from flowvec.collection.store.locks import FileLock
from flowvec.compat import override
from flowvec.errors import BulkError
from flowvec.files import sync_folder

__all__ = ["Folder"]


class Folder(JobFolder):
    """A job's folder in a file system."""

    def __init__(self, path: Path, share: tuple[int, int] = (1, 1)) -> None:
        """Name the files, without touching them.

        Args:
            path: the folder.
            share: (i, n) is the i-th of n shares of the work, from 1.
        """
        super().__init__(path, str(path), share)
        self._lock = path / f".lock{self._suffix}"

    @override
    def with_share(self, share: tuple[int, int]) -> Folder:
        return Folder(self.path, share)

    @override
    def where(self, name: str) -> str:
        return str(self.path / name)

    @override
    @contextmanager
    def locked(self) -> Iterator[None]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BulkError(f"cannot create {self.path}: {error.strerror or error}") from None
        with FileLock(self._lock, f"{self.path} is being written by another process"):
            yield

    @override
    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for file in self.path.iterdir() if self.path.is_dir() else ():
            try:
                sizes[file.name] = file.stat().st_size if file.is_file() else -1
            except FileNotFoundError:  # another share renamed its temporary file
                continue
        return sizes

    @override
    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    @override
    def write(self, name: str, content: bytes) -> None:
        write_whole(self.path / name, content)

    @override
    def write_blocks(self, name: str, blocks: Iterable[bytes]) -> None:
        with written_whole(self.path / name) as file:
            file.writelines(blocks)

    @override
    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    @override
    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        if not (self.path / name).is_file():
            raise FileNotFoundError(name)
        yield self.path / name

    @override
    def read_journal(self) -> list[ShardRecord]:
        content = self.read(self.journal)
        # An incomplete last line was being written.
        return [] if content is None else journal_records(content.split(b"\n")[:-1])

    @override
    def begin(self, records: Sequence[ShardRecord]) -> Journal:
        self.delete_leftovers()
        self.write(self.journal, b"".join(journal_line(record) for record in records))
        return _JournalFile(self.path / self.journal)

    @override
    def journal_files(self) -> list[str]:
        return [self.journal] if (self.path / self.journal).exists() else []

    @override
    def delete_leftovers(self) -> list[str]:
        own = (f"{self.manifest}.", f"{self.journal}.", f"{self.dead_letters}.")
        partials = [
            name for name in self.sizes()
            if name.endswith(".partial") and (self.has_shard_file(name) or name.startswith(own))
        ]  # fmt: skip
        self.delete(partials)
        return partials


class _JournalFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab")

    def note(self, record: ShardRecord) -> None:
        self.append(record)

    def append(self, record: ShardRecord) -> None:
        sync_folder(self._path.parent)
        self._file.write(journal_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
