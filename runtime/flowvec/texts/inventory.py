"""A survey of a bulk job's inputs: how many rows they have, and where each shard starts.

It reads all files once before anything is encoded, which is quick in comparison. It detects damaged
archives early, and lets a job continue, or do a share of the work, without reading other shards.
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

__all__ = ["Start", "Survey", "check_unchanged", "survey_inputs"]

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Start:
    """Where a shard starts.

    Attributes:
        source: index of the file.
        row: number of its first row in that file.
        offset: byte offset of that row; None if reading cannot start in the middle of the file.
    """

    source: int
    row: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of a survey.

    Attributes:
        sources: the files, in the order in which they are read.
        starts: where each shard starts.
        rows: rows of all files; None for standard input.
        first_shard: number of the first shard in `starts`.
    """

    sources: tuple[Source, ...]
    starts: tuple[Start, ...] = field(default=())
    rows: int | None = None
    first_shard: int = 0

    def start_of(self, shard: int) -> Start | None:
        """Where a shard starts; None if that is not known."""
        index = shard - self.first_shard
        return self.starts[index] if 0 <= index < len(self.starts) else None

    def span_of(self, shard: int) -> range:
        """Indices of the files that have rows of a shard."""
        start, after = self.start_of(shard), self.start_of(shard + 1)
        first = 0 if start is None else start.source
        if after is None:
            return range(first, len(self.sources))
        return range(first, after.source + (after.row > 0))

    def part_of(self, shard: int) -> Survey:
        """What a process needs to do one shard: only the shard's own files."""
        span, start = self.span_of(shard), self.start_of(shard)
        starts = () if start is None else (replace(start, source=0),)
        return Survey(self.sources[span.start : span.stop], starts, self.rows, shard)


def survey_inputs(
    sources: Sequence[Source],
    rows_per_shard: int,
    max_text_bytes: int,
    stop: Callable[[], object] = lambda: None,
) -> Survey:
    """Count and hash the inputs.

    Args:
        sources: as `find_sources` returns them.
        rows_per_shard: rows of a shard, over all files.
        max_text_bytes: as for reading: a longer field of csv ends its record.
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
    """Check that sizes and modification times of files have not changed.

    Raises:
        BulkError: a file has changed.
    """
    for source in sources:
        if source.path == STDIN:
            continue
        try:
            state = source.state()
        except OSError as error:
            raise BulkError(f"{source.name} is gone: {error.strerror or error}") from None
        except InputValueError as error:
            raise BulkError(f"{source.name} is gone: {error}") from None
        if state != (source.bytes, source.modified):
            raise BulkError(
                f"{source.name} changed while it was being read; the output is inconsistent"
            )


def _boundaries(first: int, rows: int, rows_per_shard: int) -> range:
    """Rows of a file at which shards start; `first` rows come before the file."""
    return range(-first % rows_per_shard, rows, rows_per_shard)


def _parquet_rows(source: Source, take: Callable[[memoryview], object]) -> int:
    """Count the rows of a file; `take` gets its bytes."""
    arrow = imported_arrow()
    try:
        rows: int = arrow.parquet.read_metadata(source.for_arrow()).num_rows
        with source.open() as file:
            while block := file.read(_BLOCK):
                take(memoryview(block))
    except (OSError, arrow.ArrowException) as error:
        raise InputValueError(f"cannot read {source.name}: {error}") from None
    return rows


def _count_lines(
    source: Source, first: int, rows_per_shard: int, take: Callable[[memoryview], object]
) -> tuple[int, dict[int, int | None]]:
    """Lines of a file, and offsets of the lines at which shards start."""
    seekable = not source.is_compressed
    offsets: dict[int, int | None] = {}
    rows, place, unfinished = 0, 0, False
    wanted = -first % rows_per_shard
    with open_binary(source, seen=take) as file:
        while block := file.read(_BLOCK):
            place = place or file.mark_bytes
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
    # A shard that would start at the end of the file has no line.
    offsets = {row: offset for row, offset in offsets.items() if row < rows}
    return rows, offsets
