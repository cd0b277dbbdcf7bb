"""Spark: vectors as a column of a DataFrame, or as a function of columns (extra `[spark]`).

Spark's Python workers load the model once and keep it for their later tasks. Each computes on the
cores of its task (`spark.task.cpus`). A text that is null has a null vector.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputTypeError, InputValueError
from flowvec.optional import require
from flowvec.texts.joining import join_texts, text_fields

require("flowvec.integrations.spark", "spark", "pyspark", "pandas", "pyarrow")

import pandas as pd  # noqa: E402
from pyspark import TaskContext  # noqa: E402
from pyspark.sql import DataFrame  # noqa: E402
from pyspark.sql.functions import pandas_udf  # noqa: E402
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType  # noqa: E402

__all__ = ["vectors_udf", "with_vectors"]


def with_vectors(
    frame: DataFrame,
    model: str | Path = "mini",
    *,
    text: str | Sequence[str] = "text",
    vector: str = "vector",
    prompt_name: str | None = None,
    load_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """A DataFrame with a column of vectors beside the others, by `mapInPandas`.

    Args:
        frame: any DataFrame with a column of texts.
        model: what `Encoder.load` takes. All machines must find it.
        text: the column with the texts; or several, as `text_field` of `encode_files`.
        vector: the new column, `array<float>`, as `Encoder.encode` gives it.
        prompt_name: as for `Encoder.encode`.
        load_options: options of `Encoder.load`, whose values can be hashed.

    Raises:
        InputTypeError: the model is not a name or a path.
        InputValueError: there is no column of texts, or there is one for the vectors.
    """
    embed = _embedder(model, prompt_name, load_options)
    checked = text_fields(text)
    names = [checked] if isinstance(checked, str) else list(checked)
    absent = [name for name in names if name not in frame.columns]
    if absent or vector in frame.columns:
        problem = "no" if absent else f"already {vector!r} beside"
        raise InputValueError(
            f"there is {problem} column {(absent or names)[0]!r}; the columns are "
            f"{', '.join(frame.columns)}"
        )

    def embedded(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(**{vector: embed(_joined(batch, names))})

    fields = [*frame.schema.fields, StructField(vector, ArrayType(FloatType(), False))]
    return frame.mapInPandas(embedded, StructType(fields))


def vectors_udf(
    model: str | Path = "mini",
    *,
    prompt_name: str | None = None,
    load_options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A `pandas_udf` from texts to vectors, `array<float>`, for `select`, SQL and streams.

    Args:
        model: what `Encoder.load` takes. All machines must find it.
        prompt_name: as for `Encoder.encode`.
        load_options: options of `Encoder.load`, whose values can be hashed.

    Raises:
        InputTypeError: the model is not a name or a path.
    """
    embed = _embedder(model, prompt_name, load_options)

    def vectors(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield embed(batch)

    # Spark reads these types, which are texts as they are written above.
    vectors.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}
    made: Callable[..., Any] = pandas_udf(vectors, "array<float>")
    return made


def _joined(batch: pd.DataFrame, names: list[str]) -> pd.Series:
    """The texts of one column, or of several joined; null where all are."""
    if len(names) == 1:
        return batch[names[0]]
    parts = [batch[name].astype(object).where(batch[name].notna(), None) for name in names]
    return pd.Series(
        [join_texts(row) for row in zip(*parts, strict=True)], index=batch.index, dtype=object
    )


def _embedder(
    model: str | Path, prompt_name: str | None, load_options: Mapping[str, Any] | None
) -> Callable[[pd.Series], pd.Series]:
    """A function from texts to vectors that Spark can send to its workers."""
    if not isinstance(model, str | Path):
        raise InputTypeError(
            f"model must be a name or a directory, not {type(model).__name__}: workers load it"
        )
    options = tuple(sorted((load_options or {}).items()))
    name = str(model)

    def embed(texts: pd.Series) -> pd.Series:
        places = texts.notna().to_numpy().nonzero()[0].tolist()  # null may be None or NaN
        encoder = _loaded(name, options)
        vectors = encoder.encode(
            texts.iloc[places].tolist(), prompt_name=prompt_name, show_progress_bar=False
        )
        rows: list[Any] = [None] * len(texts)
        for place, one in zip(places, vectors, strict=True):
            rows[place] = one
        return pd.Series(rows, index=texts.index, dtype=object)

    return embed


@lru_cache(maxsize=2)
def _loaded(model: str, options: tuple[tuple[str, Any], ...]) -> Encoder:
    """The model, once in each of Spark's Python workers."""
    task = TaskContext.get()
    cores = 1 if task is None else max(1, task.cpus())
    os.environ["RAYON_NUM_THREADS"] = str(cores)  # to tokenize
    return Encoder.load(model, **{"streams": cores, **dict(options)})
