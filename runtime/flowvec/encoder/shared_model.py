"""The queue behind `SharedEncoder`, `SharedReranker` and the server's models: items of different
callers share batches.

An item is a text, or a pair of texts. There is no timer. While every stream is busy, items wait;
when a stream becomes free, `scheduling` chooses its batch from the waiting items. So an idle model
answers a single item at once, and a busy one fills its batches.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from flowvec.arguments import whole_number
from flowvec.bundle.bundle import Bundle
from flowvec.compat import override
from flowvec.encoder.batching import Batch
from flowvec.encoder.jobs import Job, Rows, no_row, too_long
from flowvec.encoder.pipeline import refuse_non_finite
from flowvec.encoder.postprocess import non_finite_rows
from flowvec.encoder.queue_reports import BatchReport, Pulse
from flowvec.encoder.scheduling import LOOKAHEAD, pack
from flowvec.engine.providers import Engine
from flowvec.errors import (
    ClosedError,
    DeadlineError,
    EngineError,
    FlowvecError,
    InputValueError,
    NonFiniteError,
    OverloadedError,
    first_line,
)
from flowvec.tokenizer.token_ids import TokenIds
from flowvec.tokenizer.tokenizer import Tokenized
from flowvec.worker_threads import WorkerThreads

__all__ = ["DEFAULT_MAX_WAITING", "Call", "QueueStatistics", "QueuedModel", "SharedModel"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

DEFAULT_MAX_WAITING = 8192


class QueuedModel(Protocol):
    """What the queue needs of a model."""

    @property
    def engine(self) -> Engine:
        """Provider, compute type and streams that run."""

    @property
    def bundle(self) -> Bundle:
        """The bundle that is loaded."""

    @property
    def dim(self) -> int:
        """Length of a row of the graph's output."""

    @property
    def max_length(self) -> int:
        """Most tokens of an item."""

    @property
    def max_batch_tokens(self) -> int:
        """Most padded tokens in a batch."""

    def _without_row(self, ids: TokenIds) -> dict[int, str]:
        """Items with a token that the model has no row for, and the token."""

    def _run_batch(self, ids: TokenIds, batch: Batch, *, alone: bool) -> Floats:
        """The graph's output for a batch of all items of `ids`, float32 (items, ...)."""


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """How many calls and texts a queue has had, and how many texts wait now.

    For a reranker, pairs are counted instead of texts.

        >>> with SharedEncoder(Encoder.load("mini")) as shared:
        ...     vectors = shared.encode(["A man is eating.", "Stocks fell."])
        ...     statistics = shared.statistics()
        >>> statistics.calls, statistics.texts, statistics.waiting
        (1, 2, 0)

    Attributes:
        waiting: texts that wait in the queue.
        calls: calls that were accepted.
        texts: texts that were computed.
        batches: runs of the graph.
        overloaded: calls that were refused because the queue was full.
        dropped: texts that were not computed: the caller was cancelled or timed out, another text
            of the call failed, or the encoder was closed.
    """

    waiting: int
    calls: int
    texts: int
    batches: int
    overloaded: int
    dropped: int


_settling = threading.Lock()


@dataclass(slots=True, eq=False)
class Call:
    """One caller's items.

    The counts and times are known when it is done; times are those of `time.perf_counter`.

    Attributes:
        tokens: tokens of all items after truncation, special tokens included.
        truncated: items that were cut.
        queued: when the call came.
        tokenize_seconds: how long the tokenizer took, for this call and those that came with it.
        begun: when the first batch with one of its items began; 0 before that.
        rows: where the results go; None before its items are tokenized.
    """

    items: list[Any]
    job: Job
    single: bool
    left: int
    rows: Rows | None = None
    tokens: int = 0
    truncated: int = 0
    queued: float = field(default_factory=time.perf_counter)
    tokenize_seconds: float = 0.0
    begun: float = 0.0
    settled: bool = False
    future: Future[npt.NDArray[Any]] = field(default_factory=Future)

    def settle(self) -> None:
        """Wake threads that wait for the cancelled future."""
        with _settling:  # two streams may compute texts of one call
            if self.future.cancelled() and not self.settled:
                self.settled = True
                self.future.set_running_or_notify_cancel()

    def fail(self, error: Exception) -> None:
        """Give the caller an exception instead of results."""
        with contextlib.suppress(InvalidStateError):  # cancelled by its caller
            self.future.set_exception(error)
        self.settle()

    def finish(self) -> None:
        """Give the caller the results; all items are computed."""
        assert self.rows is not None, "it was set before the first batch"
        results = self.rows.results()
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(results[0] if self.single else results)
        self.settle()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One waiting item: its call, its position in the call, and its token ids."""

    call: Call
    row: int
    tokenized: TokenIds  # of this item and those that were tokenized with it
    place: int
    tokens: int


def _closed_before(owner: str) -> ClosedError:
    return ClosedError(f"this {owner} was closed before the text was computed")


class SharedModel(WorkerThreads):
    """A model for any number of threads; items of different threads share batches.

    Attributes:
        on_batch: called on a worker thread after each batch; it must be quick, and must not raise.
    """

    def __init__(
        self,
        model: QueuedModel,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_batch_tokens: int | None = None,
    ) -> None:
        """Start a worker thread for each batch that the engine takes at the same time.

        Args:
            model: a loaded model. Closing this does not close it.
            max_waiting: most items that may wait; a call that would exceed it is refused.
            max_batch_tokens: most padded tokens in a batch; None is the model's.

        Raises:
            InputValueError: a number is below 1.
        """
        whole_number("max_waiting", max_waiting)
        tokens = model.max_batch_tokens if max_batch_tokens is None else max_batch_tokens
        self._budget = whole_number("max_batch_tokens", tokens)
        self._model = model
        self._max_waiting = max_waiting
        # Calls that no worker has tokenized yet, and tokenized items, both oldest first.
        self._calls: deque[Call] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._count = 0  # items of both
        self._abandoned = False
        self.on_batch: Callable[[BatchReport], None] | None = None
        self._busy: dict[int, float] = {}  # of each thread at work, when this piece began
        self._taken = self._texts = self._batches = self._overloaded = self._dropped = 0
        super().__init__(model.engine.in_flight, "flowvec-shared")

    # --- calling --------------------------------------------------------------------------------

    def _queue(self, items: list[Any], job: Job, *, single: bool) -> Call:
        """Queue a call's items; its future will have the results.

        Raises:
            OverloadedError: the queue is full.
            ClosedError: after `close`, or in a forked child.
        """
        call = Call(items, job, single, len(items))
        self._check_process()
        with self._changed:
            self.require_open()
            if self._count + len(items) > self._max_waiting:
                self._drop_cancelled()
            if self._count + len(items) > self._max_waiting:
                self._overloaded += 1
                raise OverloadedError(
                    f"{self._count} texts wait and {len(items)} more would be above max_waiting, "
                    f"{self._max_waiting}"
                )
            self._taken += 1
            if items:
                self._count += len(items)
                self._calls.append(call)
                self._changed.notify()
        if not items:
            call.rows = job._rows(TokenIds.from_rows([]), self._model.dim)
            call.finish()
        return call

    def joined(self, parts: Sequence[Any]) -> Any:
        """The results of consecutive calls as those of one; at least one part."""
        return np.concatenate(parts)

    def _wait(self, future: Future[npt.NDArray[Any]], timeout: float | None) -> npt.NDArray[Any]:
        """Wait for a call's results; without them in time, drop its items that have not started.

        Raises:
            DeadlineError: the timeout passed.
            FlowvecError: the call failed.
        """
        try:
            return future.result(timeout)
        except FutureTimeoutError as error:
            if isinstance(error, FlowvecError):
                raise
            future.cancel()
            raise DeadlineError(f"not done within {timeout} s") from None
        except BaseException:  # an interrupt: the result is no longer needed
            future.cancel()
            raise

    def statistics(self) -> QueueStatistics:
        """Counts so far, and how many texts wait now."""
        with self._changed:
            self._drop_cancelled()
            return QueueStatistics(
                self._count,
                self._taken,
                self._texts,
                self._batches,
                self._overloaded,
                self._dropped,
            )

    def pulse(self) -> Pulse:
        """Whether the queue makes progress; in constant time, however many texts wait."""
        with self._changed:
            calls = [self._calls[0]] if self._calls else []
            if self._waiting:
                calls.append(self._waiting[0].call)
            return Pulse(
                waiting=self._count,
                oldest=min((call.queued for call in calls), default=None),
                busy_since=min(self._busy.values(), default=None),
                dead=0 if self._closing else sum(not w.is_alive() for w in self._workers),
            )

    # --- working --------------------------------------------------------------------------------

    @property
    @override
    def has_work(self) -> bool:
        """Whether texts wait; the lock is held."""
        return bool(self._calls or self._waiting)

    @override
    def work_once(self) -> None:
        """The work of one stream: tokenize new calls, choose a batch, compute it, deliver
        vectors."""
        thread = threading.get_ident()
        with self._changed:
            calls = list(self._calls)
            self._calls.clear()
            self._busy[thread] = time.perf_counter()
        chosen: list[_Waiting] = []
        try:
            if calls:
                self._admit(calls)
                calls = []
            with self._changed:
                chosen, length = self._choose()
                alone = not self.has_work
                if self._waiting:
                    self._changed.notify()
            if chosen:
                self._compute(chosen, length, alone=alone)
        except BaseException as error:  # a worker that ends would leave its callers waiting
            logger.exception("a stream failed")
            failure = EngineError(f"the text could not be computed: {first_line(error)}")
            for call in [*calls, *(item.call for item in chosen)]:
                call.fail(failure)
        finally:
            with self._changed:
                self._busy.pop(thread, None)

    def _admit(self, calls: list[Call]) -> None:
        """Tokenize calls, and queue their items."""
        started = time.perf_counter()
        try:
            tokenized = self._tokenize(calls)
        except BaseException as error:  # a panic of the tokenizer is one
            if len(calls) > 1:
                for call in calls:
                    self._admit([call])
                return
            logger.debug("tokenizing: %s", error)
            self._leave(calls[0], len(calls[0].items))
            if not isinstance(error, InputValueError):
                error = EngineError(f"the text could not be tokenized: {first_line(error)}")
            calls[0].fail(error)
            return
        token_ids = tokenized.token_ids
        lengths = token_ids.lengths.tolist()
        truncated = set(tokenized.truncated)
        without_row = self._model._without_row(token_ids)
        offsets = token_ids.offsets
        seconds = time.perf_counter() - started
        waiting: list[_Waiting] = []
        first = 0
        for call in calls:
            rows = range(first, first + len(call.items))
            first = rows.stop
            cut = truncated.intersection(rows)
            call.truncated = len(cut)
            call.tokens = int(offsets[rows.stop] - offsets[rows.start])
            call.tokenize_seconds = seconds
            if cut and call.job.refuse_long:
                self._leave(call, len(call.items))
                most = call.job.most_tokens or self._model.max_length
                characters = self._model.bundle.manifest.max_characters
                call.fail(too_long(min(cut) - rows.start, most, characters))
                continue
            if missing := without_row.keys() & set(rows):
                self._leave(call, len(call.items))
                row = min(missing)
                call.fail(no_row(row - rows.start, without_row[row]))
                continue
            try:
                call.rows = call.job._rows(
                    token_ids.between(rows.start, rows.stop), self._model.dim
                )
            except Exception as failure:  # no memory for its results
                self._leave(call, len(call.items))
                call.fail(EngineError(f"the text could not be computed: {first_line(failure)}"))
                continue
            waiting += [
                _Waiting(call, row - rows.start, token_ids, row, lengths[row]) for row in rows
            ]
            call.items = []  # no longer needed
        with self._changed:
            if not self._abandoned:
                self._waiting.extend(waiting)
                return
        for item in waiting:  # closed meanwhile, and already counted as dropped
            item.call.fail(_closed_before(self.owner))

    @abstractmethod
    def _tokenize(self, calls: Sequence[Call]) -> Tokenized:
        """Token ids of all items of some calls, in their order."""

    def _leave(self, call: Call, texts: int) -> None:
        """Fail a call whose texts will not be computed."""
        with self._changed:
            if not self._abandoned:
                self._count -= texts
                self._dropped += texts

    def _drop_cancelled(self) -> None:
        """Drop texts of cancelled calls; the lock is held."""
        dropped = 0
        calls: deque[Call] = deque()
        for call in self._calls:
            if call.future.done():
                call.settle()
                dropped += len(call.items)
            else:
                calls.append(call)
        self._calls = calls
        kept: deque[_Waiting] = deque()
        for item in self._waiting:
            if item.call.future.done():
                item.call.settle()
                dropped += 1
            else:
                kept.append(item)
        self._waiting = kept
        self._count -= dropped
        self._dropped += dropped

    def _choose(self) -> tuple[list[_Waiting], int]:
        """Take the next batch from the waiting texts; the lock is held."""
        seen: list[_Waiting] = []
        while self._waiting and len(seen) < LOOKAHEAD:
            item = self._waiting.popleft()
            if item.call.future.done():  # cancelled, or another of its texts failed
                item.call.settle()
                self._count -= 1
                self._dropped += 1
            else:
                seen.append(item)
        if not seen:
            return [], 0
        lengths = [item.tokens for item in seen]
        batch = pack(lengths, self._budget, self._model.max_length)
        taken = set(batch.rows)
        self._waiting.extendleft(
            item for i, item in reversed(list(enumerate(seen))) if i not in taken
        )
        self._count -= len(taken)
        chosen = [seen[i] for i in batch.rows]
        now = time.perf_counter()
        for item in chosen:
            if not item.call.begun:
                item.call.begun = now
        return chosen, batch.length

    def _compute(self, items: list[_Waiting], length: int, *, alone: bool = False) -> None:
        started = time.perf_counter()
        try:
            output = self._run(items, length, alone=alone)
        except (NonFiniteError, EngineError) as error:
            if len(items) == 1:
                self._deliver_failure(items[0], error)
                return
            # To find the text that failed, compute each by itself: slow, but right.
            for item in items:
                self._compute([item], item.tokens)
            return
        except ClosedError as error:  # the Encoder was closed
            for item in items:
                item.call.fail(error)
            return
        if self.on_batch is not None:
            seconds = time.perf_counter() - started
            tokens = sum(item.tokens for item in items)
            self.on_batch(BatchReport(len(items), tokens, len(items) * length, seconds))
        self._store(items, output)

    def _run(self, items: list[_Waiting], length: int, *, alone: bool) -> Floats:
        """The graph's output for items that are padded to a length.

        Raises:
            NonFiniteError: it has NaN or infinity.
            EngineError: the engine failed.
        """
        batch = Batch(tuple(range(len(items))), length)
        token_ids = TokenIds.of_rows([(item.tokenized, item.place) for item in items])
        output = self._model._run_batch(token_ids, batch, alone=alone)
        refuse_non_finite(self._non_finite(output, token_ids))
        return output

    def _non_finite(self, output: Floats, ids: TokenIds) -> Sequence[int]:
        """Items of a batch for which the model gave NaN or infinity."""
        return cast(list[int], non_finite_rows(output).tolist())

    def _store(self, items: list[_Waiting], output: Floats) -> None:
        """Give calls their results of a batch, and finish those that have all."""
        counts: list[tuple[Call, int]] = []
        start = 0
        # Items of a call are mostly neighbours, since batches keep the order in which they came.
        for call, own in groupby(items, key=attrgetter("call")):
            rows = [item.row for item in own]
            assert call.rows is not None, "it was set when the items were tokenized"
            call.rows.store(rows, output[start : start + len(rows)])
            counts.append((call, len(rows)))
            start += len(rows)
        finished = []
        with self._changed:
            self._texts += len(items)
            self._batches += 1
            for call, count in counts:
                call.left -= count
                if not call.left:
                    finished.append(call)
        for call in finished:
            call.finish()

    def _deliver_failure(self, item: _Waiting, error: Exception) -> None:
        if isinstance(error, NonFiniteError):
            error = NonFiniteError(f"the model gave NaN or infinity for item {item.row}")
        item.call.fail(error)

    @override
    def _abandon(self) -> None:
        self._abandoned = True
        left = [*self._calls, *(item.call for item in self._waiting)]
        self._dropped += self._count
        self._count = 0
        self._calls.clear()
        self._waiting.clear()
        for call in left:
            call.settle()
            call.fail(_closed_before(self.owner))
