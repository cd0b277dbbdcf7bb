"""Reading jsonl: a JSON object a line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from flowvec.compat import override
from flowvec.texts.readers.base import LineReader, RecordReader
from flowvec.texts.row_checks import RefusedError, decoded_line
from flowvec.texts.sources import Source
from flowvec.texts.window import Columns, Fields, Window

__all__ = ["JsonReader"]

# Python's parser gives up somewhere near 1,000 levels, sooner in a deep stack, and Arrow's does not
# look into fields that nobody asked for: one limit for both.
_DEEPEST = 500
# Arrow's parser takes a window at once, and a third of the time; more bytes than these it need not
# hold twice.
_MOST_AT_ONCE = 1 << 26


class JsonReader(RecordReader, LineReader):
    """Reads a window of plain objects at once, and any other line by line."""

    def __init__(self, source: Source, fields: Fields, lines: Iterator[list[bytes | None]]) -> None:
        super().__init__(source, fields, lines)
        self._arrow = _arrow_json()

    @override
    def fields_of(self, record: bytes | None) -> dict[str, Any] | None:
        line = decoded_line(record, self.fields)
        if not line or line.isspace():
            return None
        if record is not None and _may_be_too_deep(record) and _depth(line) > _DEEPEST:
            raise RefusedError("malformed", f"the line is nested more than {_DEEPEST} deep")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RefusedError("malformed", f"the line is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise RefusedError("malformed", "the line is no JSON object")
        return found

    @override
    def kind_of(self, values: Sequence[Any]) -> str:
        # What most are: one row that is wrong must not decide for all.
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
        self, records: Sequence[bytes | None], begun: int, window: Window, columns: Columns
    ) -> None:
        found = self._at_once(records, columns)
        if found is None:
            super().read(records, begun, window, columns)
            return
        first = window.begin(self.name, begun, len(records))
        window.numbers += range(first, first + len(records))
        window.texts += found[self.fields.text]
        for name in columns:
            window.values.setdefault(name, []).extend(found[name])

    def _at_once(
        self, records: Sequence[bytes | None], columns: Columns
    ) -> dict[str, list[Any]] | None:
        """The fields of all records; None where one of them may be anything but plain.

        It gives what reading line by line gives, or nothing: a record that is blank, refused or
        repaired there sends all of them there.
        """
        arrow, fields = self._arrow, self.fields
        if arrow is None or "json" in columns.values():
            return None
        if fields.id is not None and columns[fields.id] not in ("int64", "string"):
            return None
        try:
            block = b"\n".join(records)  # type: ignore[arg-type]
        except TypeError:  # a line was too long
            return None
        # The parser takes a line's end for any other white space. Within an object none can stand
        # between } and {; so each of these lines holds one object or more, and as many objects as
        # lines means one in each.
        if block.count(b"}\n{") != len(records) - 1 or len(block) > _MOST_AT_ONCE:
            return None
        # Of anything else before or after them the parser reads past its memory.
        if not (block.startswith(b"{") and block.endswith(b"}")):
            return None
        if _may_be_too_deep(block) and any(map(_may_be_too_deep, records)):  # type: ignore[arg-type]
            return None
        types = {"int64": arrow.int64(), "double": arrow.float64(), "bool": arrow.bool_(),
                 "string": arrow.string()}  # fmt: skip
        schema = {name: types[kind] for name, kind in columns.items()}
        if schema.setdefault(fields.text, arrow.string()) != arrow.string():
            return None
        try:
            block.decode()  # the parser does not look into fields that are not asked for
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
        needed = [fields.text] if fields.id is None else [fields.text, fields.id]
        if len(table) != len(records) or any(table[name].null_count for name in needed):
            return None
        values = {name: table[name].to_pylist() for name in schema}
        if fields.kept_as_json:
            for name in (name for name, kind in columns.items() if kind == "double"):
                if not all(value is None or isfinite(value) for value in values[name]):
                    return None
        return values


def _may_be_too_deep(line: bytes) -> bool:
    """Whether there are brackets enough; a quick look at nearly all lines."""
    return line.count(b"{") + line.count(b"[") > _DEEPEST


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|([{\[])|([}\]])', re.DOTALL)


def _depth(line: str) -> int:
    """How deep a line of JSON is nested; brackets within texts do not count."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(line):
        if found[1]:
            depth += 1
            deepest = max(deepest, depth)
        elif found[2]:
            depth -= 1
    return deepest


def _arrow_json() -> Any:
    """pyarrow with its parser; None where it is not installed."""
    try:
        import pyarrow
        import pyarrow.json
    except ImportError:
        return None
    return pyarrow
