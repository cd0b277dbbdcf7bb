"""A bulk job's manifest and journal, with which it continues after a kill at any moment.

    _manifest.json       inputs, model and options; when the job is complete, also the shards
    _journal.jsonl       finished shards, one per line, until the job is complete
    part-000000.parquet ...
    _part-000000.dead_letter.jsonl ...   dead letters of a shard, until the job is complete
    _dead_letter.jsonl   all dead letters, when the job is complete

Readers of Parquet folders ignore names that start with `_` or `.`. The first version of flowvec
wrote these files without the `_`; a folder that has such files keeps their names.

A shard is written to a temporary file, synced and renamed; then its dead letters; and then its line
in the journal. Shards that the journal does not list are done again. Nothing in these files depends
on when or how often the job was run. A job that does a share of the work (`--shard 2/8`) has its
own manifest, journal and dead letters, with `.2-of-8` in their names.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from flowvec.collection.store.locks import FileLock
from flowvec.errors import BulkError, InputTypeError, InputValueError
from flowvec.files import staged_file, sync_folder, write_file
from flowvec.texts.window import DeadLetter

__all__ = [
    "VERSION",
    "Folder",
    "ShardRecord",
    "check_share",
    "comparable",
    "dead_letter_lines",
    "differences",
    "differences_of_shares",
    "partial_of",
    "records_of",
    "row_map_of",
    "shares_of",
]

VERSION = 1
_MOST_MANIFEST = 1 << 30
_PROCESS_TOKEN = uuid.uuid4().hex[:8]


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard.

    Attributes:
        shard: its number.
        file: name of its file; empty if the rows went into a collection.
        rows: rows that were written.
        dead: rows that are dead letters.
        blank: blank lines of jsonl.
        bytes: size of the file.
        sha256: SHA-256 of the file.
        map_sha256: SHA-256 of the row map beside a .npy shard.
        duplicates: rows that were left out because another row has the same id.
        codes: dead letters of each kind; empty in journals of earlier versions.
    """

    shard: int
    file: str
    rows: int
    dead: int
    blank: int
    bytes: int
    sha256: str
    map_sha256: str | None = None
    duplicates: int = 0
    codes: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows_in(self) -> int:
        """Input rows of the shard."""
        return self.rows + self.dead + self.blank + self.duplicates


class _OtherManifestError(BulkError):
    """A manifest is not the manifest of a bulk job."""


class Folder:
    """A job's folder, its manifest, and its journal."""

    def __init__(self, path: Path, share: tuple[int, int] = (1, 1)) -> None:
        """Name the files, without touching them.

        Args:
            path: the folder.
            share: (i, n) is the i-th of n shares of the work, from 1.
        """
        self.path = path
        self.share = share
        self._suffix = "" if share[1] == 1 else f".{share[0]}-of-{share[1]}"
        self._lock = path / f".lock{self._suffix}"
        self._name_files("" if any(path.glob("manifest*.json")) else "_")

    def _name_files(self, prefix: str) -> None:
        self._prefix = prefix
        self.manifest = self.path / f"{prefix}manifest{self._suffix}.json"
        self.journal = self.path / f"{prefix}journal{self._suffix}.jsonl"
        self.dead_letters = self.path / f"{prefix}dead_letter{self._suffix}.jsonl"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder, and lock this share of the job against other processes.

        Raises:
            BulkError: another process has the lock, or the folder cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BulkError(f"cannot create {self.path}: {error.strerror or error}") from None
        with FileLock(self._lock, f"{self.path} is being written by another process"):
            yield

    def shard_dead_letters(self, shard: int) -> Path:
        """Dead letters of a shard, until the job is complete."""
        return self.path / f"{self._prefix}part-{shard:06}.dead_letter.jsonl"

    def is_ours(self) -> bool:
        """Whether the manifest is of a bulk job; bundles also have one."""
        try:
            self.read_manifest()
        except BulkError as error:
            return not isinstance(error, _OtherManifestError)
        return True

    # --- reading ----------------------------------------------------------------------------------

    def read_manifest(self) -> dict[str, Any] | None:
        """The manifest without its version; None if there is none.

        Raises:
            BulkError: it is damaged, or has another format.
        """
        try:
            if self.manifest.stat().st_size > _MOST_MANIFEST:
                raise BulkError(f"{self.manifest} is too large")
            manifest = json.loads(self.manifest.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise BulkError(f"{self.manifest} cannot be read: {error}") from None
        if not isinstance(manifest, dict) or "flowvec_bulk" not in manifest:
            raise _OtherManifestError(f"{self.manifest} is not the manifest of a bulk job")
        if manifest.pop("flowvec_bulk") != VERSION:
            raise BulkError(f"{self.manifest} was written by another version of flowvec")
        return manifest

    def read_journal(self) -> list[ShardRecord]:
        """Finished shards, in the order in which they were finished."""
        try:
            lines = self.journal.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        records: list[ShardRecord] = []
        for line in lines[:-1]:  # an incomplete last line was being written
            try:
                records.append(ShardRecord(**json.loads(line)))
            except (ValueError, TypeError):
                break
        return records

    def present(
        self, records: Sequence[ShardRecord], *, are_merged: bool = False
    ) -> list[ShardRecord]:
        """Records whose files exist with the recorded size, with their dead letters.

        Args:
            records: records of finished shards.
            are_merged: the dead letters have been merged into one file.
        """

        def is_there(record: ShardRecord) -> bool:
            file = self.path / record.file
            if record.file and not (file.is_file() and file.stat().st_size == record.bytes):
                return False
            if record.map_sha256 and not row_map_of(file).is_file():
                return False
            dead_letters = (
                self.dead_letters if are_merged else self.shard_dead_letters(record.shard)
            )
            return not record.dead or dead_letters.is_file()

        return [record for record in records if is_there(record)]

    # --- writing ----------------------------------------------------------------------------------

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write the manifest atomically."""
        text = json.dumps({"flowvec_bulk": VERSION, **content}, indent=1, ensure_ascii=False)
        write_whole(self.manifest, (text + "\n").encode())

    def begin(self, records: Sequence[ShardRecord]) -> IO[bytes]:
        """Open the journal, with exactly these shards."""
        for file in (*self._shard_files(), *self._partials()):
            if file.name.endswith(".partial"):  # left by a kill
                file.unlink(missing_ok=True)
        write_whole(self.journal, b"".join(_journal_line(record) for record in records))
        return self.journal.open("ab")

    def append(self, journal: IO[bytes], record: ShardRecord) -> None:
        """Record a finished shard in the journal, durably."""
        sync_folder(self.path)
        journal.write(_journal_line(record))
        journal.flush()
        os.fsync(journal.fileno())

    def finish(self, content: dict[str, Any], records: Sequence[ShardRecord]) -> None:
        """Merge all dead letters into one file, and write all shards to the manifest."""
        ordered = sorted(records, key=lambda record: record.shard)
        dead = [record for record in ordered if record.dead]
        if dead:
            with written_whole(self.dead_letters) as file:
                for record in dead:
                    with self.shard_dead_letters(record.shard).open("rb") as part:
                        shutil.copyfileobj(part, file)
        else:
            self.dead_letters.unlink(missing_ok=True)
        self.write_manifest({**content, "shards": [asdict(record) for record in ordered]})

    def tidy(self) -> None:
        """Remove files that a complete job does not need."""
        self.journal.unlink(missing_ok=True)
        for file in (*self._shard_files(), *self._partials()):
            if file.name.endswith((".dead_letter.jsonl", ".partial")):
                file.unlink(missing_ok=True)

    def split_dead_letters(
        self, records: Sequence[ShardRecord], present: Sequence[ShardRecord]
    ) -> None:
        """Split the merged dead letters by shard again, because some shards are done again.

        Args:
            records: all shards of the job.
            present: shards that are kept.
        """
        lines = (
            self.dead_letters.read_bytes().splitlines(keepends=True)
            if self.dead_letters.exists()
            else []
        )
        kept = {record.shard for record in present}
        at = 0
        for record in sorted(records, key=lambda record: record.shard):
            part = lines[at : at + record.dead]
            at += record.dead
            if part and record.shard in kept:
                write_whole(self.shard_dead_letters(record.shard), b"".join(part))

    def clear(self) -> None:
        """Delete everything that this share of the job has written."""
        for file in (
            self.manifest,
            self.journal,
            self.dead_letters,
            *self._shard_files(),
            *self._partials(),
        ):
            file.unlink(missing_ok=True)
        if not any(self.path.glob("manifest*.json")):
            self._name_files("_")

    def _partials(self) -> list[Path]:
        """Temporary files of the manifest, the journal and the dead letters."""
        names = (self.manifest.name, self.journal.name, self.dead_letters.name)
        # Without a leading `_` in folders of the first version of flowvec.
        plain = [name.removeprefix("_") for name in names]
        patterns = [f"{prefix}{name}.*.partial" for name in plain for prefix in ("", "_")]
        return [file for pattern in patterns for file in self.path.glob(pattern)]

    def _shard_files(self) -> list[Path]:
        """Files of this share's shards."""
        index, count = self.share
        files = []
        for file in (*self.path.glob("part-*"), *self.path.glob("_part-*")):
            number = file.name.removeprefix("_").removeprefix("part-").partition(".")[0]
            if number.isdecimal() and int(number) % count == index - 1:
                files.append(file)
        return files

    def foreign_files(self) -> list[str]:
        """Names of files that do not belong to a bulk job."""
        job_files = ("manifest.", "journal.", "dead_letter.", "part-")
        names = [file.name for file in self.path.iterdir()]
        return sorted(
            name for name in names
            if not (name.startswith(".lock") or name.removeprefix("_").startswith(job_files))
        )  # fmt: skip

    def others(self) -> list[Folder]:
        """Other shares of the work with a manifest in the folder."""
        return [Folder(self.path, share) for share in shares_of(self.path) if share != self.share]


def _journal_line(record: ShardRecord) -> bytes:
    return json.dumps(asdict(record)).encode() + b"\n"


def dead_letter_lines(dead_letters: Sequence[DeadLetter]) -> bytes:
    """Dead letters as lines of JSON."""
    return b"".join(json.dumps(asdict(letter)).encode() + b"\n" for letter in dead_letters)


def row_map_of(path: Path) -> Path:
    """The row map of a .npy file: one line of JSON per row."""
    return path.with_name(path.name.removesuffix(".npy") + ".rows.jsonl")


def partial_of(path: Path) -> Path:
    """The temporary name under which this process writes a file.

    No other process uses it, not even a worker that was believed dead and still runs beside its
    replacement.
    """
    name = path.name if path.name.startswith("_") else f"_{path.name}"
    return path.with_name(f"{name}.{os.getpid()}-{_PROCESS_TOKEN}.partial")


def shares_of(path: Path) -> list[tuple[int, int]]:
    """Shares with a manifest in a folder, as (i, n)."""
    shares = set()
    for file in (*path.glob("manifest*.json"), *path.glob("_manifest*.json")):
        middle = file.name.removeprefix("_").removeprefix("manifest").removesuffix(".json")
        index, _, count = middle.removeprefix(".").partition("-of-")
        if not middle:
            shares.add((1, 1))
        elif index.isdecimal() and count.isdecimal():
            shares.add((int(index), int(count)))
    return sorted(shares)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file of the job, atomically and durably."""
    write_file(path, content, partial_of(path))


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file of the job that is renamed at the end of the block, durably."""
    with staged_file(path, partial_of(path)) as partial:
        file = partial.open("wb")
        try:
            yield file
            file.close()
        finally:
            with suppress(OSError):  # the rest does not fit on a full disk
                file.close()


def differences(before: dict[str, Any], now: dict[str, Any], at: str = "") -> Iterator[str]:
    """Differences between two manifests' descriptions, in words."""
    for key in dict.fromkeys((*before, *now)):
        name = f"{at}{key}"
        if key not in before or key not in now:
            yield f"{name} is {'new' if key in now else 'gone'}"
        elif isinstance(before[key], dict) and isinstance(now[key], dict):
            yield from differences(before[key], now[key], f"{name}.")
        elif before[key] != now[key]:
            yield f"{name} was {_short(before[key])} and is {_short(now[key])}"


def differences_of_shares(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """Differences between the manifests of two shares of a job, apart from their progress."""

    def common(manifest: dict[str, Any]) -> dict[str, Any]:
        options = dict(manifest.get("options", {}))
        options["share"] = options.get("share", [1, 1])[-1:]  # of how many
        return {**comparable(manifest), "options": options}

    yield from differences(common(one), common(other))


def comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """The part of a manifest that decides the bytes; it does not include modification times.

    Raises:
        BulkError: it is damaged.
    """
    try:
        inputs = {
            one["path"]: {key: value for key, value in one.items() if key != "modified"}
            for one in manifest.get("inputs", [])
        }
    except (AttributeError, KeyError, TypeError):
        raise BulkError("a manifest of the job does not name its inputs") from None
    described = {key: value for key, value in manifest.items() if key != "shards"}
    return {**described, "inputs": inputs, "order": list(inputs)}


def records_of(shards: Any, manifest: Path) -> list[ShardRecord]:
    """The shards of a manifest.

    Raises:
        BulkError: it is damaged.
    """
    try:
        return [ShardRecord(**one) for one in shards]
    except TypeError:
        raise BulkError(f"{manifest} does not describe its shards") from None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def check_share(share: tuple[int, int]) -> None:
    """Refuse a share that is not valid.

    Raises:
        InputValueError: i is not from 1 to n.
    """
    if not (
        isinstance(share, tuple | list)
        and len(share) == 2
        and all(isinstance(part, int) and not isinstance(part, bool) for part in share)
    ):
        raise InputTypeError(f"a share is two whole numbers, as (2, 8), not {share!r}")
    if not 1 <= share[0] <= share[1]:
        raise InputValueError(f"a share is i/n with i from 1 to n, not {share[0]}/{share[1]}")
