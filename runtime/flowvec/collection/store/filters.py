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
import math
import sqlite3
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeGuard

from flowvec.collection.store.filter_columns import (
    COLUMNS,
    CONTAINS,
    text_contains,
    text_starts_with,
)
from flowvec.collection.store.filter_values import (
    checked_flag,
    checked_scalar,
    checked_text,
    checked_values,
    forms_of,
    is_large,
)
from flowvec.collection.store.json_field import NO_NUL, JsonField, path_of
from flowvec.errors import InputTypeError, InputValueError
from flowvec.spelled import A_DICT, kind_of, shown

__all__ = ["Condition", "Filter", "add_functions", "compile_filter"]

Filter = Mapping[str, Any]

_MAX_DEPTH = 32
_MAX_CONDITIONS = 1000
_MAX_FILTERS = 2 * _MAX_CONDITIONS
# Of one statement. SQLite before 3.32 takes 999.
_MAX_PARAMETERS = 30_000 if sqlite3.sqlite_version_info >= (3, 32) else 900
# How many conditions are joined in a row: each nests a statement deeper, and SQLite takes 1,000.
_ROW = 16
_MAX_SQL = 900_000  # SQLite's limit is a million bytes
_OF_ABSENCE = {"exists", "empty"}
_OPPOSITES = {"!=": "=", "not in": "in"}
_WORDS = ("and", "or", "not")
# How other libraries write what has other names here.
_ELSEWHERE = {"$and": "and", "$or": "or", "$not": "not"}
_OPERATORS_ELSEWHERE = {
    "eq": "=", "==": "=", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=",
    "in": "in", "nin": "not in",
}  # fmt: skip

# Python's functions for texts with a NUL: see `json_field`.
_TEXT, _HOLDS = "flowvec_text", "flowvec_holds"
# For numbers that SQLite rounds, and for a list of them.
_ORDER, _AMONG = "flowvec_order", "flowvec_among"
_IS_TEXT, _IS_ARRAY = "= 'text'", "= 'array'"
_NUMBERS = "IN ('integer', 'real')"
_LARGEST_FLOAT = sys.float_info.max
_IS_MISSING, _IS_MADE = "IN ('', 'null')", "IN ('array', 'object')"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition over the table `items`, with `?` for each parameter in order.

    `fields` are those whose values it compares, as filters name them.
    """

    sql: str
    parameters: tuple[str | int | float | None, ...]
    fields: tuple[str, ...] = ()


def compile_filter(filter: object) -> Condition:
    """Translate a filter. Values become parameters; field names become quoted SQL texts.

    Raises:
        InputTypeError: it is not a dict, or a value has a type that metadata cannot have.
        InputValueError: an operator is unknown, a field name cannot be used, a number is NaN,
            infinite, or it is nested deeper than 32 levels or too long.
    """
    compiler = _Compiler()
    sql = compiler.filter(filter, 0)
    if compiler.conditions > _MAX_CONDITIONS or len(compiler.parameters) > _MAX_PARAMETERS:
        raise InputValueError(
            f"the filter has {compiler.conditions} conditions, and {_MAX_CONDITIONS} are the most; "
            "a list of values for `in` is one condition"
        )
    if len(sql) > _MAX_SQL:
        raise InputValueError("the filter is too long")
    return Condition(sql, tuple(compiler.parameters), tuple(dict.fromkeys(compiler.fields)))


def add_functions(db: sqlite3.Connection) -> None:
    """Register the functions that conditions use."""
    db.create_function(_TEXT, 2, _text_at, deterministic=True)
    db.create_function(_HOLDS, 3, _list_holds, deterministic=True)
    db.create_function(_ORDER, 3, _order, deterministic=True)
    db.create_function(_AMONG, 3, _is_among, deterministic=True)
    db.create_function(CONTAINS, 2, _contains, deterministic=True)


def _contains(text: str | None, part: str) -> bool | None:
    return None if text is None else part in unicodedata.normalize("NFC", text)


def _text_at(metadata: str | None, path: str) -> str | None:
    value = _value_at(metadata, path)
    return value if isinstance(value, str) else None


def _list_holds(metadata: str | None, path: str, values: str) -> bool:
    held = _value_at(metadata, path)
    listed = _parsed(values)
    return isinstance(held, list) and any(type(v) is not bool and v in listed for v in held
                                          if isinstance(v, str | int | float))  # fmt: skip


def _order(metadata: str | None, path: str, number: str) -> int | None:
    """Whether a number is below another, equal or above: -1, 0 or 1."""
    value, (other,) = _value_at(metadata, path), _parsed(number)
    return (value > other) - (value < other) if isinstance(value, int | float) else None


def _is_among(metadata: str | None, path: str, numbers: str) -> bool:
    value = _value_at(metadata, path)
    return isinstance(value, int | float) and value in _parsed(numbers)


@lru_cache(64)
def _parsed(values: str) -> frozenset[Any]:
    return frozenset(json.loads(values))


def _value_at(metadata: str | None, path: str) -> Any:
    """A field by its path, as `path_of` makes it; None if there is none."""
    value: Any = None if metadata is None else json.loads(metadata)
    for name in path.removeprefix('$."').removesuffix('"').split('"."'):
        value = value.get(name) if isinstance(value, dict) else None
    return value


class _Compiler:
    def __init__(self) -> None:
        self.parameters: list[str | int | float | None] = []
        self.fields: list[str] = []
        self.filters = self.conditions = 0

    def filter(self, filter: object, depth: int) -> str:
        if not isinstance(filter, Mapping):
            raise InputTypeError("a filter must be ", A_DICT, ", not ", kind_of(filter))
        self.filters += 1
        if self.filters > _MAX_FILTERS:
            raise InputValueError(f"the filter is made of more than {_MAX_FILTERS} filters")
        if depth > _MAX_DEPTH:
            raise InputValueError(
                f"the filter is nested deeper than {_MAX_DEPTH} levels; more than {_ROW} filters "
                "beside each other count as levels, too"
            )
        depth += _rows_of(filter)
        entries = sorted(filter.items(), key=lambda entry: -_depth(dict([entry])))
        return _joined("AND", [self.entry(key, value, depth) for key, value in entries])

    def entry(self, key: object, value: object, depth: int) -> str:
        if not isinstance(key, str):
            raise InputTypeError(f"a filter's keys are texts, not {type(key).__name__}")
        if key == "not":
            return f"NOT ({self.filter(value, depth + 1)})"
        if key in ("and", "or"):
            if not isinstance(value, list | tuple):
                raise InputTypeError(f"{key!r} takes a list of filters")
            parts = merged(value) if key == "or" else value
            depth += 1 + _rows_of(parts)
            parts = sorted(parts, key=_depth, reverse=True)
            return _joined(key.upper(), [self.filter(part, depth) for part in parts])
        if key in _ELSEWHERE:
            raise InputValueError(f"{key!r} is written {_ELSEWHERE[key]!r} in filters")
        path = key if key in COLUMNS else path_of(key)
        if path not in COLUMNS and not (isinstance(value, Mapping) and _OF_ABSENCE & value.keys()):
            self.fields.append(key)
        if not isinstance(value, Mapping):
            return self.operator(path, "=", value)
        if not value:
            raise InputValueError(f"the field {key!r} has ", A_DICT, " without an operator")
        return _joined("AND", [self.operator(path, name, v) for name, v in value.items()])

    def operator(self, path: str, name: object, value: Any) -> str:
        if name in _OPPOSITES:
            return f"NOT ({self.operator(path, _OPPOSITES[str(name)], value)})"
        self.conditions += 1
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
            if instead := _OPERATORS_ELSEWHERE.get(str(name).removeprefix("$")):
                raise InputValueError(f"{name!r} is written {instead!r} in filters")
            names = ", ".join(["=", "!=", "in", "not in", *list(operators)[2:]])
            raise InputValueError(
                f"{name!r} is not an operator; choose from {names}. A field inside another is "
                "written with a dot, 'outer.inner'"
            )
        if path in COLUMNS:
            sql, parameters = COLUMNS[path](str(name), value)
            self._use(*parameters)
            return sql
        return operators[str(name)](path, value)

    def _use(self, *parameters: str | int | float | None) -> None:
        self.parameters += parameters

    def equals(self, path: str, value: object) -> str:
        field, scalar = JsonField(path), checked_scalar(value)
        if scalar is None:
            return f"{field.value} IS NULL"
        if isinstance(scalar, bool):
            # SQLite reads true as 1. With the number, an index over the field finds the rows.
            same_type = field.has_type(f"= '{json.dumps(scalar)}'")
            return f"({same_type} AND {field.value} = {int(scalar)})"
        if is_large(scalar):
            return self.large_in(field, [scalar])
        self._use(scalar)
        same = f"{field.has_type(_type_of(scalar))} AND {field.value} = ?"
        return f"({same}{self._whole(field) if isinstance(scalar, str) else ''})"

    def large_in(self, field: JsonField, numbers: list[Any]) -> str:
        """SQL for: the field is one of numbers that SQLite rounds, which Python compares."""
        least, most = _around(min(numbers))[0], _around(max(numbers))[1]
        self._use(least, most, json.dumps(numbers))
        return (
            f"({field.has_type(_NUMBERS)} AND {field.value} >= ? AND {field.value} <= ? AND "
            f"{_AMONG}(metadata, {field.literal}, ?))"
        )

    def large_compared(self, field: JsonField, operator: str, number: Any) -> str:
        """As `compared`, with a number that SQLite rounds, or which is as large as those."""
        (least, most), same_type = _around(number), field.has_type(_NUMBERS)
        near, far = (most, least) if operator[0] == "<" else (least, most)
        self._use(near, far, json.dumps([number]))
        bound = " AND {field.value} < ''" if operator[0] == ">" else ""
        return (
            f"({same_type} AND {field.value} {operator[0]}= ?{bound} AND ({field.value} "
            f"{operator[0]} ? OR {_ORDER}(metadata, {field.literal}, ?) {operator} 0))"
        ).replace("{field.value}", field.value)

    @staticmethod
    def _whole(field: JsonField) -> str:
        """SQL for: the text was not cut at a NUL before it was compared. A filter's text has none.

        Few rows have a NUL, so this comes last and costs other rows nothing.
        """
        return f" AND ({NO_NUL} OR instr({_TEXT}(metadata, {field.literal}), char(0)) = 0)"

    @staticmethod
    def _whole_text(field: JsonField) -> str:
        return f"CASE WHEN {NO_NUL} THEN {field.value} ELSE {_TEXT}(metadata, {field.literal}) END"

    def compared(self, operator: str, path: str, value: object) -> str:
        field, scalar = JsonField(path), checked_scalar(value)
        if scalar is None or isinstance(scalar, bool):
            raise InputTypeError(f"{operator!r} compares numbers or texts, not ", shown(scalar))
        if is_large(scalar):
            return self.large_compared(field, operator, scalar)
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
        field = JsonField(path)
        if large := [v for v in numbers if is_large(v)]:
            parts.append(self.large_in(field, large))
        for listed in (texts, [v for v in numbers if not is_large(v)]):
            if listed:
                self._use(json.dumps(listed))
                among = f"{field.value} IN (SELECT value FROM json_each(?))"  # noqa: S608 - quoted names
                whole = self._whole(field) if listed is texts else ""
                parts.append(f"({field.has_type(_type_of(listed[0]))} AND {among}{whole})")
        return _joined("OR", parts)

    def contains(self, path: str, value: object) -> str:
        field, scalar = JsonField(path), checked_scalar(value)
        is_list = field.has_type(_IS_ARRAY)
        if is_large(scalar):
            self._use(json.dumps([scalar]))
            return f"({is_list} AND {_HOLDS}(metadata, {field.literal}, ?))"
        whole = ""
        if scalar is None or isinstance(scalar, bool):
            same = f"type = '{json.dumps(scalar)}'"
        elif isinstance(scalar, str):
            forms = json.dumps(forms_of(scalar))
            self._use(forms, forms)
            same = "type = 'text' AND value IN (SELECT value FROM json_each(?))"
            whole = f" AND ({NO_NUL} OR {_HOLDS}(metadata, {field.literal}, ?))"
        else:
            self._use(scalar)
            same = f"type {_NUMBERS} AND value = ?"
        inside = f"EXISTS (SELECT 1 FROM json_each(metadata, {field.literal}) WHERE {same})"  # noqa: S608 - types alone
        listed = f"({is_list} AND {inside}{whole})"
        if not isinstance(scalar, str):
            return listed
        sql, parameters = text_contains(self._whole_text(field), scalar)
        self._use(*parameters)
        return f"({listed} OR ({field.has_type(_IS_TEXT)} AND {sql}))"

    def starts_with(self, path: str, value: object) -> str:
        # A text that is cut at a NUL starts as the whole does.
        field, prefix = JsonField(path), checked_text("starts with", value)
        sql, parameters = text_starts_with(field.value, prefix)
        self._use(*parameters)
        return f"({field.has_type(_IS_TEXT)} AND {sql})"

    def exists(self, path: str, value: object) -> str:
        return f"{JsonField(path).type} IS {'NOT ' if checked_flag('exists', value) else ''}NULL"

    def is_empty(self, path: str, value: object) -> str:
        field = JsonField(path)
        missing = field.has_type(_IS_MISSING)
        text = f"{field.has_type(_IS_TEXT)} AND {field.value} = ''{self._whole(field)}"
        made = f"{field.has_type(_IS_MADE)} AND {field.value} IN ('[]', '{{}}')"
        negation = "" if checked_flag("empty", value) else "NOT "
        return f"{negation}({missing} OR ({text}) OR ({made}))"


def merged(filters: Sequence[object]) -> list[object]:
    """The filters of an `or`, where those that ask for values of one field become one with `in`."""
    values: dict[str, list[object]] = {}
    others: list[object] = []
    for each in filters:
        field, value = next(iter(each.items())) if _is_single(each) else (None, None)
        if isinstance(value, Mapping) and len(value) == 1:
            operator, value = next(iter(value.items()))
        else:
            operator = "="
        if not isinstance(field, str) or field in _WORDS or isinstance(value, Mapping):
            others.append(each)
        elif operator == "=":
            values.setdefault(field, []).append(value)
        elif operator == "in":
            values.setdefault(field, []).extend(checked_values("in", value))
        else:
            others.append(each)
    return [*({name: {"in": listed}} for name, listed in values.items()), *others]


def _is_single(filter: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(filter, Mapping) and len(filter) == 1


def _around(number: Any) -> tuple[float, float]:
    """What a number is between, however SQLite rounds it."""
    try:
        rounded = float(number)
    except OverflowError:
        return (_LARGEST_FLOAT, math.inf) if number > 0 else (-math.inf, -_LARGEST_FLOAT)
    return rounded - abs(rounded) * 1e-12, rounded + abs(rounded) * 1e-12


def _type_of(scalar: str | int | float) -> str:
    return _IS_TEXT if isinstance(scalar, str) else _NUMBERS


def _depth(filter: object, most: int = _MAX_DEPTH) -> int:
    """How deep a filter is nested. The deepest come first: SQLite's parser keeps what is before."""
    if not isinstance(filter, Mapping) or not most:
        return 0
    inner = [filter["not"]] if "not" in filter else []
    for word in ("and", "or"):
        if isinstance(listed := filter.get(word), list | tuple):
            inner += listed
    return max((1 + _depth(part, most - 1) for part in inner), default=0)


def _rows_of(parts: Sized) -> int:
    """How many times `_joined` joins what it has joined."""
    return 0 if len(parts) <= 1 else int(math.log(len(parts) - 1, _ROW))


def _joined(word: str, parts: list[str]) -> str:
    """`and` of nothing is true, `or` of nothing is false."""
    if not parts:
        return "1" if word == "AND" else "0"
    while len(parts) > _ROW:
        rows = [parts[start : start + _ROW] for start in range(0, len(parts), _ROW)]
        parts = [_joined(word, row) for row in rows]
    return parts[0] if len(parts) == 1 else "(" + f" {word} ".join(parts) + ")"
