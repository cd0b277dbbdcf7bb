"""Joins the shares of a bulk job into one job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.open_folder import folder_at
from flowvec.bulk.records import ShardRecord, differences_of_shares, records_of
from flowvec.bulk.verify import FolderCheck
from flowvec.errors import BulkError

__all__ = ["merge_shares"]


def merge_shares(path: str | Path) -> FolderCheck:
    """Join the shares of a job (`share=(i, n)`) that are complete into one job.

    The folder then has the bytes of a job without shares: one manifest, and one file of dead
    letters. No shard is read or moved. A merge that was interrupted can be repeated.

        >>> size = Path("merged.txt").write_text("The cat sleeps.\\nStocks fell.\\n")
        >>> for i in (1, 2):
        ...     part = encode_files("mini", "merged.txt", "merged", out_format="npy", share=(i, 2))
        >>> merge_shares("merged").rows
        2

    Args:
        path: the folder that all shares have written, or its URL.

    Returns:
        The job's counts; `problems` is empty.

    Raises:
        BulkError: a share is missing, not complete, running, or of another job; or a file of a
            shard is missing. Nothing was changed.
    """
    whole = folder_at(path)
    found = whole.shares()
    if not found:
        raise BulkError(f"{whole.out} is not the folder of a bulk job: it has no manifest")
    shares = [share for share in found if share[1] > 1]
    with ExitStack() as stack:
        stack.enter_context(whole.locked())
        folders = [whole.with_share(share) for share in shares]
        for folder in folders:
            stack.enter_context(folder.locked())
        merged = whole.read_manifest()
        if merged is None:
            records = _merge(whole, folders)
        else:  # it was merged before, or is not divided
            records = _checked_records(whole, merged)
            for folder in folders:
                manifest = folder.read_manifest() or {}
                _check_same(merged | {"options": manifest.get("options")}, manifest, folder)
        for folder in folders:
            folder.delete([folder.manifest, folder.dead_letters, *folder.journal_files()])
            folder.delete_leftovers()
    return FolderCheck(
        sum(record.rows for record in records),
        len(records),
        sum(record.dead for record in records),
        sum(record.duplicates for record in records),
        (),
    )


def _merge(whole: JobFolder, folders: Sequence[JobFolder]) -> list[ShardRecord]:
    """Write the manifest and the dead letters of the whole job; return its shards."""
    count = folders[0].share[1]
    present = [folder.share for folder in folders]
    if missing := [i for i in range(1, count + 1) if (i, count) not in present]:
        named = ", ".join(f"{i}/{count}" for i in missing[:5])
        are = f"share {named} of {whole.out} is missing: run it"
        if len(missing) > 1:
            are = f"shares {named} of {whole.out} are missing: run them"
        raise BulkError(f"{are} with --shard, then merge")
    manifests = [folder.read_manifest() or {} for folder in folders]
    shards: dict[int, tuple[ShardRecord, int]] = {}  # by number, with the index of the share
    for index, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):
        _check_same(manifests[0], manifest, folder)
        for record in _checked_records(folder, manifest):
            shards.setdefault(record.shard, (record, index))
    rows, per_shard = manifests[0]["rows"], manifests[0]["options"]["rows_per_shard"]
    if sorted(shards) != list(range(max(1, -(-rows // per_shard)))):
        raise BulkError(f"the manifests of {whole.out} do not list all shards")
    records = [shards[number][0] for number in sorted(shards)]
    order = [shards[number][1] for number in sorted(shards)]
    if any(record.dead for record in records):
        whole.write_blocks(whole.dead_letters, _letters(folders, records, order))
    described = {key: value for key, value in manifests[0].items() if key != "shards"}
    described["options"] = {**described["options"], "share": [1, 1]}
    whole.write_manifest({**described, "shards": [asdict(record) for record in records]})
    return records


def _check_same(first: dict[str, Any], manifest: dict[str, Any], folder: JobFolder) -> None:
    if changed := list(differences_of_shares(first, manifest)):
        raise BulkError(
            f"{folder.where(folder.manifest)} belongs to another job: {'; '.join(changed[:5])}"
        )


def _checked_records(folder: JobFolder, manifest: dict[str, Any]) -> list[ShardRecord]:
    """The shards of a complete share whose files are all there."""
    where = folder.where(folder.manifest)
    if "shards" not in manifest:
        raise BulkError(f"{where}: the share is not complete; run it again, then merge")
    records = records_of(manifest["shards"], where)
    there = {record.shard for record in folder.present(records, are_merged=True)}
    if missing := [record.file for record in records if record.shard not in there]:
        raise BulkError(
            f"files of {where} are missing, or have another size ({', '.join(missing[:3])}); run "
            "the share again, then merge"
        )
    return records


def _letters(
    folders: Sequence[JobFolder], records: Sequence[ShardRecord], order: Sequence[int]
) -> Iterator[bytes]:
    """The lines of all dead letters, in the order of the shards."""
    with_letters = {index for index, record in zip(order, records, strict=True) if record.dead}
    with ExitStack() as stack:
        files = {}
        for index in with_letters:
            path = stack.enter_context(folders[index].local(folders[index].dead_letters))
            files[index] = stack.enter_context(path.open("rb"))
        for index, record in zip(order, records, strict=True):
            for _ in range(record.dead):
                yield files[index].readline()
