"""Haystack's filters, as of `DocumentStore.filter_documents`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flowvec.errors import InputTypeError, InputValueError
from flowvec.integrations.filters.parts import (
    NOTHING,
    Condition,
    all_of,
    field_key,
    mapping_of,
    ordered,
    sequence_of,
    single,
)

__all__ = ["from_haystack"]

_COMPARISONS = ("==", "!=", ">", ">=", "<", "<=", "in", "not in")
_LOGIC = ("AND", "OR", "NOT")


def from_haystack(filters: Mapping[str, Any] | None) -> Condition:
    """A filter of Haystack, as a filter of rows that hold documents.

    A document's `meta` is the row's metadata, its `id` the row's id, and its `content` the row's
    text. Texts are compared with `<` and the like if they are dates in ISO 8601; they are compared
    as texts, so dates of one field must have one form.

    Args:
        filters: a comparison (`field`, `operator`, `value`) or a combination (`operator`,
            `conditions`); None and {} are all rows.

    Raises:
        InputTypeError, InputValueError: a key is missing, or it cannot be asked.
    """
    if filters is None or filters == {}:
        return {}
    return _translated(mapping_of(filters, "a filter"))


def _translated(filters: Mapping[str, Any]) -> Condition:
    if "field" in filters:
        return _comparison(filters)
    operator, parts = _value(filters, "operator"), _value(filters, "conditions")
    if operator not in _LOGIC:
        raise InputValueError(f"{operator!r} is not a combination; choose from {_names(_LOGIC)}")
    conditions = [
        _translated(mapping_of(part, "a condition")) for part in sequence_of(parts, "conditions")
    ]
    if operator == "OR":
        return {"or": conditions}
    return {"not": all_of(conditions)} if operator == "NOT" else all_of(conditions)


def _comparison(condition: Mapping[str, Any]) -> Condition:
    operator, value = _value(condition, "operator"), _value(condition, "value")
    key = _key(condition["field"])
    if operator not in _COMPARISONS:
        raise InputValueError(
            f"{operator!r} is not a comparison; choose from {_names(_COMPARISONS)}"
        )
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise InputTypeError(f"{operator!r} takes a list, not {type(value).__name__}")
        return {key: {operator: [single(part, operator) for part in value]}}
    if operator in ("==", "!="):
        return {key: {operator.removeprefix("="): single(value, operator)}}
    if value is None:
        return NOTHING
    if isinstance(ordered(value, operator), str):
        _check_date(value, operator)
    return {key: {operator: value}}


def _key(field: object) -> str:
    if not isinstance(field, str):
        raise InputTypeError(f"a field must be a text, not {field!r:.40}")
    if field == "id":
        return "$id"
    if field == "content":
        return "$text"
    if field in ("blob", "score", "embedding", "sparse_embedding", "meta"):
        raise InputValueError(f"documents cannot be filtered by {field!r}; use id, content or meta")
    # Fields without the prefix are fields of `meta`, as in Haystack.
    return field_key(*field.removeprefix("meta.").split("."))


def _check_date(text: str, operator: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise InputValueError(
            f"{operator!r} compares numbers, and texts that are dates in ISO 8601: {text!r:.40} is "
            "not"
        ) from None


def _value(filters: Mapping[str, Any], key: str) -> Any:
    if key not in filters:
        raise InputValueError(f"{key!r} is missing in the filter {dict(filters)!r:.80}")
    return filters[key]


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names)
