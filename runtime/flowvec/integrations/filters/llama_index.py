"""LlamaIndex' filters: `MetadataFilters` and `MetadataFilter`."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from flowvec.errors import InputTypeError, InputValueError
from flowvec.integrations.filters.parts import (
    Condition,
    all_of,
    field_key,
    ordered,
    sequence_of,
    single,
)

__all__ = ["from_llama_index"]


def from_llama_index(filters: Any) -> Condition:
    """A filter of LlamaIndex, as a filter of rows that hold nodes.

    A key is the name of a field of the node's metadata; dots in it have no meaning.

    Args:
        filters: `MetadataFilters`, also nested ones; None is all rows.

    Raises:
        InputTypeError: it is something else, or a value has a type that cannot be compared.
        InputValueError: an operator cannot be asked: `text_match_insensitive`.
    """
    if filters is None:
        return {}
    if not hasattr(filters, "filters"):
        return _comparison(filters)
    conditions = [from_llama_index(part) for part in filters.filters]
    if not conditions:
        return {}
    combination = _text(filters.condition) or "and"
    if combination == "and":
        return all_of(conditions)
    if combination == "or":
        return {"or": conditions}
    if combination == "not":  # none of them
        return {"not": {"or": conditions}}
    raise InputValueError(f"{combination!r} is not a condition; choose from and, or, not")


def _comparison(part: Any) -> Condition:
    if not all(hasattr(part, name) for name in ("key", "value", "operator")):
        raise InputTypeError(f"a filter must be MetadataFilters, not {type(part).__name__}")
    operator, key = _text(part.operator), field_key(part.key)
    if operator == "text_match_insensitive":
        raise InputValueError(
            "'text_match_insensitive' cannot be asked: filters distinguish upper and lower case. "
            "Use text_match, or store the field in lower case too"
        )
    if operator not in _OPERATORS:
        raise InputValueError(
            f"{operator!r} is not an operator; choose from {', '.join(_OPERATORS)}"
        )
    return _OPERATORS[operator](key, part.value)


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value or "")


def _compared(operator: str) -> Callable[[str, Any], Condition]:
    return lambda key, value: {key: {operator: ordered(value, operator)}}


def _equal(operator: str) -> Callable[[str, Any], Condition]:
    return lambda key, value: {key: {operator: single(value, operator)}}


def _among(operator: str) -> Callable[[str, Any], Condition]:
    return lambda key, value: {key: {operator: sequence_of(value, f"the value of {operator!r}")}}


def _containing(key: str, value: Any) -> list[Condition]:
    return [{key: {"contains": part}} for part in sequence_of(value, "the value of 'any' or 'all'")]


_OPERATORS: dict[str, Callable[[str, Any], Condition]] = {
    "==": _equal("="),
    "!=": _equal("!="),
    **{sign: _compared(sign) for sign in (">", "<", ">=", "<=")},
    "in": _among("in"),
    "nin": _among("not in"),
    "any": lambda key, value: {"or": _containing(key, value)},
    "all": lambda key, value: all_of(_containing(key, value) or [{key: {"!=": None}}]),
    "contains": lambda key, value: {key: {"contains": single(value, "contains")}},
    "text_match": lambda key, value: {key: {"contains": single(value, "text_match")}},
    "is_empty": lambda key, _: {key: {"empty": True}},
}
