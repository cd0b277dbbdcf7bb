"""Rows as points of Qdrant: an id, a vector, and a payload of JSON values."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

import numpy as np
import numpy.typing as npt

from flowvec.arrow import imported_arrow
from flowvec.convert.rows import Rows
from flowvec.convert.source import SPARSE_COLUMNS, SourceInfo, SparseRow, sparse_of, vectors_of
from flowvec.errors import ConvertError, InputTypeError

__all__ = ["SPARSE", "Batch", "batches", "point_id"]

# The name of the sparse vectors; the dense ones have none.
SPARSE = "sparse"

# Requests are kept far below the 32 MB that a server takes by default.
MOST_BYTES = 4 << 20
MOST_POINTS = 256
_BYTES_OF_NUMBER = 21
_BYTES_OF_WEIGHT = 32
_NAMES = UUID("88648ce5-c1c7-5e6b-82bb-9e800ba042a2")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def point_id(id: str | int) -> int | str:
    """The id in Qdrant of a row that `convert` wrote.

        >>> point_id(7), point_id("7")
        (7, '44222ce9-f9c0-519d-a1ff-9c4a0dfbdb30')

    Qdrant takes whole numbers from 0 to 2**64 - 1 and UUIDs. Such ids stay as they are; a UUID is
    written in lower case with hyphens. All others become a UUID of version 5 of their text, or of
    their digits; 7 and "7" differ. The payload's `id` is always the row's own id.

    Args:
        id: the id of the row.

    Raises:
        InputTypeError: it is neither a text nor a whole number.
    """
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise InputTypeError(f"an id must be a text or a whole number, not {type(id).__name__}")
    if isinstance(id, str):
        return id if _UUID.fullmatch(id) else str(uuid5(_NAMES, f"text:{id}"))
    return id if 0 <= id <= _MOST else str(uuid5(_NAMES, f"number:{id}"))


@dataclass(slots=True)
class Batch:
    """Points of one request.

    Attributes:
        ids: their ids in Qdrant.
        vectors: float32 or float16 (points, dim).
        sparse: indices and weights of their sparse vectors; None for points without one.
        payloads: their payloads.
        first: the id of the first row, for messages.
    """

    ids: list[int | str]
    vectors: npt.NDArray[Any]
    sparse: list[SparseRow]
    payloads: list[dict[str, Any]]
    first: str | int


def batches(rows: Rows) -> Iterator[Batch]:
    """All rows, in batches of bounded size.

    Raises:
        ConvertError: Qdrant cannot store a value.
    """
    is_json = {"metadata", *rows.info.json_columns}
    row_bytes = _BYTES_OF_NUMBER * rows.info.dim
    for block in rows.unsorted():
        vectors = vectors_of(block)
        ids, payloads = _payloads(block, is_json, rows.info)
        _check_finite(vectors, ids, rows.info.name)
        sparse: list[SparseRow] = [None] * len(ids)
        if rows.info.sparse_dim is not None:
            sparse = sparse_of(block)
        sizes = [0 if one is None else _BYTES_OF_WEIGHT * len(one[0]) for one in sparse]
        for start, end in _parts(payloads, [row_bytes + size for size in sizes]):
            part = ids[start:end]
            yield Batch(
                list(map(point_id, part)),
                vectors[start:end],
                sparse[start:end],
                payloads[start:end],
                part[0],
            )


def _parts(payloads: list[dict[str, Any]], row_bytes: list[int]) -> Iterator[tuple[int, int]]:
    """Where batches begin and end; `row_bytes` are those of the vectors."""
    start, size = 0, 0
    for row, payload in enumerate(payloads):
        more = row_bytes[row] + len(json.dumps(payload))
        if row > start and (size + more > MOST_BYTES or row - start == MOST_POINTS):
            yield start, row
            start, size = row, 0
        size += more
    if payloads:
        yield start, len(payloads)


def _payloads(
    block: Any, is_json: Iterable[str], info: SourceInfo
) -> tuple[list[str | int], list[dict[str, Any]]]:
    """The ids of a block's rows, and their payloads.

    Raises:
        ConvertError: Qdrant cannot store a value.
    """
    ids, source, has_sparse = _ids(block), info.name, info.sparse_dim is not None
    payloads: list[dict[str, Any]] = [{"id": _payload_id(key)} for key in ids]
    for name in block.schema.names:
        if name in ("id", "vector") or (has_sparse and name in SPARSE_COLUMNS):
            continue
        read = _from_json if name in is_json else _plain
        for key, payload, value in zip(ids, payloads, _values(block, name, source), strict=True):
            try:
                payload[name] = None if value is None else read(value)
            except _BadValueError as error:
                raise ConvertError(
                    f"{source}: `{name}` of the id {key!r} {error}, which Qdrant cannot store"
                ) from None
    return ids, payloads


def _ids(block: Any) -> list[str | int]:
    """The ids of the source, of which those of a collection may be of both kinds."""
    ids: list[str | int] = block.column("id").to_pylist()
    if "id_is_int" not in block.schema.names:
        return ids
    kinds = block.column("id_is_int").to_pylist()
    return [int(key) if is_int else key for key, is_int in zip(ids, kinds, strict=True)]


def _payload_id(key: str | int) -> str | int:
    """An id as a value of JSON; Qdrant has no numbers of over 64 bits."""
    return key if isinstance(key, str) or _LEAST <= key <= _MOST else str(key)


def _values(block: Any, name: str, source: str) -> list[Any]:
    """The values of a column in Python.

    Raises:
        ConvertError: Python has none for them.
    """
    pa = imported_arrow()
    column = block.column(name)
    if pa.types.is_timestamp(column.type):
        # Without digits below microseconds, which Python does not have; times of a zone as UTC.
        column = column.cast(pa.timestamp("us", column.type.tz and "UTC"), safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ConvertError(f"{source}: the field {name!r} cannot be converted: {error}") from None
    return values


class _BadValueError(ValueError):
    """A value that JSON or Qdrant does not have."""


def _from_json(text: str) -> Any:
    """The value of a text of JSON.

    Raises:
        _BadValueError: Qdrant cannot store it.
    """
    return _plain(json.loads(text))


def _plain(value: Any) -> Any:
    """A value of Python as a value of JSON.

    Raises:
        _BadValueError: Qdrant cannot store it.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise _BadValueError("has a lone surrogate")
        return value
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise _BadValueError("has a whole number of over 64 bits")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _BadValueError("has NaN or infinity in it")
        return value
    if isinstance(value, dict):
        return {_plain(str(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def _check_finite(vectors: npt.NDArray[Any], ids: list[str | int], source: str) -> None:
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        key = ids[int(np.argmin(finite))]
        raise ConvertError(
            f"{source}: `vector` of the id {key!r} has a number that is not finite, which Qdrant "
            "cannot store"
        )
