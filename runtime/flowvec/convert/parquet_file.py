"""Writes rows to a Parquet file whose row groups engines skip by their first column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowvec.arrow import file_for_arrow, imported_arrow
from flowvec.convert.rows import Rows
from flowvec.convert.source import SourceInfo

__all__ = ["RowsFile", "with_description", "write_parquet"]

_PAGE_BYTES = 1 << 20


class RowsFile:
    """An open Parquet file; rows are gathered to row groups of equal size."""

    def __init__(self, path: Path, schema: Any, key: str, row_group_rows: int) -> None:
        """Create the file.

        Args:
            path: its name.
            schema: Arrow schema of the rows.
            key: the column by which they are sorted.
            row_group_rows: rows of a row group.
        """
        pa = imported_arrow()
        plain = [name for name in schema.names if name != "vector"]
        texts = [n for n in plain if pa.types.is_string(schema.field(n).type) and n != key]
        self._rows = row_group_rows
        self._waiting: list[Any] = []
        self._count = 0
        self._schema = schema
        self._writer = pa.parquet.ParquetWriter(
            file_for_arrow(path, "wb"),
            schema,
            # Vectors look random: neither compression nor a dictionary helps.
            compression=dict.fromkeys(plain, "zstd"),
            use_dictionary=texts,
            write_statistics=plain,
            write_page_index=True,
            data_page_size=_PAGE_BYTES,
            sorting_columns=[pa.parquet.SortingColumn(schema.names.index(key))],
        )

    def __enter__(self) -> RowsFile:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self._write()
        self._writer.close()

    def write(self, block: Any) -> None:
        """Append rows."""
        while len(block):
            room = self._rows - self._count
            self._waiting.append(block.slice(0, room))
            self._count += min(room, len(block))
            block = block.slice(room)
            if self._count == self._rows:
                self._write()

    def _write(self) -> None:
        if self._waiting:
            table = imported_arrow().Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=self._rows)
        self._waiting, self._count = [], 0


def with_description(schema: Any, info: SourceInfo) -> Any:
    """A schema with the model, and which columns hold JSON, in its metadata."""
    about = dict(info.about)
    if info.json_columns:
        about["json_columns"] = json.dumps(list(info.json_columns))
    return schema.with_metadata({"flowvec": json.dumps(about)})


def write_parquet(out: Path, rows: Rows) -> tuple[str, ...]:
    """Write a file of rows that are sorted by id; `Collection.from_parquet` reads it too."""
    schema = with_description(rows.schema, rows.info)
    with RowsFile(out, schema, "id", rows.options.row_group_rows) as file:
        for block in rows.sorted():
            file.write(block)
    return ()
