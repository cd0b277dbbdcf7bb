"""Whether a folder of vectors is what its manifest says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flowvec.arrow import imported_arrow
from flowvec.bulk.job import Folder, ShardRecord, row_map_of
from flowvec.bundle import record_file
from flowvec.errors import BulkError
from flowvec.store import FILE

__all__ = ["FolderCheck", "is_bulk_folder", "verify_folder"]


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """What a folder of vectors holds.

    Attributes:
        rows: vectors, going by the manifests.
        shards: files of them.
        dead_letters: rows that could not be embedded.
        problems: what is wrong, a line each.
    """

    rows: int
    shards: int
    dead_letters: int
    problems: tuple[str, ...]


def is_bulk_folder(path: Path) -> bool:
    """Whether a bulk job has written there, whole or not."""
    return any(path.glob("manifest*.json")) and not (path / FILE).exists()


def verify_folder(path: str | Path) -> FolderCheck:
    """Read every shard again: size, SHA-256, number of rows; row maps and dead letters too.

    Args:
        path: the folder that `encode_files` has written, by one run or by several shares.

    Raises:
        BulkError: no bulk job has written there, or its manifest cannot be read.
    """
    folder = Path(path)
    shares = sorted(_shares(folder))
    if not shares:
        raise BulkError(f"{folder} is no folder of a bulk job: it has no manifest")
    problems: list[str] = []
    records: list[ShardRecord] = []
    total = shares[0][1]
    if missing := [i for i in range(1, total + 1) if (i, total) not in shares]:
        named = ", ".join(f"{i}/{total}" for i in missing)
        problems.append(f"the manifest of share {named} is missing")
    for share in shares:
        own = Folder(folder, share)
        manifest = own.read_manifest() or {}
        shards = manifest.get("shards")
        if shards is None:
            problems.append(f"{own.manifest.name}: the job is not complete; start it again")
            continue
        try:
            found = [ShardRecord(**one) for one in shards]
        except TypeError:
            problems.append(f"{own.manifest.name} does not describe its shards")
            continue
        records += found
        for record in found:
            problems += _problems(folder, record)
        dead = sum(record.dead for record in found)
        there = own.letters.read_bytes().count(b"\n") if own.letters.exists() else 0
        if there != dead:
            problems.append(f"{own.letters.name} has {there} lines, and should have {dead}")
    return FolderCheck(
        sum(record.rows for record in records),
        len(records),
        sum(record.dead for record in records),
        tuple(problems),
    )


def _shares(folder: Path) -> Iterator[tuple[int, int]]:
    """The shares of the work that have a manifest there."""
    if (folder / "manifest.json").exists():
        yield 1, 1
    for file in folder.glob("manifest.*-of-*.json"):
        index, _, of = file.name.split(".")[1].partition("-of-")
        if index.isdecimal() and of.isdecimal():
            yield int(index), int(of)


def _problems(folder: Path, record: ShardRecord) -> Iterator[str]:
    if not record.file:  # its rows are in a collection, which has checks of its own
        return
    file = folder / record.file
    if not file.is_file():
        yield f"{record.file} is missing"
        return
    found = record_file(file)
    if (found.bytes, found.sha256) != (record.bytes, record.sha256):
        yield f"{record.file} is not what was written: its size or SHA-256 differs"
        return
    try:
        rows = _rows(file)
    except (OSError, ValueError) as error:
        yield f"{record.file} cannot be read: {error}"
        return
    if rows != record.rows:
        yield f"{record.file} has {rows} rows, and should have {record.rows}"
    if record.map_sha256 is not None:
        row_map = row_map_of(file)
        if not row_map.is_file() or record_file(row_map).sha256 != record.map_sha256:
            yield f"{row_map.name} is missing, or not what was written"


def _rows(file: Path) -> int:
    if file.suffix == ".npy":
        return int(np.load(file, mmap_mode="r").shape[0])
    arrow = imported_arrow()
    try:
        rows: int = arrow.parquet.read_metadata(file).num_rows
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from None
    return rows
