"""Estimates a bulk job from a sample of its rows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowvec.arguments import choice, whole_number
from flowvec.bulk.options import (
    MAX_TEXT_BYTES,
    ROWS_PER_SHARD,
    BulkOptions,
    as_inputs,
    checked_fields,
)
from flowvec.bulk.runner import job_of
from flowvec.bulk.shard_files import BULK_PRECISIONS, BulkPrecision, dtype_of
from flowvec.bulk.windows import read_windows
from flowvec.encoder.argument import check_encoder
from flowvec.encoder.encoder import Encoder
from flowvec.errors import InputValueError
from flowvec.texts.inventory import survey_inputs
from flowvec.texts.sources import STDIN, find_sources

__all__ = ["Estimate", "estimate_files"]

# The sample: about this many shards, and the first rows of each.
_SAMPLE_SHARDS = 8
_SAMPLE_ROWS = 256


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of a bulk job.

        >>> size = Path("estimated.txt").write_text("The cat sleeps.\\n" * 1000)
        >>> estimate = estimate_files(Encoder.load("mini"), "estimated.txt", precision="int8")
        >>> estimate.bytes  # one byte for each of 384 dimensions
        384000

    Attributes:
        rows: rows of the inputs.
        sampled: rows of the sample.
        dead_share: share of sampled rows that cannot be embedded, 0 to 1.
        tokens: tokens of all rows.
        seconds: seconds to encode all rows on this machine.
        bytes: size of the vectors on disk.
        shards: shards that it would write.
    """

    rows: int
    sampled: int
    dead_share: float
    tokens: int
    seconds: float
    bytes: int
    shards: int


def estimate_files(
    encoder: Encoder,
    inputs: str | Path | Iterable[str | Path],
    *,
    input_format: str | None = None,
    text_field: str = "text",
    id_field: str | None = None,
    keep: Sequence[str] = (),
    precision: BulkPrecision = "float32",
    prompt_name: str | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    max_text_bytes: int = MAX_TEXT_BYTES,
) -> Estimate:
    """Estimate what `encode_files` would take: count the rows, and encode a sample.

        >>> size = Path("counted.txt").write_text("The cat sleeps.\\n" * 1000)
        >>> estimate = estimate_files(Encoder.load("mini"), "counted.txt", rows_per_shard=300)
        >>> estimate.rows, estimate.shards
        (1000, 4)

    Args:
        encoder: the model.
        inputs: as for `encode_files`, without standard input.
        input_format: as for `encode_files`.
        text_field: as for `encode_files`.
        id_field: as for `encode_files`.
        keep: as for `encode_files`.
        precision: as for `encode_files`.
        prompt_name: as for `encode_files`.
        rows_per_shard: as for `encode_files`.
        max_text_bytes: as for `encode_files`.

    Raises:
        InputValueError: an input cannot be read, or is standard input.
    """
    check_encoder(encoder)
    whole_number("rows_per_shard", rows_per_shard)
    choice("precision", precision, BULK_PRECISIONS)
    fields = checked_fields(text_field, id_field, keep, max_text_bytes)
    options = BulkOptions(
        "parquet", fields, precision, prompt_name, "truncate", False, rows_per_shard
    )
    sources = find_sources(as_inputs(inputs), input_format)
    if sources[0].path == STDIN:
        raise InputValueError("standard input cannot be read twice, so nothing can be estimated")
    survey = survey_inputs(sources, rows_per_shard, max_text_bytes)
    job = job_of(encoder, options)
    step = max(1, len(survey.starts) // _SAMPLE_SHARDS)
    texts: list[str] = []
    dead = 0
    for shard in range(0, len(survey.starts), step):
        first = shard * rows_per_shard
        for window in read_windows(
            survey.sources, fields, rows_per_shard=rows_per_shard, start=survey.starts[shard],
            first=first, stop=min(first + _SAMPLE_ROWS, first + rows_per_shard),
        ):  # fmt: skip
            texts += window.texts
            dead += len(window.dead)
    if texts:
        list(encoder.windows(iter([texts[:64]]), job))  # the first run of an engine is slow
    started = time.perf_counter()
    tokens = sum(part.tokens for part in encoder.windows(iter([texts]), job))
    seconds = time.perf_counter() - started
    rows = survey.rows or 0
    sampled = len(texts) + dead
    scale = rows / sampled if sampled else 0.0
    vector_bytes = job.postprocess.out_dim * dtype_of(precision).itemsize
    return Estimate(
        rows=rows,
        sampled=sampled,
        dead_share=dead / sampled if sampled else 0.0,
        tokens=round(tokens * scale),
        seconds=seconds * scale,
        bytes=round(len(texts) * scale * vector_bytes),
        shards=-(-rows // rows_per_shard),
    )
