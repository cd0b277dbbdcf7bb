"""The pipeline behind `Encoder`: windows of texts in, windows of vectors out.

A window is tokenized once, cut into batches by token count, run on one worker thread per stream,
and put back into input order. The next window is tokenized meanwhile, and its batches queue behind
those of the window before, so that no stream has to wait.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from flowvec.bundle.bundle import Bundle, verify_files
from flowvec.bundle.manifest import INPUTS
from flowvec.bundle.onnx_file import rows_read_by
from flowvec.encoder.batching import (
    ENOUGH_ON_GPU,
    MOST_ROWS_ON_GPU,
    Batch,
    pad,
    padded_tokens,
    plan,
)
from flowvec.encoder.jobs import (
    DenseRows,
    Encoded,
    EncodeJob,
    EncodeStatistics,
    Job,
    Outputs,
    Rows,
    Tally,
    no_row,
    too_long,
)
from flowvec.encoder.proof import ProofMode, open_proved
from flowvec.engine.elastic_session import ElasticSession
from flowvec.engine.native_session import NativeSession
from flowvec.engine.openvino_session import OpenVinoSession
from flowvec.engine.providers import Engine
from flowvec.engine.selection import GraphSession
from flowvec.errors import ClosedError, EngineError, NonFiniteError
from flowvec.machine import available_cores, available_memory
from flowvec.texts.window import WINDOW
from flowvec.tokenizer.pairs import PairTokenizer
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized, Tokenizer, joined

__all__ = [
    "Pipeline",
    "refuse_non_finite",
    "windows_of",
]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
P = ParamSpec("P")
T = TypeVar("T")

# Texts that are tokenized together.
_PIECE = 1024
_MOST_CALLERS = 64
# How often a waiting call checks whether to stop, in seconds.
_PATIENCE = 0.1
# Memory that must be free, in sizes of the graph's file, to compile the graph a second time. That
# takes at most .8 of one.
_MEMORY_LEFT = 4
# A window with fewer batches than this is cut into smaller ones, which take no longer each. Below
# the least size, the extra calls cost more than the waiting that they save.
_BATCHES_A_STREAM = 4
_LEAST_BUDGET = 256


class Pipeline:
    """A bundle's tokenizer and session, and the threads that keep its streams busy."""

    def __init__(
        self,
        bundle: Bundle,
        engine: Engine,
        proof: ProofMode = "cached",
        *,
        tokenizer: Tokenizer | PairTokenizer,
        is_elastic: bool = False,
        owner: str = "Encoder",
    ) -> None:
        """Open a bundle on an engine.

        Args:
            bundle: what to open.
            engine: what to open it on.
            proof: as for `Encoder.load`.
            tokenizer: turns items into token ids.
            is_elastic: let a batch that is alone take all cores.
            owner: class of the model, for messages.
        """
        self._bundle = bundle
        self._engine = engine
        self._is_on_cpu = engine.device == "cpu"
        self._is_elastic = is_elastic
        self._proof_mode = proof
        self._dim = bundle.manifest.dim
        self._max_length = bundle.manifest.max_length
        self.tokenizer = tokenizer
        self._owner = owner
        self._closed = False
        _living.add(self)
        self._open()
        self._token_rows = rows_read_by(bundle.model, INPUTS[0])

    # --- life -----------------------------------------------------------------------------------

    def _open(self) -> None:
        session, self.proof = open_proved(self._bundle, self._engine, self._proof_mode)
        in_flight = self._engine.in_flight
        # Callers with a single batch run it on their own thread. Together with the workers they
        # must not exceed the streams.
        self._free_streams = threading.BoundedSemaphore(in_flight)
        self._workers = ThreadPoolExecutor(in_flight, thread_name_prefix="flowvec-stream")
        # Threads that stay alive, because the C library keeps memory for every thread. They prepare
        # the next window of each call, and compile the graph for all cores.
        self._preparing = ThreadPoolExecutor(_MOST_CALLERS, "flowvec-prepare")
        self._tokenizing = ThreadPoolExecutor(_MOST_CALLERS, "flowvec-tokenize")
        self._session: ElasticSession | None = self._elastic(session)
        self._process = os.getpid()

    def _elastic(self, session: GraphSession) -> ElasticSession:
        """A session that compiles the graph for all cores when that pays, and memory allows."""
        engine = self._engine
        if not self._is_elastic or engine.streams == 1:
            return ElasticSession(session)
        all_cores = replace(engine, streams=1, threads=engine.streams * engine.threads)
        if isinstance(session, NativeSession) and engine.compute == "int8":  # not a table
            return ElasticSession(session, all_cores=session.beside(all_cores))
        if not isinstance(session, OpenVinoSession):
            return ElasticSession(session)

        def open_on_all_cores() -> GraphSession:
            size = self._bundle.graph(engine.variant).stat().st_size
            left = available_memory()
            if left is not None and left < _MEMORY_LEFT * size:
                raise EngineError(f"{left >> 20} MiB of memory are left")
            opened, _ = open_proved(
                self._bundle,
                all_cores,
                self._proof_mode,
                lambda bundle, engine: OpenVinoSession(bundle, engine, beside=session),
            )
            return opened

        return ElasticSession(
            session, open_on_all_cores, partial(_given, self._owner, self._preparing)
        )

    @property
    def threads_alone(self) -> int:
        """Cores that compute a batch while nothing else runs."""
        session = self._session
        return self._engine.threads if session is None else session.threads_alone

    def ready(self) -> tuple[ElasticSession, ThreadPoolExecutor]:
        """The session and workers of this process; a forked child has to open its own.

        Raises:
            ClosedError: after `close`.
        """
        if self._process != os.getpid() and not self._closed:
            with _fork_lock:
                if self._process != os.getpid():
                    # The files may have changed since the parent verified them.
                    verify_files(self._bundle.path, self._bundle.manifest.files)
                    self._open()
        session = self._session
        if self._closed or session is None:
            raise _closed(self._owner)
        return session, self._workers

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Stop the worker threads and release the model; calling it twice is harmless."""
        if not self._closed:
            self._closed = True
            if self._process != os.getpid():
                return  # a forked child has none of the threads, which may hold locks of these
            # In this order: each submits work to the next.
            for threads in (self._preparing, self._tokenizing, self._workers):
                threads.shutdown()
            self._session = None

    # --- work -----------------------------------------------------------------------------------

    @property
    def token_rows(self) -> int:
        """How many token ids the model knows: each from 0 to one less has a row in its embedding
        table, or, if the graph does not show the table, can be a token."""
        return self._token_rows or 1 + self.tokenizer.largest_id

    def without_row(self, ids: TokenIds) -> dict[int, str]:
        """Items with a token for which the model's embedding table has no row, and the token.

        An engine may read past the table's end instead of failing.
        """
        beyond = {} if self._token_rows is None else ids.beyond(self._token_rows)
        return {item: self.tokenizer.named_id(id) for item, id in beyond.items()}

    def run(
        self, ids: TokenIds, batches: Sequence[Batch], out: Floats, *, alone: bool = True
    ) -> float:
        """Run batches into `out`, float32 (len(ids), dim). NaN and infinity are not refused.

        Args:
            ids: token ids of the texts.
            batches: batches of them.
            out: where the vectors go.
            alone: whether nothing else waits, so that a single batch may take all cores.

        Returns:
            Seconds in the graph, summed over the streams.

        Raises:
            EngineError: the engine failed.
        """
        return self.run_into(ids, batches, DenseRows(out, _unchanged), alone=alone)

    def run_into(
        self, ids: TokenIds, batches: Sequence[Batch], rows: Rows, *, alone: bool = True
    ) -> float:
        """`run`, with the graph's output into `rows`."""
        seconds = self._begin(ids, batches, rows, alone=alone).finish()
        assert seconds is not None  # without a stop event it never stops
        return seconds

    def _begin(
        self,
        ids: TokenIds,
        batches: Sequence[Batch],
        rows: Rows,
        *,
        alone: bool,
        ahead: bool = False,
        outputs: Outputs | None = None,
    ) -> _Running:
        """Submit batches to the streams.

        Args:
            ids: as for `run`.
            batches: as for `run`.
            rows: as for `run_into`.
            alone: as for `run`.
            ahead: whether another window is being computed, so that a single batch must not wait
                for its caller's thread.
            outputs: has those of some batches.
        """
        session, workers = self.ready()
        alone = alone and len(batches) == 1
        free_streams = self._free_streams
        pad_id = self._bundle.manifest.pad_id
        reused: list[Batch] = []

        def compute(batch: Batch) -> float:
            feeds = pad(ids, batch, pad_id)
            if outputs is not None and (known := outputs.get(feeds)) is not None:
                rows.store(batch.rows, known)
                reused.append(batch)
                return 0.0
            with free_streams:
                begun = time.perf_counter()
                output = session.run(*feeds, alone=alone)
                seconds = time.perf_counter() - begun
            rows.store(batch.rows, output)
            if outputs is not None:
                outputs.put(feeds, output)
            return seconds

        ahead = ahead and not self._is_on_cpu
        if (len(batches) == 1 and not ahead) or self._engine.in_flight == 1:
            # A single batch runs on its caller's thread; another thread would only cost time.
            return _Running(batches, compute, None, reused)
        return _Running(
            batches, compute, [_given(self._owner, workers, compute, b) for b in batches], reused
        )

    def windows(
        self,
        parts: Iterator[Sequence[Any]],
        job: Job,
        finished: Callable[[EncodeStatistics], object],
        done: Callable[[int], object] | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Encoded, None, None]:
        """Encode one window of texts, or of pairs, after another.

        Args:
            parts: windows of checked items; each is sorted and batched by itself.
            job: the call's options.
            finished: called once at the end, with the statistics.
            done: called with the number of texts after each batch.
            stop: set it to end the windows as soon as the running batches are done.

        Raises:
            InputValueError: the job refuses a text: it is too long, or has a token without a row.
            NonFiniteError: the model gave NaN or infinity and the job refuses it.
        """
        begun = time.perf_counter()
        tally = Tally()
        following: deque[Future[_Window]] = deque()
        window: _Window | None = None
        try:
            # The first window is prepared here, so a call of one window needs no other thread.
            texts, failure = _next(parts)
            window = self._prepare(texts, job) if texts is not None else None
            while window is not None:
                # A failure of the caller's iterable is raised after the windows before it.
                while texts is not None and len(following) < self._windows_ahead:
                    texts, failure = _next(parts)
                    if texts is not None:
                        before = following[-1] if following else None
                        work = partial(self._prepare_next, before, texts, job)
                        following.append(_given(self._owner, self._preparing, work))
                encoded = self._finished(window, job, tally, done, stop)
                if encoded is None:
                    return
                yield encoded
                window = following[0].result() if following else None
                if following:
                    following.popleft()
        finally:
            # A caller that stops early leaves windows behind; their waiting batches are dropped.
            if window is not None:
                window.running.drop()
            for future in following:
                future.cancel()
            for future in following:
                if not future.cancelled() and not future.exception():
                    future.result().running.drop()
        if failure is not None:
            raise failure
        statistics = tally.finish(time.perf_counter() - begun)
        logger.debug("%s", statistics)
        finished(statistics)

    def _shared_out(self, tokens: int, budget: int) -> int:
        """A batch size with which a few texts still keep every stream busy."""
        streams = self._engine.streams
        if streams == 1:
            return budget
        return min(budget, max(tokens // (_BATCHES_A_STREAM * streams), _LEAST_BUDGET))

    @property
    def _windows_ahead(self) -> int:
        """Windows that are prepared while one is computed. A GPU may compute the next one sooner
        than the caller has used the vectors of this one."""
        return 1 if self._is_on_cpu else 2

    def _prepare(self, items: Sequence[Any], job: Job, ahead: bool = False) -> _Window:
        """Tokenize a window, and start to compute it; `ahead` is as for `_begin`."""
        start = time.perf_counter()
        self.ready()
        tokenized = self._tokenize(items, job)
        seconds = time.perf_counter() - start
        lengths = tokenized.token_ids.lengths
        tokens = int(lengths.sum())
        rows = job._rows(tokenized.token_ids, self._dim)
        without_row = self.without_row(tokenized.token_ids)
        ids = tokenized.token_ids
        if without_row:  # computed as padding, for the items beside them
            known = ids.flat < self.token_rows
            ids = replace(ids, flat=np.where(known, ids.flat, self._bundle.manifest.pad_id))
        batches: Sequence[Batch] = ()
        refused = (tokenized.truncated and job.refuse_long) or (
            without_row and job.refuse_non_finite
        )
        if not refused:
            budget = job.max_batch_tokens
            if job.shared_out:
                budget = self._shared_out(tokens, budget)
            batches = self._plan(lengths, budget)
        running = self._begin(
            ids, batches, rows, alone=True, ahead=ahead,
            outputs=job.outputs if isinstance(job, EncodeJob) else None,
        )  # fmt: skip
        return _Window(tokenized, tokens, seconds, without_row, rows, running)

    def _prepare_next(
        self, before: Future[_Window] | None, items: Sequence[Any], job: Job
    ) -> _Window:
        """Prepare a window after the one before it, whose batches come first."""
        if before is not None:
            wait([before])  # its thread was started first, so this always ends
        return self._prepare(items, job, True)

    def _plan(self, lengths: npt.NDArray[np.int64], budget: int) -> list[Batch]:
        """Batches of a window."""
        if self._is_on_cpu:
            return plan(lengths, budget, self._max_length)
        return plan(lengths, budget, self._max_length, MOST_ROWS_ON_GPU, ENOUGH_ON_GPU)

    def _tokenize(self, items: Sequence[Any], job: Job) -> Tokenized:
        """Tokenize in pieces, if several threads can: while one becomes an array, other cores
        tokenize the next."""
        one_core = self._engine.streams * self._engine.threads == 1
        if not self._is_on_cpu:
            one_core = available_cores() == 1  # its streams and threads say nothing about cores
        if len(items) <= _PIECE or one_core or not self.tokenizer.is_parallel:
            return job.tokenize(self.tokenizer, items)
        tokenize = partial(job.tokenize, self.tokenizer)
        pieces = [items[i : i + _PIECE] for i in range(0, len(items), _PIECE)]
        others = [_given(self._owner, self._tokenizing, tokenize, piece) for piece in pieces[1::2]]
        mine = [tokenize(piece) for piece in pieces[::2]]
        theirs = [future.result() for future in others]
        return joined([(mine, theirs)[i % 2][i // 2] for i in range(len(pieces))])

    def _finished(
        self,
        window: _Window,
        job: Job,
        tally: Tally,
        done: Callable[[int], object] | None,
        stop: threading.Event | None,
    ) -> Encoded | None:
        """Wait for a window's batches, and count it; None once `stop` is set."""
        tokenized, rows = window.tokenized, window.rows
        if job.refuse_long and tokenized.truncated:
            first = tally.texts + tokenized.truncated[0]
            most = job.most_tokens or self._max_length
            raise too_long(first, most, self._bundle.manifest.max_characters)
        if window.without_row and job.refuse_non_finite:
            item, token = next(iter(window.without_row.items()))
            raise no_row(tally.texts + item, token)
        seconds = window.running.finish(done, stop)
        if seconds is None:
            return None
        tally.session_seconds += seconds
        non_finite = rows.non_finite()
        if non_finite and job.refuse_non_finite:
            refuse_non_finite(non_finite, tally.texts)
        batches, reused = window.running.batches, window.running.reused
        known = [row for batch in reused for row in batch.rows]
        encoded = Encoded(
            rows.results(),
            tokenized.truncated,
            tokenized.replaced,
            non_finite,
            list(window.without_row),
            window.tokens - int(tokenized.token_ids.lengths[known].sum()),
            padded_tokens(batches) - padded_tokens(reused),
            len(known),
        )
        tally.add(encoded)
        tally.tokenize_seconds += window.tokenize_seconds
        tally.batches += len(batches) - len(reused)
        return encoded


class _Running:
    """Batches that are being computed."""

    def __init__(
        self,
        batches: Sequence[Batch],
        compute: Callable[[Batch], float],
        futures: Sequence[Future[float]] | None,
        reused: Sequence[Batch] = (),
    ) -> None:
        """Without futures, the thread that waits for the batches computes them.

        `reused` gets the batches whose output was there.
        """
        self.batches = batches
        self.reused = reused
        self._compute = compute
        self._futures = futures

    def finish(
        self,
        done: Callable[[int], object] | None = None,
        stop: threading.Event | None = None,
    ) -> float | None:
        """Wait for all batches. On the first failure, drop waiting batches and raise it.

        Args:
            done: called with the number of texts after each batch.
            stop: set it to drop waiting batches.

        Returns:
            Seconds inside the graph, added up over the streams; None once `stop` is set.
        """
        seconds = 0.0
        try:
            for i, batch in enumerate(self.batches):
                while stop is not None:
                    if stop.is_set():
                        self.drop()
                        return None
                    if self._futures is None or wait([self._futures[i]], _PATIENCE).done:
                        break
                futures = self._futures
                seconds += self._compute(batch) if futures is None else futures[i].result()
                if done is not None:
                    done(len(batch.rows))
        except BaseException:
            self.drop()
            raise
        return seconds

    def drop(self) -> None:
        """Drop waiting batches."""
        for future in self._futures or ():
            future.cancel()


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A window that is tokenized and being computed.

    Attributes:
        tokenized: its texts.
        tokens: how many tokens they have.
        tokenize_seconds: how long tokenizing took.
        without_row: texts with a token for which the model has no row, and the token.
        rows: where the graph's output goes.
        running: its batches; None if a text was refused.
    """

    tokenized: Tokenized
    tokens: int
    tokenize_seconds: float
    without_row: Mapping[int, str]
    rows: Rows
    running: _Running


def _unchanged(output: Floats) -> Floats:
    return output


def _closed(owner: str) -> ClosedError:
    return ClosedError(f"this {owner} is closed")


def _given(
    owner: str,
    threads: ThreadPoolExecutor,
    function: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Future[T]:
    """Submit work to threads.

    Raises:
        ClosedError: another thread has closed the model.
    """
    try:
        return threads.submit(function, *args, **kwargs)
    except RuntimeError:
        raise _closed(owner) from None


def refuse_non_finite(rows: Sequence[int], first: int = 0) -> None:
    """Raise if the model gave NaN or infinity; `first` is the number of the first row.

    Raises:
        NonFiniteError: there are such rows.
    """
    if rows:
        named = ", ".join(str(first + row) for row in rows[:5])
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        raise NonFiniteError(f"the model gave NaN or infinity for item {named}{more}")


def windows_of(items: Iterable[T]) -> Iterator[list[T]]:
    """Cut items into windows. Items before a failure of the iterable are yielded before it."""
    source = iter(items)
    full = True
    while full:
        window: list[T] = []
        failure: Exception | None = None
        try:
            window.extend(islice(source, WINDOW))
        except Exception as error:
            failure = error
        if window:
            yield window
        if failure is not None:
            raise failure
        full = len(window) == WINDOW


_fork_lock = threading.Lock()


_living: weakref.WeakSet[Pipeline] = weakref.WeakSet()
# What children inherited, kept and never used: destroying a session whose threads are in the parent
# could wait for them forever.
_inherited: list[object] = []


def _begin_in_child() -> None:
    """A thread of the parent may have held the lock during the fork."""
    global _fork_lock
    _fork_lock = threading.Lock()
    for pipeline in list(_living):
        _inherited.append(vars(pipeline).copy())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def _next(parts: Iterator[Sequence[T]]) -> tuple[Sequence[T] | None, Exception | None]:
    """The next window, or None at the end, and the exception that was raised instead."""
    try:
        return next(parts, None), None
    except Exception as error:
        return None, error
