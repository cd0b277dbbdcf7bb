"""The work of a bulk job: reading, tokenizing, inference and writing, all at once.

A shard's rows, the windows within it and so the batches within those depend on the order of the
input and on the options alone: a job that was killed ends with the bytes of one that was not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from flowvec.bulk.journal import Folder, ShardRecord
from flowvec.bulk.options import ONE_FILE, BulkOptions
from flowvec.bulk.outputs import OneShardTarget, ShardCounts, Target, naming_output
from flowvec.bulk.part_files import ShardSettings, ShardWriter
from flowvec.bulk.prefetch import run_ahead
from flowvec.bulk.repeats import Repeats, SeenIds
from flowvec.bulk.windows import read_windows
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
]

# Windows that wait to be tokenized, and to be written.
_READ_AHEAD = 2
_WRITE_BEHIND = 4
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """How far a job is.

    Attributes:
        rows: rows done, dead letters and what earlier runs did included.
        total: of all that it has to do; None where the input is standard input.
        tokens: tokens encoded in this run.
        padded: tokens computed in this run, padding included.
        seconds: since this run began to encode.
    """

    rows: int
    total: int | None
    tokens: int
    padded: int
    seconds: float


@dataclass(slots=True)
class RunTally(Tally):
    """Counts of a run; only the writing thread changes them.

    Attributes:
        repeated_ids: the first few ids that more than one row has.
    """

    repeated_ids: list[Any] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """What JSON can hold; `RunTally(**plain)` is the same again."""
        return asdict(self)

    def merge(self, other: RunTally) -> None:
        """Add the counts of another run."""
        for name in (one.name for one in fields(Tally)):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.name_repeated(other.repeated_ids)

    def name_repeated(self, ids: Sequence[Any]) -> None:
        """Keep the first few ids that more than one row has, each once."""
        for key in ids:
            if len(self.repeated_ids) == _MOST_NAMED:
                return
            if key not in self.repeated_ids:
                self.repeated_ids.append(key)


class _Halt(threading.Event):
    """Set once somebody asked to stop, or writing has failed."""

    def __init__(self, asked: threading.Event | None) -> None:
        super().__init__()
        self._asked = asked

    def is_set(self) -> bool:
        return super().is_set() or (self._asked is not None and self._asked.is_set())


@dataclass(frozen=True, slots=True)
class ShardResult:
    """One shard that is done."""

    record: ShardRecord
    tally: RunTally


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run.

    Attributes:
        tally: its counts.
        seconds: its duration.
        is_complete: whether the job is done; False if it was stopped.
    """

    tally: RunTally
    seconds: float
    is_complete: bool


class Work:
    """One run of a job.

    Attributes:
        tally: its counts.
    """

    def __init__(
        self,
        encoder: Encoder,
        job: EncodeJob,
        known: Survey,
        options: BulkOptions,
        columns: Columns | None,
        target: Target,
        repeats: Repeats | SeenIds | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            encoder: of the texts.
            job: as `job_of` gives.
            known: the inputs.
            options: of the job.
            columns: what the named fields hold; None goes by the first window.
            target: where the vectors go.
            repeats: which rows are left out, because another has their id.
        """
        self._repeats = repeats
        self._encoder = encoder
        self._job = job
        self._known = known
        self._options = options
        self._columns = columns
        self._target = target
        self.tally = RunTally()
        self._shard: ShardWriter | None = None
        self._counts = ShardCounts()
        self._begun = time.perf_counter()
        self._is_complete = False
        self._last_shard = 0
        self._has_failed = False
        self._is_all_read = False
        self._halt = _Halt(None)
        self._rows_read = 0
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
        """Encode what is missing; once `stop` is set, drop the current shard and stop."""
        self._strict, self._on_progress = strict, on_progress
        self._halt = halt = _Halt(stop)
        waiting: deque[tuple[Window, npt.NDArray[np.int64] | None]] = deque()
        written: deque[Future[None]] = deque()

        def parts() -> Iterator[list[str]]:
            for window in ahead:
                texts, repeats = window.texts, None
                if self._options.dedup:
                    texts, repeats = _once(window.texts)
                waiting.append((window, repeats))
                yield texts
            self._is_all_read = not halt.is_set()

        self._begun = time.perf_counter()
        with ExitStack() as stack:
            stack.callback(self._abandon)
            writer = stack.enter_context(ThreadPoolExecutor(1, "flowvec-write"))
            ahead = run_ahead(self._windows(), _READ_AHEAD, halt)
            stack.callback(ahead.close)
            encoding = stack.enter_context(closing(self._encoder.windows(parts(), self._job, halt)))
            for encoded in encoding:
                written.append(writer.submit(self._take, *waiting.popleft(), encoded))
                if len(written) > _WRITE_BEHIND:
                    written.popleft().result()
            while written:
                written.popleft().result()
            if self._is_all_read and not waiting:
                self._finish()
        return RunResult(self.tally, time.perf_counter() - self._begun, self._is_complete)

    def _windows(self) -> Iterator[Window]:
        per_shard, known = self._options.rows_per_shard, self._known
        for first, end in self._target.spans():
            is_begun = bool(known.starts) and first < len(known.starts)
            for window in read_windows(
                known.sources,
                self._options.fields,
                rows_per_shard=per_shard,
                start=known.starts[first] if is_begun else None,
                first=first * per_shard,
                stop=None
                if end is None or known.rows is None
                else min(end * per_shard, known.rows),
                columns=self._columns,
            ):
                if self._repeats is not None:
                    self._repeats.leave_out(window)
                self._target.leave_out(window)
                yield window

    def _finish(self) -> None:
        """Nothing more comes."""
        if self._shard is None and not self._target.finished and not self._known.rows:
            self._shard = self._target.open_shard(0, self._settings)  # a file of no rows
            self._end_shard(0)
        elif self._shard is not None:
            if self._known.rows is not None:
                raise BulkError("an input has changed since its rows were counted")
            self._end_shard(self._last_shard)
        end_run(
            self._target, self._known, self._options, rows_read=self._rows_read, stop=self._halt
        )
        self._is_complete = True

    def _abandon(self) -> None:
        if self._shard is not None:
            self._shard.abandon()

    # --- on the writing thread --------------------------------------------------------------------

    def _take(
        self, window: Window, repeats: npt.NDArray[np.int64] | None, encoded: Encoded
    ) -> None:
        """Write a window; nothing more once one could not be written."""
        if self._has_failed:
            return
        try:
            self._write(window, repeats, encoded)
        except BaseException:
            self._has_failed = True
            self._halt.set()
            raise

    def _write(
        self, window: Window, repeats: npt.NDArray[np.int64] | None, encoded: Encoded
    ) -> None:
        tally = self.tally
        shard = window.first // self._options.rows_per_shard
        kept = self._check(window, repeats, encoded)
        if window.dead:
            if self._strict:
                first = window.dead[0]
                raise BulkError(f"{first.source}, row {first.row}: {first.reason}")
            self._target.add_letters(shard, window.dead)
        if self._shard is None:
            self._shard = self._target.open_shard(shard, self._settings)
            self._counts = ShardCounts()
        self._last_shard = shard
        self._columns = window.columns
        rows: Any = repeats if kept is None else (kept if repeats is None else repeats[kept])
        vectors = encoded.vectors if rows is None else encoded.vectors[rows]
        self._shard.write(window, kept, vectors)
        counts = self._counts
        replaced = 0
        if window.replacing:
            places = range(len(window.numbers)) if kept is None else kept
            replaced = sum(window.numbers[place] in window.replacing for place in places)
        counts.rows += len(vectors) - replaced + window.unchanged
        self._target.unchanged += window.unchanged
        counts.blank += window.blank
        counts.duplicates += window.duplicates + replaced
        counts.codes.update(letter.code for letter in window.dead)
        self._rows_read += window.rows
        tally.name_repeated(window.repeated_ids)
        tally.add(encoded)
        end = window.first + window.rows
        if end == (shard + 1) * self._options.rows_per_shard or end == self._known.rows:
            self._end_shard(shard)
        if self._on_progress is not None:
            before = sum(r.rows_in for r in self._target.before)
            self._on_progress(
                BulkProgress(
                    before + self._rows_read,
                    self._known.rows,
                    tally.tokens,
                    tally.padded,
                    time.perf_counter() - self._begun,
                )
            )

    def _end_shard(self, number: int) -> None:
        assert self._shard is not None
        if self._options.rows_per_shard == ONE_FILE:  # a mixed file could not be detected later
            check_unchanged(self._known.sources)
        written = self._shard.finish(self._columns or {})
        self._shard = None
        self._target.commit(number, self._counts, written)

    def _check(
        self, window: Window, repeats: npt.NDArray[np.int64] | None, encoded: Encoded
    ) -> list[int] | None:
        """Make dead letters of rows that the model cannot embed; the indices of the others."""
        bad: dict[int, tuple[str, str]] = {}
        if self._options.truncation == "error":
            reason = f"the text has more than {self._encoder.max_length} tokens"
            bad |= dict.fromkeys(encoded.truncated, ("too_long", reason))
        bad |= dict.fromkeys(
            encoded.non_finite, ("non_finite", "the model gave NaN or infinity for it")
        )
        if not bad:
            return None
        of = range(len(window.texts)) if repeats is None else repeats.tolist()
        ids = window.ids(self._options.fields)
        kept: list[int] = []
        for i, text in enumerate(of):
            if text in bad:
                window.dead.append(DeadLetter(*window.place(i), ids[i], *bad[text]))
            else:
                kept.append(i)
        order = {source.path: i for i, source in enumerate(self._known.sources)}
        window.dead.sort(key=lambda letter: (order.get(letter.source, 0), letter.row))
        return kept


def end_run(
    target: Target,
    known: Survey,
    options: BulkOptions,
    *,
    rows_read: int | None = None,
    stop: threading.Event | None = None,
) -> None:
    """End a run whose shards are all done: check that no row was lost, and complete the output.

    Args:
        target: where the shards are.
        known: the inputs.
        options: of the job.
        rows_read: rows that were read, if they were not counted before.
        stop: set it to leave out what is optional.

    Raises:
        BulkError: rows were lost, or an input has changed.
    """
    rows_out = sum(record.rows_in for record in target.finished)
    if known.rows is None:
        rows_in = rows_read
    else:
        per_shard = options.rows_per_shard
        rows_in = sum(
            min(per_shard, known.rows - record.shard * per_shard) for record in target.finished
        )
    if rows_out != rows_in:
        raise BulkError(
            f"{rows_in} rows went in, but {rows_out} came out: an input changed meanwhile"
        )
    check_unchanged(known.sources)
    target.complete(stop)


def _once(texts: Sequence[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Each text once, in the order of their first, and for each text which of those it is."""
    places: dict[str, int] = {}
    of = np.fromiter((places.setdefault(text, len(places)) for text in texts), np.int64, len(texts))
    return list(places), of


def job_of(encoder: Encoder, options: BulkOptions) -> EncodeJob:
    """The pipeline's job; raises as `Encoder.job`."""
    precision = "float32" if options.precision == "float16" else options.precision
    job = encoder.job(
        options.prompt_name,
        # Asked for, so that batches do not depend on how many cores there are.
        max_batch_tokens=encoder.max_batch_tokens,
        precision=precision,
    )
    return replace(job, refuse_non_finite=False)


def run_shard(
    encoder: Encoder,
    known: Survey,
    options: BulkOptions,
    columns: Columns | None,
    folder: Folder,
    shard: int,
    *,
    strict: bool = False,
    repeats: Repeats | None = None,
) -> ShardResult:
    """Do one shard of a job whose journal somebody else keeps.

    Raises:
        BulkError: an input has changed, or with `strict` a row cannot be embedded.
    """
    target = OneShardTarget(folder, options.out_format, shard)
    with naming_output(folder.path), closing(target):
        work = Work(encoder, job_of(encoder, options), known, options, columns, target, repeats)
        work.run(None, strict=strict, on_progress=None)
    trim_memory()  # each shard has had threads of its own
    (record,) = target.finished
    return ShardResult(record, work.tally)
