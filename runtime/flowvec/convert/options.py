"""Options of a conversion, its progress, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from flowvec.arguments import choice, flag, text_or_none, whole_number
from flowvec.vectors import METRICS, Metric

__all__ = ["FORMATS", "ConvertFormat", "ConvertOptions", "ConvertProgress", "Converted", "Labels"]

ConvertFormat = Literal["parquet", "faiss", "hnswlib", "pgvector", "lance", "qdrant"]
FORMATS: tuple[ConvertFormat, ...] = get_args(ConvertFormat)
Labels = Literal["ids", "rows"]

_MOST_ROWS = 1 << 20
_MOST_M = 512


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options of `convert`, checked.

    Attributes:
        metric: how the vectors are compared; None is as the source says.
        normalize: write vectors divided by their length.
        labels: what faiss and hnswlib return; None is `ids` where all ids are whole numbers.
        row_group_rows: rows of a row group of Parquet.
        m: links of a node of the HNSW graph of hnswlib, pgvector and Qdrant.
        ef_construction: search depth while that graph is built.
        table: the name of pgvector's table; None takes the target's name.
        collection: the name of Qdrant's collection; None takes the source's name.
    """

    metric: Metric | None = None
    normalize: bool = False
    labels: Labels | None = None
    row_group_rows: int = 8192
    m: int = 16
    ef_construction: int = 200
    table: str | None = None
    collection: str | None = None

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            InputTypeError, InputValueError: one is not valid.
        """
        if self.metric is not None:
            choice("metric", self.metric, METRICS)
        flag("normalize", self.normalize)
        if self.labels is not None:
            choice("labels", self.labels, get_args(Labels))
        whole_number("row_group_rows", self.row_group_rows, 1, _MOST_ROWS)
        whole_number("m", self.m, 2, _MOST_M)
        whole_number("ef_construction", self.ef_construction, 1)
        text_or_none("table", self.table)
        text_or_none("collection", self.collection)


@dataclass(frozen=True, slots=True)
class ConvertProgress:
    """How far a conversion is.

    Attributes:
        stage: `sorting`, which only comes first where rows are sorted; `checking`, which only
            comes first where a target takes each id once; `writing`; or `uploading`, which comes
            last where a target below a URL has large files.
        rows: rows of this stage that are done; of `uploading`, in proportion to the bytes.
        total: all rows.
        seconds: since the conversion began.
    """

    stage: str
    rows: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of `convert`.

    Attributes:
        target: where the output is.
        format: its format.
        rows: rows that were written: all of the source.
        dim: length of a vector.
        dtype: type of its numbers in the output, `float32` or `float16`.
        metric: how the vectors are meant to be compared.
        bytes: size of all files of the output; None for a collection of Qdrant.
        seconds: how long it took.
        notes: what to do next, line by line.
    """

    target: str
    format: str
    rows: int
    dim: int
    dtype: str
    metric: Metric
    bytes: int | None
    seconds: float
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__} | {"notes": list(self.notes)}
