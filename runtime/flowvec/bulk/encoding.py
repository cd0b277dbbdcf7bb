"""Bulk jobs: `encode_files`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flowvec.arguments import flag, path_of, whole_number
from flowvec.bulk.carrying import earlier_job, open_known_texts
from flowvec.bulk.collection_output import CollectionTarget, ComparedTarget, open_collection
from flowvec.bulk.journal import Folder
from flowvec.bulk.open_folder import folder_at
from flowvec.bulk.options import (
    MAX_TEXT_BYTES,
    ONE_FILE,
    ROWS_PER_SHARD,
    BulkOptions,
    Dedupe,
    as_inputs,
    check_options,
    checked_fields,
    expanded,
    out_format_of,
    url_of,
)
from flowvec.bulk.outputs import FileTarget, FolderTarget, Target, naming_output
from flowvec.bulk.own_files import OwnFiles
from flowvec.bulk.ray_workers import RayWorkers, imported_ray, shards_on_ray
from flowvec.bulk.repeats import OnDuplicate, Repeats, SeenIds, check_rule, find_repeats
from flowvec.bulk.runner import BulkProgress, RunResult, RunTally, Work, end_run, job_of
from flowvec.bulk.shard_files import BulkPrecision, OutFormat
from flowvec.bulk.splitting import Splitting
from flowvec.bulk.summary import BulkSummary, summarize
from flowvec.bulk.windows import decided_columns
from flowvec.collection.creation import is_collection
from flowvec.collection.model import encoder_for
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.options import Truncation
from flowvec.errors import BulkError, InputValueError
from flowvec.texts.inventory import Survey, survey_inputs
from flowvec.texts.sources import STDIN
from flowvec.texts.urls import from_anywhere, name_of, recorded
from flowvec.texts.window import Columns

__all__ = ["encode_files"]

# What the manifest records of an input.
_RECORDED = ("path", "format", "bytes", "modified", "sha256", "rows")


def encode_files(
    encoder: Encoder | str | Path,
    inputs: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    input_format: str | None = None,
    text_field: str | Sequence[str] = "text",
    id_field: str | None = None,
    keep: Sequence[str] = (),
    out_format: OutFormat | None = None,
    precision: BulkPrecision = "float32",
    prompt_name: str | None = None,
    truncation: Truncation = "truncate",
    dedupe: bool = False,
    changed_since: str | Path | None = None,
    on_duplicate: OnDuplicate | None = None,
    skip_unchanged: bool = False,
    prune: bool = False,
    split_tokens: int | None = None,
    split_overlap: int = 0,
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

    If a job is killed or stopped, the same call continues it, and writes the same bytes in the end.
    Rows that cannot be embedded go to `_dead_letter.jsonl`.

        >>> size = Path("texts.txt").write_text("The cat sleeps.\\nStocks fell.\\n")
        >>> summary = encode_files("mini", "texts.txt", "vectors.npy")
        >>> np.load("vectors.npy").shape  # row i is line i
        (2, 384)

    Args:
        encoder: an Encoder, or what `Encoder.load` takes.
        inputs: files, folders or globs of txt, jsonl, csv (each also .gz, .bz2, .xz or .zst) and
            Parquet, or `-` for standard input.
        out: a folder for shards, a manifest and dead letters, or its URL (`s3://bucket/vectors`,
            or another scheme of fsspec); or a name that ends in .npy or .parquet for a single file,
            which is written atomically and cannot be resumed.
        input_format: `txt`, `jsonl`, `csv` or `parquet`; None decides by the extensions.
        text_field: the field of jsonl, csv or Parquet that holds the text; or several, joined by
            commas or as a list, such as `title,text`: their texts are joined with a space, and
            those that are null or missing are left out.
        id_field: the field with the id, a string or a whole number; None numbers the rows from 0
            over all inputs.
        keep: other fields to write with the vector. No value is changed: all rows of all inputs
            decide a field's type, and a row whose value it cannot hold exactly is a dead letter. In
            a collection, each row keeps its own value and type. A file may lack a field.
        out_format: `parquet` (columns id, the kept fields and vector, a list of fixed length);
            `npy` (with a row map beside it, one line of JSON per row); or `collection`. Then `out`
            is a collection, which is created if there is none; texts are stored, kept fields become
            metadata (without those that are null or missing), blank lines of txt are left out, and
            the job's journal is beside it in `OUT.job`. None decides by the name, and is `parquet`
            for a folder.
        precision: type of the vectors' numbers: `float32`, `float16`, or as in `Encoder.encode`.
        prompt_name: as in `Encoder.encode`.
        truncation: `truncate` cuts texts at max_length; `error` makes longer texts dead letters.
        dedupe: encode equal texts once: the vector of the first row with a text is copied to the
            others. In a folder of shards, this is for the whole job; elsewhere, and on Ray, for
            each window of 4,096 rows. For a whole job, all texts are read once more before the work
            starts; their digests and repeated vectors are in SQLite files of TMPDIR, so memory
            stays constant. Each share of a job embeds its own texts. `_part-*.texts` beside the
            shards (17 bytes per row) are for `changed_since`.
        changed_since: the folder, URL or manifest of an earlier job with the same model, made with
            `dedupe` or `changed_since`: vectors of texts that it has are copied from it, and only
            new and changed texts are encoded. The output is complete without the earlier job. It
            implies `dedupe`.
        on_duplicate: which of several rows with the same id is written: the `last`, or the `first`.
            With `dead-letter`, all but the first are dead letters; with `error`, nothing is
            written. None is `last`. All ids are read before the work starts, which takes 24 bytes
            of memory per row. The choice does not depend on whether a text is too long. Standard
            input cannot be read twice: None is `first` there, and `last` is possible for a
            collection only, where a later row replaces an earlier one; all ids are kept in memory.
        skip_unchanged: for a collection: leave out rows that it already has with the same text and
            the same kept fields. No journal is kept: a job that was stopped or killed continues
            because its rows are there, and any file can be added. Dead letters go to
            `OUT.dead_letter.jsonl`.
        prune: with `skip_unchanged`: when all rows are added, delete the rows of the collection
            whose ids are not in the inputs, so give all inputs that it is made of. Rows that others
            add meanwhile stay. It needs an `id_field`, and files: standard input may be cut short.
            Nothing is deleted, and a BulkError says why, if the inputs have no rows, or a row whose
            id cannot be read.
        split_tokens: with `skip_unchanged`: split texts into chunks of at most so many tokens, by
            `Encoder.split_texts`, and add each as a row. The chunk n of the row `a` has the id
            `a#n` and the fields `parent`, `start` and `end`; ids that are texts and look like
            numbers are quoted (`"1"#0`). Chunks of a text that has become shorter are deleted.
            Give the same value every time; None does not split.
        split_overlap: most tokens that a chunk repeats of the one before.
        strict: stop at the first row that cannot be embedded.
        rows_per_shard: input rows per shard; any positive number.
        max_text_bytes: longer texts, and longer lines of jsonl, are dead letters.
        share: (i, n) does the i-th of n shares of the shards, from 1. Several machines can fill one
            folder, and write the same files as a single one.
        workers: let this many Encoders on a Ray cluster do the shards, with the cores that Ray
            gives them; needs the extra `[ray]`.
        resume: False deletes the work of earlier runs and starts again; a single file is replaced.
        stop: set it to end the job as soon as the running batches are done. The next run continues
            within the current shard, if that took longer than half a minute; see `bulk.md`.
        on_progress: called now and then, on another thread.

    Returns:
        What the job did.

    Raises:
        BulkError: the folder holds another job, or the model, an input or an option differs (the
            message names it); with `strict`, a row cannot be embedded; a file cannot be written.
        InputValueError: an input cannot be read, a field is missing, an option is not valid.
        MissingDependencyError: Parquet and zstd need pyarrow (the extra `[files]`).
    """
    url = url_of(out, out_format)
    path = expanded(path_of("out", out)) if url is None else Path(name_of(url).partition("://")[2])
    flag("resume", resume)
    flag("strict", strict)
    flag("skip_unchanged", skip_unchanged)
    flag("prune", prune)
    out_format = out_format_of(path, out_format)
    is_file = path.suffix in (".npy", ".parquet")
    fields = checked_fields(text_field, id_field, keep, max_text_bytes)
    into_collection = out_format == "collection"
    fields = replace(fields, kept_as_json=out_format != "parquet", for_collection=into_collection)
    if skip_unchanged and not into_collection:
        raise InputValueError("only a collection can skip unchanged rows")
    own = OwnFiles(url or path, is_file=is_file, into_collection=into_collection)
    sources = own.sources(as_inputs(inputs), input_format)
    own.check_apart_from(earlier=changed_since)
    is_stdin = sources[0].path == STDIN
    if is_stdin and (share[1] > 1 or workers is not None):
        raise InputValueError("standard input cannot be divided into shares or among workers")
    if prune:
        _check_prune(skip_unchanged=skip_unchanged, id_field=id_field, is_stdin=is_stdin)
    is_split = split_tokens is not None
    if is_split and not skip_unchanged:
        raise InputValueError("split_tokens is for a collection, with skip_unchanged")
    if whole_number("split_overlap", split_overlap, 0) and not is_split:
        raise InputValueError("split_overlap goes with split_tokens")
    can_be_last = (into_collection and not is_split) or not is_stdin
    rule = _duplicate_rule(on_duplicate, can_be_last=can_be_last)
    is_whole = not (is_file or into_collection or is_stdin or workers is not None)
    if changed_since is not None and not is_whole:
        raise InputValueError(
            "changed_since is for files into a folder of shards, without Ray workers"
        )
    once: Dedupe = "job" if is_whole else "window"
    earlier = None if changed_since is None else earlier_job(changed_since)
    options = BulkOptions(
        out_format, fields, precision, prompt_name, truncation, rows_per_shard, rule,
        once if flag("dedupe", dedupe) or earlier is not None else None,
        None if earlier is None else earlier.sha256,
    )  # fmt: skip
    check_options(options, share, is_file, path if url is None else None)
    if skip_unchanged and share[1] > 1:
        raise InputValueError("a job that skips unchanged rows cannot be divided into shares")
    if workers is not None and (is_file or into_collection):
        raise InputValueError("on Ray the output is a folder of shards, or its URL")
    if resume and (existing := own.existing()):
        raise BulkError(
            f"{existing} exists; name another file, or give --restart (resume=False) to replace it"
        )
    if workers is not None:
        imported_ray()  # fail before anything is read or written
    if is_file or skip_unchanged:
        options = replace(options, rows_per_shard=ONE_FILE)
    columns = None
    with suppress(_StoppedError):  # the survey of the inputs raises it again
        columns = decided_columns(sources, fields, _raises_once_set(stop))
    with ExitStack() as stack:
        if not isinstance(encoder, Encoder):
            encoder = stack.enter_context(Encoder.load(encoder))
        own.check_apart_from(encoder)
        if into_collection and is_collection(path):
            matching = encoder_for(path, encoder)
            if matching is not encoder:
                encoder = stack.enter_context(matching)
        splitting = None
        if split_tokens is not None:
            splitting = Splitting.checked(encoder, split_tokens, split_overlap, fields)
        job = job_of(encoder, options)
        started = time.perf_counter()
        try:
            survey = survey_inputs(
                sources, options.rows_per_shard, max_text_bytes, _raises_once_set(stop)
            )
            repeats = _repeats(survey, options, columns, _raises_once_set(stop))
        except _StoppedError:
            nothing = RunResult(RunTally(), 0.0, is_complete=False)
            return summarize(encoder, options, job, FileTarget(path, url), nothing, 0.0)
        surveyed = time.perf_counter() - started
        stack.enter_context(naming_output(url or str(path)))
        target = _open_target(
            stack, url or path, encoder, survey, options, columns, share,
            is_file=is_file, skip_unchanged=skip_unchanged, prune=prune, resume=resume,
            splitting=splitting,
        )  # fmt: skip
        stack.callback(target.close)
        if workers is not None and survey.rows:
            assert isinstance(target, FolderTarget)
            assert not isinstance(repeats, SeenIds)  # SeenIds is for standard input
            done = _run_on_ray(
                encoder, survey, options, columns, target, url or from_anywhere(str(path)), workers,
                repeats, stop=stop, strict=strict, on_progress=on_progress,
            )  # fmt: skip
        else:
            known = None
            if options.dedupe == "job":
                assert isinstance(target, FolderTarget)
                assert not isinstance(repeats, SeenIds)
                if earlier is not None:
                    earlier.check(_described(encoder, survey, options, columns, share))
                try:
                    known = open_known_texts(
                        stack, target, survey, options, columns, repeats, earlier,
                        _raises_once_set(stop),
                    )  # fmt: skip
                except _StoppedError:
                    nothing = RunResult(RunTally(), 0.0, is_complete=False)
                    return summarize(encoder, options, job, target, nothing, surveyed)
            work = Work(encoder, job, survey, options, columns, target, repeats, known)
            done = work.run(stop, strict=strict, on_progress=on_progress)
        return summarize(encoder, options, job, target, done, surveyed)


def _check_prune(*, skip_unchanged: bool, id_field: str | None, is_stdin: bool) -> None:
    """Refuse to prune where it cannot be known which rows are gone."""
    if not skip_unchanged:
        raise InputValueError("prune is for a collection, with skip_unchanged")
    if id_field is None:
        raise InputValueError("prune needs an id_field: numbers do not say which rows are gone")
    if is_stdin:
        raise InputValueError(
            "prune needs files: standard input may end early, and all that is missing would be "
            "deleted"
        )


def _duplicate_rule(rule: OnDuplicate | None, *, can_be_last: bool) -> OnDuplicate:
    """Which of several rows with the same id is written.

    Args:
        rule: the user's rule; None takes the default.
        can_be_last: whether the last row can be known in time.

    Raises:
        InputValueError: there is no such rule, or it needs to read the input twice.
    """
    check_rule(rule)
    if rule is None:
        return "last" if can_be_last else "first"
    if rule == "last" and not can_be_last:
        raise InputValueError(
            "standard input cannot be read twice, so which row of an id is the last is not known "
            "in time; on_duplicate is first, error or dead-letter there"
        )
    return rule


def _open_target(
    stack: ExitStack,
    path: Path | str,
    encoder: Encoder,
    survey: Survey,
    options: BulkOptions,
    columns: Columns | None,
    share: tuple[int, int],
    *,
    is_file: bool,
    skip_unchanged: bool,
    prune: bool,
    resume: bool,
    splitting: Splitting | None,
) -> Target:
    """Open the output, a path or a URL.

    `stack` closes what it keeps open, apart from the target itself.
    """
    per_shard = options.rows_per_shard
    if not is_file and options.out_format != "collection":
        folder = folder_at(path, share)
        stack.enter_context(folder.locked())
        described = _described(encoder, survey, options, columns, share)
        return FolderTarget(folder, survey, per_shard, options.out_format, described, resume=resume)
    path = Path(path)
    if is_file:
        return FileTarget(path)
    folder = Folder(path.with_name(path.name + ".job"), share)
    if not is_collection(path):
        _forget_jobs(folder)
    if skip_unchanged:
        return ComparedTarget(
            path, encoder, options.precision, options.fields, survey,
            prune=prune, splitting=splitting,
        )  # fmt: skip
    collection = stack.enter_context(open_collection(path, encoder, options.precision))
    if options.fields.id is None and len(collection) and folder.read_manifest() is None:
        raise InputValueError(
            f"{path} holds {len(collection)} rows, and numbers from 0 would replace some; give an "
            "id_field, or skip_unchanged"
        )
    stack.enter_context(folder.locked())
    described = _described(encoder, survey, options, columns, share)
    return CollectionTarget(collection, folder, survey, per_shard, described, resume=resume)


def _forget_jobs(folder: Folder) -> None:
    """Delete what earlier jobs noted of rows whose collection is gone."""
    for share in map(folder.with_share, folder.shares()):
        if share.is_ours() and share.read_manifest() is not None:
            with share.locked():
                share.clear()


class _StoppedError(Exception):
    """The job was stopped before anything was encoded."""


def _raises_once_set(stop: threading.Event | None) -> Callable[[], None]:
    """A function that raises once `stop` is set."""

    def check() -> None:
        if stop is not None and stop.is_set():
            raise _StoppedError

    return check


def _repeats(
    survey: Survey, options: BulkOptions, columns: Columns | None, stop: Callable[[], None]
) -> Repeats | SeenIds | None:
    """Rows that are left out because another row has the same id."""
    if options.fields.id is None:
        return None
    is_column = options.out_format == "parquet"  # which has one type
    if survey.rows is None:
        return SeenIds(options.fields, options.on_duplicate, ids_become_texts=is_column)
    return find_repeats(
        survey.sources, options.fields, columns, options.on_duplicate, stop,
        ids_become_texts=is_column,
    )  # fmt: skip


def _run_on_ray(
    encoder: Encoder,
    survey: Survey,
    options: BulkOptions,
    columns: Columns | None,
    target: FolderTarget,
    out: str,
    workers: RayWorkers,
    repeats: Repeats | None,
    *,
    stop: threading.Event | None,
    strict: bool,
    on_progress: Callable[[BulkProgress], object] | None,
) -> RunResult:
    """Let Ray workers do the shards; the journal is written here."""
    tally, started, is_complete = RunTally(), time.perf_counter(), True
    rows = before = sum(record.rows_in for record in target.finished)
    left = len(target.missing())
    with closing(
        shards_on_ray(
            target.missing(), encoder, target.folder, out, survey, options, columns, workers,
            repeats=repeats, strict=strict,
        )
    ) as results:  # fmt: skip
        for result in results:
            target.take_over(result.record, result.saved)
            tally.merge(result.tally)
            rows, left = rows + result.record.rows_in, left - 1
            if on_progress is not None:
                seconds, known = time.perf_counter() - started, before + tally.reused
                on_progress(
                    BulkProgress(rows, survey.rows, tally.tokens, tally.padded, seconds, known)
                )
            if stop is not None and stop.is_set() and left:
                is_complete = False
                break
    if is_complete:
        end_run(target, survey, options, stop=stop)
    return RunResult(tally, time.perf_counter() - started, is_complete)


def _described(
    encoder: Encoder,
    survey: Survey,
    options: BulkOptions,
    columns: Columns | None,
    share: tuple[int, int],
) -> dict[str, Any]:
    """Everything that decides the bytes that a job writes; see `journal.py`."""
    info = encoder.info()
    chosen = asdict(options)
    for name in ("kept_as_json", "for_collection"):  # these follow from the format
        del chosen["fields"][name]
    if options.fields.id is None:  # rows are numbered: ids are distinct
        del chosen["on_duplicate"]
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
        "rows": survey.rows,
        "columns": columns and {name: str(kind) for name, kind in columns.items()},
        "inputs": [
            {name: getattr(source, name) for name in _RECORDED} | {"path": recorded(source.path)}
            for source in survey.sources
        ],
    }
    as_read: dict[str, Any] = json.loads(json.dumps(described))  # as it will be read again
    return as_read
