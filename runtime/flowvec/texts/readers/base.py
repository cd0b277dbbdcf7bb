"""The base of readers of all formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec.texts.column_types import Observed
from flowvec.texts.row_checks import RefusedError, dead_letter_of, fitted, id_of, text_of
from flowvec.texts.sources import Source
from flowvec.texts.window import Columns, Fields, Window

__all__ = ["LineReader", "Reader", "RecordReader"]


class Reader:
    """Reads records of one file into windows.

    Attributes:
        is_typed_by_rows: whether its rows say what types its fields have, and not its header.
    """

    is_typed_by_rows = False

    def __init__(self, source: Source, fields: Fields) -> None:
        self.name = source.name
        self.fields = fields
        self.row = 0  # number of the next record

    def take(self, rows: int) -> tuple[int, Any]:
        """The number of the next records, and the records; fewer at the end of the file."""
        raise NotImplementedError

    def observe(self, records: Any, observed: Observed) -> None:
        """Note the fields of the file, or of some records, and their types."""
        raise NotImplementedError

    def read(self, records: Any, first_row: int, window: Window, columns: Columns) -> None:
        """Add records to a window; `first_row` is the row number of the first."""
        raise NotImplementedError

    def skip(self, rows: int) -> None:
        """Skip this many records."""
        while rows > 0:
            count, _ = self.take(min(rows, 1 << 16))
            if not count:
                raise InputValueError(f"{self.name} has become shorter")
            rows -= count


class LineReader(Reader):
    """Reads records that are lines."""

    def __init__(self, source: Source, fields: Fields, lines: Iterator[list[bytes | None]]) -> None:
        super().__init__(source, fields)
        self._lines = lines
        self._ready: list[bytes | None] = []
        self._used = 0

    @override
    def take(self, rows: int) -> tuple[int, list[bytes | None]]:
        lines: list[bytes | None] = []
        while len(lines) < rows:
            if self._used == len(self._ready):
                more = next(self._lines, None)
                if more is None:
                    break
                self._ready, self._used = more, 0
            part = self._ready[self._used : self._used + rows - len(lines)]
            lines += part
            self._used += len(part)
        self.row += len(lines)
        return len(lines), lines


class RecordReader(Reader):
    """A reader of records whose fields are Python values."""

    def fields_of(self, record: Any) -> dict[str, Any] | None:
        """A record's fields; None if it is blank.

        Raises:
            RefusedError: it cannot be read.
        """
        raise NotImplementedError

    @override
    def read(
        self, records: Sequence[Any], first_row: int, window: Window, columns: Columns
    ) -> None:
        first = window.begin(self.name, first_row, len(records))
        fields = self.fields
        values: list[list[Any]] = [[] for _ in columns]
        not_seen: set[str] = set()
        if fields.for_collection:
            not_seen = set(fields.beside_id) - window.fields
        for place, record in enumerate(records):
            key: str | int | None = None
            try:
                record_fields = self.fields_of(record)
                if record_fields is None:
                    window.blank += 1
                    continue
                if not_seen:
                    not_seen -= record_fields.keys()
                key = first + place if fields.id is None else None  # unless it can be read
                if fields.id is not None:
                    key = id_of(record_fields.get(fields.id), fields.id)
                text = text_of(record_fields, fields)
                row = [
                    fitted(record_fields.get(name), kind, name, as_json=fields.kept_as_json)
                    for name, kind in columns.items()
                ]
            except RefusedError as refused:
                key = refused.key if key is None else key
                window.dead.append(dead_letter_of(self.name, first_row + place, key, refused))
                continue
            for column, value in zip(values, row, strict=True):
                column.append(value)
            window.numbers.append(first + place)
            window.texts.append(text)
        for name, column in zip(columns, values, strict=True):
            window.extend(name, column)
        if fields.for_collection:
            window.fields |= set(fields.beside_id) - not_seen
