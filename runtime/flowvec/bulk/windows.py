"""Reads the rows of a bulk job in windows, with dead letters for rows that cannot be embedded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from flowvec.texts.column_types import Observed
from flowvec.texts.inventory import Start
from flowvec.texts.readers import ParquetReader, Reader, open_reader
from flowvec.texts.sources import STDIN, Source
from flowvec.texts.window import WINDOW, Columns, Fields, Window

__all__ = ["decided_columns", "read_windows"]


def read_windows(
    sources: Sequence[Source],
    fields: Fields,
    *,
    rows_per_shard: int,
    start: Start | None = None,
    first: int = 0,
    stop: int | None = None,
    columns: Columns | None = None,
) -> Iterator[Window]:
    """Read rows in windows, at constant memory. No window crosses the end of a shard.

    Args:
        sources: the files.
        fields: the fields that are read.
        rows_per_shard: rows of a shard.
        start: where to begin; None begins with the first file.
        first: number of the first row, over all inputs.
        stop: number of the row after the last; None reads all.
        columns: types of the fields; None infers them from the first window.

    Raises:
        InputValueError: a file cannot be read, lacks a field, or is damaged.
    """
    place = Start(0, 0, 0) if start is None else start
    row = first
    window = Window(row)
    raw: list[tuple[Reader, int, Any]] = []  # (reader, first row, records) of this window
    end = _window_end(row, rows_per_shard, stop)
    for index in range(place.source, len(sources)):
        is_first = index == place.source
        with ExitStack() as stack:
            reader = open_reader(
                sources[index], fields, stack, place if is_first else Start(index, 0, 0)
            )
            while True:
                first_row = reader.row
                count, records = reader.take(end - row)
                if count:
                    raw.append((reader, first_row, records))
                    row += count
                if row < end:
                    break  # the file has ended
                window = _read(window, raw, columns, fields)
                columns = window.columns
                yield window
                if row == stop:
                    return
                window, raw, end = Window(row), [], _window_end(row, rows_per_shard, stop)
            if raw:  # records must be read before the file is closed
                window = _read(window, raw, columns, fields)
                columns, raw = window.columns, []
    if window.rows:
        yield window


def decided_columns(
    sources: Sequence[Source], fields: Fields, check: Callable[[], object] = lambda: None
) -> Columns | None:
    """Types of the fields, decided over all rows of all inputs; None for standard input.

    Files whose rows say nothing about types are only opened.

    Args:
        sources: the files.
        fields: the fields that are read.
        check: called now and then; it raises to give up.

    Raises:
        InputValueError: a file cannot be read, no file has a field, or types of Parquet files
            cannot be combined.
    """
    if sources[0].path == STDIN:
        return None
    observed = Observed(fields)
    for source in sources:
        if observed.is_enough and source.format == "jsonl":
            continue  # it has no header to check
        with ExitStack() as stack:
            reader = open_reader(source, fields, stack, Start(0, 0, 0))
            while True:
                check()
                count, records = reader.take(WINDOW) if reader.is_typed_by_rows else (0, None)
                if count or not reader.is_typed_by_rows:
                    reader.observe(records, observed)
                if not count or observed.is_enough:
                    break

    def count_numbers(name: str) -> None:
        for source in sources:
            check()
            if source.format == "parquet":
                with ExitStack() as stack:
                    reader = open_reader(source, fields, stack, Start(0, 0, 0))
                    assert isinstance(reader, ParquetReader)
                    reader.count_numbers(name, observed.values[name])

    observed.check()
    return observed.columns(count_numbers, unknown="string")


def _window_end(row: int, rows_per_shard: int, stop: int | None) -> int:
    shard = row // rows_per_shard * rows_per_shard
    end = min(row + WINDOW - (row - shard) % WINDOW, shard + rows_per_shard)
    return end if stop is None else min(end, stop)


def _read(
    window: Window,
    raw: Sequence[tuple[Reader, int, Any]],
    columns: Columns | None,
    fields: Fields,
) -> Window:
    """Add records to a window."""
    if columns is None:
        observed = Observed(fields)
        for reader, _, records in raw:
            reader.observe(records, observed)
        observed.check(" in its first rows")
        columns = observed.columns()
    window.columns = columns
    for reader, first_row, records in raw:
        reader.read(records, first_row, window, columns)
    return window
