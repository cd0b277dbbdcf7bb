"""Estimates a bulk job from a sample of its rows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from flowvec.arguments import choice, path_of, whole_number
from flowvec.bulk.options import (
    MAX_TEXT_BYTES,
    ROWS_PER_SHARD,
    BulkOptions,
    as_inputs,
    checked_fields,
)
from flowvec.bulk.own_files import OwnFiles
from flowvec.bulk.runner import job_of
from flowvec.bulk.shard_files import (
    BULK_PRECISIONS,
    BulkPrecision,
    OutFormat,
    ShardFile,
    ShardSettings,
    dtype_of,
)
from flowvec.bulk.verify import FolderInfo
from flowvec.bulk.windows import decided_columns, read_windows
from flowvec.encoder.argument import check_encoder
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.jobs import EncodeJob
from flowvec.errors import InputValueError
from flowvec.machine import available_cores
from flowvec.texts.inventory import Survey, survey_inputs
from flowvec.texts.sources import STDIN, find_sources
from flowvec.texts.window import WINDOW, Columns, Window

__all__ = ["Estimate", "estimate_files"]

# The rows that are encoded first, to learn how many fit into the measurement.
_PROBE_ROWS = 256
# How long the measurement should take, and how many rows it has at least and at most.
_MEASURED_SECONDS = 10.0
_LEAST_ROWS = 512
_MOST_ROWS = 32 * WINDOW
_MOST_BYTES = 1 << 28  # of text, which is in memory meanwhile
# The rows come from at least so many places of the inputs, where there are so many shards.
_PLACES = 8
# Most windows that wait to be written.
_WRITE_BEHIND = 4


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
        survey_seconds: seconds to count and hash the inputs. A job does that, too, and so does each
            share of a job.
        seconds: seconds to read, encode and write all rows on this machine, to a local disk.
        bytes: size of the vectors on disk.
        shards: shards that it would write.
        rows_before: rows that a job in `out` has finished already.
        complete: whether that job is complete, so that the same job has nothing left to do.
    """

    rows: int
    sampled: int
    dead_share: float
    tokens: int
    survey_seconds: float
    seconds: float
    bytes: int
    shards: int
    rows_before: int = 0
    complete: bool = False


def estimate_files(
    encoder: Encoder,
    inputs: str | Path | Iterable[str | Path],
    out: str | Path | None = None,
    *,
    input_format: str | None = None,
    text_field: str | Sequence[str] = "text",
    id_field: str | None = None,
    keep: Sequence[str] = (),
    out_format: OutFormat = "parquet",
    precision: BulkPrecision = "float32",
    prompt_name: str | None = None,
    rows_per_shard: int = ROWS_PER_SHARD,
    max_text_bytes: int = MAX_TEXT_BYTES,
) -> Estimate:
    """Estimate what `encode_files` would take: count the rows, and run the job on a sample.

    The sample takes about ten seconds, or less if there are few rows. It comes from several places
    of the inputs; its vectors are written to a temporary folder, which is removed.

        >>> size = Path("counted.txt").write_text("The cat sleeps.\\n" * 1000)
        >>> estimate = estimate_files(Encoder.load("mini"), "counted.txt", rows_per_shard=300)
        >>> estimate.rows, estimate.shards
        (1000, 4)

    Args:
        encoder: the model.
        inputs: as for `encode_files`, without standard input.
        out: the job's output, if it is known: it is not an input, and what it holds is told.
        input_format: as for `encode_files`.
        text_field: as for `encode_files`.
        id_field: as for `encode_files`.
        keep: as for `encode_files`.
        out_format: `parquet` or `npy`. What a collection takes beside encoding is not estimated.
        precision: as for `encode_files`.
        prompt_name: as for `encode_files`.
        rows_per_shard: as for `encode_files`.
        max_text_bytes: as for `encode_files`.

    Raises:
        InputValueError: an input cannot be read, is standard input, or is in `out`.
    """
    check_encoder(encoder)
    whole_number("rows_per_shard", rows_per_shard)
    choice("precision", precision, BULK_PRECISIONS)
    choice("out_format", out_format, ("parquet", "npy"))
    if find_spec("pyarrow") is None:
        out_format = "npy"  # so that a machine without pyarrow can be measured
    fields = checked_fields(text_field, id_field, keep, max_text_bytes)
    fields = replace(fields, kept_as_json=out_format != "parquet")
    options = BulkOptions(out_format, fields, precision, prompt_name, "truncate", rows_per_shard)
    before: FolderInfo | None = None
    if out is None:
        sources = find_sources(as_inputs(inputs), input_format)
    else:
        path_of("out", out)
        own = OwnFiles.of(out)
        sources = own.sources(as_inputs(inputs), input_format)
        own.check_apart_from(encoder)
        before = own.job()
    if sources[0].path == STDIN:
        raise InputValueError("standard input cannot be read twice, so nothing can be estimated")
    started = time.perf_counter()
    columns = decided_columns(sources, fields)
    survey = survey_inputs(sources, rows_per_shard, max_text_bytes)
    survey_seconds = time.perf_counter() - started
    rows = survey.rows or 0
    job = job_of(encoder, options)
    probe = _read(survey, options, columns, min(rows, _PROBE_ROWS))
    texts = [text for window in probe.windows for text in window.texts]
    list(encoder.windows(iter([texts]), job))  # the first run of an engine is slow
    started = time.perf_counter()
    list(encoder.windows(iter([texts]), job))
    per_row = (time.perf_counter() - started) / max(1, len(texts))
    wanted = int(min(max(_MEASURED_SECONDS / max(per_row, 1e-9), _LEAST_ROWS), _MOST_ROWS))
    sample = probe if rows <= _PROBE_ROWS else _read(survey, options, columns, min(rows, wanted))
    measured = _measure(encoder, job, sample, options)
    embedded = sum(len(window.texts) for window in sample.windows)
    dead = sum(len(window.dead) for window in sample.windows)
    sampled = embedded + dead
    covered = sum(window.rows for window in sample.windows)  # with blank lines, as in `rows`
    scale = rows / covered if covered else 0.0
    reading = sample.seconds * scale
    if any(start.offset is None for start in survey.starts):
        # To reach its places the sample has read more than its own rows; the survey has read all.
        reading = min(reading, survey_seconds)
    return Estimate(
        rows=rows,
        sampled=sampled,
        dead_share=dead / sampled if sampled else 0.0,
        tokens=round(measured.tokens * scale),
        survey_seconds=survey_seconds,
        # Reading is done by one thread, while the others encode.
        seconds=max(measured.seconds * scale + reading / available_cores(), reading),
        bytes=round(embedded * scale * job.postprocess.out_dim * dtype_of(precision).itemsize),
        shards=-(-rows // rows_per_shard),
        rows_before=0 if before is None else before.rows,
        complete=before is not None and before.complete,
    )


@dataclass(frozen=True, slots=True)
class _Sample:
    """Windows of rows, and the seconds to read them."""

    windows: list[Window]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Measured:
    """Tokens of a sample, and the seconds to encode and write it."""

    tokens: int
    seconds: float


def _read(survey: Survey, options: BulkOptions, columns: Columns | None, rows: int) -> _Sample:
    """Read at least so many rows, as far as there are, in equal parts from several places.

    A part is as long as a window of the job where the rows suffice, so that it has as little
    padding.
    """
    per_shard, shards = options.rows_per_shard, len(survey.starts)
    places = min(shards, max(_PLACES, -(-rows // min(WINDOW, per_shard))))
    part = -(-rows // places) if places else 0
    windows: list[Window] = []
    size = 0
    started = time.perf_counter()
    for place in range(places):
        shard = place * shards // places
        first = shard * per_shard
        for window in read_windows(
            survey.sources, options.fields, rows_per_shard=per_shard, start=survey.starts[shard],
            first=first, stop=min(first + part, first + per_shard, survey.rows or 0),
            columns=columns,
        ):  # fmt: skip
            windows.append(window)
            size += sum(map(len, window.texts))
            if size > _MOST_BYTES:
                return _Sample(windows, time.perf_counter() - started)
    return _Sample(windows, time.perf_counter() - started)


def _measure(encoder: Encoder, job: EncodeJob, sample: _Sample, options: BulkOptions) -> _Measured:
    """Encode and write a sample as a job does, and measure the seconds."""
    groups = list(_groups(sample.windows, min(WINDOW, options.rows_per_shard)))
    settings = ShardSettings(
        options.out_format, options.fields, job.postprocess.out_dim, options.precision, {}
    )
    with TemporaryDirectory(prefix="flowvec-") as folder, ThreadPoolExecutor(1) as writer:
        file = ShardFile(Path(folder, f"sample.{options.out_format}"), settings)
        tokens = 0
        written: deque[Future[None]] = deque()
        started = time.perf_counter()
        texts = ([text for window in group for text in window.texts] for group in groups)
        for group, encoded in zip(groups, encoder.windows(texts, job), strict=True):
            tokens += encoded.tokens
            first = 0
            for window in group:
                after = first + len(window.texts)
                written.append(
                    writer.submit(file.write, window, None, encoded.vectors[first:after])
                )
                first = after
            while len(written) > _WRITE_BEHIND:
                written.popleft().result()
        while written:
            written.popleft().result()
        file.finish(groups[0][0].columns if groups else {})
        return _Measured(tokens, time.perf_counter() - started)


def _groups(windows: Sequence[Window], rows: int) -> Iterator[list[Window]]:
    """Windows that are encoded together: together they have at most so many rows."""
    group: list[Window] = []
    for window in windows:
        if group and sum(one.rows for one in group) + window.rows > rows:
            yield group
            group = []
        group.append(window)
    if group:
        yield group
