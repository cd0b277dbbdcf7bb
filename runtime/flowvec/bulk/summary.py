"""The summary of a bulk job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from flowvec.bulk.options import BulkOptions
from flowvec.bulk.outputs import Target
from flowvec.bulk.runner import RunResult
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.jobs import EncodeJob

__all__ = ["BulkSummary", "summarize"]


@dataclass(frozen=True, slots=True)
class BulkSummary:
    """The result of a bulk job.

        >>> size = Path("summary.jsonl").write_text('{"text": "A cat."}\\n{"text": null}\\n')
        >>> summary = encode_files("mini", "summary.jsonl", "summary")
        >>> summary.complete, summary.rows, summary.dead_letters, summary.codes
        (True, 1, 1, {'null': 1})

    Attributes:
        out: where the vectors are.
        complete: whether the job is complete; False if it was stopped.
        rows_in: rows read, in all runs of the job: the sum of the next three.
        rows: vectors that were written, in all runs, and rows that were unchanged.
        dead_letters: rows that could not be embedded, in all runs.
        duplicates: rows that were left out because another row has the same id, in all runs.
        duplicate_ids: the first few of these ids, in this run.
        codes: dead letters of each kind, in all runs.
        blank: blank lines, which are not rows: those of jsonl, and of txt for a collection.
        shards: shards that were finished, in all runs.
        shards_before: shards that earlier runs had finished.
        dim: length of a written vector.
        precision: type of its numbers.
        encoded: texts encoded in this run, without repeated ones if `dedupe` is set.
        truncated: texts that were cut at max_length in this run.
        replaced: texts of this run in which lone surrogates were replaced by U+FFFD.
        unchanged: rows that the collection already had, with `skip_unchanged`.
        overwritten: rows of the collection that rows of this run replaced.
        chunks: chunks that were written in this run, with `split_tokens`.
        pruned: rows of the collection that were deleted because the inputs do not have their ids.
        absent_fields: for a collection, fields to keep that no row has, and that may be misspelt;
            empty if earlier runs did a part of the job.
        repeated: with `dedupe`, rows of this run that got the vector of an earlier row.
        carried: with `changed_since`, rows of this run that got a vector of the earlier job.
        tokens: tokens encoded in this run.
        padding: share of padding in the tokens computed in this run, 0 to 1.
        survey_seconds: seconds to count and hash the inputs.
        seconds: seconds to read, encode and write, in this run.
        kept: of a job that was stopped, texts of the unfinished shard whose vectors are kept for
            the next run.
        provider: the provider that ran the model.
        compute: its compute type.
    """

    out: str
    complete: bool
    rows_in: int
    rows: int
    dead_letters: int
    duplicates: int
    duplicate_ids: tuple[str | int, ...]
    codes: dict[str, int]
    blank: int
    shards: int
    shards_before: int
    dim: int
    precision: str
    encoded: int
    truncated: int
    repeated: int
    carried: int
    replaced: int
    unchanged: int
    overwritten: int
    chunks: int
    pruned: int
    absent_fields: tuple[str, ...]
    tokens: int
    padding: float
    survey_seconds: float
    seconds: float
    kept: int
    provider: str
    compute: str


def summarize(
    encoder: Encoder,
    options: BulkOptions,
    job: EncodeJob,
    target: Target,
    done: RunResult,
    surveyed: float,
) -> BulkSummary:
    """Summarize all shards of a job and its last run.

    Args:
        encoder: the model that made the vectors.
        options: options of the job.
        job: the encoding job.
        target: the output.
        done: the last run.
        surveyed: seconds that the survey took.
    """
    tally, info, finished = done.tally, encoder.info(), target.finished
    rows, dead = sum(r.rows for r in finished), sum(r.dead for r in finished)
    duplicates = sum(r.duplicates for r in finished)
    codes: Counter[str] = Counter()
    for record in finished:
        codes.update(record.codes)
    return BulkSummary(
        out=target.out,
        complete=done.is_complete,
        rows_in=rows + dead + duplicates,
        rows=rows,
        dead_letters=dead,
        duplicates=duplicates,
        duplicate_ids=tuple(tally.repeated_ids),
        codes=dict(sorted(codes.items())),
        blank=sum(r.blank for r in finished),
        shards=len(finished),
        shards_before=len(target.before),
        dim=job.postprocess.out_dim,
        precision=options.precision,
        encoded=tally.texts,
        truncated=tally.truncated,
        repeated=tally.repeated,
        carried=tally.carried,
        replaced=tally.replaced,
        unchanged=target.unchanged,
        overwritten=target.overwritten,
        chunks=target.chunks,
        pruned=target.pruned,
        absent_fields=_absent_fields(options, target, done),
        tokens=tally.tokens,
        padding=tally.padding,
        survey_seconds=surveyed,
        seconds=done.seconds,
        kept=done.kept,
        provider=info.provider,
        compute=info.compute,
    )


def _absent_fields(options: BulkOptions, target: Target, done: RunResult) -> tuple[str, ...]:
    """Kept fields that no row of a job has; empty if not all of its rows were read."""
    is_all_read = done.is_complete and not target.before and any(r.rows_in for r in target.finished)
    if not (options.fields.for_collection and is_all_read):
        return ()
    return tuple(name for name in options.fields.beside_id if name not in done.tally.fields)
