"""Describes and verifies the folder of a bulk job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arguments import flag
from flowvec.arrow import file_for_arrow, imported_arrow
from flowvec.bulk.file_names import row_map_name, texts_name
from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.open_folder import folder_at
from flowvec.bulk.records import ShardRecord, differences_of_shares, records_of
from flowvec.bundle.bundle import record_file
from flowvec.collection.store.store import FILE
from flowvec.errors import BulkError
from flowvec.files import lfs_advice
from flowvec.texts.urls import is_url

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
        removed: what `clean` deleted.
    """

    rows: int
    shards: int
    dead_letters: int
    duplicates: int
    problems: tuple[str, ...]
    removed: tuple[str, ...] = ()


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


def is_bulk_folder(path: str | Path) -> bool:
    """Whether a folder holds a bulk job, complete or not."""
    if not is_url(str(path)) and (not Path(path).is_dir() or (Path(path) / FILE).exists()):
        return False
    folder = folder_at(path)
    return any(folder.with_share(share).is_ours() for share in folder.shares())


def folder_info(path: str | Path) -> FolderInfo:
    """Read the manifests only, not the shards.

    Args:
        path: the folder that `encode_files` wrote, as one job or in shares, or its URL.

    Raises:
        BulkError: it is not the folder of a bulk job, or a manifest cannot be read.
    """
    manifests = _shares_of(folder_at(path))
    records: list[ShardRecord] = []
    read = [share_folder.read_manifest() or {} for share_folder in manifests]
    for share_folder, manifest in zip(manifests, read, strict=True):
        shards = manifest.get("shards")
        records += (
            share_folder.read_journal()
            if shards is None
            else records_of(shards, share_folder.where(share_folder.manifest))
        )
    first = read[0]
    try:
        return FolderInfo(
            complete=len(manifests) == manifests[0].share[1]
            and all("shards" in one for one in read),
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
        where = manifests[0].where(manifests[0].manifest)
        raise BulkError(f"{where} does not describe its job") from None


def verify_folder(path: str | Path, *, clean: bool = False) -> FolderCheck:
    """Read every shard again, and compare it with the manifest.

        >>> size = Path("verified.txt").write_text("The cat sleeps.\\nStocks fell.\\n")
        >>> summary = encode_files("mini", "verified.txt", "verified", out_format="npy")
        >>> check = verify_folder("verified")
        >>> check.rows, check.shards, check.problems
        (2, 1, ())

    Compared are the size, SHA-256 and number of rows of each shard, the SHA-256 of each row map,
    and the number of dead letters.

    Args:
        path: the folder that `encode_files` wrote, as one job or in shares, or its URL.
        clean: first delete what killed jobs left and nothing needs: temporary files, unfinished
            multipart uploads, and shards that a complete manifest does not list.

    Raises:
        BulkError: it is not the folder of a bulk job, or a manifest cannot be read; to clean it, a
            process writes it.
    """
    flag("clean", clean)
    manifests = _shares_of(folder_at(path))
    removed: list[str] = []
    for folder in manifests if clean else ():
        with folder.locked():
            removed += folder.clean()
    problems: list[str] = []
    records: list[ShardRecord] = []
    shares = [folder.share for folder in manifests]
    total = shares[0][1]
    if missing := [i for i in range(1, total + 1) if (i, total) not in shares]:
        named = ", ".join(f"{i}/{total}" for i in missing)
        problems.append(f"the manifest of share {named} is missing")
    first: dict[str, Any] = {}
    for folder in manifests:
        manifest = folder.read_manifest() or {}
        if first and (changed := list(differences_of_shares(first, manifest))):
            problems.append(f"{folder.manifest} belongs to another job: {'; '.join(changed[:5])}")
        first = first or manifest
        shards = manifest.get("shards")
        if shards is None:
            problems.append(f"{folder.manifest}: the job is not complete; run it again")
            continue
        try:
            listed = records_of(shards, folder.where(folder.manifest))
        except BulkError as error:
            problems.append(str(error))
            continue
        records += listed
        for record in listed:
            problems += _problems(folder, record)
        dead = sum(record.dead for record in listed)
        lines = (folder.read(folder.dead_letters) or b"").count(b"\n")
        if lines != dead:
            problems.append(f"{folder.dead_letters} has {lines} lines, and should have {dead}")
    return FolderCheck(
        sum(record.rows for record in records),
        len(records),
        sum(record.dead for record in records),
        sum(record.duplicates for record in records),
        tuple(problems),
        tuple(removed),
    )


def _shares_of(folder: JobFolder) -> list[JobFolder]:
    """The shares of a job.

    Raises:
        BulkError: the folder has no manifest.
    """
    shares = folder.shares()
    if not shares:
        raise BulkError(f"{folder.out} is not the folder of a bulk job: it has no manifest")
    return [folder.with_share(share) for share in shares]


def _problems(folder: JobFolder, record: ShardRecord) -> Iterator[str]:
    if not record.file:  # the rows are in a collection, which has its own checks
        return
    try:
        with folder.local(record.file) as file:
            actual = record_file(file)
            if (actual.bytes, actual.sha256) != (record.bytes, record.sha256):
                if lfs_advice(file):
                    yield f"{record.file} is a pointer of git-lfs: run `git lfs pull`"
                    return
                yield f"{record.file} is not what was written: its size or SHA-256 differs"
                return
            try:
                rows = _rows(file)
            except (OSError, ValueError) as error:
                yield f"{record.file} cannot be read: {error}"
                return
    except FileNotFoundError:
        yield f"{record.file} is missing"
        return
    if rows != record.rows:
        yield f"{record.file} has {rows} rows, and should have {record.rows}"
    beside = {
        row_map_name(record.file): record.map_sha256,
        texts_name(record.file): record.texts_sha256,
    }
    for name, sha256 in beside.items():
        if sha256 is not None and not _is_file(folder, name, sha256):
            yield f"{name} is missing, or not what was written"


def _is_file(folder: JobFolder, name: str, sha256: str) -> bool:
    try:
        with folder.local(name) as file:
            return record_file(file).sha256 == sha256
    except FileNotFoundError:
        return False


def _rows(file: Path) -> int:
    if file.suffix == ".npy":
        return int(np.load(file, mmap_mode="r").shape[0])
    arrow = imported_arrow()
    try:
        rows: int = arrow.parquet.read_metadata(file_for_arrow(file)).num_rows
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from None
    return rows
