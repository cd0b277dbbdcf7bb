"""Rows as PostgreSQL's COPY reads them in binary format.

A file is a header, then for each row the number of its fields and the fields, then a trailer. A
field is the number of its bytes, or -1 for null, and the bytes that its type's receive function
takes. All numbers are big-endian. See "Binary Format" in PostgreSQL's documentation of COPY.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.arrow import imported_arrow
from flowvec.convert.source import SparseRow

__all__ = [
    "HEADER",
    "MOST_SPARSE",
    "TRAILER",
    "ColumnType",
    "column_type",
    "rows_bytes",
    "sparse_fields",
    "vector_fields",
]

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
# Weights of a sparsevec, at most.
MOST_SPARSE = 16_000
_NULL = struct.pack(">i", -1)
# Days and microseconds from 1970-01-01 to PostgreSQL's epoch, 2000-01-01.
_DAYS = 10_957
_MICROSECONDS = _DAYS * 86_400_000_000
# The first and the last day, and the first microsecond, that PostgreSQL has, from 1970-01-01. Its
# last microsecond is later than 64 bits hold.
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
_FIRST_MICROSECOND = -210_866_803_200_000_000
_MICROSECONDS_OF = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NO_TIME = "is not a time that PostgreSQL has"
# What jsonb cannot hold is written as an escape in JSON: U+0000, and lone surrogates.
_SUSPECT = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_SURROGATE = re.compile("[\ud800-\udfff]")

Fields = Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """How the values of a column are stored.

    Attributes:
        name: the type's name in SQL.
        fields: makes the fields of an Arrow array. It raises BadValueError for a value that the
            type cannot hold.
    """

    name: str
    fields: Callable[[Any], Fields]


class BadValueError(ValueError):
    """A value that PostgreSQL cannot store, and its row in the array."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def column_type(kind: Any, *, is_json: bool = False) -> ColumnType:
    """The type of a column for values of an Arrow type.

    Args:
        kind: the Arrow type.
        is_json: the values are strings that hold JSON.
    """
    types = imported_arrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return ColumnType("jsonb", _json_fields) if is_json else ColumnType("text", _text_fields)
    if types.is_boolean(kind):
        return ColumnType("boolean", lambda values: _numbers(values, "uint8", ">u1"))
    if types.is_integer(kind) and not types.is_uint64(kind):
        return ColumnType("bigint", lambda values: _numbers(values, "int64", ">i8"))
    if types.is_floating(kind):
        return ColumnType("double precision", lambda values: _numbers(values, "float64", ">f8"))
    if types.is_date32(kind):
        return ColumnType("date", _dates)
    if types.is_timestamp(kind):
        name = "timestamptz" if kind.tz else "timestamp"
        return ColumnType(name, _timestamps)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return ColumnType("bytea", lambda values: [_field(v) for v in values.to_pylist()])
    return ColumnType("jsonb", _nested_fields)


def vector_fields(vectors: npt.NDArray[Any]) -> Fields:
    """Fields of the types vector and halfvec.

    Args:
        vectors: float32 for vector or float16 for halfvec (rows, dim).

    Raises:
        BadValueError: a vector has a number that is not finite.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise BadValueError(int(np.argmin(finite)), "has a number that is not finite")
    rows, dim = vectors.shape
    head = [("bytes", ">i4"), ("dim", ">i2"), ("unused", ">i2")]
    numbers = vectors.dtype.newbyteorder(">")
    packed = np.zeros(rows, dtype=np.dtype([*head, ("numbers", numbers, (dim,))]))
    packed["bytes"] = 4 + dim * numbers.itemsize
    packed["dim"] = dim
    packed["numbers"] = vectors
    return _split(packed)


def sparse_fields(vectors: Sequence[SparseRow], dim: int) -> Fields:
    """Fields of the type sparsevec, which holds no zeros.

    Args:
        vectors: for each row its indices from 0, which ascend, and weights; None for null.
        dim: dimensions.

    Raises:
        BadValueError: a row has more weights than a sparsevec holds.
    """
    fields = []
    for row, vector in enumerate(vectors):
        if vector is None:
            fields.append(_NULL)
            continue
        indices, values = vector
        kept = values != 0.0
        count = int(np.count_nonzero(kept))
        if count > MOST_SPARSE:
            raise BadValueError(row, f"has {count} weights, of which a sparsevec has {MOST_SPARSE}")
        head = struct.pack(">iii", dim, count, 0)
        written = indices[kept].astype(">i4").tobytes() + values[kept].astype(">f4").tobytes()
        fields.append(_field(head + written))
    return fields


def rows_bytes(columns: Sequence[Fields]) -> bytes:
    """Rows of columns of equal length."""
    count = [struct.pack(">h", len(columns))] * len(columns[0])
    return b"".join(chain.from_iterable(zip(count, *columns, strict=True)))


def _field(value: bytes | None) -> bytes:
    return _NULL if value is None else struct.pack(">i", len(value)) + value


def _split(packed: npt.NDArray[Any]) -> list[bytes]:
    content, step = packed.tobytes(), packed.dtype.itemsize
    return [content[start : start + step] for start in range(0, len(content), step)]


def _numbers(values: Any, read: str, written: str, epoch: int = 0) -> Fields:
    pa = imported_arrow()
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    kind = pa.from_numpy_dtype(np.dtype(read))
    if values.type == pa.float16():
        values = values.cast(pa.float32())
    plain = values.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
    packed = np.zeros(len(plain), dtype=np.dtype([("bytes", ">i4"), ("number", written)]))
    packed["bytes"] = np.dtype(written).itemsize
    packed["number"] = plain - np.asarray(epoch, plain.dtype) if epoch else plain
    fields = _split(packed)
    for row in np.flatnonzero(nulls):
        fields[row] = _NULL
    return fields


def _dates(values: Any) -> Fields:
    _check_times(values, "int32", _FIRST_DAY, _LAST_DAY)
    return _numbers(values, "int32", ">i4", _DAYS)


def _timestamps(values: Any) -> Fields:
    pa = imported_arrow()
    if values.type.unit in _MICROSECONDS_OF:  # those of nanoseconds are all in range
        count = _MICROSECONDS_OF[values.type.unit]
        least, most = -(-_FIRST_MICROSECOND // count), np.iinfo(np.int64).max // count
        _check_times(values, "int64", least, most)
    # PostgreSQL has microseconds: those of finer columns are cut off.
    moments = values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return _numbers(moments, "int64", ">i8", _MICROSECONDS)


def _check_times(values: Any, read: str, least: int, most: int) -> None:
    plain = values.cast(imported_arrow().from_numpy_dtype(np.dtype(read))).fill_null(0).to_numpy()
    bad = (plain < least) | (plain > most)
    if bad.any():
        raise BadValueError(int(np.argmax(bad)), _NO_TIME)


def _text_fields(values: Any) -> Fields:
    fields = []
    for row, value in enumerate(values.to_pylist()):
        if value is not None and "\0" in value:
            raise BadValueError(row, "has the character U+0000")
        fields.append(_field(None if value is None else value.encode()))
    return fields


def _json_fields(values: Any) -> Fields:
    return [_json_field(row, value) for row, value in enumerate(values.to_pylist())]


def _nested_fields(values: Any) -> Fields:
    fields = []
    for row, value in enumerate(values.to_pylist()):
        try:
            text = None if value is None else json.dumps(value, allow_nan=False, default=_plain)
        except ValueError:
            raise BadValueError(row, "has NaN or infinity in it") from None
        fields.append(_json_field(row, text))
    return fields


def _plain(value: Any) -> str:
    """A value that JSON does not know, as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


def _json_field(row: int, text: str | None) -> bytes:
    if text is None:
        return _NULL
    if _SUSPECT.search(text):
        _check_json(row, json.loads(text))
    return _field(b"\x01" + text.encode())


def _check_json(row: int, value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise BadValueError(row, "has the character U+0000")
        if _SURROGATE.search(value):
            raise BadValueError(row, "has a lone surrogate")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check_json(row, name)
            _check_json(row, inner)
    elif isinstance(value, list):
        for inner in value:
            _check_json(row, inner)
