"""Checks that an argument is a list of values, and not something that only looks like one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowvec.errors import InputTypeError, InputValueError

__all__ = ["as_list", "python_values", "refuse_lookalike", "refuse_single"]


def refuse_single(name: str, value: object) -> None:
    """Refuse a single string: it is a sequence of its characters, which is hardly ever meant.

    Raises:
        InputTypeError: it is one.
    """
    if isinstance(value, str | bytes):
        raise InputTypeError(f"{name} must be a list, not a single {type(value).__name__}")


def refuse_lookalike(name: str, values: object, *, ordered: bool = True) -> None:
    """Refuse iterables that do not yield their values in order.

    A DataFrame yields the names of its columns, a dict its keys, and a set has no order.

    Args:
        name: of the argument, for the message.
        values: what was given.
        ordered: refuse sets too.

    Raises:
        InputTypeError: it is one of these. The message says what to write instead.
    """
    kind = type(values).__name__
    if isinstance(values, Mapping):
        raise InputTypeError(
            f"{name} must be a list, not a {kind}, which gives its keys: write list(d.values())"
        )
    if ordered and isinstance(values, set | frozenset):
        raise InputTypeError(
            f"{name} must be a list, not a {kind}, which has no order: write sorted(s)"
        )
    # DataFrames of pandas, polars and others; tables and batches of pyarrow.
    # A lazy frame warns if it is asked for its columns; its class does not.
    if (
        hasattr(type(values), "columns")
        or hasattr(values, "columns")
        or hasattr(values, "column_names")
    ):
        raise InputTypeError(
            f"{name} must be a list, not a {kind}, which gives its columns: write table['column']"
        )


def python_values(values: Iterable[Any]) -> Iterable[Any]:
    """What gives the values of an iterable: an array of Arrow itself gives Arrow's scalars.

    Raises:
        InputValueError: it is one with a text that is not UTF-8.
    """
    to_pylist = getattr(values, "to_pylist", None)
    try:
        plain: Iterable[Any] = values if to_pylist is None else to_pylist()
    except UnicodeDecodeError as error:
        kind = type(values).__name__
        raise InputValueError(f"a text of the {kind} is not UTF-8: {error}") from None
    return plain


def as_list(name: str, values: Iterable[Any], *, ordered: bool = True) -> list[Any]:
    """Several values as a list.

    Args:
        name: of the argument, for messages.
        values: what was given.
        ordered: refuse sets: their order means nothing.

    Raises:
        InputTypeError: they are a single string, a DataFrame, a dict or a set, or not iterable.
    """
    refuse_single(name, values)
    refuse_lookalike(name, values, ordered=ordered)
    if not isinstance(values, Iterable):
        raise InputTypeError(f"{name} must be a list, not {type(values).__name__}")
    items = list(python_values(values))
    if items and hasattr(items[0], "as_py"):  # scalars of Arrow
        items = [one.as_py() if hasattr(one, "as_py") else one for one in items]
    return items
