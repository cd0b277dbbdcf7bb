"""Sorts blocks by id at constant memory: sorted runs on disk, which are merged.

A run is as much as fits in `RUN_BYTES`. Up to `_FAN_IN` runs are merged at a time, each with one
small batch in memory, so memory does not grow with the rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arrow import imported_arrow

__all__ = ["sorted_by_id"]

RUN_BYTES = 32 << 20
_BATCH_BYTES = 1 << 20
_FAN_IN = 32


def sorted_by_id(blocks: Iterable[Any], schema: Any, scratch: Path) -> Iterator[Any]:
    """Blocks with the same rows in ascending order of id; texts are compared as UTF-8 bytes.

    Args:
        blocks: record batches.
        schema: their schema.
        scratch: a folder for temporary files, of about the size of all blocks.

    Raises:
        OSError: a temporary file cannot be written.
    """
    pa = imported_arrow()
    numbers = iter(range(1 << 62))

    def saved(batches: Iterable[Any]) -> Path:
        path = scratch / f"run-{next(numbers)}.arrow"
        with pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return path

    runs: list[Path] = []
    waiting: list[Any] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += block.nbytes
        if size >= RUN_BYTES:
            runs.append(saved(_sorted(waiting)))
            waiting, size = [], 0
    if not runs:
        yield from _sorted(waiting)
        return
    if waiting:
        runs.append(saved(_sorted(waiting)))
        waiting.clear()
    while len(runs) > _FAN_IN:
        runs = [
            saved(_merged(runs[start : start + _FAN_IN])) for start in range(0, len(runs), _FAN_IN)
        ]
    yield from _merged(runs)


def _sorted(blocks: list[Any]) -> Iterator[Any]:
    """The rows of a few blocks in order, in small batches."""
    pa = imported_arrow()
    if not blocks:
        return
    table = pa.Table.from_batches(blocks)
    order = pa.compute.sort_indices(table["id"])
    rows = max(1, _BATCH_BYTES * len(table) // max(1, table.nbytes))
    for start in range(0, len(table), rows):
        yield from table.take(order[start : start + rows]).combine_chunks().to_batches()


def _merged(runs: list[Path]) -> Iterator[Any]:
    """The rows of sorted files in order; the files are deleted."""
    pa = imported_arrow()
    with ExitStack() as stack:
        files = [stack.enter_context(pa.OSFile(os.fsencode(run), "rb")) for run in runs]
        readers = [stack.enter_context(pa.ipc.open_stream(file)) for file in files]
        heads = {number: _next(reader) for number, reader in enumerate(readers)}
        while heads := {number: head for number, head in heads.items() if head is not None}:
            # Rows up to the smallest of the last ids: no later batch has one of them before it.
            bound = min(head.column("id")[-1].as_py() for head in heads.values())
            parts = []
            for number, head in heads.items():
                count = _up_to(head.column("id"), bound)
                if count:
                    parts.append(head.slice(0, count))
                rest = head.slice(count)
                heads[number] = rest if len(rest) else _next(readers[number])
            yield from _sorted(parts) if len(parts) > 1 else parts
    for run in runs:
        run.unlink()


def _next(reader: Any) -> Any:
    """The next batch that has rows, or None."""
    for batch in reader:
        if len(batch):
            return batch
    return None


def _up_to(ids: Any, bound: Any) -> int:
    """How many of some ascending ids are not above a bound."""
    pa = imported_arrow()
    if ids.type == pa.int64():
        return int(np.searchsorted(ids.to_numpy(), bound, side="right"))
    return int(pa.compute.sum(pa.compute.less_equal(ids, bound)).as_py())
