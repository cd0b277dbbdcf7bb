"""A survey of a bulk job's inputs: how many rows there are, and where each shard begins.

It goes through all files once before anything is encoded, which costs little beside that. It finds
a damaged archive at once, and lets a job resume, or share its work out, without reading what is not
its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowvec.arrow import imported_arrow
from flowvec.errors import BulkError, InputValueError
from flowvec.texts.lines import csv_records
from flowvec.texts.sources import STDIN, Source, open_binary

__all__ = ["Start", "Survey", "check_unchanged", "survey"]

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """Where a shard begins.

    Attributes:
        source: index of the file.
        row: number of the row in it.
        offset: where that row begins, in bytes; None where that cannot be sought.
    """

    source: int
    row: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Survey:
    """What the inputs hold.

    Attributes:
        sources: the files, in the order in which they are read.
        starts: where each shard begins.
        rows: of all files; None of standard input.
    """

    sources: tuple[Source, ...]
    starts: tuple[Start, ...] = field(default=())
    rows: int | None = None


def survey(
    sources: Sequence[Source],
    rows_per_shard: int,
    max_text_bytes: int,
    stop: Callable[[], object] = lambda: None,
) -> Survey:
    """Count and hash what is there; see the module.

    Args:
        sources: as `find_sources` gives.
        rows_per_shard: a shard begins at every so many rows over all files.
        max_text_bytes: longer fields of csv are cut into records as reading does.
        stop: called now and then; it raises to give up.

    Raises:
        InputValueError: a file cannot be read, or is damaged.
    """
    if sources[0].path == STDIN:
        return Survey(tuple(sources))
    surveyed: list[Source] = []
    starts: list[Start] = []
    first = 0
    for index, source in enumerate(sources):
        digest = hashlib.sha256()

        def take(block: memoryview, digest: Any = digest) -> None:
            digest.update(block)
            stop()

        offsets: Mapping[int, int | None]
        if source.format == "parquet":
            rows = _parquet_rows(source, take)
            offsets = dict.fromkeys(_boundaries(first, rows, rows_per_shard))
        elif source.format == "csv":
            with open_binary(source, seen=take) as file:
                rows = max(sum(1 for _ in csv_records(file, max_text_bytes)) - 1, 0)  # the header
            offsets = dict.fromkeys(_boundaries(first, rows, rows_per_shard))
        else:
            rows, offsets = _count_lines(source, first, rows_per_shard, take)
        starts += [Start(index, row, offset) for row, offset in offsets.items()]
        surveyed.append(replace(source, sha256=digest.hexdigest(), rows=rows))
        first += rows
    return Survey(tuple(surveyed), tuple(starts), first)


def check_unchanged(sources: Sequence[Source]) -> None:
    """Check that files are as large and as old as they were.

    Raises:
        BulkError: one is not.
    """
    for source in sources:
        if source.path == STDIN:
            continue
        try:
            state = source.state()
        except OSError as error:
            raise BulkError(f"{source.path} is gone: {error.strerror or error}") from None
        except InputValueError as error:
            raise BulkError(f"{source.path} is gone: {error}") from None
        if state != (source.bytes, source.modified):
            raise BulkError(f"{source.path} was changed while it was read; what was made is mixed")


def _boundaries(first: int, rows: int, rows_per_shard: int) -> range:
    """Rows of a file at which a shard begins, where `first` came before it."""
    return range(-first % rows_per_shard, rows, rows_per_shard)


def _parquet_rows(source: Source, take: Callable[[memoryview], object]) -> int:
    """Rows of a file, and its bytes for who takes them."""
    arrow = imported_arrow()
    try:
        rows: int = arrow.parquet.read_metadata(source.for_arrow()).num_rows
        with source.open() as file:
            while block := file.read(_BLOCK):
                take(memoryview(block))
    except (OSError, arrow.ArrowException) as error:
        raise InputValueError(f"cannot read {source.path}: {error}") from None
    return rows


def _count_lines(
    source: Source, first: int, rows_per_shard: int, take: Callable[[memoryview], object]
) -> tuple[int, dict[int, int | None]]:
    """Lines of a file, and the offsets of those at which a shard begins."""
    seekable = not source.is_compressed
    offsets: dict[int, int | None] = {}
    rows, place, unfinished = 0, 0, False
    wanted = -first % rows_per_shard
    with open_binary(source, seen=take) as file:
        while block := file.read(_BLOCK):
            if wanted == 0 and not offsets:
                offsets[0] = 0 if seekable else None
                wanted = rows_per_shard
            newlines = block.count(b"\n")
            if rows + newlines >= wanted:
                at = -1
                for row in range(rows + 1, rows + newlines + 1):
                    at = block.index(b"\n", at + 1)
                    if row == wanted:
                        offsets[row] = place + at + 1 if seekable else None
                        wanted += rows_per_shard
            rows += newlines
            place += len(block)
            unfinished = not block.endswith(b"\n")
    rows += unfinished
    # A line that was said to begin where the file ends is none.
    offsets = {row: offset for row, offset in offsets.items() if row < rows}
    return rows, offsets
