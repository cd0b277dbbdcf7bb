"""Rows of a collection to a Parquet file and back, for other search engines.

Columns: `id` (text), `id_is_int`, `text`, `metadata` (JSON), and `vector`, a list of fixed length
of float32 or float16. A collection with sparse vectors has `sparse_indices` and `sparse_values`
too, which are null for rows without one. The schema's metadata holds the rest. Output of bulk jobs
and files of other origin can be read too.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from flowvec.arrow import file_for_arrow, imported_arrow
from flowvec.bundle.bundle import absolute_path
from flowvec.collection.store.rows import Id, Item, Rows
from flowvec.collection.store.values import scalar_of, storable
from flowvec.errors import CollectionError, FlowvecError, InputTypeError, InputValueError
from flowvec.files import lfs_advice, staged_file
from flowvec.sequences import as_list
from flowvec.sparse.checking import checked_sparse
from flowvec.sparse.vectors import SparseVectors
from flowvec.spelled import kind_of
from flowvec.texts.arrow_values import (
    check_times,
    open_parquet,
    plain,
    plain_type,
    text_of_bytes,
    text_of_id,
)
from flowvec.texts.column_types import check_distinct
from flowvec.texts.compression import is_hidden, without_links
from flowvec.texts.lines import json_reason

__all__ = [
    "ParquetRows",
    "json_value",
    "read_parquet",
    "sparse_columns",
    "sparse_fields",
    "write_parquet",
]

_ROWS = 4096
_KEY = b"flowvec"
_SPARSE = ("sparse_indices", "sparse_values")


def write_parquet(
    path: Path,
    rows: Iterable[Item],
    dim: int,
    dtype: str,
    about: Mapping[str, str],
    sparse_of: Callable[[Sequence[int]], Mapping[int, SparseVectors]] | None = None,
) -> int:
    """Write rows at constant memory; the file is written atomically.

    Args:
        path: the file.
        rows: what to write.
        dim: length of the vectors.
        dtype: how they are stored, `float32` or `float16`.
        about: kept in the schema's metadata.
        sparse_of: gives sparse vectors by label; None if there are none.

    Returns:
        How many rows.

    Raises:
        CollectionError: it cannot be written.
        MissingDependencyError: pyarrow is not installed.
    """
    pa = imported_arrow()
    fields = [
        ("id", pa.string()),
        ("id_is_int", pa.bool_()),
        ("text", pa.string()),
        ("metadata", pa.string()),
        ("vector", pa.list_(pa.float16() if dtype == "float16" else pa.float32(), dim)),
    ]
    if sparse_of is not None:
        fields += sparse_fields()
    schema = pa.schema(fields, metadata={_KEY: json.dumps(dict(about))})
    source, count = iter(rows), 0
    try:
        with (
            staged_file(path) as partial,
            pa.parquet.ParquetWriter(file_for_arrow(partial, "wb"), schema) as writer,
        ):
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
                if sparse_of is not None:
                    sparse = sparse_of([item.label for item in items])
                    columns += sparse_columns([sparse.get(item.label) for item in items])
                writer.write_batch(pa.record_batch(columns, schema=schema))
                count += len(items)
    except (OSError, pa.ArrowException) as error:
        raise CollectionError(f"cannot write {path}: {error}") from error
    return count


def sparse_fields() -> list[tuple[str, Any]]:
    """Names and Arrow types of the columns of sparse vectors."""
    pa = imported_arrow()
    kinds = (pa.list_(pa.int32()), pa.list_(pa.float32()))
    return list(zip(_SPARSE, kinds, strict=True))


def sparse_columns(sparse: Sequence[SparseVectors | None]) -> list[Any]:
    """Columns of sparse vectors, each of one row; null for rows without one."""
    pa = imported_arrow()
    lengths = np.array([0 if one is None else len(one.values) for one in sparse], np.int64)
    missing = np.array([one is None for one in sparse])
    offsets = pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), pa.int32())
    there = [one for one in sparse if one is not None]
    terms = np.concatenate([np.empty(0, np.int32), *(one.indices for one in there)])
    weights = np.concatenate([np.empty(0, np.float32), *(one.values for one in there)])
    return [
        pa.ListArray.from_arrays(offsets, pa.array(flat), mask=pa.array(missing))
        for flat in (terms, weights)
    ]


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """Rows of one or more Parquet files.

    Attributes:
        about: what the files say about themselves, such as model and fingerprint.
        dim: length of the vectors.
        dtype: how they are stored, `float32` or `float16`.
        batches: the rows.
        files: closes the files.
        read: the files, and the folders that were named.
    """

    about: Mapping[str, str]
    dim: int
    dtype: str
    batches: Iterator[Rows]
    files: ExitStack
    read: Sequence[Path]


def read_parquet(source: str | Path | Sequence[str | Path]) -> ParquetRows:
    """Rows of one or more files, in their order.

    A file needs the columns `id` (texts, whole numbers or UUIDs) and `vector` (lists of equal
    length, of floating-point numbers). `text` and `metadata` (JSON) are optional; every other
    column becomes metadata, which cannot hold bytes and durations.

    Args:
        source: a file, a folder of files such as `flowvec encode` writes, a glob, or a list of
            these.

    Raises:
        InputTypeError: the source is none of these, or a row holds bytes or a duration.
        InputValueError: a file cannot be read, lacks a column, or has a row that is not valid; the
            files are of different models or dimensions; a folder's job is not complete.
        MissingDependencyError: pyarrow is not installed.
    """
    imported_arrow()
    with ExitStack() as open_files:
        return _opened(source, open_files)


def _opened(source: str | Path | Sequence[str | Path], open_files: ExitStack) -> ParquetRows:
    several = as_list("parquet", source) if not isinstance(source, str | Path) else [source]
    opened: list[_File] = []
    read: list[Path] = []
    for one in several:
        if not isinstance(one, str | Path):
            raise InputTypeError(f"parquet is a file, a folder or a glob, not {one!r}")
        paths, of_job = _files_and_manifest(absolute_path(one))
        for path in paths:
            opened.append(_File(path, of_job))
            open_files.callback(opened[-1].close)
        read += [absolute_path(one), *paths]
    if not opened:
        raise InputValueError("parquet names no file")
    first = opened[0]
    for other in opened[1:]:
        for name, mine, its in (
            ("vectors of length", first.dim, other.dim),
            ("vectors of", first.dtype, other.dtype),
            ("vectors of the model", first.model, other.model),
        ):
            if mine != its:
                raise InputValueError(
                    f"{first.path} holds {name} {mine}, and {other.path} {its}: they cannot be "
                    "combined in one collection"
                )
    batches = (rows for file in opened for rows in file.rows())
    return ParquetRows(first.about, first.dim, first.dtype, batches, open_files.pop_all(), read)


def _files_and_manifest(path: Path) -> tuple[list[Path], dict[str, str]]:
    """The Parquet files of a path, by name, and the model that the manifest beside them names."""
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
        files = [
            Path(one) for one in without_links([str(f) for f in files if not is_hidden((f.name,))])
        ]
        if not files:
            raise InputValueError(f"{path} has no Parquet files")
        return files, _of_job(path)
    if not path.exists() and glob.has_magic(str(path)):
        names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - absolute ones, too
        files = [Path(one) for one in without_links([n for n in names if Path(n).is_file()])]
        if not files:
            raise InputValueError(f"{path} does not match any file")
        return files, {}
    return [path], {}


def _of_job(folder: Path) -> dict[str, str]:
    """Model and fingerprint from the manifest of a bulk job; empty if there is none.

    Raises:
        InputValueError: the job is not complete.
    """
    recorded: dict[str, str] = {}
    for file in sorted(folder.glob("_manifest*.json")):
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
            if "flowvec_bulk" not in manifest:
                continue
            model = manifest["model"]
            recorded = {"model": model["name"], "fingerprint": model["fingerprint"],
                     "compute": model["compute"]}  # fmt: skip
            share = manifest["options"]["share"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputValueError(f"{file} cannot be read: {error}") from None
        if "shards" not in manifest or len(list(folder.glob(f"_manifest*of-{share[1]}.json"))) != (
            share[1] if share[1] > 1 else 0
        ):
            raise InputValueError(
                f"{folder} holds a bulk job that is not complete; finish it, or name shard files"
            )
    return recorded


class _File:
    """An open Parquet file of rows."""

    def __init__(self, path: Path, of_job: Mapping[str, str]) -> None:
        pa = imported_arrow()
        self.path = path
        self._handle: Any = None
        try:
            if advice := lfs_advice(path):
                raise InputValueError(advice)
            # pyarrow leaves a file open that it opened itself and cannot read.
            self._handle = pa.OSFile(os.fsencode(path))
            self._file = open_parquet(self._handle)
            schema = self._file.schema_arrow
            check_distinct(str(path), schema.names, dict.fromkeys(schema.names))
            for name in ("id", "vector"):
                if name not in schema.names:
                    raise InputValueError(f"{path} has no column {name!r}; it has {schema.names}")
            kind = plain_type(schema.field("vector").type)
            number = getattr(kind, "value_type", None)
            if number in (pa.int8(), pa.uint8()):  # quantized by a bulk job
                raise InputValueError(
                    f"{path} holds vectors of {number}; a collection takes float32 or float16"
                )
            self.dim = int(getattr(kind, "list_size", 0)) or _first_length(self._file, path)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError | pa.ArrowException):
                raise InputValueError(f"cannot read {path}: {error}") from None
            raise
        self.dtype = "float16" if number == pa.float16() else "float32"
        self.about = {**of_job, **_about(schema)}
        self.model = self.about.get("fingerprint", "unknown")[:12]

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()

    def rows(self) -> Iterator[Rows]:
        """The rows, in batches."""
        return _batches(imported_arrow(), self._file, self.path, self.dim, self.about)


def _about(schema: Any) -> dict[str, str]:
    """What flowvec wrote into the schema's metadata."""
    try:
        about = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
    except ValueError:
        return {}
    if not isinstance(about, dict) or not all(isinstance(v, str) for v in about.values()):
        return {}
    return about


def _first_length(file: Any, path: Path) -> int:
    """Length of the vectors, if the column's type does not say it."""
    for batch in file.iter_batches(batch_size=1, columns=["vector"]):
        values = batch.column(0)[0].as_py()
        if isinstance(values, list) and values:
            return len(values)
        break
    raise InputValueError(f"{path} holds no vectors")


def _batches(pa: Any, file: Any, path: Path, dim: int, about: Mapping[str, str]) -> Iterator[Rows]:
    first = 0
    take = partial(
        _rows_of, dim, set(json.loads(about.get("json_columns", "[]"))),
        int(about.get("sparse_dim", 0)),
    )  # fmt: skip
    try:
        for batch in file.iter_batches(batch_size=_ROWS):
            try:
                rows = take(batch)
            except _UNREADABLE as error:
                raise _naming_row(error, batch, take, path, first) from None
            yield replace(rows, place_of=partial(_place, path, first))
            first += len(batch)
    except (OSError, pa.ArrowException) as error:
        raise InputValueError(f"{path}: rows from {first} on cannot be read: {error}") from None


def _place(path: Path, first: int, row: int) -> str:
    return f"{path}, row {first + row}"


# What values that cannot be read raise, flowvec's errors included.
_UNREADABLE = (ArithmeticError, TypeError, ValueError, KeyError, RecursionError)


def _naming_row(
    error: Exception, batch: Any, take: Callable[[Any], Rows], path: Path, first: int
) -> FlowvecError:
    """The error of a batch, with the first row that cannot be read."""
    for place in range(len(batch)):
        try:
            take(batch.slice(place, 1))
        except _UNREADABLE as reason:
            kind = InputTypeError if isinstance(reason, InputTypeError) else InputValueError
            what = str(reason).replace("row 0 of the sparse vectors", "its sparse vector")
            return kind(f"{_place(path, first, place)}: {what}")
    return InputValueError(f"{path}: rows from {first} on cannot be read: {error}")


def _rows_of(dim: int, as_json: Container[str], sparse_dim: int, batch: Any) -> Rows:
    """The rows of a batch.

    Raises:
        InputTypeError, InputValueError, or one of `_UNREADABLE`: a row is not valid. The message
        does not name it.
    """
    pa = imported_arrow()
    batch = pa.record_batch([plain(one) for one in batch.columns], batch.schema.names)
    arrays = ("vector", *(_SPARSE if sparse_dim else ()))
    columns = {name: _values_of(batch, name) for name in batch.schema.names if name not in arrays}
    column = batch.column("vector")
    try:
        with np.errstate(over="ignore"):  # an infinity is reported with its row
            flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.float32)
    except (TypeError, ValueError):
        raise InputTypeError("its vector does not hold numbers") from None
    lengths = pa.compute.unique(pa.compute.list_value_length(column)).to_pylist()
    if column.null_count or lengths not in ([dim], []):
        raise InputValueError(f"its vector does not have {dim} numbers")
    none = [None] * len(batch)
    ids = _ids(columns.pop("id"), columns.pop("id_is_int", none))
    texts = [text_of_bytes(text) for text in columns.pop("text", none)]
    for text in texts:
        if not isinstance(text, str | None):
            raise InputTypeError(f"its text is {kind_of(text).json}, not a text")
    sparse = None
    if sparse_dim and set(_SPARSE) & set(batch.schema.names):
        sparse = _sparse(batch, sparse_dim)
    metadata = _metadata(columns.pop("metadata", none), columns, as_json)
    return Rows(ids, flat.reshape(len(batch), dim), texts, metadata, sparse)


def _values_of(batch: Any, name: str) -> list[Any]:
    try:
        check_times(batch.column(name))
        values: list[Any] = batch.column(name).to_pylist()
    except (ArithmeticError, ValueError) as error:
        raise InputValueError(f"{name} cannot be read: {error}") from None
    return values


def _sparse(batch: Any, dim: int) -> list[SparseVectors | None]:
    """Sparse vectors of a batch's rows; None where both columns are null."""
    pa = imported_arrow()
    terms, weights = (batch.column(name) for name in _SPARSE)
    lengths, others = (pa.compute.list_value_length(column) for column in (terms, weights))
    if not lengths.equals(others):
        raise InputValueError("its sparse vector does not have a weight for each index")
    indptr = np.zeros(len(batch) + 1, np.int64)
    np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False), out=indptr[1:])
    indices, values = (
        column.flatten().to_numpy(zero_copy_only=False) for column in (terms, weights)
    )
    vectors = checked_sparse("the sparse vectors", SparseVectors(indptr, indices, values, dim))
    is_there = terms.is_valid().to_pylist()
    return [vectors[row] if there else None for row, there in enumerate(is_there)]


def _metadata(
    written: list[Any], columns: Mapping[str, list[Any]], as_json: Container[str]
) -> list[Any]:
    """Each row's metadata: a JSON object, and further columns.

    Args:
        written: values of the column `metadata`.
        columns: values of further columns.
        as_json: names of those that hold JSON.

    Raises:
        InputTypeError: a value cannot be metadata.
        ValueError: one is not JSON.
    """
    parsed = [_object_of(item) for item in written]
    if not columns:
        return parsed
    plain = {
        name: [_value_of(value, name, is_json=name in as_json) for value in values]
        for name, values in columns.items()
    }
    return [
        {**(before or {}), **{name: values[i] for name, values in plain.items()}}
        for i, before in enumerate(parsed)
    ]


def _object_of(item: Any) -> Any:
    """The object of a cell of the column `metadata`, which is JSON or a struct."""
    try:
        item = json.loads(item) if isinstance(item, str) else item
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"its metadata is not JSON: {json_reason(error)}") from None
    if item is not None and not isinstance(item, dict):
        raise InputTypeError(f"its metadata is {kind_of(item).json}, not an object")
    return item


def _value_of(value: Any, name: str, *, is_json: bool) -> Any:
    try:
        return json.loads(value) if is_json and value is not None else json_value(value)
    except InputTypeError as error:
        raise InputTypeError(f"{name} {error}") from None
    except ValueError as error:
        raise InputValueError(f"{name} cannot be read: {error}") from None


def json_value(value: Any) -> Any:
    """A Parquet value as metadata holds it; NaN is null.

    A `Decimal` of too many digits is text.

    Raises:
        InputTypeError: it is or holds bytes or a duration. The message has no subject.
    """
    try:
        return storable(value, "a value", nan_is_null=True)
    except (InputTypeError, InputValueError):
        return json.loads(json.dumps(value, default=_shown), parse_constant=lambda _: None)


def _shown(value: Any) -> Any:
    try:
        return scalar_of(value)
    except InputValueError:
        return str(value)


def _ids(ids: list[Any], are_ints: list[bool | None]) -> list[Id]:
    checked: list[Id] = []
    for item, is_int in zip(ids, are_ints, strict=True):
        item = text_of_bytes(text_of_id(item))
        if is_int and isinstance(item, str):
            try:
                item = int(item)
            except ValueError:
                raise InputValueError(f"its id {item:.40} is not a whole number") from None
        if isinstance(item, bool) or not isinstance(item, str | int):
            raise InputValueError(f"its id is {item!r}, and an id is a text or a whole number")
        checked.append(item)
    return checked
