"""Writes shards of a bulk job: Parquet, or .npy with a row map, each atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from flowvec.arrow import file_for_arrow, imported_arrow
from flowvec.bulk.file_names import partial_of, row_map_of
from flowvec.bundle.bundle import record_file
from flowvec.encoder.postprocess import DTYPES, PRECISIONS, Precision
from flowvec.errors import InputValueError
from flowvec.files import rename_durably
from flowvec.texts.arrow_values import arrow_type
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
    "field_values",
]

OutFormat = Literal["parquet", "npy", "collection"]
BulkPrecision = Precision | Literal["float16"]
BULK_PRECISIONS: tuple[BulkPrecision, ...] = (*PRECISIONS, "float16")


def dtype_of(precision: BulkPrecision) -> np.dtype[Any]:
    """The dtype of written vectors, little-endian."""
    number = np.float16 if precision == "float16" else DTYPES[precision]
    return np.dtype(number).newbyteorder("<")


@dataclass(frozen=True, slots=True)
class Written:
    """Size and SHA-256 of a finished file, and the SHA-256 of its row map and texts file."""

    bytes: int
    sha256: str
    map_sha256: str | None
    texts_sha256: str | None = None


def check_names(fields: Fields) -> None:
    """Refuse kept fields whose names are those of flowvec's columns, `id` and `vector`.

    Raises:
        InputValueError: a field has such a name.
    """
    for name in fields.keep:
        if name == "vector" or (name == "id" and fields.id != "id"):
            raise InputValueError(
                f"the field {name!r} cannot be kept: flowvec writes a column {name!r}"
            )


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Settings that all shards of a job share.

    Attributes:
        out_format: `parquet`, `npy` or `collection`.
        fields: the fields that are written.
        dim: length of a written vector.
        precision: type of its numbers.
        about: written into the metadata of a Parquet file's schema.
    """

    out_format: OutFormat
    fields: Fields
    dim: int
    precision: BulkPrecision
    about: Mapping[str, str]


class ShardWriter(Protocol):
    """Writes one shard, a window at a time."""

    @property
    def rows(self) -> int:
        """Rows written."""

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        """Append rows.

        Args:
            window: the window.
            kept: indices of its rows that are written; None writes all.
            vectors: vectors of the written rows, (rows, dim).
        """

    def finish(self, columns: Columns) -> Written:
        """Complete the shard, durably.

        Args:
            columns: types of the fields; they are used if the shard has no rows.
        """

    def abandon(self) -> None:
        """Remove the unfinished file."""


class ShardFile:
    """Writes one file of vectors."""

    def __init__(self, path: Path, settings: ShardSettings, *, always_mapped: bool = True) -> None:
        """Set the file name. The file is created with the first window, or by `finish`.

        Args:
            path: name of the finished file.
            settings: what the file holds.
            always_mapped: write the row map of a .npy file even if it only repeats the row numbers.
        """
        kind = _ParquetFile if settings.out_format == "parquet" else _NpyFile
        self._inner = kind(path, settings, always_mapped=always_mapped)
        self._rows = 0

    @property
    def rows(self) -> int:
        """Rows written."""
        return self._rows

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        """Append rows of a window with their vectors."""
        self._rows += len(vectors)
        self._inner.write(window, kept, vectors)

    def finish(self, columns: Columns) -> Written:
        """Complete the file and rename it, durably."""
        self._inner.finish(columns)
        written = self._inner.written()
        self._inner.rename()
        return written

    def abandon(self) -> None:
        """Delete the unfinished files."""
        with suppress(OSError):
            self._inner.abandon()


def field_values(window: Window, name: str, kept: Sequence[int] | None) -> Any:
    """Values of a field in the written rows: a list, or an Arrow array."""
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
        rename_durably(self.partial, self.path)

    def written(self) -> Written:
        record = record_file(self.partial)
        return Written(record.bytes, record.sha256, None)

    def abandon(self) -> None:
        self.partial.unlink(missing_ok=True)


class _ParquetFile(_File):
    _writer: Any = None
    _schema: Any = None
    _vector: Any = None

    def _open(self, columns: Columns) -> None:
        arrow = imported_arrow()
        kinds = {name: arrow_type(columns.get(name, "string")) for name in self.fields.named}
        fields = [("id", arrow.int64() if self.fields.id is None else kinds[self.fields.id])]
        fields += [(name, kinds[name]) for name in self.fields.beside_id]
        # Non-null numbers save a definition level in Parquet.
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
        with_dictionary = [name for name, kind in fields if _needs_dictionary(arrow, kind)]
        if self.dtype.itemsize == 1:
            # Parquet has no integers below 32 bits; a dictionary of 256 values makes each one byte.
            with_dictionary.append("vector.list.element")
        self._writer = arrow.parquet.ParquetWriter(
            file_for_arrow(self.partial, "wb"),
            self._schema,
            # Vectors look random: compression does not help.
            compression=dict.fromkeys(named, "zstd"),
            use_dictionary=with_dictionary,
            write_statistics=named,
        )

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        arrow = imported_arrow()
        if self._writer is None:
            self._open(window.columns)
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
            values: Any = (
                self._numbers(window, kept) if name is None else field_values(window, name, kept)
            )
            if isinstance(values, list):
                if name is not None and window.columns[name] == "id":
                    values = list(map(str, values))  # a column has one type
                values = arrow.array(values, field.type)
            columns.append(values)
        self._writer.write_batch(arrow.record_batch(columns, schema=self._schema))

    def finish(self, columns: Columns) -> None:
        if self._writer is None:
            self._open(columns)
        self._writer.close()

    def abandon(self) -> None:
        if self._writer is not None:
            with suppress(Exception):  # the file is deleted anyway
                self._writer.close()
        super().abandon()


def _needs_dictionary(arrow: Any, kind: Any) -> bool:
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


class _NpyFile(_File):
    _file: IO[bytes] | None = None
    _map: IO[bytes] | None = None
    _rows = 0
    _is_identity_map = True

    def _open(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._file is None or self._map is None:
            self._file = self.partial.open("wb")
            self._map = partial_of(row_map_of(self.path)).open("wb")
            self._write_header()
        return self._file, self._map

    def _write_header(self) -> None:
        """Write the header; NumPy reserves space to update the row count later."""
        described = {"descr": self.dtype.str, "fortran_order": False,
                     "shape": (self._rows, self.dim)}  # fmt: skip
        npy.write_array_header_1_0(self._file, described)  # type: ignore[arg-type]

    def write(self, window: Window, kept: Sequence[int] | None, vectors: npt.NDArray[Any]) -> None:
        file, row_map = self._open()
        file.write(np.ascontiguousarray(vectors.astype(self.dtype, copy=False)).data)
        self._rows += len(vectors)
        values = {name: field_values(window, name, kept) for name in self.fields.named}
        values = {n: v if isinstance(v, list) else v.to_pylist() for n, v in values.items()}
        numbers = self._numbers(window, kept)
        first = self._rows - len(vectors)
        if self.fields.named or numbers != list(range(first, self._rows)):
            self._is_identity_map = False
        if self.fields.named:
            ids = numbers if self.fields.id is None else values[self.fields.id]
            names = self.fields.beside_id
            lines = [
                json.dumps({"row": row, "id": key} | {n: values[n][i] for n in names}, default=str)
                for i, (row, key) in enumerate(zip(numbers, ids, strict=True))
            ]
        else:  # json.dumps would take ten times as long
            lines = [f'{{"row": {row}, "id": {row}}}' for row in numbers]
        if lines:
            row_map.write(("\n".join(lines) + "\n").encode())

    def finish(self, columns: Columns) -> None:
        file, row_map = self._open()
        file.seek(0)
        self._write_header()
        file.close()
        row_map.close()

    def written(self) -> Written:
        record = record_file(self.partial)
        return Written(
            record.bytes, record.sha256, record_file(partial_of(row_map_of(self.path))).sha256
        )

    def rename(self) -> None:
        row_map = row_map_of(self.path)
        if self._is_identity_map and not self.always_mapped:
            partial_of(row_map).unlink()
            row_map.unlink(missing_ok=True)  # left by an earlier run
        else:  # rename the map first, so that every .npy file has its map
            rename_durably(partial_of(row_map), row_map)
        super().rename()

    def abandon(self) -> None:
        for file in (self._file, self._map):
            if file is not None:
                with suppress(OSError):  # the rest does not fit on a full disk
                    file.close()
        partial_of(row_map_of(self.path)).unlink(missing_ok=True)
        super().abandon()
