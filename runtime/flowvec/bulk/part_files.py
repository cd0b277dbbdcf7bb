"""Shards of a bulk job: Parquet, or .npy with a row map. Each appears whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from flowvec.arrow import imported_arrow
from flowvec.bulk.journal import partial_of, row_map_of
from flowvec.bundle.bundle import record_file
from flowvec.encoder.postprocess import DTYPES, PRECISIONS, Precision
from flowvec.errors import InputValueError
from flowvec.files import sync_file, sync_folder
from flowvec.texts.window import Columns, Fields, Window, of_rows

__all__ = [
    "BULK_PRECISIONS",
    "BulkPrecision",
    "OutFormat",
    "ShardFile",
    "ShardSettings",
    "ShardWriter",
    "Written",
    "check_names",
    "dtype_of",
    "taken",
]

OutFormat = Literal["parquet", "npy", "collection"]
BulkPrecision = Precision | Literal["float16"]
BULK_PRECISIONS: tuple[BulkPrecision, ...] = (*PRECISIONS, "float16")


def dtype_of(precision: BulkPrecision) -> np.dtype[Any]:
    """The type of a written vector's numbers, little-endian."""
    number = np.float16 if precision == "float16" else DTYPES[precision]
    return np.dtype(number).newbyteorder("<")


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file: its size and SHA-256, and that of its row map if it has one."""

    bytes: int
    sha256: str
    map_sha256: str | None


def check_names(fields: Fields) -> None:
    """Refuse fields that cannot be columns beside the id and the vector.

    Raises:
        InputValueError: there is one.
    """
    for name in fields.keep:
        if name == "vector" or (name == "id" and fields.id != "id"):
            raise InputValueError(f"a field {name!r} cannot be kept: that column is flowvec's own")


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """What shards of a job have in common.

    Attributes:
        out_format: `parquet`, `npy` or `collection`.
        fields: what is written of a row.
        dim: length of a vector as it is written.
        precision: of its numbers.
        about: kept in a Parquet file's schema.
    """

    out_format: OutFormat
    fields: Fields
    dim: int
    precision: BulkPrecision
    about: Mapping[str, str]


class ShardWriter(Protocol):
    """Takes a shard's rows a window at a time."""

    @property
    def rows(self) -> int:
        """Rows written."""

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        """Append rows.

        Args:
            window: the rows.
            kept: indices of those of the window that are written; None writes all.
            vectors: of those, (rows, dim).
        """

    def finish(self, columns: Columns) -> Written:
        """Make it durable.

        Args:
            columns: what the named fields hold, for a shard without rows.
        """

    def abandon(self) -> None:
        """Leave nothing of it that would be taken for a finished one."""


class ShardFile:
    """Writes one file of vectors."""

    def __init__(self, path: Path, settings: ShardSettings, *, always_mapped: bool = True) -> None:
        """Name it; the file beside it is made when the first window is written, or at the end.

        Args:
            path: what it is called once it is whole.
            settings: what it holds.
            always_mapped: write a row map beside a .npy file also where it says no more than that
                each row is the input's.
        """
        kind = _ParquetFile if settings.out_format == "parquet" else _NpyFile
        self._path = path
        self._inner = kind(path, settings, always_mapped=always_mapped)
        self._rows = 0

    @property
    def rows(self) -> int:
        """Rows written."""
        return self._rows

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        """Write the rows of a window that are kept, with their vectors."""
        self._rows += len(vectors)
        self._inner.write(window, kept, vectors)

    def finish(self, columns: Columns) -> Written:
        """Give it its name, durably."""
        self._inner.finish(columns)
        written = self._inner.written()
        self._inner.rename()
        sync_folder(self._path.parent)
        return written

    def abandon(self) -> None:
        """Leave nothing of it."""
        with suppress(OSError):
            self._inner.abandon()


def taken(window: Window, name: str, kept: Sequence[int] | None) -> Any:
    """Values of a field of the rows that are written: a list, or an Arrow array."""
    values = window.values[name]
    return values if kept is None else of_rows(values, kept)


class _File:
    def __init__(self, path: Path, settings: ShardSettings, *, always_mapped: bool) -> None:
        self.partial = partial_of(path)
        self.path = path
        self.fields = settings.fields
        self.dim = settings.dim
        self.dtype = dtype_of(settings.precision)
        self.about = settings.about
        self.always_mapped = always_mapped

    def _numbers(self, window: Window, kept: Sequence[int] | None) -> list[int]:
        return window.numbers if kept is None else [window.numbers[i] for i in kept]

    def rename(self) -> None:
        self.partial.replace(self.path)

    def written(self) -> Written:
        record = record_file(self.partial)
        return Written(record.bytes, record.sha256, None)

    def abandon(self) -> None:
        self.partial.unlink(missing_ok=True)


class _ParquetFile(_File):
    _writer: Any = None
    _schema: Any = None
    _vector: Any = None

    def _open(self, columns: Columns, values: Mapping[str, Any]) -> None:
        arrow = imported_arrow()
        types = {"int64": arrow.int64(), "double": arrow.float64(), "bool": arrow.bool_(),
                 "string": arrow.string(), "json": arrow.string()}  # fmt: skip

        def kind(name: str) -> Any:
            column = values.get(name)
            if column is not None and not isinstance(column, list):
                return column.type
            return types.get(columns.get(name, ""), arrow.string())

        fields = [("id", arrow.int64() if self.fields.id is None else kind(self.fields.id))]
        fields += [(name, kind(name)) for name in self.fields.beside_id]
        # That nothing is null spares Parquet a level for each number.
        item = arrow.field("element", arrow.from_numpy_dtype(self.dtype), nullable=False)
        self._vector = arrow.list_(item, self.dim)
        names = [name for name in self.fields.beside_id if columns.get(name) == "json"]
        about = {**self.about, "json_columns": json.dumps(names)} if names else dict(self.about)
        columns_of = [
            *(arrow.field(name, kind) for name, kind in fields),
            arrow.field("vector", self._vector, nullable=False),
        ]
        self._schema = arrow.schema(columns_of, metadata={"flowvec": json.dumps(about)})
        named = [name for name, _ in fields]
        self._writer = arrow.parquet.ParquetWriter(
            self.partial,
            self._schema,
            # Numbers that look random neither compress nor repeat.
            compression=dict.fromkeys(named, "zstd"),
            use_dictionary=[name for name, kind in fields if _repeats(arrow, kind)],
            write_statistics=named,
        )

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        arrow = imported_arrow()
        if self._writer is None:
            self._open(window.columns, window.values)
        if not len(vectors):
            return
        columns = []
        for field in self._schema:
            if field.name == "vector":
                flat = np.ascontiguousarray(vectors.astype(self.dtype, copy=False)).reshape(-1)
                columns.append(
                    arrow.FixedSizeListArray.from_arrays(arrow.array(flat), type=self._vector)
                )
                continue
            name = self.fields.id if field.name == "id" else field.name
            values: Any = self._numbers(window, kept) if name is None else taken(window, name, kept)
            if isinstance(values, list):
                if name is not None and window.columns[name] == "id":
                    values = list(map(str, values))  # a column has one type
                values = arrow.array(values, field.type)
            columns.append(values)
        self._writer.write_batch(arrow.record_batch(columns, schema=self._schema))

    def finish(self, columns: Columns) -> None:
        if self._writer is None:
            self._open(columns, {})
        self._writer.close()
        sync_file(self.partial)

    def abandon(self) -> None:
        if self._writer is not None:
            with suppress(Exception):  # what it is told to write then is thrown away
                self._writer.close()
        super().abandon()


def _repeats(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


class _NpyFile(_File):
    _file: IO[bytes] | None = None
    _map: IO[bytes] | None = None
    _rows = 0
    _says_nothing = True

    def _open(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._file is None or self._map is None:
            self._file = self.partial.open("wb")
            self._map = partial_of(row_map_of(self.path)).open("wb")
            self._header()
        return self._file, self._map

    def _header(self) -> None:
        """Numpy leaves room in the header to write the number of rows in place at the end."""
        described = {"descr": self.dtype.str, "fortran_order": False,
                     "shape": (self._rows, self.dim)}  # fmt: skip
        npy.write_array_header_1_0(self._file, described)  # type: ignore[arg-type]

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        file, row_map = self._open()
        file.write(np.ascontiguousarray(vectors.astype(self.dtype, copy=False)).data)
        self._rows += len(vectors)
        values = {name: taken(window, name, kept) for name in self.fields.named}
        values = {n: v if isinstance(v, list) else v.to_pylist() for n, v in values.items()}
        numbers = self._numbers(window, kept)
        first = self._rows - len(vectors)
        if self.fields.named or numbers != list(range(first, self._rows)):
            self._says_nothing = False
        if self.fields.named:
            ids = numbers if self.fields.id is None else values[self.fields.id]
            names = self.fields.beside_id
            lines = [
                json.dumps({"row": row, "id": key} | {n: values[n][i] for n in names}, default=str)
                for i, (row, key) in enumerate(zip(numbers, ids, strict=True))
            ]
        else:  # the same, in a tenth of the time
            lines = [f'{{"row": {row}, "id": {row}}}' for row in numbers]
        if lines:
            row_map.write(("\n".join(lines) + "\n").encode())

    def finish(self, columns: Columns) -> None:
        file, row_map = self._open()
        file.seek(0)
        self._header()
        for one in (file, row_map):
            one.flush()
            os.fsync(one.fileno())
            one.close()

    def written(self) -> Written:
        record = record_file(self.partial)
        return Written(
            record.bytes, record.sha256, record_file(partial_of(row_map_of(self.path))).sha256
        )

    def rename(self) -> None:
        row_map = row_map_of(self.path)
        if self._says_nothing and not self.always_mapped:
            partial_of(row_map).unlink()
            row_map.unlink(missing_ok=True)  # of an earlier run
        else:  # the map goes first: a .npy file that is there has one
            partial_of(row_map).replace(row_map)
        super().rename()

    def abandon(self) -> None:
        for file in (self._file, self._map):
            if file is not None:
                with suppress(OSError):  # what it still holds does not fit on a full disk
                    file.close()
        partial_of(row_map_of(self.path)).unlink(missing_ok=True)
        super().abandon()
