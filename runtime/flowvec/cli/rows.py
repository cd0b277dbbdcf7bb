"""What the commands that take rows of a collection share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flowvec.collection.collection import Collection
from flowvec.collection.store.filters import compile_filter
from flowvec.collection.store.rows import Id
from flowvec.errors import InputValueError

__all__ = ["Ids", "Where", "ids_named", "ids_typed", "parsed_filter", "row_as_json"]

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...", help="Ids of the rows. A whole number is the number or the text."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="JSON",
        help='Rows that meet a filter, for example \'{"lang": "en", "year": {">=": 2020}}\' or '
        '\'{"$text": {"contains": "cat"}}\'.',
    ),
]


def parsed_filter(text: str | None) -> Any:
    """A filter from the command line, checked; None without one.

    Raises:
        InputTypeError, InputValueError: it is not a valid filter.
    """
    if text is None:
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"--filter is not JSON: {error}") from None
    compile_filter(parsed)  # checked before a model is loaded
    return parsed


def ids_named(collection: Collection, names: Sequence[str]) -> dict[str, list[Id]]:
    """The ids of rows that each name of the command line stands for: a text or a number.

    Args:
        collection: where the rows are.
        names: ids as they were typed.

    Returns:
        For each name the ids that there are: none, one, or the text and the number.
    """
    return {
        name: [item.id for item in collection.get(ids) if item is not None]
        for name, ids in ids_typed(names).items()
    }


def ids_typed(names: Sequence[str]) -> dict[str, list[Id]]:
    """The ids that each name of the command line may stand for: the text, or also the number."""
    return {name: [name, int(name)] if _is_number(name) else [name] for name in names}


def _is_number(name: str) -> bool:
    """Whether it is a whole number as Python writes it, and not too long for an id."""
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < 300 and str(int(name)) == name


def row_as_json(row: Any, *, with_vector: bool = False) -> dict[str, Any]:
    """A row of a collection as JSON holds it."""
    shown = {"id": row.id, "text": row.text, "metadata": row.metadata}
    return shown | {"vector": row.vector.tolist()} if with_vector else shown
