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
    empty                 True: it is missing, null, an empty text, list or object; False: none

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
    checked_flag,
    checked_scalar,
    checked_text,
    checked_values,
    end_of_prefix,
)
from flowvec.collection.store.json_field import NO_NUL, JsonField, path_of
from flowvec.errors import InputTypeError, InputValueError
from flowvec.spelled import A_DICT, kind_of, shown
from flowvec.texts.unicode import replace_surrogates

__all__ = ["Condition", "Filter", "add_functions", "compile_filter"]

Filter = Mapping[str, Any]

_MAX_DEPTH = 32
# SQLite's oldest limit on parameters in one statement is 999; lists are one parameter each.
_MAX_PARAMETERS = 900
_MAX_SQL = 900_000  # SQLite's limit is a million bytes
_OPPOSITES = {"!=": "=", "not in": "in"}
# How other libraries write what has other names here.
_ELSEWHERE = {"$and": "and", "$or": "or", "$not": "not"}

# Python's functions for texts with a NUL: see `json_field`.
_TEXT, _HOLDS = "flowvec_text", "flowvec_holds"
_IS_TEXT, _IS_ARRAY = "= 'text'", "= 'array'"
_IS_MISSING, _IS_MADE = "IN ('', 'null')", "IN ('array', 'object')"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition over the table `items`, with `?` for each parameter in order."""

    sql: str
    parameters: tuple[str | int | float | None, ...]


def compile_filter(filter: object) -> Condition:
    """Translate a filter. Values become parameters; field names become quoted SQL texts.

    Raises:
        InputTypeError: it is not a dict, or a value has a type that metadata cannot have.
        InputValueError: an operator is unknown, a field name cannot be used, a number is NaN,
            infinite or of more than 64 bits, or it is nested deeper than 32 levels or too long.
    """
    compiler = _Compiler()
    sql = compiler.filter(filter, 0)
    if len(compiler.parameters) > _MAX_PARAMETERS or compiler.uses > _MAX_PARAMETERS:
        raise InputValueError(
            f"the filter has more than {_MAX_PARAMETERS} conditions; a list of values for `in` "
            "counts as few"
        )
    if len(sql) > _MAX_SQL:
        raise InputValueError("the filter's field names are too long together")
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
    """A field by its path, as `path_of` makes it; None if there is none."""
    value: Any = None if metadata is None else json.loads(metadata)
    for name in path.removeprefix('$."').removesuffix('"').split('"."'):
        value = value.get(name) if isinstance(value, dict) else None
    return value


class _Compiler:
    def __init__(self) -> None:
        self.parameters: list[str | int | float | None] = []
        self.filters = self.uses = 0

    def filter(self, filter: object, depth: int) -> str:
        if not isinstance(filter, Mapping):
            raise InputTypeError("a filter must be ", A_DICT, ", not ", kind_of(filter))
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
        path = key if key in COLUMNS else path_of(key)
        if not isinstance(value, Mapping):
            return self.operator(path, "=", value)
        if not value:
            raise InputValueError(f"the field {key!r} has ", A_DICT, " without an operator")
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
            "empty": self.is_empty,
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

    def _field(self, path: str) -> JsonField:
        self.uses += 2  # as deep as SQLite lets a statement be nested
        return JsonField(path)

    def equals(self, path: str, value: object) -> str:
        field, scalar = self._field(path), checked_scalar(value)
        if scalar is None:
            return f"{field.value} IS NULL"
        if isinstance(scalar, bool):
            # SQLite reads true as 1. With the number, an index over the field finds the rows.
            same_type = field.has_type(f"= '{json.dumps(scalar)}'")
            return f"({same_type} AND {field.value} = {int(scalar)})"
        self._use(scalar)
        same = f"{field.has_type(_type_of(scalar))} AND {field.value} = ?"
        return f"({same}{self._whole(field) if isinstance(scalar, str) else ''})"

    def _whole(self, field: JsonField) -> str:
        """SQL for: the text was not cut at a NUL before it was compared. A filter's text has none.

        Few rows have a NUL, so this comes last and costs other rows nothing.
        """
        self._use(field.path)
        return f" AND ({NO_NUL} OR instr({_TEXT}(metadata, ?), char(0)) = 0)"

    def _whole_text(self, field: JsonField) -> str:
        self._use(field.path)
        return f"CASE WHEN {NO_NUL} THEN {field.value} ELSE {_TEXT}(metadata, ?) END"

    def compared(self, operator: str, path: str, value: object) -> str:
        field, scalar = self._field(path), checked_scalar(value)
        if scalar is None or isinstance(scalar, bool):
            raise InputTypeError(f"{operator!r} compares numbers or texts, not ", shown(scalar))
        same_type = field.has_type(_type_of(scalar))
        if not isinstance(scalar, str):
            self._use(scalar)
            # All numbers are less than all texts, which an index need not look at then.
            least = f" AND {field.value} < ''" if operator[0] == ">" else ""
            return f"({same_type} AND {field.value} {operator} ?{least})"
        # For an index: a text that is cut is not greater than the whole, nor less if it differs.
        bound = f"{field.value} {operator[0]}= ?"
        self._use(scalar)
        if operator[0] == "<":
            bound += f" AND {field.value} >= ''"
        whole = self._whole_text(field)
        self._use(scalar)
        return f"({same_type} AND {bound} AND {whole} {operator} ?)"

    def is_in(self, path: str, values: object) -> str:
        scalars = [checked_scalar(value) for value in checked_values("in", values)]
        texts = [v for v in scalars if isinstance(v, str)]
        numbers = [v for v in scalars if isinstance(v, int | float) and not isinstance(v, bool)]
        parts = [self.equals(path, v) for v in (None, True, False) if any(v is s for s in scalars)]
        for listed in (texts, numbers):
            if listed:
                field = self._field(path)
                self._use(json.dumps(listed))
                among = f"{field.value} IN (SELECT value FROM json_each(?))"  # noqa: S608 - quoted names
                whole = self._whole(field) if listed is texts else ""
                parts.append(f"({field.has_type(_type_of(listed[0]))} AND {among}{whole})")
        return _joined("OR", parts)

    def contains(self, path: str, value: object) -> str:
        field, scalar = self._field(path), checked_scalar(value)
        self._use(path)
        whole = ""
        if scalar is None or isinstance(scalar, bool):
            same = f"type = '{json.dumps(scalar)}'"
        else:
            same = f"type {_type_of(scalar)} AND value = ?"
            self._use(scalar)
            if isinstance(scalar, str):
                self._use(path, scalar)
                whole = f" AND ({NO_NUL} OR {_HOLDS}(metadata, ?, ?))"
        inside = f"EXISTS (SELECT 1 FROM json_each(metadata, ?) WHERE {same})"  # noqa: S608 - types alone
        listed = f"({field.has_type(_IS_ARRAY)} AND {inside}{whole})"
        if not isinstance(scalar, str):
            return listed
        text = self._whole_text(field)
        self._use(scalar)
        return f"({listed} OR ({field.has_type(_IS_TEXT)} AND instr({text}, ?) > 0))"

    def starts_with(self, path: str, value: object) -> str:
        # A text that is cut at a NUL starts as the whole does.
        field, prefix = self._field(path), checked_text("starts with", value)
        self._use(prefix)
        condition = f"{field.has_type(_IS_TEXT)} AND {field.value} >= ?"
        end = end_of_prefix(prefix)
        if end is not None:
            self._use(end)
            condition += f" AND {field.value} < ?"
        return f"({condition})"

    def exists(self, path: str, value: object) -> str:
        return f"{self._field(path).type} IS {'NOT ' if checked_flag('exists', value) else ''}NULL"

    def is_empty(self, path: str, value: object) -> str:
        field = self._field(path)
        missing = field.has_type(_IS_MISSING)
        text = f"{field.has_type(_IS_TEXT)} AND {field.value} = ''{self._whole(field)}"
        made = f"{field.has_type(_IS_MADE)} AND {field.value} IN ('[]', '{{}}')"
        negation = "" if checked_flag("empty", value) else "NOT "
        return f"{negation}({missing} OR ({text}) OR ({made}))"


def _type_of(scalar: str | int | float) -> str:
    return _IS_TEXT if isinstance(scalar, str) else "IN ('integer', 'real')"


def _joined(word: str, parts: list[str]) -> str:
    """`and` of nothing is true, `or` of nothing is false."""
    if not parts:
        return "1" if word == "AND" else "0"
    return parts[0] if len(parts) == 1 else "(" + f" {word} ".join(parts) + ")"
