"""Arrow's types in Parquet files: those that are read as others, and how files combine."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from flowvec.arrow import imported_arrow
from flowvec.errors import InputValueError

__all__ = [
    "arrow_type",
    "cast_exactly",
    "check_times",
    "id_kind",
    "open_parquet",
    "plain",
    "plain_type",
    "promoted",
    "text_of_bytes",
    "text_of_id",
]

# Types of columns that Arrow calls the same.
_SAME = ("int64", "uint64", "double", "bool", "string")


def arrow_type(kind: Any) -> Any:
    """The Arrow type of a column; JSON, ids of both kinds and nulls are texts."""
    arrow = imported_arrow()
    if not isinstance(kind, str):
        return kind
    types = {"int64": arrow.int64(), "uint64": arrow.uint64(), "double": arrow.float64(),
             "bool": arrow.bool_()}  # fmt: skip
    return types.get(kind, arrow.string())


def open_parquet(file: Any) -> Any:
    """An open `pyarrow.parquet.ParquetFile`, in which UUIDs are UUIDs, whoever wrote it."""
    arrow = imported_arrow()
    try:
        return arrow.parquet.ParquetFile(file, arrow_extensions_enabled=True)
    except TypeError:  # an earlier pyarrow
        return arrow.parquet.ParquetFile(file)


def plain_type(kind: Any) -> Any:
    """The type as which values of a type are read.

    Views and dictionaries are other ways to store the same values, for which Arrow lacks functions.
    """
    arrow, types = imported_arrow(), imported_arrow().types
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, arrow.BaseExtensionType):
        return kind if _is_uuid(kind) else plain_type(kind.storage_type)
    name = str(kind)
    if name in ("string_view", "binary_view"):
        return arrow.string() if name == "string_view" else arrow.binary()
    if not types.is_nested(kind):
        return kind
    if types.is_struct(kind):
        return arrow.struct([one.with_type(plain_type(one.type)) for one in kind])
    if types.is_map(kind):
        return arrow.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_union(kind):
        return kind
    item = kind.value_field.with_type(plain_type(kind.value_type))
    if types.is_fixed_size_list(kind):
        return arrow.list_(item, kind.list_size)
    is_large = types.is_large_list(kind) or name.startswith("large_list_view")
    return arrow.large_list(item) if is_large else arrow.list_(item)


def plain(array: Any) -> Any:
    """An array of its type's `plain_type`.

    Raises:
        InputValueError: a text within lists or objects is not UTF-8.
    """
    arrow = imported_arrow()
    kind = plain_type(array.type)
    if kind == array.type:
        return array
    if arrow.types.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    if isinstance(array.type, arrow.BaseExtensionType):
        return plain(array.storage)
    if arrow.types.is_nested(kind):  # Arrow's cast of views of lists gives arrays that are invalid
        try:
            return arrow.array(array.to_pylist(), kind)
        except UnicodeDecodeError as error:
            raise InputValueError(
                f"a value of the type {array.type} is not UTF-8: {error}"
            ) from None
    return array.cast(kind)


def promoted(files: Mapping[Any, str], name: str, *, is_id: bool, is_alone: bool) -> Any:
    """The type of a column whose files have these plain types.

    Args:
        files: types, each with a file that has it.
        name: of the column.
        is_id: whether it holds ids, which are texts or whole numbers.
        is_alone: whether no other formats have the column.

    Returns:
        A type of `Columns`, or `number` if the numbers themselves decide.

    Raises:
        InputValueError: no type holds the values of all.
    """
    arrow = imported_arrow()
    types = arrow.types
    # Arrow's promotion of several types depends on their order.
    kinds = sorted((kind for kind in files if not types.is_null(kind)), key=str)
    if not kinds:
        return "null"
    if is_id:
        if all(map(types.is_integer, kinds)):
            return _of_integers(kinds)
        return "id" if any(map(types.is_integer, kinds)) else "string"
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds):
        are_floats = [types.is_floating(kind) for kind in kinds]
        if not is_alone:
            return "number" if not all(are_floats) else "double"
        if any(are_floats) and not all(are_floats):
            return "number"
        if not any(are_floats) and _of_integers(kinds) == "number":
            return "number"
    if not is_alone:
        texts = [types.is_string(kind) or types.is_large_string(kind) for kind in kinds]
        if all(texts):
            return "string"
        if all(map(types.is_boolean, kinds)):
            return "bool"
    kind = _unified(files, kinds, name)
    if not is_alone:
        raise InputValueError(
            f"{name} is {kind} in {files[kinds[0]]}: it cannot be combined with csv or jsonl"
        )
    return str(kind) if str(kind) in _SAME else kind


def _unified(files: Mapping[Any, str], kinds: list[Any], name: str) -> Any:
    """The type of Arrow's permissive promotion."""
    arrow, types = imported_arrow(), imported_arrow().types
    # Arrow combines decimals with the smallest float.
    widest = [arrow.float64()] if any(map(types.is_decimal, kinds)) and any(
        map(types.is_floating, kinds)) else []  # fmt: skip
    try:
        schemas = [arrow.schema([(name, kind)]) for kind in [*widest, *kinds]]
        kind = arrow.unify_schemas(schemas, promote_options="permissive").field(name).type
        for one in kinds:  # Arrow cannot convert all that it combines
            arrow.array([], one).cast(kind)
    except arrow.ArrowException:
        (one, where), (other, there) = ((kind, files[kind]) for kind in kinds[:2])
        raise InputValueError(
            f"{name} is {one} in {where}, but {other} in {there}: the values cannot be combined in "
            "one column"
        ) from None
    return kind


def _of_integers(kinds: list[Any]) -> str:
    """The type of whole numbers; `number` if they decide."""
    has_largest = any(str(kind) == "uint64" for kind in kinds)
    if has_largest and any(imported_arrow().types.is_signed_integer(kind) for kind in kinds):
        return "number"
    return "uint64" if has_largest else "int64"


def id_kind(kind: Any) -> bool:
    """Whether ids can be of a plain type: whole numbers, texts, UUIDs, or texts without the type.

    Some writers of Parquet give texts as bytes.
    """
    types = imported_arrow().types
    return (
        types.is_integer(kind)
        or any(is_kind(kind) for is_kind in (types.is_string, types.is_large_string,
                                             types.is_binary, types.is_large_binary, types.is_null))
        or _is_uuid(kind)
    )  # fmt: skip


def text_of_id(value: Any) -> Any:
    """An id of Parquet: a UUID is its text."""
    return str(value) if isinstance(value, UUID) else value


def text_of_bytes(value: Any) -> Any:
    """A text of Parquet: some writers give texts as bytes.

    Raises:
        UnicodeDecodeError: they are not UTF-8.
    """
    return value.decode() if isinstance(value, bytes) else value


def cast_exactly(array: Any, kind: Any) -> tuple[Any, list[int]]:
    """An array of another type, and the places of values that it cannot hold, which are null."""
    if array.type == kind:
        return array, []
    cast = _cast(array, kind)
    if cast is not None:
        return cast, []
    arrow = imported_arrow()
    parts = [_cast(array.slice(place, 1), kind) for place in range(len(array))]
    bad = [place for place, part in enumerate(parts) if part is None]
    return arrow.concat_arrays([arrow.nulls(1, kind) if p is None else p for p in parts]), bad


def check_times(array: Any) -> None:
    """Refuse times of day with nanoseconds, in an array or a scalar: Python's would lose them.

    Raises:
        ValueError: there is one.
    """
    arrow = imported_arrow()
    if str(array.type) == "time64[ns]" and _cast(array, arrow.time64("us")) is None:
        raise ValueError("a time of day has nanoseconds; write it as text")


def _cast(array: Any, kind: Any) -> Any:
    """An array of another type; None if it cannot hold a value exactly."""
    arrow = imported_arrow()
    try:
        cast = array.cast(kind)
    except arrow.ArrowException:
        return None
    is_rounded = arrow.types.is_decimal(array.type) and arrow.types.is_floating(kind)
    if is_rounded and any(
        one is not None and Decimal(rounded) != one
        for one, rounded in zip(array.to_pylist(), cast.to_pylist(), strict=True)
    ):
        return None
    return cast


def _is_uuid(kind: Any) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.uuid"
