"""Columns of polars, pandas and Arrow: texts in, vectors as fixed-size lists out.

DuckDB reads and gives Arrow, so its columns are Arrow's.
"""

from __future__ import annotations

import importlib
from typing import Any, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from flowvec.arrow import imported_arrow
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.options import CallOptions
from flowvec.errors import InputTypeError

__all__ = ["encode_column"]

Column = TypeVar("Column")

_KINDS = {
    "polars": ("Series",),
    "pandas": ("Series",),
    "pyarrow": ("Array", "ChunkedArray"),
}


def encode_column(encoder: Encoder, column: Column, **options: Unpack[CallOptions]) -> Column:
    """Embed the texts of a column.

        >>> import polars
        >>> frame = polars.DataFrame({"text": ["A man is eating.", None]})
        >>> encode_column(Encoder.load("mini"), frame["text"]).dtype
        Array(Float32, shape=(384,))

    Args:
        encoder: an Encoder.
        column: a Series of polars or pandas, or an Array or ChunkedArray of pyarrow. For DuckDB
            give a column of `relation.to_arrow_table()`, and query the result by its name.
        **options: those of `Encoder.encode`. The prompt is that of documents unless `prompt_name`
            says another.

    Returns:
        A column of the same library, name and index. Each row is a fixed-size list of float32
        (dim,), or of the bytes of `precision`; null where the text is missing. `add_vectors` and
        `search_batch` of a Collection take it as it is, without nulls.

    Raises:
        InputTypeError: it is not such a column, or a row is neither a text nor missing.
        MissingDependencyError: pandas needs pyarrow for lists of a fixed size.
    """
    library = _library(column)
    texts = _texts(library, column)
    for row, text in enumerate(texts):
        if text is not None and not isinstance(text, str):
            raise InputTypeError(
                f"row {row} of the column is {type(text).__name__}, not a text: nothing was encoded"
            )
    is_text = np.array([text is not None for text in texts], bool)
    vectors = encoder.encode_document([text for text in texts if text is not None], **options)
    rows = vectors
    if not is_text.all():
        rows = np.zeros((len(texts), vectors.shape[1]), vectors.dtype)
        rows[is_text] = vectors
    made: Column = _BUILDERS[library](column, rows, is_text)
    return made


def _library(column: object) -> str:
    for kind in type(column).__mro__:
        library = kind.__module__.partition(".")[0]
        if kind.__name__ in _KINDS.get(library, ()):
            return library
    raise InputTypeError(
        "column must be a Series of polars or pandas, or an Array or ChunkedArray of pyarrow, not "
        f"{type(column).__name__}: write table['column'], or use Encoder.encode for other lists"
    )


def _texts(library: str, column: Any) -> list[Any]:
    if library == "pandas":
        return [
            None if missing else text
            for text, missing in zip(column.tolist(), column.isna().tolist(), strict=True)
        ]
    return list(column.to_pylist() if library == "pyarrow" else column.to_list())


def _arrow_lists(rows: npt.NDArray[Any], is_text: npt.NDArray[np.bool_]) -> Any:
    arrow = imported_arrow("a column of vectors")
    kind = arrow.list_(arrow.from_numpy_dtype(rows.dtype), rows.shape[1])
    values = arrow.array(np.ascontiguousarray(rows).reshape(-1))
    missing = None if is_text.all() else arrow.array(~is_text)
    return arrow.FixedSizeListArray.from_arrays(values, type=kind, mask=missing)


def _of_arrow(column: Any, rows: npt.NDArray[Any], is_text: npt.NDArray[np.bool_]) -> Any:
    made = _arrow_lists(rows, is_text)
    return imported_arrow().chunked_array([made]) if hasattr(column, "chunks") else made


def _of_pandas(column: Any, rows: npt.NDArray[Any], is_text: npt.NDArray[np.bool_]) -> Any:
    pandas = importlib.import_module("pandas")
    values = pandas.arrays.ArrowExtensionArray(_arrow_lists(rows, is_text))
    return pandas.Series(values, index=column.index, name=column.name)


def _of_polars(column: Any, rows: npt.NDArray[Any], is_text: npt.NDArray[np.bool_]) -> Any:
    polars = importlib.import_module("polars")
    item = polars.Series(rows[:0, 0]).dtype
    made = polars.Series(column.name, rows, polars.Array(item, rows.shape[1]))
    if is_text.all():
        return made
    shown = polars.when(polars.Series(is_text)).then(made)
    return polars.select(shown.alias(column.name)).to_series()


_BUILDERS = {"polars": _of_polars, "pandas": _of_pandas, "pyarrow": _of_arrow}
