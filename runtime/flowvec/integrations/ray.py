"""Ray Data: a class for `map_batches` that embeds a column (extra `[ray]`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from flowvec.bulk.ray_workers import take_assigned_cores
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.options import EncodeOptions
from flowvec.errors import InputTypeError, InputValueError
from flowvec.optional import require
from flowvec.texts.joining import join_texts, text_fields

require("flowvec.integrations.ray", "ray", "ray", "pyarrow")

import ray  # noqa: E402

__all__ = ["EmbedTexts"]

_Batch = dict[str, npt.NDArray[Any]]


class EmbedTexts:
    """Adds a column of vectors to batches of a Ray Dataset, the same as `Encoder.encode` gives.

    `dataset.map_batches(EmbedTexts, fn_constructor_kwargs={"model": "mini"}, num_cpus=2)` loads the
    model once in each worker. In a worker it computes on as many cores as `num_cpus` says.
    """

    def __init__(
        self,
        model: str | Path = "mini",
        *,
        text: str | Sequence[str] = "text",
        vector: str = "vector",
        load_options: Mapping[str, Any] | None = None,
        **options: Unpack[EncodeOptions],
    ) -> None:
        """Load the model.

        Args:
            model: what `Encoder.load` takes. All machines must find it.
            text: the column with the texts; or several, as `text_field` of `encode_files`.
            vector: the new column, (rows, dim) float32, or what `precision` says.
            load_options: options of `Encoder.load`.
            **options: those of `Encoder.encode`.

        Raises:
            FlowvecError: as `Encoder.load`.
        """
        loading = dict(load_options or {})
        context = ray.get_runtime_context() if ray.is_initialized() else None
        if context is not None and context.get_actor_id() is not None:
            cores = take_assigned_cores(ray)
            if not context.get_assigned_resources().get("GPU"):
                loading.setdefault("streams", cores)
        self._encoder = Encoder.load(model, **loading)
        names = text_fields(text)
        self._texts = (names,) if isinstance(names, str) else names
        self._vector = vector
        self._options = options

    def __call__(self, batch: _Batch) -> _Batch:
        """Embed a batch.

        Args:
            batch: columns by name, each an array of rows: the default `batch_format` of Ray Data.

        Raises:
            InputTypeError: the batch has another format, or a row has no text: filter such rows.
            InputValueError: there is no column of texts, or there is one for the vectors.
        """
        if not isinstance(batch, dict):
            raise InputTypeError(
                f"a batch is a dict of arrays, not {type(batch).__name__}: leave out batch_format"
            )
        absent = [name for name in self._texts if name not in batch]
        if absent or self._vector in batch:
            problem = "no" if absent else f"already {self._vector!r} beside"
            named = repr((absent or self._texts)[0])
            raise InputValueError(
                f"there is {problem} column {named}; the columns are {', '.join(batch)}"
            )
        texts = [
            self._text_of(row, parts)
            for row, parts in enumerate(
                zip(*(np.asarray(batch[name]).tolist() for name in self._texts), strict=True)
            )
        ]
        vectors = self._encoder.encode(texts, show_progress_bar=False, **self._options)
        return {**batch, self._vector: vectors}

    def _text_of(self, row: int, parts: Sequence[Any]) -> str:
        """The text of a row; of several columns, missing values are left out."""
        named = list(zip(self._texts, parts, strict=True))
        if len(named) > 1:  # NaN is unequal to itself
            named = [one for one in named if one[1] is not None and one[1] == one[1]] or named
        for name, part in named:
            if not isinstance(part, str):
                raise InputTypeError(
                    f"row {row} of the batch has {part!r} in {name!r}, not a text: filter such "
                    "rows before"
                )
        texts: list[str] = [part for _, part in named]
        return texts[0] if len(self._texts) == 1 else join_texts(texts) or ""
