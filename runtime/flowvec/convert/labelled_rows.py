"""`rows.parquet` beside an index: which id, text and metadata each label stands for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.arrow import imported_arrow
from flowvec.convert.parquet_file import RowsFile, with_description
from flowvec.convert.rows import Rows

__all__ = ["NAME", "LabelledRows", "labelled_rows", "sparse_note"]

NAME = "rows.parquet"


class LabelledRows:
    """An open `rows.parquet`: the source's columns without the vectors, after a column `label`."""

    def __init__(self, file: RowsFile, schema: Any) -> None:
        self._file = file
        self._schema = schema

    def write(self, labels: npt.NDArray[np.int64], block: Any) -> None:
        """Append rows, whose labels are ascending."""
        pa = imported_arrow()
        columns = [pa.array(labels), *(block.column(name) for name in self._schema.names[1:])]
        self._file.write(pa.record_batch(columns, schema=self._schema))


def sparse_note(rows: Rows) -> tuple[str, ...]:
    """What to tell of sparse vectors, which an index of dense vectors does not hold."""
    if rows.info.sparse_dim is None:
        return ()
    return (f"the index holds the dense vectors; the sparse vectors are in {NAME}",)


@contextmanager
def labelled_rows(folder: Path, rows: Rows) -> Iterator[LabelledRows]:
    """Create the file in a folder; it is complete when the block ends."""
    pa = imported_arrow()
    plain = [field for field in rows.schema if field.name not in ("vector", "label")]
    schema = pa.schema([pa.field("label", pa.int64(), nullable=False), *plain])
    schema = with_description(schema, rows.info)
    with RowsFile(folder / NAME, schema, "label", rows.options.row_group_rows) as file:
        yield LabelledRows(file, schema)
