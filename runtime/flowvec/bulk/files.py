"""Bulk jobs from files to files: what they take, what they tell, and how they begin."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from flowvec.bulk.into_collection import CollectionTarget, open_collection
from flowvec.bulk.job import Folder
from flowvec.bulk.on_ray import RayWorkers, imported_ray, shards_on_ray
from flowvec.bulk.options import (
    MAX_TEXT_BYTES,
    ONE_FILE,
    ROWS_PER_SHARD,
    BulkOptions,
    as_inputs,
    check_options,
    checked_fields,
    out_format_of,
)
from flowvec.bulk.reading import first_columns
from flowvec.bulk.shards import BulkPrecision, OutFormat
from flowvec.bulk.sources import STDIN, find_sources
from flowvec.bulk.survey import Survey, check_unchanged, survey
from flowvec.bulk.targets import FileTarget, FolderTarget, Target
from flowvec.bulk.window import Columns
from flowvec.bulk.work import BulkProgress, Tally, Work, job_of
from flowvec.collection import Collection
from flowvec.encoder import Encoder, Truncation
from flowvec.errors import InputValueError
from flowvec.pipeline import Job

__all__ = ["BulkSummary", "encode_files"]

# Of an input, in the manifest.
_RECORDED = ("path", "format", "bytes", "modified", "sha256", "rows")


@dataclass(frozen=True, slots=True)
class BulkSummary:
    """What a job did.

    Attributes:
        out: where the vectors are.
        complete: whether all is done; False where it was asked to stop.
        rows_in: rows read, in all runs of the job.
        rows: vectors written, in all runs.
        dead_letters: rows that could not be embedded, in all runs.
        codes: how many of this run's dead letters are of each kind.
        blank: blank lines of jsonl, which count as no rows.
        shards: files written, in all runs.
        shards_before: of those, what earlier runs had finished.
        dim: length of a vector as it is written.
        precision: of its numbers.
        encoded: texts encoded in this run; without repeated ones where they were left out.
        truncated: texts cut at max_length in this run.
        replaced: texts of this run in which lone surrogates became U+FFFD.
        tokens: tokens encoded in this run.
        padding: share of the tokens computed in this run that was padding.
        survey_seconds: counting and hashing of the inputs.
        seconds: encoding, reading and writing, in this run.
        provider: what ran the model.
        compute: in which type of number.
    """

    out: str
    complete: bool
    rows_in: int
    rows: int
    dead_letters: int
    codes: dict[str, int]
    blank: int
    shards: int
    shards_before: int
    dim: int
    precision: str
    encoded: int
    truncated: int
    replaced: int
    tokens: int
    padding: float
    survey_seconds: float
    seconds: float
    provider: str
    compute: str


def encode_files(
    encoder: Encoder | str | Path,
    inputs: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    input_format: str | None = None,
    text_field: str = "text",
    id_field: str | None = None,
    keep: Sequence[str] = (),
    out_format: OutFormat | None = None,
    precision: BulkPrecision = "float32",
    prompt_name: str | None = None,
    truncation: Truncation = "truncate",
    dedup: bool = False,
    strict: bool = False,
    rows_per_shard: int = ROWS_PER_SHARD,
    max_text_bytes: int = MAX_TEXT_BYTES,
    share: tuple[int, int] = (1, 1),
    workers: RayWorkers | None = None,
    resume: bool = True,
    stop: threading.Event | None = None,
    on_progress: Callable[[BulkProgress], object] | None = None,
) -> BulkSummary:
    """Embed the texts of files into shards of vectors, at constant memory.

    A job that was killed, or told to stop, goes on where it was when it is called again, and ends
    with the same bytes. Rows that cannot be embedded go to `dead_letter.jsonl`.

    Args:
        encoder: an Encoder, or what `Encoder.load` takes.
        inputs: files, folders or globs of txt, jsonl, csv (each also .gz, .bz2, .xz or .zst) and
            Parquet, or `-` for standard input.
        out: a folder for shards, a manifest and dead letters; or a name that ends in .npy or
            .parquet for one file, which appears whole or not at all and cannot be resumed.
        input_format: `txt`, `jsonl`, `csv` or `parquet`; None goes by the extensions.
        text_field: the field of jsonl, csv or Parquet that holds the text.
        id_field: the field that holds the id, a text or a whole number; None numbers the rows from
            0 over all inputs.
        keep: further fields to write beside the vector. What one of jsonl holds is what most of its
            first 4,096 rows hold; a number where those hold texts, say, is a dead letter.
        out_format: `parquet` (columns id, the kept fields and vector, a list of fixed length);
            `npy` (with a row map beside it, a line of JSON for each row); or `collection`: `out` is
            a collection, which is made if there is none, texts are stored, kept fields are its
            metadata, and what the job keeps of itself lies beside it in `OUT.job`. None goes by the
            name, and by `parquet` for a folder.
        precision: of the vectors' numbers: `float32`, `float16`, or as in `Encoder.encode`.
        prompt_name: as in `Encoder.encode`.
        truncation: `truncate` cuts texts at max_length, `error` makes dead letters of longer ones.
        dedup: encode equal texts of a window of 4,096 rows once.
        strict: stop at the first row that cannot be embedded.
        rows_per_shard: rows of the input for each shard, a multiple of nothing in particular.
        max_text_bytes: longer texts, and longer lines of jsonl, are dead letters.
        share: which share of the shards to do and of how many, from 1: several machines can fill
            one folder, with the same files as one would.
        workers: let so many Encoders on a Ray cluster do the shards, each as this one would be
            loaded, and with the cores that Ray gives it; needs the extra `[ray]`.
        resume: False deletes what was done before, and begins anew.
        stop: set it to end the job after the shard that is being encoded.
        on_progress: called now and then, on another thread.

    Returns:
        What was done.

    Raises:
        BulkError: the folder holds another job, or one of another model, input or option, which
            the message names; a row cannot be embedded, with `strict`; something cannot be written.
        InputValueError: an input cannot be read, a field is missing, an option is out of range.
        MissingDependencyError: Parquet and zstd need pyarrow (`flowvec[files]`).
    """
    path = Path(out)
    out_format = out_format_of(path, out_format)
    is_file = path.suffix in (".npy", ".parquet")
    fields = checked_fields(text_field, id_field, keep, max_text_bytes)
    options = BulkOptions(
        out_format, fields, precision, prompt_name, truncation, dedup, rows_per_shard
    )
    check_options(options, share, is_file, path)
    sources = find_sources(as_inputs(inputs), input_format)
    if sources[0].path == STDIN and (share[1] > 1 or workers is not None):
        raise InputValueError("standard input cannot be shared out")
    if workers is not None and (is_file or out_format == "collection"):
        raise InputValueError("on Ray the output is a folder of shards")
    if workers is not None:
        imported_ray()  # before anything is read or written
    if is_file:
        options = replace(options, rows_per_shard=ONE_FILE)
    columns = first_columns(sources, fields, rows_per_shard)
    begun = time.perf_counter()
    known = survey(sources, options.rows_per_shard, max_text_bytes)
    surveyed = time.perf_counter() - begun
    with ExitStack() as stack:
        if not isinstance(encoder, Encoder):
            encoder = stack.enter_context(Encoder.load(encoder))
        job = job_of(encoder, options)
        target: Target
        if is_file:
            target = FileTarget(path)
        else:
            kind: type[FolderTarget] = FolderTarget
            collection: Collection | None = None
            folder = Folder(path, share)
            if out_format == "collection":
                kind = CollectionTarget
                collection = stack.enter_context(open_collection(path, encoder, precision))
                folder = Folder(path.with_name(path.name + ".job"), share)
                if id_field is None and len(collection) and not folder.manifest.exists():
                    raise InputValueError(
                        f"{path} holds {len(collection)} rows, and numbers from 0 would replace "
                        "some; give an id_field"
                    )
            stack.enter_context(folder.held())
            described = _described(encoder, known, options, columns, share)
            target = kind(folder, known, rows_per_shard, out_format, described, resume=resume)
            if isinstance(target, CollectionTarget):
                target.collection = cast(Collection, collection)
        stack.callback(target.close)
        # A single file is whole or not there: it has no shard to stop after.
        stop = None if is_file else stop
        if workers is not None and known.rows:
            assert isinstance(target, FolderTarget)
            done = _run_on_ray(
                encoder, known, options, columns, target, workers,
                stop=stop, strict=strict, on_progress=on_progress,
            )  # fmt: skip
        else:
            work = Work(encoder, job, known, options, columns, target)
            work.run(stop, strict=strict, on_progress=on_progress)
            done = _Done(work.tally, work.seconds, work.is_complete)
        return _summary(encoder, options, job, target, done, surveyed)


@dataclass(frozen=True, slots=True)
class _Done:
    """What a run did."""

    tally: Tally
    seconds: float
    is_complete: bool


def _run_on_ray(
    encoder: Encoder,
    known: Survey,
    options: BulkOptions,
    columns: Columns | None,
    target: FolderTarget,
    workers: RayWorkers,
    *,
    stop: threading.Event | None,
    strict: bool,
    on_progress: Callable[[BulkProgress], object] | None,
) -> _Done:
    """Let workers do the shards, and keep the journal."""
    tally, begun, is_complete = Tally(), time.perf_counter(), True
    with closing(
        shards_on_ray(
            target.missing(), encoder, target.folder, known, options, columns, workers,
            strict=strict,
        )
    ) as results:  # fmt: skip
        for result in results:
            target.take_over(result.record)
            tally.add(result.tally)
            if on_progress is not None:
                rows = sum(r.rows_in for r in target.finished)
                seconds = time.perf_counter() - begun
                on_progress(BulkProgress(rows, known.rows, tally.tokens, tally.padded, seconds))
            if stop is not None and stop.is_set() and target.missing():
                is_complete = False
                break
    if is_complete:
        check_unchanged(known.sources)
        target.complete()
    return _Done(tally, time.perf_counter() - begun, is_complete)


def _summary(
    encoder: Encoder,
    options: BulkOptions,
    job: Job,
    target: Target,
    done: _Done,
    surveyed: float,
) -> BulkSummary:
    tally, info, finished = done.tally, encoder.info(), target.finished
    rows, dead = sum(r.rows for r in finished), sum(r.dead for r in finished)
    return BulkSummary(
        out=str(target.path),
        complete=done.is_complete,
        rows_in=rows + dead,
        rows=rows,
        dead_letters=dead,
        codes=dict(sorted(tally.codes.items())),
        blank=sum(r.blank for r in finished),
        shards=len(finished),
        shards_before=len(target.before),
        dim=job.postprocess.out_dim,
        precision=options.precision,
        encoded=tally.encoded,
        truncated=tally.truncated,
        replaced=tally.replaced,
        tokens=tally.tokens,
        padding=1.0 - tally.tokens / tally.padded if tally.padded else 0.0,
        survey_seconds=surveyed,
        seconds=done.seconds,
        provider=info.provider,
        compute=info.compute,
    )


def _described(
    encoder: Encoder,
    known: Survey,
    options: BulkOptions,
    columns: Columns | None,
    share: tuple[int, int],
) -> dict[str, Any]:
    """All that decides the bytes that a job writes; see `job.py`."""
    info = encoder.info()
    chosen = asdict(options)
    described = {
        "model": {
            "name": info.name,
            "fingerprint": info.fingerprint,
            "dim": info.dim,
            "max_length": info.max_length,
            "provider": info.provider,
            "compute": info.compute,
            "max_batch_tokens": info.max_batch_tokens,
        },
        "options": {**chosen.pop("fields"), **chosen, "share": list(share)},
        "rows": known.rows,
        "columns": columns,
        "inputs": [{name: getattr(source, name) for name in _RECORDED} for source in known.sources],
    }
    found: dict[str, Any] = json.loads(json.dumps(described))  # as it is read again
    return found
