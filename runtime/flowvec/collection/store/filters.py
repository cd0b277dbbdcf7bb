"""Filters over rows: a dict in, one parameterised SQL condition out.

    {"lang": "en", "year": {">=": 2020, "<": 2024}, "or": [{"tag": "a"}, {"tag": {"in": ["b"]}}]}

All entries of a dict must be true. `and` and `or` take lists of filters, `not` takes one filter.
`$id` is the row's id, and `$text` its text. Any other key is a field of the metadata, also `id` and
`text`. Dots lead into nested objects (`"author.name"`). A backslash makes a dot, or one of these
five words, literal: `"a\\\\.b"` is the field `a.b`, and `"\\\\$id"` the field `$id`. A field is
compared with a value, or with a dict of operators that must all be true:

    =  !=                 a text, number, bool or None; numbers equal numbers of any kind
    <  <=  >  >=          a number with numbers, or a text with texts, by code points
    in  not in            a list of such values
    contains              the field is a list that holds the value, or a text that contains it
    starts with           the field is a text that starts with the value
    exists                True: the field is there, even if it is null; False: it is not

None stands for both a null and a missing field. `!=` and `not in` are the exact opposites of `=`
and `in`, so they are true if the field is missing. Values of different types are never equal:
1 is not "1", and True is not 1. Upper and lower case differ. Dates, UUIDs and Decimals are compared
as `values` stores them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flowvec.collection.store.filter_columns import COLUMNS
from flowvec.collection.store.filter_values import (
    checked_scalar,
    checked_text,
    checked_values,
    end_of_prefix,
)
from flowvec.errors import InputTypeError, InputValueError
from flowvec.texts.unicode import replace_surrogates

__all__ = ["Condition", "Filter", "add_functions", "compile_filter", "field_names"]

Filter = Mapping[str, Any]

_MAX_DEPTH = 32
# SQLite's oldest limit on parameters in one statement is 999; lists are one parameter each.
_MAX_PARAMETERS = 900
_OPPOSITES = {"!=": "=", "not in": "in"}
# How other libraries write what has other names here.
_ELSEWHERE = {"$and": "and", "$or": "or", "$not": "not"}

# SQLite cuts a text from JSON at a NUL, which is always escaped in JSON. In rows with a NUL, Python
# reads the text.
_NO_NUL = "instr(metadata, '\\u0000') = 0"
_TEXT, _HOLDS = "flowvec_text", "flowvec_holds"
_WHOLE_TEXT = f"CASE WHEN {_NO_NUL} THEN json_extract(metadata, ?) ELSE {_TEXT}(metadata, ?) END"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition over the table `items`, with `?` for each parameter in order."""

    sql: str
    parameters: tuple[str | int | float | None, ...]


def compile_filter(filter: object) -> Condition:
    """Translate a filter; values and field names become parameters, never SQL.

    Raises:
        InputTypeError: it is not a dict, or a value has a type that metadata cannot have.
        InputValueError: an operator is unknown, a field name cannot be used, a number is NaN,
            infinite or of more than 64 bits, or it is nested deeper than 32 levels or too long.
    """
    compiler = _Compiler()
    sql = compiler.filter(filter, 0)
    if len(compiler.parameters) > _MAX_PARAMETERS:
        raise InputValueError(
            f"the filter has more than {_MAX_PARAMETERS} conditions; a list of values for `in` "
            "counts as few"
        )
    return Condition(sql, tuple(compiler.parameters))


def add_functions(db: sqlite3.Connection) -> None:
    """Register the functions that conditions use."""
    db.create_function(_TEXT, 2, _text_at, deterministic=True)
    db.create_function(_HOLDS, 3, _list_holds, deterministic=True)


def _text_at(metadata: str | None, path: str) -> str | None:
    value = _value_at(metadata, path)
    # SQLite would not take a lone surrogate.
    return replace_surrogates(value) if isinstance(value, str) else None


def _list_holds(metadata: str | None, path: str, text: str) -> bool:
    value = _value_at(metadata, path)
    return isinstance(value, list) and text in value


def _value_at(metadata: str | None, path: str) -> Any:
    """A field by its path, as `_path` makes it; None if there is none."""
    value: Any = None if metadata is None else json.loads(metadata)
    for name in path.removeprefix('$."').removesuffix('"').split('"."'):
        value = value.get(name) if isinstance(value, dict) else None
    return value


class _Compiler:
    def __init__(self) -> None:
        self.parameters: list[str | int | float | None] = []
        self.filters = 0

    def filter(self, filter: object, depth: int) -> str:
        if not isinstance(filter, Mapping):
            raise InputTypeError(f"a filter must be a dict, not {type(filter).__name__}")
        self.filters += 1
        if self.filters > _MAX_PARAMETERS:
            raise InputValueError(f"the filter is made of more than {_MAX_PARAMETERS} filters")
        if depth > _MAX_DEPTH:
            raise InputValueError(f"the filter is nested deeper than {_MAX_DEPTH} levels")
        return _joined("AND", [self.entry(key, value, depth) for key, value in filter.items()])

    def entry(self, key: object, value: object, depth: int) -> str:
        if not isinstance(key, str):
            raise InputTypeError(f"a filter's keys are texts, not {type(key).__name__}")
        if key == "not":
            return f"NOT ({self.filter(value, depth + 1)})"
        if key in ("and", "or"):
            if not isinstance(value, list | tuple):
                raise InputTypeError(f"{key!r} takes a list of filters")
            return _joined(key.upper(), [self.filter(part, depth + 1) for part in value])
        if key in _ELSEWHERE:
            raise InputValueError(f"{key!r} is written {_ELSEWHERE[key]!r} in filters")
        path = key if key in COLUMNS else _path(key)
        if not isinstance(value, Mapping):
            return self.operator(path, "=", value)
        if not value:
            raise InputValueError(f"the field {key!r} has a dict without an operator")
        return _joined("AND", [self.operator(path, name, v) for name, v in value.items()])

    def operator(self, path: str, name: object, value: Any) -> str:
        if name in _OPPOSITES:
            return f"NOT ({self.operator(path, _OPPOSITES[str(name)], value)})"
        operators: dict[str, Callable[[str, Any], str]] = {
            "=": self.equals,
            "in": self.is_in,
            "contains": self.contains,
            "starts with": self.starts_with,
            "exists": self.exists,
            **{sign: partial(self.compared, sign) for sign in ("<", "<=", ">", ">=")},
        }
        if name not in operators:
            names = ", ".join(["=", "!=", "in", "not in", *list(operators)[2:]])
            raise InputValueError(f"{name!r} is not an operator; choose from {names}")
        if path in COLUMNS:
            sql, parameters = COLUMNS[path](str(name), value)
            self._use(*parameters)
            return sql
        return operators[str(name)](path, value)

    def _use(self, *parameters: str | int | float | None) -> None:
        self.parameters += parameters

    def equals(self, path: str, value: object) -> str:
        scalar = checked_scalar(value)
        if scalar is None:
            self._use(path)
            return "coalesce(json_type(metadata, ?), 'null') = 'null'"
        if isinstance(scalar, bool):
            self._use(path)
            return f"coalesce(json_type(metadata, ?), '') = '{json.dumps(scalar)}'"
        self._use(path, path, scalar)
        same = f"{_has_type_of(scalar)} AND json_extract(metadata, ?) = ?"
        return f"({same}{self._whole(path) if isinstance(scalar, str) else ''})"

    def _whole(self, path: str) -> str:
        """SQL for: the text was not cut at a NUL before it was compared. A filter's text has none.

        Few rows have a NUL, so this comes last and costs other rows nothing.
        """
        self._use(path)
        return f" AND ({_NO_NUL} OR instr({_TEXT}(metadata, ?), char(0)) = 0)"

    def compared(self, operator: str, path: str, value: object) -> str:
        scalar = checked_scalar(value)
        if scalar is None or isinstance(scalar, bool):
            raise InputTypeError(f"{operator!r} compares numbers or texts, not {scalar!r}")
        if isinstance(scalar, str):
            self._use(path, path, path, scalar)
            return f"({_has_type_of(scalar)} AND {_WHOLE_TEXT} {operator} ?)"
        self._use(path, path, scalar)
        return f"({_has_type_of(scalar)} AND json_extract(metadata, ?) {operator} ?)"

    def is_in(self, path: str, values: object) -> str:
        scalars = [checked_scalar(value) for value in checked_values("in", values)]
        texts = [v for v in scalars if isinstance(v, str)]
        numbers = [v for v in scalars if isinstance(v, int | float) and not isinstance(v, bool)]
        parts = [self.equals(path, v) for v in (None, True, False) if any(v is s for s in scalars)]
        for listed in (texts, numbers):
            if listed:
                self._use(path, path, json.dumps(listed))
                among = "json_extract(metadata, ?) IN (SELECT value FROM json_each(?))"
                whole = self._whole(path) if listed is texts else ""
                parts.append(f"({_has_type_of(listed[0])} AND {among}{whole})")
        return _joined("OR", parts)

    def contains(self, path: str, value: object) -> str:
        scalar = checked_scalar(value)
        self._use(path, path)
        whole = ""
        if scalar is None or isinstance(scalar, bool):
            same = f"type = '{json.dumps(scalar)}'"
        else:
            same = f"type {_type_of(scalar)} AND value = ?"
            self._use(scalar)
            if isinstance(scalar, str):
                self._use(path, scalar)
                whole = f" AND ({_NO_NUL} OR {_HOLDS}(metadata, ?, ?))"
        listed = (
            "(coalesce(json_type(metadata, ?), '') = 'array' AND "  # noqa: S608 - values are parameters
            f"EXISTS (SELECT 1 FROM json_each(metadata, ?) WHERE {same}){whole})"
        )
        if not isinstance(scalar, str):
            return listed
        self._use(path, path, path, scalar)
        return f"({listed} OR ({_has_type_of(scalar)} AND instr({_WHOLE_TEXT}, ?) > 0))"

    def starts_with(self, path: str, value: object) -> str:
        # A text that is cut at a NUL starts as the whole does.
        prefix = checked_text("starts with", value)
        self._use(path, path, prefix)
        condition = f"{_has_type_of(prefix)} AND json_extract(metadata, ?) >= ?"
        end = end_of_prefix(prefix)
        if end is not None:
            self._use(path, end)
            condition += " AND json_extract(metadata, ?) < ?"
        return f"({condition})"

    def exists(self, path: str, value: object) -> str:
        if not isinstance(value, bool):
            raise InputTypeError(f"'exists' takes True or False, not {value!r}")
        self._use(path)
        return f"json_type(metadata, ?) IS {'NOT ' if value else ''}NULL"


def _has_type_of(scalar: str | int | float) -> str:
    """Never NULL, so that its negation is correct."""
    return f"coalesce(json_type(metadata, ?), '') {_type_of(scalar)}"


def _type_of(scalar: str | int | float) -> str:
    return "= 'text'" if isinstance(scalar, str) else "IN ('integer', 'real')"


def _joined(word: str, parts: list[str]) -> str:
    """`and` of nothing is true, `or` of nothing is false."""
    if not parts:
        return "1" if word == "AND" else "0"
    return parts[0] if len(parts) == 1 else "(" + f" {word} ".join(parts) + ")"


def field_names(key: str) -> list[str]:
    """The names that lead to a field: dots lead inwards, a backslash makes a character literal."""
    names = [""]
    characters = iter(key)
    for character in characters:
        if character == ".":
            names.append("")
        elif character == "\\":
            names[-1] += next(characters, "")
        else:
            names[-1] += character
    return names


def _path(key: str) -> str:
    """A field as SQLite's JSON path, every name in quotes.

    Names with quotes, backslashes or control characters are stored escaped, and SQLite's paths
    reach them in some versions only: they are refused.
    """
    names = field_names(key)
    for name in names:
        plain = all(ord(c) >= 32 and c not in '"\\' and not 0xD800 <= ord(c) < 0xE000 for c in name)
        if not name or not plain:
            raise InputValueError(
                f"the field {key!r} cannot be filtered by: names must not be empty, nor hold "
                "quotes, backslashes or control characters"
            )
    return "$" + "".join(f'."{name}"' for name in names)
