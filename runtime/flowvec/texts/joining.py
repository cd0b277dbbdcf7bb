"""Several fields that are one text: a title and a body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from flowvec.errors import InputTypeError, InputValueError
from flowvec.sequences import as_list

__all__ = ["join_texts", "text_fields"]


def text_fields(value: object) -> str | tuple[str, ...]:
    """The field that holds the text, or several that are joined.

    Args:
        value: a name, several that are joined by commas, or a list of names.

    Raises:
        InputTypeError: it is none of these.
        InputValueError: there is no name, or one twice.
    """
    if isinstance(value, str):
        names: Sequence[object] = [name.strip() for name in value.split(",")]
        if len(names) == 1:
            return value
    elif value is None:
        raise InputTypeError("text_field must be a text, not None")
    else:
        names = as_list("text_field", cast(Iterable[object], value))
    checked = tuple(name for name in names if isinstance(name, str))
    if len(checked) < len(names):
        raise InputTypeError(
            f"text_field must be the name of a field, or a list of names: {value!r}"
        )
    if not checked or len(set(checked)) < len(checked) or (len(checked) > 1 and "" in checked):
        raise InputValueError(f"text_field must name each field once: {value!r}")
    return checked[0] if len(checked) == 1 else checked


def join_texts(parts: Iterable[str | None]) -> str | None:
    """Parts of a text with a space between them, without missing ones; None if all are missing.

    White space around the whole is left out, so that an empty title changes nothing.
    """
    there = [part for part in parts if part is not None]
    return " ".join(part for part in there if part).strip() if there else None
