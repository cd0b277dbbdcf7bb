"""Values of metadata and filters, as JSON holds them.

| Python | stored as |
|---|---|
| texts, numbers, bools, None | as they are; an enum of texts or numbers as its value |
| numpy's scalars | the number, bool or text |
| `Decimal` | a number, if a float or an int of 64 bits has all its digits |
| `UUID` | text, in lower case with hyphens |
| `date`, `datetime`, `time`, `datetime64`, pandas' `Timestamp` | ISO 8601 text that sorts by time |
| pandas' `NA` and `NaT` | null |
| lists, tuples, arrays, columns | a list |
| dicts | an object |

A date or time with a time zone is stored in UTC, so that texts of different zones sort by time.
Dates with and without a time zone cannot be compared. NaN is refused, except in a DataFrame, where
it means a missing value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import numpy as np

from flowvec.errors import InputTypeError, InputValueError

__all__ = ["Scalar", "scalar_of", "storable"]

Scalar = str | int | float | bool | None

_MAX_DEPTH = 100
_PLAIN: frozenset[type] = frozenset((str, int, bool, type(None)))
_ANY_DAY = date(2000, 1, 2)
_WITHOUT_TIME = frozenset(("Y", "M", "W", "D"))
# What to store instead of values that JSON lacks.
_INSTEAD = (
    (bytes | bytearray | memoryview, "decode them, or store value.hex()"),
    (set | frozenset, "it has no order: store sorted(value)"),
    (timedelta | np.timedelta64, "store value.total_seconds()"),
    (complex, "store two numbers"),
)


def storable(value: object, where: str, *, nan_is_null: bool = False) -> Any:
    """A value of metadata as JSON holds it.

    Args:
        value: any value.
        where: its place, for messages.
        nan_is_null: whether NaN means a missing value, as in a DataFrame.

    Raises:
        InputTypeError: it has a type that metadata cannot hold, or a key that is not a text.
        InputValueError: it is NaN or infinite, is nested deeper than 100 levels, or would lose
            digits.
    """
    return _Conversion(where, nan_is_null).of(value, "", 0)


@dataclass(frozen=True, slots=True)
class _Conversion:
    where: str
    nan_is_null: bool

    def of(self, value: Any, path: str, depth: int) -> Any:
        is_object, is_list = isinstance(value, Mapping), _is_list(value)
        if (is_object or is_list) and depth >= _MAX_DEPTH:
            raise InputValueError(f"{self.where} is nested deeper than {_MAX_DEPTH} levels")
        if is_object:
            items: dict[str, Any] = {}
            for key, part in value.items():
                if not isinstance(key, str):
                    raise InputTypeError(
                        f"{self._name(path)} must have text keys, not {type(key).__name__}: {key!r}"
                    )
                if type(part) not in _PLAIN:
                    part = self.of(part, f"{path}[{key!r}]" if path else repr(key), depth + 1)
                items[str.__str__(key)] = part
            return items
        if is_list:
            return [
                part if type(part) in _PLAIN else self.of(part, f"{path}[{i}]", depth + 1)
                for i, part in enumerate(value)
            ]
        return self._scalar(value, path)

    def _scalar(self, value: Any, path: str) -> Scalar:
        try:
            scalar = scalar_of(value)
        except (InputTypeError, InputValueError) as error:
            raise type(error)(f"{self._name(path)} {error}") from None
        if isinstance(scalar, float) and not math.isfinite(scalar):
            if self.nan_is_null and math.isnan(scalar):
                return None
            raise InputValueError(f"{self._name(path)} is {scalar}, which JSON cannot hold")
        return scalar

    def _name(self, path: str) -> str:
        return f"{self.where}, field {path}," if path else self.where


def _is_list(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, list | tuple) or type(value).__name__ == "Series"


def scalar_of(value: object) -> Scalar:
    """A single value as JSON holds it; a float may be NaN or infinite.

    Raises:
        InputTypeError: it has another type. The message has no subject: `is bytes; ...`.
        InputValueError: it would lose digits, or is out of range.
    """
    if type(value) in _PLAIN or type(value) is float:
        return cast(Scalar, value)
    if isinstance(value, np.datetime64):
        return _text_of_datetime64(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        # numpy's scalars, arrays and tensors of one number
        value = float(value) if isinstance(value, np.longdouble) else value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # an enum's value, not its name
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Decimal):
        return _number_of(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, date | time):
        return _iso(value)
    if value is None or type(value).__name__ == "NAType":
        return None
    raise InputTypeError(f"is {type(value).__name__}, which metadata cannot hold{_hint(value)}")


def _hint(value: object) -> str:
    for kinds, instead in _INSTEAD:
        if isinstance(value, kinds):
            return f"; {instead}"
    return "; store value.value" if hasattr(type(value), "__members__") else ""


def _number_of(value: Decimal) -> int | float:
    """A Decimal as the number that has the same digits."""
    if not value.is_finite():
        return float(value) if not value.is_snan() else math.nan
    exponent = cast(int, value.as_tuple().exponent)
    if exponent >= 0 and value.adjusted() < 20 and int(value).bit_length() <= 64:
        return int(value)
    number = float(value)
    if not math.isfinite(number) or Decimal(repr(number)) != value:
        raise InputValueError(
            f"is Decimal({str(value)!r}), which has more digits than a number holds; round it, or "
            "store str(value)"
        )
    return number


def _iso(value: date | time) -> str | None:
    if value != value:  # pandas' NaT is a datetime
        return None
    if isinstance(value, time) and value.tzinfo is not None and value.utcoffset() is None:
        raise InputValueError(
            f"is {value} in {value.tzinfo}, whose distance from UTC depends on the date; store a "
            "datetime, or a time with a fixed offset"
        )
    try:
        if isinstance(value, datetime) and value.utcoffset() is not None:
            value = value.astimezone(UTC)
        if isinstance(value, time) and value.tzinfo is not None:
            value = datetime.combine(_ANY_DAY, value).astimezone(UTC).timetz()
        return value.isoformat()
    except (OverflowError, ValueError) as error:
        raise InputValueError(f"is {value}, which UTC cannot hold: {error}") from None


def _text_of_datetime64(value: np.datetime64) -> str | None:
    """ISO 8601 text, as Python's `date` and `datetime` and pandas' `Timestamp` give it."""
    if np.isnat(value):
        return None
    unit = np.datetime_data(value.dtype)[0]
    if unit in _WITHOUT_TIME:
        day = value.astype("datetime64[D]").item()
        if isinstance(day, date):
            return day.isoformat()
    else:
        microseconds = value.astype("datetime64[us]")
        moment = microseconds.item()
        if isinstance(moment, datetime):
            nanoseconds = value.astype("datetime64[ns]")
            if microseconds == value:
                return moment.isoformat()
            if nanoseconds == value:
                return str(nanoseconds)
    raise InputValueError(
        f"is {value!r}; dates are stored from the year 1 to 9999, and times in nanoseconds"
    )
