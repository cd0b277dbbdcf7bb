"""Checks of a row's values: text, id and kept fields."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from flowvec.texts.column_types import is_exact_float
from flowvec.texts.joining import join_texts
from flowvec.texts.unicode import replace_surrogates
from flowvec.texts.window import DeadLetter, Fields

__all__ = [
    "RefusedError",
    "TooLargeFloat",
    "checked_text",
    "dead_letter_of",
    "decoded_line",
    "fitted",
    "id_of",
    "is_id",
    "joined_text",
    "text_of",
]

_RANGES = {"int64": range(-(1 << 63), 1 << 63), "uint64": range(1 << 64)}
_MOST_ID_BITS = 1024  # as in a collection
# Levels of a value in metadata, which is itself a level; a collection refuses more than 100.
_MOST_LEVELS = 99
# Types of columns, in words.
_WORDS = {"int64": "a whole number", "uint64": "a whole number", "double": "a number",
          "bool": "a truth value", "string": "a text"}  # fmt: skip


class RefusedError(Exception):
    """A row cannot be embedded."""

    def __init__(self, code: str, reason: str, key: str | int | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.key = key  # the row's id, if it can be read although the record cannot


class TooLargeFloat(float):
    """A number of JSON that no float64 holds; as a float it is infinity."""


def dead_letter_of(
    source: str, row: int, key: str | int | None, refused: RefusedError
) -> DeadLetter:
    """The dead letter of a row; lone surrogates are replaced."""
    if isinstance(key, str):
        key = replace_surrogates(key)
    return DeadLetter(source, row, key, refused.code, replace_surrogates(refused.reason))


def decoded_line(line: bytes | None, fields: Fields) -> str:
    """A line's text.

    Raises:
        RefusedError: it is too long (None), or not UTF-8.
    """
    if line is None:
        raise RefusedError("too_large", f"the line has more than {fields.max_text_bytes} bytes")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise RefusedError("invalid_utf8", f"the line is not UTF-8: {error}") from None


def text_of(record: dict[str, Any], fields: Fields) -> str:
    """The text of a record.

    Raises:
        RefusedError: there is no text, or it cannot be embedded.
    """
    there = [name for name in fields.texts if name in record]
    if not there:
        raise RefusedError("missing_field", f"there is no field {fields.wanted_text}")
    return joined_text({name: record[name] for name in there}, fields)


def joined_text(parts: Mapping[str, Any], fields: Fields) -> str:
    """The text of a row, from the values of the text's fields; of several, null is left out.

    Raises:
        RefusedError: all are null, one is not a text, or the whole is too large.
    """
    if len(fields.texts) == 1:
        (value,) = parts.values()
        return checked_text(value, fields)
    for name, part in parts.items():
        if part is not None and not isinstance(part, str):
            checked_text(part, fields, name)
    return checked_text(join_texts(parts.values()), fields)


def checked_text(value: Any, fields: Fields, name: str | None = None) -> str:
    """Check that a value is a text; `name` is its field, if it is one of several.

    Raises:
        RefusedError: it is not, or is too large.
    """
    name = fields.text_name if name is None else name
    if isinstance(value, str):
        most = fields.max_text_bytes
        # A character has at most four bytes.
        if len(value) * 4 > most and len(value.encode("utf-8", "surrogatepass")) > most:
            raise RefusedError("too_large", f"{name} has more than {most} bytes")
        return value
    if value is None:
        raise RefusedError("null", f"{name} is null")
    if isinstance(value, float) and math.isnan(value):
        raise RefusedError("nan", f"{name} is NaN")
    raise RefusedError("not_text", f"{name} is {_named(value)}, not a text")


def _named(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "a truth value", int: "a number",
             float: "a number", str: "a text"}  # fmt: skip
    return kinds.get(type(value), "something")


def is_id(value: Any) -> bool:
    """Whether a value can be an id: a text or a whole number."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def id_of(value: Any, name: str) -> str | int:
    """Check that a value is an id.

    Raises:
        RefusedError: it is not.
    """
    if not is_id(value):
        given = "missing" if value is None else _named(value)
        raise RefusedError("bad_id", f"{name} is {given}, and an id is a text or a whole number")
    if isinstance(value, int) and value.bit_length() > _MOST_ID_BITS:
        raise RefusedError("bad_id", f"{name} is a number of more than {_MOST_ID_BITS} bits")
    key: str | int = value
    return key


def fitted(value: Any, kind: str, name: str, *, as_json: bool = False) -> Any:
    """Convert a value to its column's type.

    Args:
        value: value of a kept field, or the id.
        kind: type of the column.
        name: name of the field.
        as_json: whether it is written as JSON, which has no NaN and no infinity, and holds all
            other values as they are.

    Raises:
        RefusedError: it cannot be converted.
    """
    if kind == "id":  # checked already; a Python int of any size
        return replace_surrogates(value) if isinstance(value, str) else value
    if kind == "value":
        return _metadata_value(value, name)
    if value is None:
        return None
    if kind == "json":
        try:
            written = json.dumps(value, ensure_ascii=True, allow_nan=False)
        except ValueError:
            raise RefusedError("bad_field", f"{name} holds NaN or infinity") from None
        return value if as_json else written
    if kind == "string" and isinstance(value, str):
        return replace_surrogates(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if not isinstance(value, bool):
        if isinstance(value, int) and kind in _RANGES:
            if value in _RANGES[kind]:
                return value
            raise RefusedError("bad_field", f"{name} is a whole number of more than 64 bits")
        if kind == "double" and isinstance(value, int | float):
            return _float_of(value, name, as_json=as_json)
    raise RefusedError("bad_field", f"{name} is {_named(value)}, and {_WORDS[kind]} in most rows")


def _float_of(value: float, name: str, *, as_json: bool) -> float:
    if isinstance(value, int):
        if not is_exact_float(value):
            raise RefusedError("bad_field", f"{name} is a whole number that no float64 holds")
    elif isinstance(value, TooLargeFloat):
        raise RefusedError("bad_field", f"{name} is a number that no float64 holds")
    elif as_json and not math.isfinite(value):
        raise RefusedError("bad_field", f"{name} is NaN or infinity")
    return float(value)


def _metadata_value(value: Any, name: str) -> Any:
    """A value of JSON that metadata can hold, as it is.

    Raises:
        RefusedError: it is or holds NaN or infinity, or is nested too deep.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError("bad_field", f"{name} is NaN or infinity")
    if isinstance(value, dict | list):
        try:
            json.dumps(value, allow_nan=False)
        except ValueError:
            raise RefusedError("bad_field", f"{name} holds NaN or infinity") from None
        if _levels(value) > _MOST_LEVELS:
            raise RefusedError("bad_field", f"{name} is nested deeper than {_MOST_LEVELS} levels")
    return value


def _levels(value: Any) -> int:
    """How deep lists and objects are nested; 0 for a single value."""
    level: list[Any] = [value]
    levels = 0
    while level := [part for part in level if isinstance(part, dict | list)]:
        levels += 1
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level = [inner for part in parts for inner in part]
    return levels
