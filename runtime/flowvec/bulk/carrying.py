"""Opens what is known about a job's texts: repeated ones, and those of an earlier job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvec.bulk.known_texts import KnownTexts
from flowvec.bulk.open_folder import folder_at
from flowvec.bulk.options import BulkOptions
from flowvec.bulk.output_vectors import OutputVectors
from flowvec.bulk.outputs import FolderTarget
from flowvec.bulk.records import ShardRecord, differences, records_of
from flowvec.bulk.repeats import Repeats
from flowvec.bulk.runner import windows_of
from flowvec.bulk.scratch import scratch_folder
from flowvec.errors import BulkError
from flowvec.texts.inventory import Survey
from flowvec.texts.window import Columns

__all__ = ["EarlierJob", "earlier_job", "open_known_texts"]

_MANIFEST = "_manifest.json"
# Options that decide a text's vector.
_DECIDING = ("precision", "prompt_name", "truncation")


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A complete job whose vectors can be carried over.

    Attributes:
        output: its vectors.
        rows: for each shard, how many rows were written.
        described: its manifest.
        sha256: SHA-256 of its list of shards.
    """

    output: OutputVectors
    rows: dict[int, int]
    described: dict[str, Any]
    sha256: str

    def check(self, described: dict[str, Any]) -> None:
        """Check that a job's vectors are made as the earlier job's.

        Raises:
            BulkError: the model or an option differs.
        """
        pairs = [
            {
                "model": one["model"],
                "options": {name: one["options"].get(name) for name in _DECIDING},
            }
            for one in (self.described, described)
        ]
        if changed := list(differences(pairs[0], pairs[1])):
            raise BulkError(
                f"vectors of the earlier job cannot be carried over: {'; '.join(changed)}"
            )


def earlier_job(path: str | Path) -> EarlierJob:
    """Open an earlier job.

    Args:
        path: its folder or URL, or its `_manifest.json`.

    Raises:
        BulkError: it is not complete, or has no texts files.
    """
    text = str(path)
    folder = folder_at(text.removesuffix(_MANIFEST) if text.endswith(_MANIFEST) else path)
    shares = folder.shares()
    if not shares:
        raise BulkError(f"{folder.out} is not the folder of a bulk job: it has no manifest")
    records: list[ShardRecord] = []
    first: dict[str, Any] = {}
    for share in shares:
        share_folder = folder.with_share(share)
        manifest = share_folder.read_manifest() or {}
        first = first or manifest
        where = share_folder.where(share_folder.manifest)
        if "shards" not in manifest or len(shares) < share[1]:
            raise BulkError(f"{where}: the earlier job is not complete; run it again")
        records += records_of(manifest["shards"], where)
    if not all(record.texts_sha256 for record in records if record.rows):
        raise BulkError(
            f"{folder.out} has no texts files, which say which texts have changed: it was made "
            "without --dedupe (dedupe=True) and --changed-since"
        )
    out_format = str(first["options"]["out_format"])
    digest = hashlib.sha256(
        json.dumps(sorted((r.shard, r.sha256, r.texts_sha256) for r in records)).encode()
    ).hexdigest()
    rows = {record.shard: record.rows for record in records}
    return EarlierJob(OutputVectors(folder, out_format), rows, first, digest)


def open_known_texts(
    stack: ExitStack,
    target: FolderTarget,
    survey: Survey,
    options: BulkOptions,
    columns: Columns | None,
    repeats: Repeats | None,
    earlier: EarlierJob | None,
    check: Callable[[], None],
) -> KnownTexts:
    """Read all texts, and find those that need not be embedded again.

    Args:
        stack: closes what is opened.
        target: the job's output.
        survey: the inputs.
        options: options of the job.
        columns: types of the fields.
        repeats: rows that are left out because another row has the same id.
        earlier: the job whose vectors are carried over.
        check: called now and then; it raises to give up.
    """
    scratch = stack.enter_context(scratch_folder())
    own = OutputVectors(target.folder, options.out_format)
    known = stack.enter_context(KnownTexts(scratch, own, options.rows_per_shard))
    if earlier is not None:
        known.carry(earlier.output, earlier.rows)
    spans = [(shard, shard + 1) for shard in target.shards()]

    def windows() -> Any:
        for window in windows_of(spans, survey, options, columns):
            check()
            if repeats is not None:
                repeats.leave_out(window)
            yield window

    if target.missing():
        known.plan(windows())
    return known
