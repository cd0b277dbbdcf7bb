"""Rows of a collection as a Parquet file, and back, so that another engine can take over.

Columns: `id` (text), `id_is_int`, `text`, `metadata` (JSON), and `vector`, a list of as many
numbers as the collection has dimensions, float32 or float16. The schema's own metadata tells the
rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arrow import imported_arrow
from flowvec.errors import CollectionError, InputValueError
from flowvec.rows import Id, Item, Rows

__all__ = ["read_parquet", "write_parquet"]

_ROWS = 4096
_KEY = b"flowvec"


def write_parquet(
    path: Path, rows: Iterable[Item], dim: int, dtype: str, about: Mapping[str, str]
) -> int:
    """Write rows at constant memory; the file appears whole or not at all.

    Args:
        path: the file.
        rows: what to write.
        dim: length of the vectors.
        dtype: how they are stored, `float32` or `float16`.
        about: kept in the schema's metadata.

    Returns:
        How many rows.

    Raises:
        CollectionError: it cannot be written.
        MissingDependencyError: pyarrow is not installed.
    """
    pa = imported_arrow()
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("id_is_int", pa.bool_()),
            ("text", pa.string()),
            ("metadata", pa.string()),
            ("vector", pa.list_(pa.float16() if dtype == "float16" else pa.float32(), dim)),
        ],
        metadata={_KEY: json.dumps(dict(about))},
    )
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    source, count = iter(rows), 0
    try:
        with pa.parquet.ParquetWriter(partial, schema) as writer:
            while items := list(islice(source, _ROWS)):
                flat = np.stack([item.vector for item in items]).astype(dtype).ravel()
                columns = [
                    pa.array([str(item.id) for item in items]),
                    pa.array([isinstance(item.id, int) for item in items]),
                    pa.array([item.text for item in items], pa.string()),
                    pa.array(
                        [None if i.metadata is None else json.dumps(i.metadata) for i in items],
                        pa.string(),
                    ),
                    pa.FixedSizeListArray.from_arrays(pa.array(flat), dim),
                ]
                writer.write_batch(pa.record_batch(columns, schema=schema))
                count += len(items)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, pa.ArrowException) as error:
        raise CollectionError(f"cannot write {path}: {error}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return count


def read_parquet(path: Path) -> tuple[dict[str, str], int, str, Iterator[Rows]]:
    """What a file says of itself, length and dtype of its vectors, and its rows by the batch.

    A file of another's making needs the columns `id` (text or whole numbers) and `vector` (lists
    of equal length); `text` and `metadata` (JSON) may be there.

    Raises:
        InputValueError: it cannot be read, lacks a column, or a row holds something else.
        MissingDependencyError: pyarrow is not installed.
    """
    pa = imported_arrow()
    try:
        file = pa.parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise InputValueError(f"cannot read {path}: {error}") from None
    schema = file.schema_arrow
    for name in ("id", "vector"):
        if name not in schema.names:
            raise InputValueError(f"{path} has no column {name!r}; it has {schema.names}")
    try:
        about = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
    except ValueError:
        about = {}
    if not isinstance(about, dict) or not all(isinstance(v, str) for v in about.values()):
        about = {}
    kind = schema.field("vector").type
    try:
        dim = int(getattr(kind, "list_size", 0)) or _first_length(file, path)
    except (OSError, pa.ArrowException) as error:
        raise InputValueError(f"cannot read {path}: {error}") from None
    dtype = "float16" if getattr(kind, "value_type", None) == pa.float16() else "float32"
    return about, dim, dtype, _batches(pa, file, path, dim)


def _first_length(file: Any, path: Path) -> int:
    """The vectors' length, where the column's type does not say it."""
    for batch in file.iter_batches(batch_size=1, columns=["vector"]):
        values = batch.column(0)[0].as_py()
        if isinstance(values, list) and values:
            return len(values)
        break
    raise InputValueError(f"{path} holds no vectors")


def _batches(pa: Any, file: Any, path: Path, dim: int) -> Iterator[Rows]:
    first = 0
    try:
        for batch in file.iter_batches(batch_size=_ROWS):
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names
                       if name in ("id", "id_is_int", "text", "metadata")}  # fmt: skip
            column = batch.column("vector")
            flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.float32)
            lengths = pa.compute.unique(pa.compute.list_value_length(column)).to_pylist()
            if column.null_count or lengths != [dim]:
                raise InputValueError(f"{path}: rows from {first} on have no {dim} numbers each")
            none = [None] * len(batch)
            yield Rows(
                _ids(columns["id"], columns.get("id_is_int", none), path, first),
                flat.reshape(len(batch), dim),
                columns.get("text", none),
                [json.loads(m) if isinstance(m, str) else m for m in columns.get("metadata", none)],
            )
            first += len(batch)
    except (OSError, pa.ArrowException, TypeError, ValueError) as error:
        if isinstance(error, InputValueError):
            raise
        raise InputValueError(f"{path}: rows from {first} on cannot be read: {error}") from None


def _ids(ids: list[Any], are_ints: list[bool | None], path: Path, first: int) -> list[Id]:
    found: list[Id] = []
    for place, (item, is_int) in enumerate(zip(ids, are_ints, strict=True), first):
        if is_int and isinstance(item, str):
            item = int(item)
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise InputValueError(f"{path}: row {place} has no id: {item!r}")
        found.append(item)
    return found
