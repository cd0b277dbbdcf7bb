"""What a bulk job keeps of itself on disk, so that it can be killed at any moment and go on.

    _manifest.json       what is done: inputs, model, options; at the end also the shards
    _journal.jsonl       the shards that are finished, one a line, until the end
    part-000000.parquet ...
    _part-000000.dead_letter.jsonl ...   rows that cannot be embedded, until the end
    _dead_letter.jsonl   all of those, at the end

What reads a folder of Parquet files leaves out names that begin with `_` or `.`. The first version
of flowvec wrote these files without the `_`; a folder that has them keeps its names.

A shard is written beside, synced and renamed; so are its dead letters; and last comes its line in
the journal. What the journal does not name is made again. Nothing in these files depends on when or
how often the job was run. A job that does a share of the work (`--shard 2/8`) has a manifest, a
journal and dead letters of its own, with `.2-of-8` in their names.
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
    "differences",
    "differences_of_shares",
    "letter_lines",
    "partial_of",
    "records_of",
    "row_map_of",
    "shares_of",
]

VERSION = 1
_MOST_MANIFEST = 1 << 30
_OWN = uuid.uuid4().hex[:8]


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard.

    Attributes:
        shard: its number.
        file: its name; empty where the rows went into a collection.
        rows: rows in it.
        dead: rows that are dead letters instead.
        blank: blank lines of jsonl, which are neither.
        bytes: its size.
        sha256: of its bytes.
        map_sha256: of the row map beside a .npy shard.
        duplicates: rows that were left out, because another row has their id.
        codes: how many of the dead letters are of each kind; empty where an earlier version of
            flowvec wrote them.
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
        """Rows of the input that it stands for."""
        return self.rows + self.dead + self.blank + self.duplicates


class _OtherManifestError(BulkError):
    """A manifest is that of something else."""


class Folder:
    """A job's folder, its manifest, and its journal."""

    def __init__(self, path: Path, share: tuple[int, int] = (1, 1)) -> None:
        """Name the files; nothing is touched.

        Args:
            path: the folder.
            share: which share of the work, and of how many, from 1.
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
        self.letters = self.path / f"{prefix}dead_letter{self._suffix}.jsonl"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other processes from this share of the job.

        Raises:
            BulkError: another process has it, or it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BulkError(f"cannot make {self.path}: {error.strerror or error}") from None
        with FileLock(self._lock, f"{self.path} is being written by another process"):
            yield

    def shard_letters(self, shard: int) -> Path:
        """Where a shard's dead letters lie until the job is complete."""
        return self.path / f"{self._prefix}part-{shard:06}.dead_letter.jsonl"

    def is_ours(self) -> bool:
        """Whether the manifest is that of a bulk job: bundles have one, too."""
        try:
            self.read_manifest()
        except BulkError as error:
            return not isinstance(error, _OtherManifestError)
        return True

    # --- what was done ----------------------------------------------------------------------------

    def read_manifest(self) -> dict[str, Any] | None:
        """The manifest without its version; None where there is none.

        Raises:
            BulkError: it is damaged, or of another format.
        """
        try:
            if self.manifest.stat().st_size > _MOST_MANIFEST:
                raise BulkError(f"{self.manifest} is too large")
            found = json.loads(self.manifest.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise BulkError(f"{self.manifest} cannot be read: {error}") from None
        if not isinstance(found, dict) or "flowvec_bulk" not in found:
            raise _OtherManifestError(f"{self.manifest} is not the manifest of a bulk job")
        if found.pop("flowvec_bulk") != VERSION:
            raise BulkError(f"{self.manifest} was written by another version of flowvec")
        return found

    def read_journal(self) -> list[ShardRecord]:
        """The finished shards, in the order in which they were finished."""
        try:
            lines = self.journal.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        records: list[ShardRecord] = []
        for line in lines[:-1]:  # what follows the last line's end was being written
            try:
                records.append(ShardRecord(**json.loads(line)))
            except (ValueError, TypeError):
                break
        return records

    def present(
        self, records: Sequence[ShardRecord], *, are_merged: bool = False
    ) -> list[ShardRecord]:
        """Those whose files are there in their size, and their dead letters too.

        Args:
            records: of finished shards.
            are_merged: their dead letters have been put into one file.
        """

        def is_there(record: ShardRecord) -> bool:
            file = self.path / record.file
            if record.file and not (file.is_file() and file.stat().st_size == record.bytes):
                return False
            if record.map_sha256 and not row_map_of(file).is_file():
                return False
            letters = self.letters if are_merged else self.shard_letters(record.shard)
            return not record.dead or letters.is_file()

        return [record for record in records if is_there(record)]

    # --- writing ----------------------------------------------------------------------------------

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write the manifest, whole or not at all."""
        text = json.dumps({"flowvec_bulk": VERSION, **content}, indent=1, ensure_ascii=False)
        write_whole(self.manifest, (text + "\n").encode())

    def begin(self, records: Sequence[ShardRecord]) -> IO[bytes]:
        """Open the journal, with these shards and no others."""
        for file in (*self._parts(), *self._partials()):
            if file.name.endswith(".partial"):  # left by a kill
                file.unlink(missing_ok=True)
        write_whole(self.journal, b"".join(_journal_line(record) for record in records))
        return self.journal.open("ab")

    def append(self, journal: IO[bytes], record: ShardRecord) -> None:
        """Name a shard in the journal, durably; its files have their names already."""
        sync_folder(self.path)
        journal.write(_journal_line(record))
        journal.flush()
        os.fsync(journal.fileno())

    def finish(self, content: dict[str, Any], records: Sequence[ShardRecord]) -> None:
        """Put all dead letters into one file, then all shards into the manifest."""
        ordered = sorted(records, key=lambda record: record.shard)
        dead = [record for record in ordered if record.dead]
        if dead:
            with written_whole(self.letters) as file:
                for record in dead:
                    with self.shard_letters(record.shard).open("rb") as part:
                        shutil.copyfileobj(part, file)
        else:
            self.letters.unlink(missing_ok=True)
        self.write_manifest({**content, "shards": [asdict(record) for record in ordered]})

    def tidy(self) -> None:
        """Leave nothing that a finished job has no use for."""
        self.journal.unlink(missing_ok=True)
        for file in (*self._parts(), *self._partials()):
            if file.name.endswith((".dead_letter.jsonl", ".partial")):
                file.unlink(missing_ok=True)

    def part_letters(self, records: Sequence[ShardRecord], present: Sequence[ShardRecord]) -> None:
        """Give shards of a finished job their own dead letters again, as others are made anew.

        Args:
            records: all shards that the job had.
            present: those that stay.
        """
        lines = self.letters.read_bytes().splitlines(keepends=True) if self.letters.exists() else []
        staying = {record.shard for record in present}
        at = 0
        for record in sorted(records, key=lambda record: record.shard):
            part = lines[at : at + record.dead]
            at += record.dead
            if part and record.shard in staying:
                write_whole(self.shard_letters(record.shard), b"".join(part))

    def clear(self) -> None:
        """Delete what this share of the job has written."""
        for file in (self.manifest, self.journal, self.letters, *self._parts(), *self._partials()):
            file.unlink(missing_ok=True)
        if not any(self.path.glob("manifest*.json")):
            self._name_files("_")

    def _partials(self) -> list[Path]:
        """What was to become the manifest, the journal or the dead letters."""
        names = (self.manifest.name, self.journal.name, self.letters.name)
        # Without a `_` before it where the first version of flowvec wrote it.
        plain = [name.removeprefix("_") for name in names]
        patterns = [f"{prefix}{name}.*.partial" for name in plain for prefix in ("", "_")]
        return [file for pattern in patterns for file in self.path.glob(pattern)]

    def _parts(self) -> list[Path]:
        """Files of this share's shards."""
        index, of = self.share
        found = []
        for file in (*self.path.glob("part-*"), *self.path.glob("_part-*")):
            number = file.name.removeprefix("_").removeprefix("part-").partition(".")[0]
            if number.isdecimal() and int(number) % of == index - 1:
                found.append(file)
        return found

    def strangers(self) -> list[str]:
        """Names of files that no job has written."""
        known = ("manifest.", "journal.", "dead_letter.", "part-")
        names = [file.name for file in self.path.iterdir()]
        return sorted(
            name for name in names
            if not (name.startswith(".lock") or name.removeprefix("_").startswith(known))
        )  # fmt: skip

    def others(self) -> list[Folder]:
        """The other shares of the work that have a manifest there."""
        return [Folder(self.path, share) for share in shares_of(self.path) if share != self.share]


def _journal_line(record: ShardRecord) -> bytes:
    return json.dumps(asdict(record)).encode() + b"\n"


def letter_lines(letters: Sequence[DeadLetter]) -> bytes:
    """Lines of dead letters."""
    return b"".join(json.dumps(asdict(letter)).encode() + b"\n" for letter in letters)


def row_map_of(path: Path) -> Path:
    """Where the row map of a .npy file lies: what each of its rows is, a line of JSON for each."""
    return path.with_name(path.name.removesuffix(".npy") + ".rows.jsonl")


def partial_of(path: Path) -> Path:
    """Where this process writes a file before it gets its name.

    Nobody else writes there, not even a worker that was thought dead and goes on beside the one
    that has taken its place.
    """
    name = path.name if path.name.startswith("_") else f"_{path.name}"
    return path.with_name(f"{name}.{os.getpid()}-{_OWN}.partial")


def shares_of(path: Path) -> list[tuple[int, int]]:
    """The shares that have a manifest in a folder: the number of each, and how many there are."""
    found = set()
    for file in (*path.glob("manifest*.json"), *path.glob("_manifest*.json")):
        middle = file.name.removeprefix("_").removeprefix("manifest").removesuffix(".json")
        index, _, of = middle.removeprefix(".").partition("-of-")
        if not middle:
            found.add((1, 1))
        elif index.isdecimal() and of.isdecimal():
            found.add((int(index), int(of)))
    return sorted(found)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file of the job, whole or not at all, and durably."""
    write_file(path, content, partial_of(path))


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file of the job that gets its name at the end, durably."""
    with staged_file(path, partial_of(path)) as partial:
        file = partial.open("wb")
        try:
            yield file
            file.close()
        finally:
            with suppress(OSError):  # what it still holds does not fit on a full disk
                file.close()


def differences(before: dict[str, Any], now: dict[str, Any], at: str = "") -> Iterator[str]:
    """What differs between two manifests' descriptions, in words."""
    for key in dict.fromkeys((*before, *now)):
        name = f"{at}{key}"
        if key not in before or key not in now:
            yield f"{name} is {'new' if key in now else 'gone'}"
        elif isinstance(before[key], dict) and isinstance(now[key], dict):
            yield from differences(before[key], now[key], f"{name}.")
        elif before[key] != now[key]:
            yield f"{name} was {_short(before[key])} and is {_short(now[key])}"


def differences_of_shares(one: dict[str, Any], other: dict[str, Any]) -> Iterator[str]:
    """What differs between the manifests of two shares of a job, but for what each has done."""

    def common(manifest: dict[str, Any]) -> dict[str, Any]:
        options = dict(manifest.get("options", {}))
        options["share"] = options.get("share", [1, 1])[-1:]  # of how many
        return {**comparable(manifest), "options": options}

    yield from differences(common(one), common(other))


def comparable(manifest: dict[str, Any]) -> dict[str, Any]:
    """What of a manifest decides the bytes: when an input was changed does not.

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
    found = {key: value for key, value in manifest.items() if key != "shards"}
    return {**found, "inputs": inputs, "order": list(inputs)}


def records_of(shards: Any, manifest: Path) -> list[ShardRecord]:
    """The shards that a manifest names.

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
    """Refuse a share that is none.

    Raises:
        InputValueError: it is not from 1 to the number of shares.
    """
    if not (
        isinstance(share, tuple | list)
        and len(share) == 2
        and all(isinstance(part, int) and not isinstance(part, bool) for part in share)
    ):
        raise InputTypeError(f"a share is two whole numbers, as (2, 8), not {share!r}")
    if not 1 <= share[0] <= share[1]:
        raise InputValueError(f"a share is i/n with i from 1 to n, not {share[0]}/{share[1]}")
