"""Several values that a caller gives: what is a list of them, and what only looks like one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowvec.errors import InputTypeError

__all__ = ["as_list", "refuse_lookalike", "refuse_single"]


def refuse_single(name: str, value: object) -> None:
    """A bare text is a sequence of its characters: hardly ever what was meant.

    Raises:
        InputTypeError: it is one.
    """
    if isinstance(value, str | bytes):
        raise InputTypeError(f"{name} must be a list, not a single {type(value).__name__}")


def refuse_lookalike(name: str, values: object, *, ordered: bool = True) -> None:
    """Refuse what can be iterated, but gives other things than its values in their order.

    A DataFrame gives the names of its columns, a dict its keys, and a set any order.

    Args:
        name: of the argument, for the message.
        values: what was given.
        ordered: refuse sets, too.

    Raises:
        InputTypeError: it is one of those; the message says what to write.
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
    # pandas', polars' and others' frames; tables and batches of pyarrow.
    if hasattr(values, "columns") or hasattr(values, "column_names"):
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
        InputTypeError: they are a single text, a frame, a dict or a set, or cannot be iterated.
    """
    refuse_single(name, values)
    refuse_lookalike(name, values, ordered=ordered)
    if not isinstance(values, Iterable):
        raise InputTypeError(f"{name} must be a list, not {type(values).__name__}")
    return list(values)
