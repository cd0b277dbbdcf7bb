"""Values in filters."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

import numpy as np

from flowvec.collection.store.values import Scalar, scalar_of
from flowvec.errors import InputTypeError, InputValueError
from flowvec.sequences import as_list
from flowvec.spelled import TRUE_OR_FALSE, Spelled, kind_of, shown

__all__ = [
    "LARGEST_INT",
    "checked_flag",
    "checked_scalar",
    "checked_text",
    "checked_values",
    "end_of_prefix",
    "forms_of",
    "is_large",
]

LARGEST_INT = (1 << 63) - 1
_LAST = chr(0x10FFFF)


def checked_scalar(value: object, *, may_hold_nul: bool = False) -> Scalar:
    """A value that a field is compared with.

    Args:
        value: the caller's.
        may_hold_nul: whether a NUL in a text is compared: in columns, but not in JSON.

    Raises:
        InputTypeError: metadata cannot hold a value of this type.
        InputValueError: SQLite cannot compare it.
    """
    try:
        scalar = scalar_of(value)
    except InputTypeError:
        raise InputTypeError(
            "a filter's values are texts, numbers, dates, ",
            Spelled("bools or None", "true, false or null"),
            ", not ",
            kind_of(value),
            "; to match any of several, use 'in'" if isinstance(value, list | tuple) else "",
        ) from None
    except InputValueError as error:
        raise InputValueError(f"a filter's value {error}") from None
    if isinstance(scalar, str):
        if "\0" in scalar and not may_hold_nul:
            raise InputValueError("a filter's text holds a NUL, which SQLite does not compare")
        try:
            scalar.encode()
        except UnicodeEncodeError:
            raise InputValueError(f"a filter's value holds a lone surrogate: {scalar!r}") from None
    elif isinstance(scalar, float) and not math.isfinite(scalar):
        raise InputValueError(f"a filter's number is {scalar}")
    return scalar


def checked_text(operator: str, value: object, *, may_hold_nul: bool = False) -> str:
    """A text that an operator takes.

    Raises:
        InputTypeError, InputValueError: it is not a text, or as for `checked_scalar`.
    """
    scalar = checked_scalar(value, may_hold_nul=may_hold_nul)
    if not isinstance(scalar, str):
        raise InputTypeError(f"{operator!r} takes a text, not ", shown(scalar))
    return scalar


def checked_flag(operator: str, value: object) -> bool:
    """The True or False that an operator takes.

    Raises:
        InputTypeError: it is neither.
    """
    if not isinstance(value, bool):
        raise InputTypeError(f"{operator!r} takes ", TRUE_OR_FALSE, ", not ", shown(value))
    return value


def checked_values(operator: str, values: object) -> Sequence[object]:
    """The values of `in`: a list, tuple, set, range, array (of Arrow, too) or column.

    Raises:
        InputTypeError: it is something else.
    """
    is_array = isinstance(values, np.ndarray) and values.ndim == 1
    is_list = isinstance(values, list | tuple | set | frozenset | range)
    is_column = type(values).__name__ == "Series" or hasattr(type(values), "to_pylist")
    if not (is_list or is_array or is_column):
        raise InputTypeError(f"{operator!r} takes a list of values, not ", kind_of(values))
    return as_list(f"the values of {operator!r}", values, ordered=False)  # type: ignore[arg-type]


def is_large(value: Scalar) -> bool:
    """Whether a value is a number of more than 63 bits, which SQLite rounds if it is in JSON."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and not -LARGEST_INT - 1 <= value <= LARGEST_INT  # type: ignore[operator]


def forms_of(text: str) -> list[str]:
    """A text as it may be written: as it is, and in Unicode's forms NFC and NFD."""
    forms = (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text))
    return list(dict.fromkeys(forms))


def end_of_prefix(prefix: str) -> str | None:
    """The least text above all texts with a prefix, by code points; None if there is none."""
    stem = prefix.rstrip(_LAST)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)
