"""Reads jsonl: one JSON object per line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from flowvec.compat import override
from flowvec.texts.joining import join_texts
from flowvec.texts.lines import json_reason
from flowvec.texts.readers.base import LineReader, RecordReader
from flowvec.texts.row_checks import RefusedError, decoded_line, is_id
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


class JsonReader(RecordReader, LineReader):
    """Reads a window of plain objects at once, and other windows line by line."""

    def __init__(self, source: Source, fields: Fields, lines: Iterator[list[bytes | None]]) -> None:
        super().__init__(source, fields, lines)
        self._arrow = _arrow_json()

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
    def kind_of(self, values: Sequence[Any]) -> str:
        # The most common type: one wrong row must not decide for all.
        known = {bool: "bool", int: "number", float: "number", str: "string"}
        counts = Counter(known.get(type(value), "json") for value in values)
        kind, most = counts.most_common(1)[0] if counts else ("json", 0)
        if 2 * most <= len(values):
            return "json"
        if kind == "number":
            return "double" if any(type(value) is float for value in values) else "int64"
        return kind

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
            window.values.setdefault(name, []).extend(values[name])
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
        arrow, fields = self._arrow, self.fields
        if arrow is None or "json" in columns.values():
            return None
        if fields.for_collection and "double" in columns.values():
            return None  # Arrow would make a whole number a float
        if fields.id is not None and columns[fields.id] not in ("int64", "string"):
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
        types = {"int64": arrow.int64(), "double": arrow.float64(), "bool": arrow.bool_(),
                 "string": arrow.string()}  # fmt: skip
        schema = {name: types[kind] for name, kind in columns.items()}
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
        if len(table) != len(records) or (fields.id is not None and table[fields.id].null_count):
            return None
        values: dict[str, list[Any]] = {name: table[name].to_pylist() for name in schema}
        texts: list[Any] = values[fields.texts[0]]
        if len(fields.texts) > 1:
            parts = [values[name] for name in fields.texts]
            texts = [join_texts(row) for row in zip(*parts, strict=True)]
        if None in texts:
            return None
        if fields.kept_as_json:
            for name in (name for name, kind in columns.items() if kind == "double"):
                if not all(value is None or isfinite(value) for value in values[name]):
                    return None
        return texts, values


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
