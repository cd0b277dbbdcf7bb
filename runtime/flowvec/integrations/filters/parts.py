"""What filters of a Collection are put together from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowvec.errors import InputTypeError, InputValueError

__all__ = [
    "NOTHING",
    "Condition",
    "all_of",
    "field_key",
    "mapping_of",
    "ordered",
    "sequence_of",
    "single",
]

Condition = dict[str, Any]

# What no row meets.
NOTHING: Condition = {"or": []}


def field_key(*names: str) -> str:
    """The key of a filter for a field by its name, or by the names that lead to it."""
    key = ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in names)
    is_word = key in ("and", "or", "not") or key.startswith("$")
    return f"\\{key}" if is_word else key


def all_of(conditions: Sequence[Condition]) -> Condition:
    """A filter that all of these conditions must meet; without any, all rows do."""
    if not conditions:
        return {}
    return conditions[0] if len(conditions) == 1 else {"and": list(conditions)}


def mapping_of(value: object, what: str) -> Mapping[Any, Any]:
    """A dict.

    Raises:
        InputTypeError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise InputTypeError(f"{what} must be a dict, not {type(value).__name__} {value!r:.40}")
    return value


def sequence_of(value: object, what: str) -> list[Any]:
    """A list.

    Raises:
        InputTypeError: it is something else.
    """
    if not isinstance(value, list | tuple):
        raise InputTypeError(f"{what} must be a list, not {type(value).__name__} {value!r:.40}")
    return list(value)


def ordered(value: object, operator: str) -> object:
    """A value that can be less or greater than others.

    Raises:
        InputTypeError: it is a list, a dict, a bool or None.
    """
    if value is None or isinstance(value, bool | list | tuple | set | Mapping):
        raise InputTypeError(
            f"{operator!r} compares numbers, texts or dates, not {type(value).__name__} "
            f"{value!r:.40}"
        )
    return value


def single(value: object, operator: str) -> object:
    """A value that is not made of others.

    Raises:
        InputValueError: it is a list or a dict.
    """
    if isinstance(value, list | tuple | set | Mapping):
        raise InputValueError(
            f"{operator!r} cannot be asked with a {type(value).__name__}: fields are compared with "
            "single values"
        )
    return value
