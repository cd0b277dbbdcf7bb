"""Conditions over a row's id and text: the keys `$id` and `$text` of filters."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence

from flowvec.collection.store.filter_values import (
    LARGEST_INT,
    checked_flag,
    checked_scalar,
    checked_text,
    checked_values,
    end_of_prefix,
    forms_of,
)
from flowvec.collection.store.rows import check_ids, key_of
from flowvec.errors import InputTypeError, InputValueError
from flowvec.spelled import shown

__all__ = ["COLUMNS", "CONTAINS", "text_contains", "text_starts_with"]

# Python's function for texts that are not ASCII.
CONTAINS = "flowvec_contains"

Parameter = str | int | float | None
# SQL that is never NULL, so that its negation is correct, and its parameters.
Sql = tuple[str, Sequence[Parameter]]

_NOT = {True: "", False: "NOT "}
_LISTED = "IN (SELECT value FROM json_each(?))"


def _of_id(operator: str, value: object) -> Sql:
    if operator == "=":
        return "(items.id = ? AND items.id_is_int = ?)", _key(value)
    if operator == "in":
        keys = [_key(one) for one in checked_values(operator, value)]
        # SQLite cuts a text from JSON at a NUL.
        parts, parameters = [], list[Parameter]()
        for is_int in (0, 1):
            listed = [text for text, kind in keys if kind == is_int and "\0" not in text]
            if listed:
                parts.append(f"(items.id_is_int = {is_int} AND items.id {_LISTED})")
                parameters.append(json.dumps(listed))
        for key in (key for key in keys if "\0" in key[0]):
            parts.append("(items.id = ? AND items.id_is_int = ?)")
            parameters += key
        return f"({' OR '.join(parts) or '0'})", parameters
    if operator == "exists":
        return str(int(checked_flag(operator, value))), ()
    if operator == "empty":  # an id is an empty text, or no text at all
        return f"{_NOT[checked_flag(operator, value)]}(items.id_is_int = 0 AND items.id = '')", ()
    scalar = checked_scalar(value, may_hold_nul=True)
    if operator in ("contains", "starts with") or isinstance(scalar, str):
        sql, texts = _text(operator, value, "items.id")
        return f"(items.id_is_int = 0 AND {sql})", texts
    if scalar is None or isinstance(scalar, bool):
        raise InputTypeError(
            f"{operator!r} compares ids with texts or numbers, not ", shown(scalar)
        )
    if abs(scalar) >= LARGEST_INT:  # larger ids become the largest number of 64 bits below
        raise InputValueError(f"{operator!r} compares ids with numbers below {LARGEST_INT}")
    return f"(items.id_is_int = 1 AND CAST(items.id AS INTEGER) {operator} ?)", (scalar,)


def _key(value: object) -> tuple[str, int]:
    try:
        (checked,) = check_ids([value])
    except (InputTypeError, InputValueError) as error:
        first, *rest = error.args
        raise type(error)(f"'$id': {first.replace('id 0', 'an id', 1)}", *rest) from None
    return key_of(checked)


def _of_text(operator: str, value: object) -> Sql:
    if operator == "=":
        return "items.text IS ?", (None if value is None else _checked(value),)
    if operator == "in":
        values = checked_values(operator, value)
        texts = [_checked(one) for one in values if one is not None]
        null = " OR items.text IS NULL" if len(texts) < len(values) else ""
        return f"(coalesce(items.text {_LISTED}, 0){null})", (json.dumps(texts),)
    if operator == "exists":
        return f"items.text IS {'NOT ' if checked_flag(operator, value) else ''}NULL", ()
    if operator == "empty":
        return f"{_NOT[checked_flag(operator, value)]}(coalesce(items.text, '') = '')", ()
    sql, parameters = _text(operator, value, "items.text")
    return f"coalesce({sql}, 0)", parameters


def _checked(value: object) -> str:
    scalar = checked_scalar(value)
    if not isinstance(scalar, str):
        raise InputTypeError("'$text' is compared with texts, not ", shown(scalar))
    return scalar


def _text(operator: str, value: object, column: str) -> Sql:
    text = checked_text(operator, value, may_hold_nul=True)
    if operator == "contains":
        return text_contains(column, text)
    if operator == "starts with":
        return text_starts_with(column, text)
    return f"{column} {operator} ?", (text,)


def text_contains(column: str, part: str) -> Sql:
    """SQL for: a text holds another, in whatever form of Unicode. Few texts need Python."""
    part = unicodedata.normalize("NFC", part)
    return (
        "(SELECT CASE WHEN length(t) = length(CAST(t AS BLOB)) THEN instr(t, ?) > 0 "  # noqa: S608 - columns
        f"ELSE {CONTAINS}(t, ?) END FROM (SELECT {column} AS t))",
        (part, part),
    )


def text_starts_with(column: str, prefix: str) -> Sql:
    """SQL for: a text starts with another, in Unicode's form NFC or NFD."""
    parts, parameters = list[str](), list[Parameter]()
    for form in forms_of(prefix):
        end = end_of_prefix(form)
        parts.append(f"{column} >= ?" + ("" if end is None else f" AND {column} < ?"))
        parameters += [form] if end is None else [form, end]
    return f"({' OR '.join(parts)})", parameters


# For each key, what an operator's SQL is. `!=` and `not in` are the negations of `=` and `in`.
COLUMNS: dict[str, Callable[[str, object], Sql]] = {"$id": _of_id, "$text": _of_text}
