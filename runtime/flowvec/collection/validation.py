"""Checks of a Collection's arguments, before anything is changed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast
from uuid import UUID

import numpy as np
import numpy.typing as npt

from flowvec.arguments import number, seconds_or_none, whole_number
from flowvec.collection.store.json_field import field_names
from flowvec.collection.store.rows import Id, check_ids, encode_metadata
from flowvec.collection.store.values import storable
from flowvec.errors import InputTypeError, InputValueError, NonFiniteError
from flowvec.sequences import as_list, python_values, refuse_lookalike
from flowvec.spelled import A_DICT, kind_of, setting
from flowvec.texts.unicode import place_of_surrogate

__all__ = [
    "Changes",
    "Metadata",
    "changed_metadata",
    "check_changes",
    "check_count",
    "check_k",
    "check_metadata",
    "check_score",
    "check_share",
    "check_vectors",
    "check_weight",
    "checked_write_timeout",
    "counted_as_given",
    "ids_of",
    "last_of_each",
    "round_to_float16",
    "texts_of",
    "texts_of_vectors",
]


class DataFrame(Protocol):
    """The interface that pandas and polars DataFrames share."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""

    def __getitem__(self, name: Any) -> Any:
        """A column."""


# "As long as it takes", as a number that Python's locks accept.
_NO_LIMIT = 4e6
# More rows than any collection has, and still a number to SQLite and numpy.
_MOST_HITS = 1 << 40

Metadata = Sequence[dict[str, Any] | None] | DataFrame
# Fields of rows' metadata and their new values: for all rows, or for each row.
Changes = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def check_k(k: object, name: str = "k") -> int:
    """How many hits to give, at least one; or under another name, to skip.

    Raises:
        InputTypeError: it is not a whole number.
        InputValueError: it is negative, or there are no hits to give.
    """
    return min(whole_number(name, k, 1 if name == "k" else 0, most=None), _MOST_HITS)


def check_vectors(vectors: npt.ArrayLike, dim: int, what: str) -> npt.NDArray[np.float32]:
    """Vectors as float32 (rows, dim).

    Raises:
        InputTypeError: they are not numbers.
        InputValueError: they have another shape, or a row holds NaN, infinity or a number whose
            square is infinite.
    """
    try:
        given = _rows_of_column(np.asarray(vectors), what)
        if given.dtype.kind in "US":
            hint = ": a list of texts goes to search_batch" if what == "query" else ""
            raise InputTypeError(f"{what} must be real numbers, not texts{hint}")
        if given.dtype.kind not in "fiubO":
            raise InputTypeError(f"{what} must be real numbers, not {given.dtype}")
        with np.errstate(over="ignore"):  # reported below, with the row
            rows = np.asarray(given, dtype=np.float32)
    except InputTypeError:
        raise
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        # A RuntimeError is that of a tensor which requires gradients.
        raise InputTypeError(f"{what} are not numbers: {error}") from None
    if rows.size == 0 and rows.ndim == 1:
        rows = rows.reshape(0, dim)
    if rows.ndim == 2 and len(rows) == 1 and rows.shape[1] != dim:
        raise InputValueError(f"{what} must have {dim} dimensions, not {rows.shape[1]}")
    if rows.ndim == 3 and what == "query":
        raise InputValueError(
            f"query must be one vector of {dim} numbers, not an array of the shape "
            f"{rows.shape[1:]}; search_batch takes several"
        )
    if rows.ndim != 2 or rows.shape[1] != dim:
        hint = "; for a single vector give vector[None]" if rows.shape == (dim,) else ""
        raise InputValueError(f"{what} must have the shape (n, {dim}), not {rows.shape}{hint}")
    # A square that overflows would give an infinite norm, and NaN as a score. Usually one sum over
    # all vectors shows that there is none; otherwise the sum of each row shows which it is.
    if math.isfinite(np.vdot(rows, rows)):
        return rows
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(np.einsum("ij,ij->i", rows, rows)))
    if len(bad):
        raise InputValueError(f"row {bad[0]} of {what} holds NaN, infinity or a huge number")
    return rows


def _rows_of_column(given: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
    """An array of arrays, which is what numpy makes of a column of pandas or Arrow, as rows.

    Raises:
        InputTypeError: a row is missing.
    """
    if given.dtype.kind != "O" or given.ndim != 1:
        return given
    is_row = [hasattr(vector, "__len__") for vector in given]
    if not any(is_row):
        return given
    if not all(is_row):
        row = is_row.index(False)
        raise InputTypeError(f"row {row} of {what} is missing: drop the rows without a vector")
    return np.array([np.asarray(vector) for vector in given])


def round_to_float16(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Vectors as they are after float16, float32 (rows, dim).

    Raises:
        InputValueError: a number is too large for float16, or all numbers of a row are too small.
    """
    with np.errstate(over="ignore"):
        rounded = vectors.astype(np.float16).astype(np.float32)
    if not np.isfinite(rounded).all():
        raise InputValueError("a vector holds a number that float16 cannot hold: above 65504")
    vanished = np.flatnonzero(vectors.any(axis=1) & ~rounded.any(axis=1))
    if len(vanished):
        raise InputValueError(
            f"row {vanished[0]} of the vectors becomes zero in float16: its numbers are too small"
        )
    return rounded


def check_score(score: object, name: str = "min_score") -> float | None:
    """The least score of a hit; None means no limit.

    Raises:
        InputTypeError: it is not a number.
        InputValueError: it is NaN.
    """
    if score is None:
        return None
    return number(name, score)


def check_share(value: object, name: str) -> float:
    """A share above 0 and at most 1.

    Raises:
        InputTypeError: it is not a number.
        InputValueError: it is outside.
    """
    share = check_score(value, name)
    if share is None or not 0 < share <= 1:
        raise InputValueError(f"{name} must be above 0 and at most 1, but is {value}")
    return share


def checked_write_timeout(value: object) -> float:
    """How long a change waits for its turn, in seconds; None means no limit.

    Raises:
        InputTypeError: it is not a number.
        InputValueError: it is negative or NaN.
    """
    seconds = seconds_or_none("write_timeout", value)
    if seconds is not None and seconds < 0:
        raise InputValueError(f"write_timeout must not be negative, but is {value}")
    return _NO_LIMIT if seconds is None else min(seconds, _NO_LIMIT)


def check_weight(value: object, name: str) -> float:
    """The share of a ranking in a hybrid search.

    Raises:
        InputTypeError: it is not a number.
        InputValueError: it is not from 0 to 1.
    """
    weight = number(name, value)
    if not 0.0 <= weight <= 1.0:
        raise InputValueError(f"{name} must be from 0 to 1, but is {weight:g}")
    return weight


def texts_of(values: object) -> list[str] | None:
    """Texts as a list, from a list, an array or a DataFrame's column; None if they are not
    texts."""
    if hasattr(values, "to_pylist") and "string" in str(getattr(values, "type", "")):
        values = python_values(cast(Iterable[Any], values))
    elif not isinstance(values, Sequence) and hasattr(values, "dtype"):
        kind = getattr(values.dtype, "kind", "O")
        if kind not in "OUST" or getattr(values, "ndim", 1) != 1:
            return None
        values = list(cast(Iterable[Any], values))
    if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values):
        return list(values)
    return None


def texts_of_vectors(
    given: list[Any], to_embed: list[str] | None, name: str, *, is_used: bool
) -> list[str]:
    """The texts that a caller gave for queries that are vectors.

    Args:
        given: the caller's `text` or `texts`.
        to_embed: the queries, if they are texts.
        name: what messages call the queries: `query` or `queries`.
        is_used: whether the search reads them.

    Raises:
        InputTypeError: one is not a text.
        InputValueError: the queries are texts, or the search would not read these.
    """
    own = "text" if name == "query" else "texts"
    if to_embed:
        raise InputValueError(f"{own} is for vectors, and {name} holds texts: leave {own} out")
    if not is_used:
        raise InputValueError(
            f"a search by vectors alone does not read {own}: add ",
            setting("hybrid", True),
            f" or rerank, or leave {own} out",
        )
    for i, text in enumerate(given):
        if not isinstance(text, str):
            raise InputTypeError(f"{own} must be str, but item {i} is {type(text).__name__}")
    return given


def check_count(name: str, count: int, ids: int) -> None:
    """Raise InputValueError unless there are as many as ids."""
    if count != ids:
        raise InputValueError(f"{ids} ids for {count} {name}")


def check_metadata(metadata: Metadata | None, count: int) -> list[str | None]:
    """Each row's metadata as JSON; errors are those of `encode_metadata`."""
    if metadata is None:
        return [None] * count
    if isinstance(metadata, Mapping) and not hasattr(metadata, "columns"):
        raise InputTypeError("metadata must be a list of dicts, one for each row, not a dict")
    if type(metadata).__name__ == "LazyFrame":  # asking it for its columns warns
        raise InputTypeError("metadata must not be a LazyFrame: write frame.collect()")
    if hasattr(metadata, "column_names") and hasattr(metadata, "to_pylist"):  # a pyarrow Table
        _check_names(metadata.column_names)
        rows, is_frame = metadata.to_pylist(), True
    elif hasattr(metadata, "columns"):
        rows, is_frame = _records(metadata), True
    else:
        rows, is_frame = as_list("metadata", metadata), False
    items = [encode_metadata(item, i, nan_is_null=is_frame) for i, item in enumerate(rows)]
    check_count("metadata", len(items), count)
    return items


def _records(frame: DataFrame) -> list[dict[str, Any]]:
    """A DataFrame's rows as dicts of its cells."""
    names = list(frame.columns)
    _check_names(names)
    try:
        columns = [list(frame[name]) for name in names]
    except TypeError as error:  # a lazy frame
        raise InputTypeError(f"the metadata's columns cannot be read: {error}") from None
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _check_names(names: Sequence[Any]) -> None:
    if len({str(name) for name in names}) < len(names):
        raise InputValueError(f"the metadata has two columns of one name: {names}")


def check_changes(changes: Changes | None, count: int | None) -> list[dict[str, Any]]:
    """Changes of metadata, with values as JSON has them.

    Args:
        changes: a dict for all rows, or a list of one for each.
        count: how many rows are named; None allows one dict only, and returns it alone.

    Raises:
        InputTypeError, InputValueError: they are not valid.
    """
    if isinstance(changes, Mapping):
        return [_change(changes, "changes")] * (1 if count is None else count)
    if count is None or changes is None:
        raise InputTypeError("changes must be ", A_DICT, " of fields and their new values")
    several = as_list("changes", changes)
    for i, fields in enumerate(several):
        if not isinstance(fields, Mapping):
            raise InputTypeError(
                f"changes {i} must be ",
                A_DICT,
                " of fields and their new values, not ",
                kind_of(fields),
            )
    check_count("changes", len(several), count)
    return [_change(fields, f"changes {i}") for i, fields in enumerate(several)]


def ids_of(ids: object, *, ordered: bool = True) -> list[Id]:
    """The ids that a caller names rows by: several, or one.

    Raises:
        InputTypeError, InputValueError: they are not valid.
    """
    if isinstance(ids, str | int | np.integer | UUID):
        return check_ids([ids])
    refuse_lookalike("ids", ids, ordered=ordered)
    if not isinstance(ids, Iterable):
        raise InputTypeError(f"ids must be a list, or one id, not {type(ids).__name__}")
    return check_ids(as_list("ids", ids, ordered=ordered))


def _change(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    change: dict[str, Any] = storable(fields, where)
    place = place_of_surrogate(change)
    if place is not None:
        raise InputValueError(
            f"{where}, field {place}, holds a lone surrogate, which UTF-8 cannot encode"
        )
    return change


def changed_metadata(
    item: Id, metadata: Mapping[str, Any] | None, changes: Iterable[Mapping[str, Any]]
) -> str | None:
    """A row's metadata after changes, as JSON; a field that is None is removed.

    Names lead to fields as in filters: a dot leads into a nested object, which is made if needed.

    Raises:
        InputValueError: it cannot be stored.
    """
    fields = dict(metadata or {})
    for change in changes:
        for key, value in change.items():
            fields = _with(fields, field_names(key), value, f"metadata of row {item!r}")
    return None if metadata is None and not fields else encode_metadata(fields, item)


def _with(fields: dict[str, Any], names: list[str], value: Any, where: str) -> dict[str, Any]:
    """An object with another value in the place that names lead to."""
    first, *further = names
    if further:
        inner = fields.get(first)
        if inner is None and value is None:
            return fields
        if inner is not None and not isinstance(inner, dict):
            raise InputValueError(
                f"{where}: its field {first!r} is not an object, so that {further[0]!r} cannot be "
                "in it; a backslash before a dot makes the dot a part of the name"
            )
        value = _with(inner or {}, further, value, where)
    if value is None:
        return {name: part for name, part in fields.items() if name != first}
    return {**fields, first: value}


def last_of_each(ids: Sequence[Id]) -> list[int]:
    """Indices of the last occurrence of each id, ascending."""
    last = {item: i for i, item in enumerate(ids)}
    return sorted(last.values())


@contextmanager
def counted_as_given(kept: Sequence[int]) -> Iterator[None]:
    """Errors about some of a caller's items count all of them.

    Args:
        kept: the index of each that was taken, ascending.
    """

    def counted(match: re.Match[str]) -> str:
        numbers = [int(item) for item in match[1].split(", ")]
        if max(numbers) >= len(kept):
            return match[0]  # of another kind
        return f"item {', '.join(str(kept[number]) for number in numbers)}"

    try:
        yield
    except (InputValueError, NonFiniteError) as error:
        if not kept or kept[-1] < len(kept):  # all were taken
            raise
        message = re.sub(r"\bitem (\d+(?:, \d+)*)", counted, str(error), count=1)
        raise type(error)(message) from None
