"""The base of readers of all formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec.texts.row_checks import RefusedError, fitted, id_of, is_id, letter_of, text_of
from flowvec.texts.sources import Source
from flowvec.texts.window import Columns, Fields, Window

__all__ = ["LineReader", "Reader", "RecordReader"]


class Reader:
    """Reads records of one file into windows."""

    def __init__(self, source: Source, fields: Fields) -> None:
        self.name = source.name
        self.fields = fields
        self.row = 0  # number of the next record

    def take(self, rows: int) -> tuple[int, Any]:
        """The next records, fewer at the end of the file, and how many."""
        raise NotImplementedError

    def columns(self, records: Any) -> Columns:
        """Types of the fields, from some records."""
        raise NotImplementedError

    def read(self, records: Any, begun: int, window: Window, columns: Columns) -> None:
        """Add records to a window; `begun` is the row number of the first."""
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
        if self.row == 0 and lines and lines[0] is not None:
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
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

    def kind_of(self, values: Sequence[Any]) -> str:
        """The type of a field, from some of its values."""
        raise NotImplementedError

    @override
    def columns(self, records: Sequence[Any]) -> Columns:
        known: list[dict[str, Any]] = []
        for record in records:
            try:
                found = self.fields_of(record)
            except RefusedError:
                continue
            if found is not None:
                known.append(found)
        if known and not any(self.fields.text in record for record in known):
            names = ", ".join(dict.fromkeys(str(name) for name in known[0])) or "none"
            raise InputValueError(
                f"{self.name} has no field {self.fields.text!r} in its first rows; it has {names}"
            )
        for name in self.fields.named:
            if known and not any(name in record for record in known):
                raise InputValueError(f"{self.name} has no field {name!r} in its first rows")
        found = {
            name: [record[name] for record in known if record.get(name) is not None]
            for name in self.fields.named
        }
        key = self.fields.id
        if key is not None:  # a value that cannot be an id is a dead letter, and does not count
            found[key] = [value for value in found[key] if is_id(value)]
        kinds = {name: self.kind_of(values) for name, values in found.items()}
        if key is not None and kinds[key] not in ("int64", "string"):
            kinds[key] = "id"  # strings and whole numbers, or nothing that counts
        return kinds

    @override
    def read(self, records: Sequence[Any], begun: int, window: Window, columns: Columns) -> None:
        first = window.begin(self.name, begun, len(records))
        fields = self.fields
        values: list[list[Any]] = [window.values.setdefault(name, []) for name in columns]
        kinds = columns
        if fields.for_collection and fields.id is not None:
            kinds = {**columns, fields.id: "id"}  # any id, whatever the first rows have
        for place, record in enumerate(records):
            key: str | int | None = None
            try:
                given = self.fields_of(record)
                if given is None:
                    window.blank += 1
                    continue
                key = first + place if fields.id is None else id_of(given.get(fields.id), fields.id)
                text = text_of(given, fields)
                row = [
                    fitted(given.get(name), kinds[name], name, as_json=fields.kept_as_json)
                    for name in columns
                ]
            except RefusedError as refused:
                window.dead.append(letter_of(self.name, begun + place, key, refused))
                continue
            for column, value in zip(values, row, strict=True):
                column.append(value)
            window.numbers.append(first + place)
            window.texts.append(text)
