"""Reads csv files with a header."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flowvec.compat import override
from flowvec.errors import InputValueError
from flowvec.texts.column_types import Observed, check_distinct
from flowvec.texts.lines import BadRecord
from flowvec.texts.readers.base import RecordReader
from flowvec.texts.row_checks import RefusedError
from flowvec.texts.sources import Source
from flowvec.texts.unicode import is_utf8
from flowvec.texts.window import Fields

__all__ = ["CsvReader"]


class CsvReader(RecordReader):
    """Reads csv; every value is a text."""

    def __init__(
        self, source: Source, fields: Fields, records: Iterator[list[str] | BadRecord]
    ) -> None:
        super().__init__(source, fields)
        self._records = records
        header = next(records, [])
        if isinstance(header, BadRecord):
            raise InputValueError(f"the header of {self.name}: {header.reason}")
        self._header = header
        check_distinct(self.name, header, (*fields.texts, *fields.named))
        wanted = [] if any(name in header for name in fields.texts) else [fields.wanted_text]
        wanted += [repr(name) for name in (fields.id,) if name is not None and name not in header]
        if header and wanted:
            raise InputValueError(
                f"{self.name} has no field {wanted[0]}; it has {', '.join(header)}"
            )

    @override
    def take(self, rows: int) -> tuple[int, list[list[str] | BadRecord]]:
        records = [record for _, record in zip(range(rows), self._records, strict=False)]
        self.row += len(records)
        return len(records), records

    @override
    def fields_of(self, record: list[str] | BadRecord) -> dict[str, Any]:
        if isinstance(record, BadRecord):
            raise RefusedError(record.code, record.reason)
        key = self.fields.id
        if len(record) != len(self._header):
            # Only the first field is surely what its column says.
            is_first = bool(record and record[0]) and self._header[:1] == [key]
            raise RefusedError(
                "malformed",
                f"the record has {len(record)} fields, the header {len(self._header)}",
                record[0] if is_first and is_utf8(record[0]) else None,
            )
        values: dict[str, Any] = dict(zip(self._header, record, strict=True))
        wrong = [
            name for name in (*self.fields.texts, *self.fields.named)
            if name in values and not is_utf8(values[name])
        ]  # fmt: skip
        if wrong:
            known = None if key is None or key in wrong else values[key]
            raise RefusedError("invalid_utf8", f"{wrong[0]} is not UTF-8", known)
        if key is not None and not values[key]:  # csv has no other way to write a missing id
            values[key] = None
        return values

    @override
    def observe(self, records: Any, observed: Observed) -> None:
        if self._header:
            observed.note_names(self.name, self._header)
        for name, one in observed.values.items():
            one.from_csv = one.from_csv or name in self._header
