"""What is converted: rows with vectors, read a block at a time.

A block is a pyarrow RecordBatch with the columns

    id          int64, or string
    id_is_int   bool; only in collections that have both kinds of ids, or numbers of over 64 bits
    text        string; only of collections
    metadata    string, JSON; of collections, and of the kept fields of .npy shards
    ...         kept fields of Parquet shards, with their types
    vector      a list of fixed length of float32 or float16
    sparse_indices, sparse_values
                lists of int32, which ascend, and of float32; only of collections that hold sparse
                vectors, and null for rows without one
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.arrow import imported_arrow
from flowvec.errors import ConvertError
from flowvec.vectors import Metric

__all__ = [
    "SPARSE_COLUMNS",
    "Source",
    "SourceInfo",
    "SparseRow",
    "block_rows",
    "id_type",
    "sparse_of",
    "vector_field",
    "vectors_of",
]

Integers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
# Indices and weights of a row; None without a sparse vector.
SparseRow = tuple[Integers, Floats] | None

SPARSE_COLUMNS = ("sparse_indices", "sparse_values")

_BLOCK_BYTES = 4 << 20
_MOST_ROWS = 4096


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """What is known of the rows before they are read.

    Attributes:
        name: the source in messages.
        rows: how many.
        dim: length of the vectors.
        dtype: `float32` or `float16`.
        metric: how the vectors are compared.
        about: model, fingerprint and more, for the output's own description.
        json_columns: names of string columns that hold JSON, apart from `metadata`.
        is_sorted: the rows come in order of their ids.
        has_unique_ids: no two rows have the same id, which needs no check.
        sparse_dim: dimensions of the sparse vectors; None without any.
    """

    name: str
    rows: int
    dim: int
    dtype: str
    metric: Metric
    about: Mapping[str, str]
    json_columns: tuple[str, ...] = ()
    is_sorted: bool = False
    has_unique_ids: bool = False
    sparse_dim: int | None = None


class Source(ABC):
    """Rows of a bulk job or a collection; `with` closes it."""

    info: SourceInfo
    schema: Any

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @abstractmethod
    def blocks(self) -> Iterator[Any]:
        """Every row once, in blocks of at most a few thousand.

        Raises:
            ConvertError: what is read is not what was written.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what was opened."""

    @property
    def has_number_ids(self) -> bool:
        """Whether all ids are whole numbers of at most 64 bits."""
        return bool(self.schema.field("id").type == imported_arrow().int64())

    def checked_blocks(self) -> Iterator[Any]:
        """The blocks, with a check of their ids and of the number of rows.

        Raises:
            ConvertError: a row has no id, or there are more or fewer rows than the source says.
        """
        rows = 0
        for block in self.blocks():
            if block.column("id").null_count:
                place = block.column("id").is_null().to_pylist().index(True)
                raise ConvertError(f"{self.info.name}: row {rows + place} has no id")
            rows += len(block)
            yield block
        if rows != self.info.rows:
            raise ConvertError(
                f"{self.info.name} has {rows} rows, and should have {self.info.rows}"
            )


def block_rows(dim: int) -> int:
    """Rows of a block."""
    return max(1, min(_MOST_ROWS, _BLOCK_BYTES // (4 * dim)))


def vector_field(dim: int, dtype: str) -> Any:
    """The field `vector` of a schema."""
    pa = imported_arrow()
    number = pa.float16() if dtype == "float16" else pa.float32()
    kind = pa.list_(pa.field("element", number, nullable=False), dim)
    return pa.field("vector", kind, nullable=False)


def vectors_of(block: Any) -> npt.NDArray[Any]:
    """The vectors of a block, float32 or float16 (rows, dim)."""
    column = block.column("vector")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    vectors: npt.NDArray[Any] = np.asarray(flat).reshape(len(column), -1)
    return vectors


def sparse_of(block: Any) -> list[SparseRow]:
    """The sparse vectors of a block, which has their columns.

    Returns:
        For each row its indices, int32, and weights, float32; None without a sparse vector.
    """
    terms, weights = block.column("sparse_indices"), block.column("sparse_values")
    missing = terms.is_null().to_numpy(zero_copy_only=False)
    # Rows may be null without being empty in the flat values, so offsets are counted anew.
    lengths = imported_arrow().compute.list_value_length(terms).fill_null(0).to_numpy()
    ends = np.cumsum(lengths)
    flat_terms = terms.flatten().to_numpy(zero_copy_only=False)
    flat_weights = weights.flatten().to_numpy(zero_copy_only=False)
    return [
        None if missing[row] else (flat_terms[end - length : end], flat_weights[end - length : end])
        for row, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]


def id_type(kind: Any) -> Any:
    """The type of the column `id` for ids of another Arrow type: int64, or string."""
    pa = imported_arrow()
    fits = pa.types.is_integer(kind) and kind != pa.uint64()
    return pa.int64() if fits else pa.string()
