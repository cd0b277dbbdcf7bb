"""Runs a bulk job: reading, tokenizing, inference and writing overlap.

Shards, windows and batches depend only on input order and options, so a resumed job writes the same
bytes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bulk.job_folder import JobFolder
from flowvec.bulk.known_texts import Choice, KnownTexts
from flowvec.bulk.options import ONE_FILE, BulkOptions
from flowvec.bulk.outputs import OneShardTarget, ShardCounts, Target, naming_output
from flowvec.bulk.prefetch import run_ahead
from flowvec.bulk.records import ShardRecord
from flowvec.bulk.repeats import Repeats, SeenIds
from flowvec.bulk.saved_batches import SavedBatches
from flowvec.bulk.shard_files import ShardSettings, ShardWriter
from flowvec.bulk.windows import read_windows
from flowvec.compat import override
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.jobs import Encoded, EncodeJob, Tally
from flowvec.errors import BulkError
from flowvec.machine import trim_memory
from flowvec.texts.inventory import Survey, check_unchanged
from flowvec.texts.window import Columns, DeadLetter, Window

__all__ = [
    "BulkProgress",
    "RunResult",
    "RunTally",
    "ShardResult",
    "Work",
    "end_run",
    "job_of",
    "run_shard",
    "windows_of",
]

# Most windows that wait to be tokenized, and most that wait to be written.
_READ_AHEAD = 2
_WRITE_BEHIND = 4
# Most repeated ids that a run reports.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """Progress of a bulk job.

        >>> size = Path("progress.txt").write_text("The cat sleeps.\\nStocks fell.\\n")
        >>> progress: list[BulkProgress] = []
        >>> summary = encode_files(
        ...     "mini", "progress.txt", "progress.npy", on_progress=progress.append
        ... )
        >>> progress[-1].rows, progress[-1].total
        (2, 2)

    Attributes:
        rows: rows that are done, including dead letters and rows of earlier runs.
        total: rows of the whole job; None for standard input.
        tokens: tokens encoded in this run.
        padded: tokens computed in this run, padding included.
        seconds: seconds since this run started to encode.
        before: rows that earlier runs had done, those of unfinished shards included.
    """

    rows: int
    total: int | None
    tokens: int
    padded: int
    seconds: float
    before: int = 0


@dataclass(slots=True)
class RunTally(Tally):
    """Counts of a run. Only the writing thread changes them.

    Attributes:
        repeated_ids: the first few ids that several rows have.
        fields: for a collection, kept fields that a row has.
        repeated: rows that got the vector of an earlier row.
        carried: rows that got a vector of an earlier job.
    """

    repeated_ids: list[Any] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)
    repeated: int = 0
    carried: int = 0

    def plain(self) -> dict[str, Any]:
        """The counts as JSON values; `RunTally(**plain)` reads them."""
        return asdict(self)

    def merge(self, other: RunTally) -> None:
        """Add the counts of another run."""
        for name in (one.name for one in fields(Tally)):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.repeated += other.repeated
        self.name_repeated(other.repeated_ids)

    def name_repeated(self, ids: Sequence[Any]) -> None:
        """Keep the first few ids that several rows have, each once."""
        for key in ids:
            if len(self.repeated_ids) == _MOST_NAMED:
                return
            if key not in self.repeated_ids:
                self.repeated_ids.append(key)


class _Halt(threading.Event):
    """Set if the caller's `stop` is set, or writing has failed."""

    def __init__(self, stop: threading.Event | None) -> None:
        super().__init__()
        self._stop = stop

    @override
    def is_set(self) -> bool:
        return super().is_set() or (self._stop is not None and self._stop.is_set())


@dataclass(frozen=True, slots=True)
class ShardResult:
    """A finished shard: its record, the counts of the run that wrote it, and names of files that
    are not needed any more."""

    record: ShardRecord
    tally: RunTally
    saved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        tally: its counts.
        seconds: its duration.
        is_complete: whether the job is complete; False if it was stopped.
        kept: texts of unfinished shards whose vectors the next run need not compute.
    """

    tally: RunTally
    seconds: float
    is_complete: bool
    kept: int = 0


@dataclass(frozen=True, slots=True)
class _TextIndex:
    """For each row of a window its text's index among the embedded texts; None is one to one."""

    texts: npt.NDArray[np.int64] | None = None
    choice: Choice | None = None


class Work:
    """One run of a job.

    Attributes:
        tally: its counts.
    """

    def __init__(
        self,
        encoder: Encoder,
        job: EncodeJob,
        survey: Survey,
        options: BulkOptions,
        columns: Columns | None,
        target: Target,
        repeats: Repeats | SeenIds | None = None,
        known: KnownTexts | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            encoder: embeds the texts.
            job: the encoding job, as `job_of` returns it.
            survey: the inputs.
            options: options of the job.
            columns: types of the fields; None infers them from the first window.
            target: the output.
            repeats: rows that are left out because another row has the same id.
            known: texts that need not be embedded again.
        """
        self._repeats = repeats
        self._known = known
        self._encoder = encoder
        self._job = job
        self._survey = survey
        self._options = options
        self._columns = columns
        self._target = target
        self.tally = RunTally()
        self._shard: ShardWriter | None = None
        self._counts = ShardCounts()
        self._started = time.perf_counter()
        self._is_complete = False
        self._last_shard = 0
        self._has_failed = False
        self._is_all_read = False
        self._halt = _Halt(None)
        self._rows_read = 0
        self._saved: SavedBatches | None = None
        info = encoder.info()
        self._settings = ShardSettings(
            options.out_format,
            options.fields,
            job.postprocess.out_dim,
            options.precision,
            {
                "model": info.name,
                "fingerprint": info.fingerprint,
                "compute": info.compute,
                "similarity": info.similarity,
                "precision": options.precision,
            },
        )

    def run(
        self,
        stop: threading.Event | None,
        *,
        strict: bool,
        on_progress: Callable[[BulkProgress], object] | None,
    ) -> RunResult:
        """Encode the missing shards. Once `stop` is set, leave the current shard and end."""
        self._strict, self._on_progress = strict, on_progress
        self._halt = halt = _Halt(stop)
        waiting: deque[tuple[Window, _TextIndex]] = deque()
        written: deque[Future[None]] = deque()

        def window_texts() -> Iterator[list[str]]:
            for window in ahead:
                texts, index = window.texts, _TextIndex()
                if self._known is not None:
                    choice = self._known.choose(window)
                    texts, index = choice.texts, _TextIndex(choice.index, choice)
                elif self._options.dedupe == "window":
                    texts, repeats = _distinct(window.texts)
                    index = _TextIndex(repeats)
                waiting.append((window, index))
                yield texts
            self._is_all_read = not halt.is_set()

        self._started = time.perf_counter()
        with ExitStack() as stack:
            stack.callback(self._abandon)
            self._saved = self._target.saved_batches()
            if self._saved is not None:
                stack.callback(self._saved.close)
            job = replace(self._job, outputs=self._saved)
            writer = stack.enter_context(ThreadPoolExecutor(1, "flowvec-write"))
            ahead = run_ahead(self._windows(), _READ_AHEAD, halt)
            stack.callback(ahead.close)
            encoding = stack.enter_context(
                closing(self._encoder.windows(window_texts(), job, halt))
            )
            for encoded in encoding:
                written.append(writer.submit(self._take, *waiting.popleft(), encoded))
                if len(written) > _WRITE_BEHIND:
                    written.popleft().result()
            while written:
                written.popleft().result()
            if self._is_all_read and not waiting:
                self._finish()
        if self._known is not None:
            self.tally.repeated, self.tally.carried = self._known.repeated, self._known.carried
        kept = 0 if self._saved is None or self._is_complete else self._saved.texts
        return RunResult(self.tally, time.perf_counter() - self._started, self._is_complete, kept)

    @property
    def saved_files(self) -> tuple[str, ...]:
        """Names of files with work on shards that are finished."""
        files = {} if self._saved is None else self._saved.files
        return tuple(name for names in files.values() for name in names)

    def _windows(self) -> Iterator[Window]:
        for window in windows_of(
            self._target.spans(), self._survey, self._options, self._columns, self._target.note
        ):
            if self._repeats is not None:
                self._repeats.leave_out(window)
            self._target.leave_out(window)
            yield window

    def _finish(self) -> None:
        """End the last shard and the run, after all windows are written."""
        if self._shard is None and not self._target.finished and not self._survey.rows:
            self._shard = self._target.open_shard(0, self._settings)  # a file without rows
            self._end_shard(0)
        elif self._shard is not None:
            if self._survey.rows is not None:
                raise BulkError("an input has changed since its rows were counted")
            self._end_shard(self._last_shard)
        if self._saved is not None:
            self._saved.close()
        end_run(
            self._target, self._survey, self._options, rows_read=self._rows_read, stop=self._halt
        )
        self._is_complete = True

    def _abandon(self) -> None:
        if self._shard is not None:
            self._shard.abandon()

    # --- on the writing thread --------------------------------------------------------------------

    def _take(self, window: Window, index: _TextIndex, encoded: Encoded) -> None:
        """Write a window. After a failure, ignore later windows."""
        if self._has_failed:
            return
        try:
            self._write(window, index, encoded)
        except BaseException:
            self._has_failed = True
            self._halt.set()
            raise

    def _write(self, window: Window, index: _TextIndex, encoded: Encoded) -> None:
        tally = self.tally
        shard = window.first // self._options.rows_per_shard
        vectors, dead = self._resolve(index, encoded)
        kept = self._kept(window, dead)
        if window.dead:
            if self._strict:
                first = window.dead[0]
                raise BulkError(f"{first.source}, row {first.row}: {first.reason}")
            self._target.add_dead_letters(shard, window.dead)
        if self._shard is None:
            self._shard = self._target.open_shard(shard, self._settings)
            self._counts = ShardCounts()
        self._last_shard = shard
        self._columns = window.columns
        self._shard.write(window, kept, vectors if kept is None else vectors[kept])
        counts = self._counts
        numbers = window.numbers if kept is None else [window.numbers[place] for place in kept]
        written = set(numbers)  # of several chunks of a row one counts
        replaced = len(written & window.replacing)
        counts.rows += len(written) - replaced + window.unchanged
        self._target.unchanged += window.unchanged
        counts.blank += window.blank
        counts.duplicates += window.duplicates + replaced
        counts.codes.update(letter.code for letter in window.dead)
        self._rows_read += window.rows
        tally.name_repeated(window.repeated_ids)
        tally.fields += sorted(window.fields.difference(tally.fields))
        tally.add(encoded)
        if index.texts is not None:
            tally.repeated += len(index.texts) - len(encoded.vectors)
        end = window.first + window.rows
        if end == (shard + 1) * self._options.rows_per_shard or end == self._survey.rows:
            self._end_shard(shard)
        if self._on_progress is not None:
            before = sum(r.rows_in for r in self._target.before)
            self._on_progress(
                BulkProgress(
                    before + self._rows_read,
                    self._survey.rows,
                    tally.tokens,
                    tally.padded,
                    time.perf_counter() - self._started,
                    before + tally.reused,
                )
            )

    def _end_shard(self, number: int) -> None:
        assert self._shard is not None
        if self._options.rows_per_shard == ONE_FILE:  # else the changed rows would be in the file
            check_unchanged(self._survey.sources)
        written = self._shard.finish(self._columns or {})
        if self._known is not None:
            texts = self._target.write_texts(number, self._known.end_shard())
            written = replace(written, texts_sha256=texts)
        self._shard = None
        self._target.commit(number, self._counts, written)
        if self._saved is not None:
            self._saved.end_shard(number)

    def _resolve(
        self, index: _TextIndex, encoded: Encoded
    ) -> tuple[npt.NDArray[Any], dict[int, str]]:
        """The vectors of a window's rows, (rows, dim), and codes of those that are dead letters."""
        bad: dict[int, str] = {}
        if self._options.truncation == "error":
            bad |= dict.fromkeys(encoded.truncated, "too_long")
        bad |= dict.fromkeys(encoded.non_finite, "non_finite")
        bad |= dict.fromkeys(encoded.no_row, "no_row")
        if self._known is not None and index.choice is not None:
            return self._known.resolve(index.choice, encoded.vectors, bad)
        if index.texts is None:
            return encoded.vectors, bad
        dead = {i: bad[text] for i, text in enumerate(index.texts.tolist()) if text in bad}
        return encoded.vectors[index.texts], dead

    def _kept(self, window: Window, dead: Mapping[int, str]) -> list[int] | None:
        """Add dead letters for rows that were not embedded; return the indices of the others.

        None means that all rows were embedded.
        """
        if not dead:
            return None
        reasons = {
            "too_long": f"the text has more than {self._encoder.max_length} tokens",
            "non_finite": "the model gave NaN or infinity",
            "no_row": "the text has a token for which the model's embedding table has no row",
        }
        ids = window.ids(self._options.fields)
        numbers: set[int] = set()  # of dead rows; one whose chunk is bad is not written at all
        for i, code in sorted(dead.items()):
            if window.numbers[i] not in numbers:
                numbers.add(window.numbers[i])
                key = ids[i] if window.parts is None else window.parts[i].parent
                window.dead.append(DeadLetter(*window.place(i), key, code, reasons[code]))
        kept = [i for i, number in enumerate(window.numbers) if number not in numbers]
        order = {source.name: i for i, source in enumerate(self._survey.sources)}
        window.dead.sort(key=lambda letter: (order.get(letter.source, 0), letter.row))
        return kept


def windows_of(
    spans: Iterable[tuple[int, int | None]],
    survey: Survey,
    options: BulkOptions,
    columns: Columns | None,
    note: Callable[[Window], object] = lambda window: None,
) -> Iterator[Window]:
    """The windows of shards, as they are read.

    Args:
        spans: ranges of shards: the first, and the one after the last; None means up to the end.
        survey: the inputs.
        options: options of the job.
        columns: types of the fields; None infers them from the first window.
        note: called with each window.
    """
    per_shard = options.rows_per_shard
    for first, end in spans:
        is_open = end is None or survey.rows is None
        for window in read_windows(
            survey.sources,
            options.fields,
            rows_per_shard=per_shard,
            start=survey.start_of(first),
            first=first * per_shard,
            stop=None if is_open else min((end or 0) * per_shard, survey.rows or 0),
            columns=columns,
        ):
            note(window)
            yield window


def end_run(
    target: Target,
    survey: Survey,
    options: BulkOptions,
    *,
    rows_read: int | None = None,
    stop: threading.Event | None = None,
) -> None:
    """End a run whose shards are all finished: check that no row is lost, and complete the output.

    Args:
        target: the output.
        survey: the inputs.
        options: options of the job.
        rows_read: rows that were read, if the survey could not count them.
        stop: set it to skip optional work.

    Raises:
        BulkError: rows were lost, or an input has changed.
    """
    rows_out = sum(record.rows_in for record in target.finished)
    if survey.rows is None:
        rows_in = rows_read
    else:
        per_shard = options.rows_per_shard
        rows_in = sum(
            min(per_shard, survey.rows - record.shard * per_shard) for record in target.finished
        )
    if rows_out != rows_in:
        raise BulkError(
            f"{rows_in} rows were read, but {rows_out} were written: an input changed meanwhile"
        )
    check_unchanged(survey.sources)
    target.complete(stop)


def _distinct(texts: Sequence[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Distinct texts in order of first occurrence, and for each text its index among them."""
    places: dict[str, int] = {}
    indices = (places.setdefault(text, len(places)) for text in texts)
    text_index = np.fromiter(indices, np.int64, len(texts))
    return list(places), text_index


def job_of(encoder: Encoder, options: BulkOptions) -> EncodeJob:
    """The encoding job for the pipeline; raises as `Encoder.job`."""
    precision = "float32" if options.precision == "float16" else options.precision
    job = encoder.job(
        options.prompt_name,
        # Given explicitly, so that batches do not depend on the number of cores.
        max_batch_tokens=encoder.max_batch_tokens,
        precision=precision,
    )
    return replace(job, refuse_non_finite=False)


def run_shard(
    encoder: Encoder,
    survey: Survey,
    options: BulkOptions,
    columns: Columns | None,
    folder: JobFolder,
    shard: int,
    *,
    strict: bool = False,
    repeats: Repeats | None = None,
    saved: Sequence[str] = (),
) -> ShardResult:
    """Encode one shard of a job whose journal another process writes; `saved` names files with
    earlier work on it.

    Raises:
        BulkError: an input has changed, or with `strict` a row cannot be embedded.
    """
    target = OneShardTarget(folder, options.out_format, shard, saved)
    with naming_output(folder.out), closing(target):
        work = Work(encoder, job_of(encoder, options), survey, options, columns, target, repeats)
        work.run(None, strict=strict, on_progress=None)
    trim_memory()  # each shard has used new threads, see `trim_memory`
    (record,) = target.finished
    return ShardResult(record, work.tally, work.saved_files)
