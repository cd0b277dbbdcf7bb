"""Checks that an argument is a list of values, and not something that only looks like one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowvec.errors import InputTypeError

__all__ = ["as_list", "refuse_lookalike", "refuse_single"]


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
    return list(values)
