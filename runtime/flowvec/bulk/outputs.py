"""Outputs of a bulk job: a single file, or a folder of shards with a journal."""

from __future__ import annotations

import errno
import hashlib
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from flowvec.bulk.file_names import partial_of, texts_name, write_whole
from flowvec.bulk.job_folder import JobFolder, Journal
from flowvec.bulk.records import (
    ShardRecord,
    comparable,
    dead_letter_lines,
    differences,
    differences_of_shares,
    records_of,
)
from flowvec.bulk.saved_batches import SavedBatches
from flowvec.bulk.shard_files import OutFormat, ShardFile, ShardSettings, ShardWriter, Written
from flowvec.compat import override
from flowvec.errors import BulkError
from flowvec.files import rename_durably
from flowvec.texts.inventory import Survey
from flowvec.texts.sources import STDIN
from flowvec.texts.urls import is_url, shown
from flowvec.texts.window import DEAD_LETTERS, DeadLetter, Window

__all__ = [
    "FileTarget",
    "FolderTarget",
    "OneShardTarget",
    "ShardCounts",
    "Target",
    "naming_output",
]

# Errors of file systems, and not of connections.
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)


@dataclass(slots=True)
class ShardCounts:
    """Counts of a shard's rows.

    Attributes:
        rows: rows that were written.
        blank: blank lines of jsonl.
        duplicates: rows that were left out because another row has the same id.
        codes: dead letters of each kind.
    """

    rows: int = 0
    blank: int = 0
    duplicates: int = 0
    codes: Counter[str] = field(default_factory=Counter)


class Target(ABC):
    """Where shards go. Apart from `note` and `leave_out`, only one thread at a time calls it."""

    def __init__(self, path: Path, out: str | None = None) -> None:
        """Name the file or folder.

        Args:
            path: the file, or the folder in which this process writes.
            out: the output's name; None is the path.
        """
        self.path = path
        self.out = str(path) if out is None else out
        # Shards that earlier runs finished, and those plus the shards of this run.
        self.before: Sequence[ShardRecord] = ()
        self.finished: list[ShardRecord] = []
        self.unchanged = 0  # rows that the output already had
        self.overwritten = 0  # rows of the output that rows of this run replaced
        self.chunks = 0  # chunks that were written, if texts are split
        self.pruned = 0  # rows of the output whose source is gone
        self._dead_letters_file: IO[bytes] | None = None
        self._dead_letters_path = path  # path for the current shard

    @abstractmethod
    def spans(self) -> Iterator[tuple[int, int | None]]:
        """Shards to do, as ranges: the first shard, and the one after the last.

        None means up to the end.
        """

    @abstractmethod
    def open_shard(self, shard: int, settings: ShardSettings) -> ShardWriter:
        """A writer for a shard."""

    @abstractmethod
    def file_name(self, shard: int) -> str:
        """The name of a shard's file."""

    @abstractmethod
    def dead_letters_path(self, shard: int) -> Path:
        """The file of a shard's dead letters."""

    def add_dead_letters(self, shard: int, dead_letters: Sequence[DeadLetter]) -> None:
        """Write dead letters of the current shard, to a temporary file."""
        if self._dead_letters_file is None:
            self._dead_letters_path = self.dead_letters_path(shard)
            self._dead_letters_file = partial_of(self._dead_letters_path).open("wb")
        self._dead_letters_file.write(dead_letter_lines(dead_letters))

    def commit(self, shard: int, counts: ShardCounts, written: Written) -> None:
        """Finish a shard: rename its dead letters, and record it."""
        if self._dead_letters_file is None:
            self.dead_letters_path(shard).unlink(missing_ok=True)  # of an earlier run
        else:
            file, self._dead_letters_file = self._dead_letters_file, None
            file.close()
            rename_durably(partial_of(self._dead_letters_path), self._dead_letters_path)
        record = ShardRecord(
            shard,
            self.file_name(shard),
            counts.rows,
            counts.codes.total(),
            counts.blank,
            written.bytes,
            written.sha256,
            written.map_sha256,
            counts.duplicates,
            dict(sorted(counts.codes.items())),
            written.texts_sha256,
        )
        self.acknowledge(record)
        self.finished.append(record)

    def saved_batches(self) -> SavedBatches | None:
        """What earlier runs computed for shards of this run, and where it keeps its own work.

        None if nothing can be kept.
        """
        return None

    def write_texts(self, shard: int, content: bytes) -> str:
        """Write the texts file of a shard; return its SHA-256."""
        write_whole(self.path / texts_name(self.file_name(shard)), content)
        return hashlib.sha256(content).hexdigest()

    def acknowledge(self, record: ShardRecord) -> None:
        """Record durably that a shard is finished."""
        return

    def note(self, window: Window) -> None:
        """Note the rows of a window as it was read; on the reading thread."""
        return

    def leave_out(self, window: Window) -> None:
        """Remove rows from a window that the output already has, and count them.

        It is called on the reading thread, before the window is encoded.
        """
        return

    def complete(self, stop: threading.Event | None = None) -> None:
        """Complete the output after its last shard. Optional work is skipped once `stop` is set."""
        return

    def close(self) -> None:
        """Close open files, and delete dead letters of an unfinished shard. Twice is harmless."""
        if self._dead_letters_file is not None:
            file, self._dead_letters_file = self._dead_letters_file, None
            with suppress(OSError):  # the rest does not fit on a full disk
                file.close()
            with suppress(OSError):
                partial_of(self._dead_letters_path).unlink()


@contextmanager
def naming_output(out: str) -> Iterator[None]:
    """Name the output in errors of the system, such as a full disk.

    Shards for a URL are written into a temporary folder first, which is named then.

    Args:
        out: a path or a URL.

    Raises:
        BulkError: the system refused to write.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        if is_url(out) and (error.errno in _OF_DISKS or error.filename is not None):
            raise BulkError(
                f"cannot write the files of {shown(out)} to the temporary folder "
                f"{tempfile.gettempdir()}: {reason}; set TMPDIR to a folder with space for them"
            ) from error
        raise BulkError(f"cannot write into {shown(out)}: {reason}") from error


class FileTarget(Target):
    """A single file, with its dead letters in a file beside it."""

    @override
    def spans(self) -> Iterator[tuple[int, int | None]]:
        yield 0, None

    @override
    def open_shard(self, shard: int, settings: ShardSettings) -> ShardWriter:
        # Without a row map, row i of a .npy file is row i of the input.
        return ShardFile(self.path, settings, always_mapped=False)

    @override
    def file_name(self, shard: int) -> str:
        return self.path.name

    @override
    def dead_letters_path(self, shard: int) -> Path:
        return self.path.with_name(self.path.stem + DEAD_LETTERS)


class _ShardsTarget(Target):
    """Numbered shards in a folder."""

    def __init__(self, folder: JobFolder, out_format: OutFormat) -> None:
        super().__init__(folder.path, folder.out)
        self._folder = folder
        self._out_format = out_format

    @override
    def open_shard(self, shard: int, settings: ShardSettings) -> ShardWriter:
        return ShardFile(self.path / self.file_name(shard), settings)

    @override
    def file_name(self, shard: int) -> str:
        return f"part-{shard:06}.{self._out_format}"

    @override
    def dead_letters_path(self, shard: int) -> Path:
        return self.path / self._folder.shard_dead_letters(shard)


class OneShardTarget(_ShardsTarget):
    """One shard of a job whose journal another process writes."""

    def __init__(
        self, folder: JobFolder, out_format: OutFormat, shard: int, saved: Sequence[str] = ()
    ) -> None:
        """Name the shard, and the files with earlier work on it."""
        super().__init__(folder, out_format)
        self._shard = shard
        self._saved = saved

    @override
    def spans(self) -> Iterator[tuple[int, int | None]]:
        yield self._shard, self._shard + 1

    @override
    def saved_batches(self) -> SavedBatches:
        return SavedBatches(self._folder, [self._shard], dict.fromkeys(self._saved, self._shard))


class FolderTarget(_ShardsTarget):
    """A folder of shards, which a later run can continue."""

    # What to do if the folder holds another job.
    _advice = "Name another folder, or give --restart to delete what it has done"

    def __init__(
        self,
        folder: JobFolder,
        survey: Survey,
        rows_per_shard: int,
        out_format: OutFormat,
        described: dict[str, Any],
        *,
        resume: bool,
    ) -> None:
        """Start a job, or continue one; the folder must be locked.

        Args:
            folder: the job's folder.
            survey: the inputs.
            rows_per_shard: rows of the input for each shard.
            out_format: format of the shards.
            described: everything that decides the written bytes.
            resume: continue an earlier run; False deletes its files.

        Raises:
            BulkError: the folder holds other files, or another job.
        """
        super().__init__(folder, out_format)
        self._shards = None if survey.rows is None else -(-survey.rows // rows_per_shard)
        self._described = described
        self._journal: Journal | None = None
        self._is_complete = False
        self.before = self._finished_before(survey, resume=resume)
        self.finished = list(self.before)
        if not self._is_complete:
            self._journal = folder.begin(self.before)

    def _finished_before(self, survey: Survey, *, resume: bool) -> list[ShardRecord]:
        folder = self._folder
        if foreign := folder.foreign_files():
            raise BulkError(
                f"{folder.out} holds other files ({', '.join(foreign[:3])}); name a new folder"
            )
        if not resume:
            folder.clear()
        manifest = folder.read_manifest()
        self._check_other_shares()
        if manifest is None:
            folder.write_manifest(self._described)
            return []
        shards = manifest.pop("shards", None)
        for name in ("on_duplicate",):  # options that are new in later versions
            if name not in manifest.get("options", {}):
                self._described.get("options", {}).pop(name, None)
        changed = list(differences(comparable(manifest), comparable(self._described)))
        if changed:
            raise BulkError(
                f"{folder.out} holds another job: {'; '.join(changed[:5])}. {self._advice}"
            )
        if survey.sources[0].path == STDIN:
            raise BulkError(
                f"{folder.out} holds a job that read standard input, which cannot be read again; "
                "name another folder, or give --restart to delete what it has done"
            )
        self._described = manifest  # with the recorded modification times
        if shards is None:
            return folder.present(folder.read_journal())
        records = records_of(shards, folder.where(folder.manifest))
        present = folder.present(records, are_merged=True)
        self._is_complete = len(present) == len(records)
        if not self._is_complete:  # some files were deleted
            folder.split_dead_letters(records, present)
            folder.write_manifest(manifest)
        return present

    def _check_other_shares(self) -> None:
        """Refuse a folder that has shares of another job."""
        for other in self._folder.others():
            manifest = other.read_manifest() or {}
            if changed := list(differences_of_shares(manifest, self._described)):
                raise BulkError(
                    f"{self._folder.out} holds a share of another job ({other.manifest}): "
                    f"{'; '.join(changed[:5])}. Name another folder"
                )

    def missing(self) -> list[int]:
        """Numbers of the shards of this share that are not done yet, ascending."""
        done = {record.shard for record in self.finished}
        return [shard for shard in self.shards() if shard not in done]

    def shards(self) -> range:
        """Numbers of the shards of this share."""
        index, count = self._folder.share
        return range(index - 1, self._shards or 0, count)

    @override
    def spans(self) -> Iterator[tuple[int, int | None]]:
        if self._shards is None:
            yield 0, None
            return
        first: int | None = None
        end = 0
        for shard in self.missing():
            if first is not None and shard != end:
                yield first, end
                first = None
            first = shard if first is None else first
            end = shard + 1
        if first is not None:
            yield first, end

    @override
    def saved_batches(self) -> SavedBatches | None:
        missing = self.missing()
        if not missing:
            return None
        saved = self._folder.saved_batches()
        if gone := [name for name, shard in saved.items() if shard not in set(missing)]:
            self._folder.delete(gone)
        return SavedBatches(
            self._folder, missing, {n: shard for n, shard in saved.items() if n not in gone}
        )

    @property
    def folder(self) -> JobFolder:
        """The job's folder."""
        return self._folder

    def take_over(self, record: ShardRecord, saved: Sequence[str] = ()) -> None:
        """Record a shard that another process has written, and delete its work on it."""
        assert self._journal is not None
        self._journal.note(record)
        self.finished.append(record)
        if saved:
            self._folder.delete(saved)

    @override
    def acknowledge(self, record: ShardRecord) -> None:
        assert self._journal is not None
        self._journal.append(record)

    @override
    def complete(self, stop: threading.Event | None = None) -> None:
        # The manifest then has the shards of the journal.
        if not self._is_complete:
            self.close()
            self._folder.finish(self._described, self.finished)
            self._is_complete = True
        self._folder.tidy()

    @override
    def close(self) -> None:
        super().close()
        if self._journal is not None:
            self._journal.close()
