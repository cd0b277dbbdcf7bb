"""Describes and verifies the folder of a bulk job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arguments import path_of
from flowvec.arrow import imported_arrow
from flowvec.bulk.journal import (
    Folder,
    ShardRecord,
    differences_of_shares,
    records_of,
    row_map_of,
    shares_of,
)
from flowvec.bundle.bundle import record_file
from flowvec.collection.store.store import FILE
from flowvec.errors import BulkError

__all__ = ["FolderCheck", "FolderInfo", "folder_info", "is_bulk_folder", "verify_folder"]


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """The result of `verify_folder`.

        >>> size = Path("checked.txt").write_text("The cat sleeps.\\nStocks fell.\\n")
        >>> summary = encode_files("mini", "checked.txt", "checked", out_format="npy")
        >>> Path("checked/part-000000.npy").unlink()
        >>> verify_folder("checked").problems
        ('part-000000.npy is missing',)

    Attributes:
        rows: written vectors, according to the manifests.
        shards: files of vectors.
        dead_letters: rows that could not be embedded.
        duplicates: rows that were left out because another row has the same id.
        problems: what is wrong, one line per problem.
    """

    rows: int
    shards: int
    dead_letters: int
    duplicates: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FolderInfo:
    """What the manifests of a bulk job's folder record.

    Attributes:
        complete: whether all shards of all shares are finished.
        rows: vectors in the finished shards.
        shards: finished shards.
        dead_letters: rows that could not be embedded.
        duplicates: rows that were left out because another row has the same id.
        model: name of the model.
        fingerprint: fingerprint of the model.
        precision: type of the vectors' numbers.
        out_format: format of the shards.
        inputs: the files that were read.
    """

    complete: bool
    rows: int
    shards: int
    dead_letters: int
    duplicates: int
    model: str
    fingerprint: str
    precision: str
    out_format: str
    inputs: tuple[str, ...]


def is_bulk_folder(path: Path) -> bool:
    """Whether a folder holds a bulk job, complete or not."""
    if not path.is_dir() or (path / FILE).exists():
        return False
    return any(Folder(path, share).is_ours() for share in shares_of(path))


def folder_info(path: str | Path) -> FolderInfo:
    """Read the manifests only, not the shards.

    Args:
        path: the folder that `encode_files` wrote, as one job or in shares.

    Raises:
        BulkError: it is not the folder of a bulk job, or a manifest cannot be read.
    """
    folder = path_of("the folder", path)
    shares = shares_of(folder)
    if not shares:
        raise BulkError(f"{folder} is not the folder of a bulk job: it has no manifest")
    records: list[ShardRecord] = []
    manifests = [Folder(folder, share) for share in shares]
    read = [share_folder.read_manifest() or {} for share_folder in manifests]
    for share_folder, manifest in zip(manifests, read, strict=True):
        shards = manifest.get("shards")
        records += (
            share_folder.read_journal()
            if shards is None
            else records_of(shards, share_folder.manifest)
        )
    first = read[0]
    try:
        return FolderInfo(
            complete=len(shares) == shares[0][1] and all("shards" in one for one in read),
            rows=sum(record.rows for record in records),
            shards=len(records),
            dead_letters=sum(record.dead for record in records),
            duplicates=sum(record.duplicates for record in records),
            model=first["model"]["name"],
            fingerprint=first["model"]["fingerprint"],
            precision=first["options"]["precision"],
            out_format=first["options"]["out_format"],
            inputs=tuple(one["path"] for one in first["inputs"]),
        )
    except (KeyError, TypeError):
        raise BulkError(f"{manifests[0].manifest} does not describe its job") from None


def verify_folder(path: str | Path) -> FolderCheck:
    """Read every shard again, and compare it with the manifest.

        >>> size = Path("verified.txt").write_text("The cat sleeps.\\nStocks fell.\\n")
        >>> summary = encode_files("mini", "verified.txt", "verified", out_format="npy")
        >>> check = verify_folder("verified")
        >>> check.rows, check.shards, check.problems
        (2, 1, ())

    Compared are the size, SHA-256 and number of rows of each shard, the SHA-256 of each row map,
    and the number of dead letters.

    Args:
        path: the folder that `encode_files` wrote, as one job or in shares.

    Raises:
        BulkError: it is not the folder of a bulk job, or a manifest cannot be read.
    """
    folder = path_of("the folder", path)
    shares = shares_of(folder)
    if not shares:
        raise BulkError(f"{folder} is not the folder of a bulk job: it has no manifest")
    problems: list[str] = []
    records: list[ShardRecord] = []
    total = shares[0][1]
    if missing := [i for i in range(1, total + 1) if (i, total) not in shares]:
        named = ", ".join(f"{i}/{total}" for i in missing)
        problems.append(f"the manifest of share {named} is missing")
    first: dict[str, Any] = {}
    for share in shares:
        share_folder = Folder(folder, share)
        manifest = share_folder.read_manifest() or {}
        if first and (changed := list(differences_of_shares(first, manifest))):
            problems.append(
                f"{share_folder.manifest.name} belongs to another job: {'; '.join(changed[:5])}"
            )
        first = first or manifest
        shards = manifest.get("shards")
        if shards is None:
            problems.append(f"{share_folder.manifest.name}: the job is not complete; run it again")
            continue
        try:
            listed = records_of(shards, share_folder.manifest)
        except BulkError as error:
            problems.append(str(error))
            continue
        records += listed
        for record in listed:
            problems += _problems(folder, record)
        dead = sum(record.dead for record in listed)
        file = share_folder.dead_letters
        lines = file.read_bytes().count(b"\n") if file.exists() else 0
        if lines != dead:
            problems.append(f"{file.name} has {lines} lines, and should have {dead}")
    return FolderCheck(
        sum(record.rows for record in records),
        len(records),
        sum(record.dead for record in records),
        sum(record.duplicates for record in records),
        tuple(problems),
    )


def _problems(folder: Path, record: ShardRecord) -> Iterator[str]:
    if not record.file:  # the rows are in a collection, which has its own checks
        return
    file = folder / record.file
    if not file.is_file():
        yield f"{record.file} is missing"
        return
    actual = record_file(file)
    if (actual.bytes, actual.sha256) != (record.bytes, record.sha256):
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
