"""Reads the rows of a bulk job in windows, with dead letters for rows that cannot be embedded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from flowvec.errors import InputValueError
from flowvec.texts.inventory import Start
from flowvec.texts.readers import Reader, open_reader, schema_of
from flowvec.texts.sources import STDIN, Source
from flowvec.texts.window import WINDOW, Columns, Fields, Window

__all__ = ["first_columns", "read_windows"]


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
                window = _read(window, raw, columns)
                columns = window.columns
                yield window
                if row == stop:
                    return
                window, raw, end = Window(row), [], _window_end(row, rows_per_shard, stop)
            if raw:  # records must be read before the file is closed
                window = _read(window, raw, columns)
                columns, raw = window.columns, []
    if window.rows:
        yield window


def first_columns(sources: Sequence[Source], fields: Fields, rows_per_shard: int) -> Columns | None:
    """Types of the fields, from the first window; None for standard input.

    Raises:
        InputValueError: as `read_windows`; or a field has different types in two files.
    """
    if sources[0].path == STDIN:
        return None
    if fields.named:
        _check_same_types(sources, fields)
    if len(fields.texts) > 1:
        _check_text_fields(sources, fields)
    return next(read_windows(sources, fields, rows_per_shard=rows_per_shard), Window(0)).columns


def _check_text_fields(sources: Sequence[Source], fields: Fields) -> None:
    """Check that each field of a joined text is in the first rows of some file."""
    absent = list(fields.texts)
    for index, source in enumerate(sources):
        with ExitStack() as stack:
            reader = open_reader(source, fields, stack, Start(index, 0, 0))
            found = reader.texts_in(reader.take(WINDOW)[1])
        absent = [name for name in absent if name not in found]
        if not absent:
            return
    if len(absent) < len(fields.texts):  # else the first file is named, with its fields
        raise InputValueError(
            f"no input has a field {absent[0]!r} in its first rows; is it misspelt?"
        )


def _check_same_types(sources: Sequence[Source], fields: Fields) -> None:
    """Check that kept fields have the same type in all files."""
    formats = {source.format for source in sources}
    if len(formats) > 1:
        raise InputValueError(
            "to keep fields or ids, all inputs must have the same format, not "
            + " and ".join(sorted(formats))
        )
    if formats == {"parquet"}:
        first_seen: dict[str, tuple[str, str]] = {}  # field: (file, type)
        for source in sources:
            schema = schema_of(source)
            for name in fields.required:
                kind = str(schema.field(name).type) if name in schema.names else "nothing"
                where, before = first_seen.setdefault(name, (source.name, kind))
                if before != kind:
                    raise InputValueError(
                        f"{name} is {before} in {where}, but {kind} in {source.name}: the values "
                        "cannot be combined in one column"
                    )


def _window_end(row: int, rows_per_shard: int, stop: int | None) -> int:
    shard = row // rows_per_shard * rows_per_shard
    end = min(row + WINDOW - (row - shard) % WINDOW, shard + rows_per_shard)
    return end if stop is None else min(end, stop)


def _read(
    window: Window, raw: Sequence[tuple[Reader, int, Any]], columns: Columns | None
) -> Window:
    """Add records to a window."""
    if columns is None:
        columns = raw[0][0].columns(raw[0][2])
    window.columns = columns
    for reader, first_row, records in raw:
        reader.read(records, first_row, window, columns)
    return window
