"""Reads jsonl: one JSON object per line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite, isinf
from typing import Any

import numpy as np

from flowvec.compat import override
from flowvec.texts.column_types import Observed
from flowvec.texts.joining import join_texts
from flowvec.texts.lines import json_reason
from flowvec.texts.readers.base import LineReader, RecordReader
from flowvec.texts.row_checks import RefusedError, TooLargeFloat, decoded_line, is_id
from flowvec.texts.sources import Source
from flowvec.texts.unicode import is_utf8
from flowvec.texts.window import Columns, Fields, Window

__all__ = ["JsonReader"]

# Python's parser fails near 1,000 levels, earlier in a deep stack; Arrow's parser does not look
# into fields that are not requested. So there is one limit for both.
_DEEPEST = 500
# Arrow's parser parses a window at once, in a third of the time. A larger window would need twice
# the memory.
_MOST_AT_ONCE = 1 << 26
_GUESSED_FROM = 64  # rows
_EXACT = 1 << 53  # float64 holds all smaller whole numbers
# What a number of JSON has, and a text may have, that is larger than any float64.
_MAY_BE_TOO_LARGE = re.compile(rb"[eE]\+?0*[1-9][0-9]{2}|[0-9]{308}")


class JsonReader(RecordReader, LineReader):
    """Reads a window of plain objects at once, and other windows line by line."""

    is_typed_by_rows = True

    def __init__(self, source: Source, fields: Fields, lines: Iterator[list[bytes | None]]) -> None:
        super().__init__(source, fields, lines)
        self._arrow = _arrow_json()
        self._guess: Columns | None = None

    @override
    def fields_of(self, record: bytes | None) -> dict[str, Any] | None:
        try:
            line = decoded_line(record, self.fields)
        except RefusedError as refused:
            refused.key = self._id_of(record)
            raise
        if not line or line.isspace():
            return None
        if record is not None and _may_be_too_deep(record) and _depth(line) > _DEEPEST:
            raise RefusedError("malformed", f"the line is nested more than {_DEEPEST} deep")
        try:
            if record is not None and _MAY_BE_TOO_LARGE.search(record):
                record_fields = json.loads(line, parse_float=_float_of)
            else:
                record_fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RefusedError("malformed", f"the line is not JSON: {json_reason(error)}") from None
        if not isinstance(record_fields, dict):
            raise RefusedError("malformed", "the line is not a JSON object")
        return record_fields

    def _id_of(self, record: bytes | None) -> str | int | None:
        """The id of a line that is not UTF-8, if the id is; else None."""
        if record is None or self.fields.id is None or _may_be_too_deep(record):
            return None
        try:
            key = json.loads(record.decode("utf-8", "surrogateescape")).get(self.fields.id)
        except (AttributeError, ValueError, RecursionError):
            return None
        return key if is_id(key) and is_utf8(str(key)) else None

    @override
    def observe(self, records: Sequence[bytes | None], observed: Observed) -> None:
        table = None
        if observed.is_complete:  # else null and absent are to be told apart
            kinds = {name: one.kind("json") for name, one in observed.values.items()}
            table = self._table(records, kinds)
        if table is not None:
            for name, one in observed.values.items():
                one.add_array(table[name])
            return
        for record in records:
            try:
                record_fields = self.fields_of(record)
            except RefusedError:
                continue
            if record_fields is None:
                continue
            observed.note_names(self.name, record_fields)
            for name, one in observed.values.items():
                value = record_fields.get(name)
                if name != self.fields.id or is_id(value):  # others are dead letters
                    one.add(value)
            if observed.is_enough:
                return

    @override
    def read(
        self, records: Sequence[bytes | None], first_row: int, window: Window, columns: Columns
    ) -> None:
        plain = self._at_once(records, columns)
        if plain is None:
            super().read(records, first_row, window, columns)
            return
        texts, values = plain
        first = window.begin(self.name, first_row, len(records))
        window.numbers += range(first, first + len(records))
        window.texts += texts
        for name in columns:
            window.extend(name, values[name])
        if self.fields.for_collection:
            window.fields |= {name for name in self.fields.beside_id if any(
                value is not None for value in values[name])}  # fmt: skip

    def _at_once(
        self, records: Sequence[bytes | None], columns: Columns
    ) -> tuple[list[str], dict[str, list[Any]]] | None:
        """Texts and fields of all records; None if one of them may not be plain.

        The result equals reading line by line. If a record would be blank, refused or repaired
        there, all records are read line by line.
        """
        fields = self.fields
        table = self._table(records, self._kinds(records) if fields.for_collection else columns)
        if table is None or (fields.id is not None and table[fields.id].null_count):
            self._guess = None
            return None
        values: dict[str, list[Any]] = {
            name: table[name].to_pylist() for name in (*fields.texts, *columns)
        }
        texts: list[Any] = values[fields.texts[0]]
        if len(fields.texts) > 1:
            parts = [values[name] for name in fields.texts]
            texts = [join_texts(row) for row in zip(*parts, strict=True)]
        if None in texts:
            self._guess = None
            return None
        if fields.kept_as_json:
            for name in (name for name, kind in columns.items() if kind == "double"):
                if not all(value is None or isfinite(value) for value in values[name]):
                    return None
        return texts, values

    def _kinds(self, records: Sequence[bytes | None]) -> Columns | None:
        """For a collection, whose values keep their types: what the next rows probably have."""
        if self._guess is None:
            observed = Observed(replace(self.fields, for_collection=False))
            self.observe(records[:_GUESSED_FROM], observed)
            self._guess = observed.columns()
        # Arrow would make a whole number beside numbers with a point a float.
        return None if "double" in self._guess.values() else self._guess

    def _table(self, records: Sequence[bytes | None], kinds: Columns | None) -> Any:
        """The text and other fields of all records as an Arrow table.

        None if one of the records may not be plain, or has a value that is not of the given types
        exactly.
        """
        arrow, fields = self._arrow, self.fields
        if arrow is None or kinds is None:
            return None
        types = {"int64": arrow.int64(), "uint64": arrow.uint64(), "double": arrow.float64(),
                 "bool": arrow.bool_(), "string": arrow.string(), "null": arrow.null()}  # fmt: skip
        if not all(isinstance(kind, str) and kind in types for kind in kinds.values()):
            return None
        try:
            block = b"\n".join(records)  # type: ignore[arg-type]
        except TypeError:  # a line was too long
            return None
        # The parser treats line ends as white space. No line ends between } and { of one object, so
        # each line holds at least one object, and as many objects as lines means one per line.
        if block.count(b"}\n{") != len(records) - 1 or len(block) > _MOST_AT_ONCE:
            return None
        # With anything else before or after them, the parser reads past its memory.
        if not (block.startswith(b"{") and block.endswith(b"}")):
            return None
        if _may_be_too_deep(block) and any(map(_may_be_too_deep, records)):  # type: ignore[arg-type]
            return None
        schema = {name: types[kind] for name, kind in kinds.items()}
        if any(schema.setdefault(name, arrow.string()) != arrow.string() for name in fields.texts):
            return None
        try:
            block.decode()  # the parser does not look into fields that are not requested
            table = arrow.json.read_json(
                arrow.BufferReader(block),
                read_options=arrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                parse_options=arrow.json.ParseOptions(
                    explicit_schema=arrow.schema(list(schema.items())),
                    newlines_in_values=False,
                    unexpected_field_behavior="ignore",
                ),
            )
        except (UnicodeDecodeError, arrow.ArrowException):
            return None
        are_exact = all(_is_exact(table[n]) for n, kind in kinds.items() if kind == "double")
        return table if len(table) == len(records) and are_exact else None


def _is_exact(column: Any) -> bool:
    """Whether numbers are those of the lines: Arrow rounds large ones, and -0 is a whole number."""
    numbers = column.to_numpy()
    return not bool(((abs(numbers) >= _EXACT) | ((numbers == 0) & np.signbit(numbers))).any())


def _float_of(number: str) -> float:
    value = float(number)
    return TooLargeFloat(value) if isinf(value) else value


def _may_be_too_deep(line: bytes) -> bool:
    """Whether a line has enough brackets to be too deep; quick for nearly all lines."""
    return line.count(b"{") + line.count(b"[") > _DEEPEST


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|([{\[])|([}\]])', re.DOTALL)


def _depth(line: str) -> int:
    """How deep a line of JSON is nested; brackets in strings do not count."""
    depth = deepest = 0
    for bracket in _BRACKETS.finditer(line):
        if bracket[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif bracket[2]:
            depth -= 1
    return deepest


def _arrow_json() -> Any:
    """pyarrow with its parser; None if it is not installed."""
    try:
        import pyarrow
        import pyarrow.json
    except ImportError:
        return None
    return pyarrow
