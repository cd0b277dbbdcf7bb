"""Writes a folder from which psql makes a table of pgvector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowvec.arrow import imported_arrow
from flowvec.convert.copy_format import (
    HEADER,
    TRAILER,
    BadValueError,
    ColumnType,
    column_type,
    rows_bytes,
    sparse_fields,
    vector_fields,
)
from flowvec.convert.description import describe
from flowvec.convert.rows import Rows
from flowvec.convert.source import SPARSE_COLUMNS, SourceInfo, sparse_of, vectors_of
from flowvec.errors import ConvertError, InputValueError
from flowvec.vectors import Metric

__all__ = ["ROWS", "SCRIPT", "write_pgvector"]

ROWS, SCRIPT = "rows.copy", "load.sql"
# The column of the sparse vectors.
_SPARSE = "sparse"
# pgvector's limits: numbers of a vector, and of one in an HNSW index; the index's own options.
_MOST_DIM = 16_000
_MOST_INDEXED = {"vector": 2_000, "halfvec": 4_000}
_MOST_SPARSE_DIM, _MOST_SPARSE_INDEXED = 1_000_000_000, 1_000
_MOST_M, _LEAST_EF, _MOST_EF = 100, 4, 1_000
# PostgreSQL's: longer names are cut, and longer texts have no place in a B-tree.
_NAME_BYTES = 63
_KEY_BYTES = 2_600
_SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")


def write_pgvector(out: Path, rows: Rows) -> tuple[str, ...]:
    """Write a folder with the rows, `load.sql` and a description.

    Raises:
        InputValueError: the table's name, `m` or `ef_construction` is not valid for PostgreSQL.
        ConvertError: PostgreSQL or pgvector cannot store the rows.
    """
    info, options = rows.info, rows.options
    name = options.table or "vectors"
    table = _table(name)
    _check_index(options.m, options.ef_construction)
    if info.dim > _MOST_DIM:
        raise ConvertError(
            f"{info.name}: pgvector stores vectors of at most {_MOST_DIM} numbers, not {info.dim}"
        )
    if (info.sparse_dim or 0) > _MOST_SPARSE_DIM:
        raise ConvertError(
            f"{info.name}: pgvector stores sparse vectors of at most {_MOST_SPARSE_DIM} "
            f"dimensions, not {info.sparse_dim}"
        )
    vector_type = "halfvec" if info.dtype == "float16" else "vector"
    types = _types(rows)
    out.mkdir()
    keys = _Keys()
    with (out / ROWS).open("wb") as file:
        file.write(HEADER)
        for block in rows.sorted():
            keys.see(block, has_sparse=info.sparse_dim is not None)
            file.write(rows_bytes(_fields(block, types, info)))
        file.write(TRAILER)
    columns = {name: kind.name for name, kind in types.items()}
    columns["vector"] = f"{vector_type}({info.dim})"
    index = _index(table, vector_type, info.dim, info.metric, options.m, options.ef_construction)
    if info.sparse_dim is not None:
        columns[_SPARSE] = f"sparsevec({info.sparse_dim})"
        index += "\n" + _sparse_index(table, keys.weights, options.m, options.ef_construction)
    script = _script(table, columns, keys, index)
    (out / SCRIPT).write_text(script, encoding="utf-8")
    describe(
        out,
        {
            "format": "pgvector", "rows_file": ROWS, "script": SCRIPT, "table": name,
            "columns": columns, "metric": info.metric, "dim": info.dim, "rows": info.rows,
            **info.about,
        },
    )  # fmt: skip
    return (f"in the folder {{target}}: psql -d DATABASE -f {SCRIPT}",)


@dataclass(slots=True)
class _Keys:
    """What is learned of the ids while rows are written in their order.

    Attributes:
        columns: the columns that say which row it is.
        are_unique: whether no two rows have the same.
        longest: bytes of the longest text among them.
        weights: the most weights of a sparse vector.
    """

    columns: tuple[str, ...] = ("id",)
    are_unique: bool = True
    longest: int = 0
    weights: int = 0
    _last: tuple[Any, ...] | None = None

    def see(self, block: Any, *, has_sparse: bool) -> None:
        """Look at the next rows, whose ids are ascending."""
        self.columns = tuple(n for n in ("id", "id_is_int") if n in block.schema.names)
        for key in zip(*(block.column(name).to_pylist() for name in self.columns), strict=True):
            self.are_unique &= key != self._last
            self._last = key
            if isinstance(key[0], str):
                self.longest = max(self.longest, len(key[0].encode()))
        if has_sparse:
            counts = imported_arrow().compute.list_value_length(block.column(SPARSE_COLUMNS[0]))
            self.weights = max([self.weights, *counts.drop_null().to_pylist()])


def _types(rows: Rows) -> dict[str, ColumnType]:
    """The type of each column besides the vectors.

    Raises:
        ConvertError: PostgreSQL has no columns of a name.
    """
    is_json = {"metadata", *rows.info.json_columns}
    types = {}
    for field in rows.schema:
        has_sparse = rows.info.sparse_dim is not None
        if field.name == "vector" or (has_sparse and field.name in SPARSE_COLUMNS):
            continue
        reason = None
        if field.name in _SYSTEM_COLUMNS:
            reason = "PostgreSQL has a column of its own of this name"
        elif len(field.name.encode()) > _NAME_BYTES:
            reason = f"PostgreSQL cuts names after {_NAME_BYTES} bytes"
        elif "\0" in field.name or not field.name:
            reason = "PostgreSQL has no such names"
        if reason is not None:
            raise ConvertError(f"{rows.info.name}: the field {field.name!r} is refused: {reason}")
        types[field.name] = column_type(field.type, is_json=field.name in is_json)
    return types


def _fields(block: Any, types: Mapping[str, ColumnType], info: SourceInfo) -> list[Any]:
    """The fields of a block, column by column, the vectors last, and after them the sparse ones.

    Raises:
        ConvertError: PostgreSQL cannot store a value.
    """
    columns = []
    name = ""
    try:
        for name, kind in types.items():
            values = block.column(name)
            if imported_arrow().types.is_dictionary(values.type):
                values = values.dictionary_decode()
            columns.append(kind.fields(values))
        name = "vector"
        columns.append(vector_fields(vectors_of(block)))
        if info.sparse_dim is not None:
            name = _SPARSE
            columns.append(sparse_fields(sparse_of(block), info.sparse_dim))
    except BadValueError as error:
        key = block.column("id")[error.row].as_py()
        raise ConvertError(
            f"{info.name}: `{name}` of the id {key!r} {error.reason}, which PostgreSQL cannot store"
        ) from None
    return columns


def _script(table: str, columns: Mapping[str, str], keys: _Keys, index: str) -> str:
    """The SQL that makes the table, loads the rows and makes the indexes, or nothing of it."""
    listed = ",\n".join(
        f"  {_quoted(name)} {kind}{' NOT NULL' if name in ('id', 'vector') else ''}"
        for name, kind in columns.items()
    )
    named = ", ".join(map(_quoted, keys.columns))
    if keys.longest > _KEY_BYTES:
        key = (f"-- The longest id has {keys.longest} bytes, which is too long for a primary key.\n"
               f"CREATE INDEX ON {table} USING hash (id);")  # fmt: skip
    elif not keys.are_unique:
        key = f"-- Several rows have the same id.\nCREATE INDEX ON {table} ({named});"
    else:
        key = f"ALTER TABLE {table} ADD PRIMARY KEY ({named});"
    return (
        "-- Made by `flowvec convert`. In this folder: psql -d DATABASE -f load.sql\n"
        "-- Either all of it is done or nothing. A table of this name must not exist.\n"
        "\\set ON_ERROR_STOP on\n"
        "BEGIN;\n"
        "SET LOCAL client_min_messages = warning;\n"
        "CREATE EXTENSION IF NOT EXISTS vector;\n"
        f"CREATE TABLE {table} (\n{listed}\n);\n"
        f"\\copy {table} ({', '.join(map(_quoted, columns))}) FROM '{ROWS}' WITH (FORMAT binary)\n"
        f"{key}\n"
        f"{index}\n"
        "COMMIT;\n"
        f"ANALYZE {table};\n"
    )


def _index(table: str, kind: str, dim: int, metric: Metric, m: int, ef_construction: int) -> str:
    """The SQL that makes the HNSW index, or a comment that says why there is none."""
    column, note = "vector", ""
    if dim > _MOST_INDEXED["halfvec"]:
        return (
            f"-- No index: pgvector indexes vectors of at most {_MOST_INDEXED['halfvec']} numbers, "
            f"and these have {dim}."
        )
    if dim > _MOST_INDEXED[kind]:
        kind, column = "halfvec", f"(vector::halfvec({dim}))"
        note = (
            f"-- pgvector indexes so many numbers as halfvec: ORDER BY {column} <operator> query\n"
        )
    return note + (
        f"CREATE INDEX ON {table} USING hnsw ({column} {kind}_{metric}_ops)\n"
        f"  WITH (m = {m}, ef_construction = {ef_construction});"
    )


def _sparse_index(table: str, weights: int, m: int, ef_construction: int) -> str:
    """The SQL that makes the HNSW index of the sparse vectors, or why there is none."""
    if weights > _MOST_SPARSE_INDEXED:
        return (
            "-- No index of the sparse vectors: pgvector indexes those of at most "
            f"{_MOST_SPARSE_INDEXED} weights, and one has {weights}."
        )
    return (
        f"CREATE INDEX ON {table} USING hnsw ({_SPARSE} sparsevec_ip_ops)\n"
        f"  WITH (m = {m}, ef_construction = {ef_construction});"
    )


def _check_index(m: int, ef_construction: int) -> None:
    """Refuse options that pgvector refuses.

    Raises:
        InputValueError: they are not valid.
    """
    if m > _MOST_M:
        raise InputValueError(f"pgvector takes an m of at most {_MOST_M}, not {m}")
    least = max(_LEAST_EF, 2 * m)
    if not least <= ef_construction <= _MOST_EF:
        raise InputValueError(
            f"with m = {m} pgvector takes an ef_construction from {least} to {_MOST_EF}, not "
            f"{ef_construction}"
        )


def _table(name: str) -> str:
    """A table's name in SQL; `schema.table` names a schema.

    Raises:
        InputValueError: PostgreSQL has no such names.
    """
    parts = name.split(".")
    if len(parts) > 2 or not all(parts) or "\0" in name:
        raise InputValueError(f"a table is TABLE or SCHEMA.TABLE, not {name!r}")
    for part in parts:
        if len(part.encode()) > _NAME_BYTES:
            raise InputValueError(f"PostgreSQL cuts names after {_NAME_BYTES} bytes: {part!r}")
    return ".".join(map(_quoted, parts))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
