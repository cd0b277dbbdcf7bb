"""Filters whose operators begin with a dollar, as in MongoDB: those of Chroma and LangChain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowvec.collection.store.filter_columns import COLUMNS
from flowvec.errors import InputTypeError, InputValueError
from flowvec.integrations.filters.parts import (
    Condition,
    all_of,
    field_key,
    mapping_of,
    sequence_of,
)

__all__ = ["from_chroma", "from_langchain"]

_RENAMED = {
    "$eq": "=",
    "$ne": "!=",
    "$gt": ">",
    "$gte": ">=",
    "$lt": "<",
    "$lte": "<=",
    "$in": "in",
    "$nin": "not in",
    "$contains": "contains",
    "$exists": "exists",
}
# What no filter can ask, and what can be asked instead.
_REFUSED = {
    "$like": "use $contains, or {'starts with': ...}",
    "$ilike": "use $contains; filters distinguish upper and lower case",
    "$regex": "use $contains, or {'starts with': ...}",
    "$not_regex": "use $not_contains",
    "$size": "store the number in a field of its own",
}


def from_langchain(filter: Mapping[str, Any] | None) -> Condition:
    """A filter as LangChain's vector stores take them: MongoDB's operators.

    Filters of a Collection stay as they are, so both may be mixed: `$id` and `$text` are the row's
    id and text, and a dot leads into a nested object.

    Args:
        filter: a dict of fields and of `$and`, `$or`, `$nor` and `$not`. Fields are compared with
            a value, or by `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$nin`, `$between`,
            `$exists`, `$contains`, `$not_contains`, `$all` and `$not`. None is all rows.

    Raises:
        InputTypeError, InputValueError: it is not a dict, or has an operator that cannot be asked.
    """
    if callable(filter):
        raise InputTypeError("a filter must be a dict: rows on disk cannot be given to a function")
    return {} if filter is None else _translated(filter, lambda key: key)


def from_chroma(
    where: Mapping[str, Any] | None = None, where_document: Mapping[str, Any] | None = None
) -> Condition:
    """A filter of Chroma: `where` and `where_document`.

    Args:
        where: as for `from_langchain`, but names of fields are literal: dots have no meaning.
            `#id` and `#document` are the row's id and text.
        where_document: `$contains` and `$not_contains`, and `$and` and `$or` of these.

    Raises:
        InputTypeError, InputValueError: one is not a dict, or has an operator that cannot be asked.
    """
    parts = [] if where is None else [_translated(where, _key_of_chroma)]
    parts += [] if where_document is None else [_of_document(where_document)]
    return all_of([part for part in parts if part])


def _key_of_chroma(key: str) -> str:
    return {"#id": "$id", "#document": "$text"}.get(key) or field_key(key)


def _of_document(filter: object) -> Condition:
    conditions: list[Condition] = []
    for key, value in mapping_of(filter, "where_document").items():
        if key in ("$and", "$or"):
            parts = [_of_document(part) for part in sequence_of(value, f"the value of {key!r}")]
            conditions.append({"or": parts} if key == "$or" else all_of(parts))
        else:
            conditions += _conditions("$text", {key: value}, key)
    return all_of(conditions)


def _translated(filter: object, key_of: Callable[[str], str]) -> Condition:
    conditions: list[Condition] = []
    for key, value in mapping_of(filter, "a filter").items():
        if not isinstance(key, str):
            raise InputTypeError(f"a filter's keys are texts, not {key!r:.40}")
        word = key.removeprefix("$")
        is_native = key in ("and", "or", "not") and key_of(key) == key
        if key in ("$and", "$or", "$nor") or (is_native and key != "not"):
            parts = [
                _translated(part, key_of) for part in sequence_of(value, f"the value of {key!r}")
            ]
            either: Condition = {"or": parts}
            conditions.append({"and": all_of(parts), "or": either, "nor": {"not": either}}[word])
        elif key == "$not" or is_native:
            conditions.append({"not": _translated(value, key_of)})
        elif key.startswith("$") and key not in COLUMNS:
            raise InputValueError(
                f"{key!r} is not $and, $or, $nor or $not; a comparison is written "
                "{field: {'$eq': value}}"
            )
        else:
            conditions += _conditions(key_of(key), value, key)
    return all_of(conditions)


def _conditions(key: str, value: object, shown: str) -> list[Condition]:
    """Conditions on one field."""
    if not isinstance(value, Mapping):
        return [{key: value}]
    conditions: list[Condition] = []
    for operator, operand in value.items():
        if operator in _REFUSED:
            raise InputValueError(
                f"{operator!r} cannot be asked of {shown!r}: {_REFUSED[operator]}"
            )
        if operator == "$not_contains":
            conditions.append({"not": {key: {"contains": operand}}})
        elif operator == "$not":
            conditions.append({"not": all_of(_conditions(key, operand, shown))})
        elif operator == "$all":
            parts = sequence_of(operand, "the value of '$all'")
            conditions += [{key: {"contains": part}} for part in parts]
        elif operator == "$between":
            least, most = _ends(operand)
            conditions.append({key: {">=": least, "<=": most}})
        elif operator in _RENAMED:
            conditions.append({key: {_RENAMED[operator]: operand}})
        elif isinstance(operator, str) and operator.startswith("$"):
            raise InputValueError(
                f"{operator!r} is not an operator; choose from {', '.join(_RENAMED)}, "
                "$between, $not_contains, $all, $not"
            )
        else:
            conditions.append({key: {operator: operand}})
    if len(conditions) > 1 and all(part.keys() == {key} for part in conditions):
        names = [name for part in conditions for name in part[key]]
        if len(set(names)) == len(names):
            return [{key: {name: v for part in conditions for name, v in part[key].items()}}]
    return conditions or [{key: {}}]


def _ends(operand: object) -> tuple[Any, Any]:
    ends = sequence_of(operand, "the value of '$between'")
    if len(ends) != 2:
        raise InputValueError(f"'$between' takes the least and the most, not {operand!r:.40}")
    return ends[0], ends[1]
