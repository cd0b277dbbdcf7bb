"""Many callers, one model: texts of different callers share batches.

There is no timer. While every stream is busy, texts wait; when a stream becomes free, `scheduling`
chooses its batch from the waiting texts. So an idle model answers a single text at once, and a busy
one fills its batches.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from flowvec.arguments import seconds_or_none, whole_number
from flowvec.encoder.argument import check_encoder
from flowvec.encoder.batching import Batch
from flowvec.encoder.encoder import Encoder
from flowvec.encoder.jobs import EncodeJob
from flowvec.encoder.options import EncodeOptions
from flowvec.encoder.scheduling import LOOKAHEAD, pack
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

__all__ = ["DEFAULT_MAX_WAITING", "QueueStatistics", "SharedEncoder"]

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

DEFAULT_MAX_WAITING = 8192


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """How many calls and texts a queue has had, and how many texts wait now.

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
class _Call:
    """One caller's texts."""

    texts: list[str]
    job: EncodeJob
    single: bool
    out: Floats
    left: int
    settled: bool = False
    future: Future[npt.NDArray[Any]] = field(default_factory=Future)

    def settle(self) -> None:
        """Wake threads that wait for the cancelled future."""
        with _settling:  # two streams may compute texts of one call
            if self.future.cancelled() and not self.settled:
                self.settled = True
                self.future.set_running_or_notify_cancel()

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled by its caller
            self.future.set_exception(error)
        self.settle()

    def finish(self) -> None:
        vectors = self.job.postprocess(self.out)
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(vectors[0] if self.single else vectors)
        self.settle()


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One waiting text: its call, its position in the call, and its token ids."""

    call: _Call
    row: int
    ids: npt.NDArray[np.int32]


def _closed_before() -> ClosedError:
    return ClosedError("this encoder was closed before the text was computed")


class SharedEncoder:
    """An Encoder for any number of threads; texts of different threads share batches.

    Threads may also share an `Encoder`, but it computes each call by itself. Use this class for
    many callers with a few texts each.

        >>> with SharedEncoder(Encoder.load("mini")) as shared:
        ...     shared.encode("A man is eating.", timeout=10.0).shape
        (384,)
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        max_batch_tokens: int | None = None,
    ) -> None:
        """Start one worker thread per stream of the Encoder.

        Args:
            encoder: the model. Closing this does not close it.
            max_waiting: most texts that may wait; a call that would exceed it is refused.
            max_batch_tokens: most padded tokens in a batch; None is the Encoder's.

        Raises:
            InputValueError: a number is below 1.
            ClosedError: the Encoder is closed.
        """
        check_encoder(encoder)
        whole_number("max_waiting", max_waiting)
        self._budget = encoder.job(max_batch_tokens=max_batch_tokens).max_batch_tokens
        self._encoder = encoder
        self._max_waiting = max_waiting
        # Calls that no worker has tokenized yet, and tokenized texts, both oldest first.
        self._calls: deque[_Call] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._count = 0  # texts of both
        self._changed = threading.Condition()
        self._closing = self._abandoned = False
        self._process = os.getpid()
        self._taken = self._texts = self._batches = self._overloaded = self._dropped = 0
        self._workers = [
            threading.Thread(
                target=_work,
                args=(weakref.ref(self), self._changed),
                name=f"flowvec-shared-{i}",
                daemon=True,
            )
            for i in range(encoder.engine.streams)
        ]
        # Its threads end if it is garbage-collected without being closed.
        weakref.finalize(self, _wake, self._changed)
        _open.add(self)
        for worker in self._workers:
            worker.start()

    # --- calling --------------------------------------------------------------------------------

    def submit(
        self,
        texts: str | Iterable[str],
        **options: Unpack[EncodeOptions],
    ) -> Future[npt.NDArray[Any]]:
        """Queue texts, and return at once.

        Args:
            texts: one text, or any iterable of texts.
            **options: as for `Encoder.encode`.

        Returns:
            A future of what `Encoder.encode` returns. Cancelling it drops the texts of this call
            that have not started. A text of another caller never makes it fail.

        Raises:
            OverloadedError: the queue is full.
            ClosedError: after `close`, or in a forked child.
            InputTypeError: an item is not a str.
            InputValueError: an argument is not valid, or the options refuse a text.
        """
        job = self._encoder.job(**options)
        items, single = self._encoder.items(texts, "error" if job.refuse_empty else "encode")
        out = np.empty((len(items), self._encoder.dim), dtype=np.float32)
        call = _Call(items, job, single, out, len(items))
        if self._process != os.getpid():
            raise ClosedError(
                "this encoder's threads are in the parent process, not in this fork; create one "
                "in each process"
            )
        with self._changed:
            if self._closing:
                raise ClosedError("this SharedEncoder is closed")
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
            call.finish()
        return call.future

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        timeout: float | None = None,
        **options: Unpack[EncodeOptions],
    ) -> npt.NDArray[Any]:
        """Embed texts, together with those of other callers.

        Args:
            texts: one text, or any iterable of texts.
            timeout: seconds to wait; None waits as long as it takes.
            **options: as for `submit`.

        Returns:
            As `Encoder.encode`: float32 (dim,) or (n, dim).

        Raises:
            DeadlineError: the timeout passed; texts that had not started are dropped.
            OverloadedError: too many texts wait.
            FlowvecError: as for `submit`.
        """
        seconds = seconds_or_none("timeout", timeout)
        future = self.submit(texts, **options)
        try:
            return future.result(seconds)
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

    # --- working --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether texts wait; the lock is held."""
        return bool(self._calls or self._waiting)

    @property
    def is_closing(self) -> bool:
        """Whether it refuses new calls; the lock is held."""
        return self._closing

    def work_once(self) -> None:
        """The work of one stream: tokenize new calls, choose a batch, compute it, deliver
        vectors."""
        with self._changed:
            calls = list(self._calls)
            self._calls.clear()
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

    def _admit(self, calls: list[_Call]) -> None:
        """Tokenize calls, and queue their texts."""
        texts = [call.job.prompt + text for call in calls for text in call.texts]
        try:
            tokenized = self._encoder.tokenize(texts)
        except BaseException as error:  # a panic of the tokenizer is one
            if len(calls) > 1:
                for call in calls:
                    self._admit([call])
                return
            logger.debug("tokenizing: %s", error)
            self._leave(calls[0], len(calls[0].texts))
            calls[0].fail(EngineError(f"the text could not be tokenized: {first_line(error)}"))
            return
        truncated = set(tokenized.truncated)
        waiting: list[_Waiting] = []
        first = 0
        for call in calls:
            rows = range(first, first + len(call.texts))
            first = rows.stop
            cut = truncated.intersection(rows) if call.job.refuse_long else set()
            if cut:
                self._leave(call, len(call.texts))
                call.fail(
                    InputValueError(
                        f"item {min(cut) - rows.start} has more than {self._encoder.max_length} "
                        "tokens, and truncation is 'error'"
                    )
                )
                continue
            waiting += [_Waiting(call, row - rows.start, tokenized.token_ids[row]) for row in rows]
            call.texts = []  # no longer needed
        with self._changed:
            if not self._abandoned:
                self._waiting.extend(waiting)
                return
        for item in waiting:  # closed meanwhile, and already counted as dropped
            item.call.fail(_closed_before())

    def _leave(self, call: _Call, texts: int) -> None:
        """Fail a call whose texts will not be computed."""
        with self._changed:
            if not self._abandoned:
                self._count -= texts
                self._dropped += texts

    def _drop_cancelled(self) -> None:
        """Drop texts of cancelled calls; the lock is held."""
        gone = [call for call in self._calls if call.future.done()]
        dropped = sum(len(call.texts) for call in gone)
        for call in gone:
            self._calls.remove(call)
            call.settle()
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
        lengths = [len(item.ids) for item in seen]
        batch = pack(lengths, self._budget, self._encoder.max_length)
        taken = set(batch.rows)
        self._waiting.extendleft(
            item for i, item in reversed(list(enumerate(seen))) if i not in taken
        )
        self._count -= len(taken)
        return [seen[i] for i in batch.rows], batch.length

    def _compute(self, items: list[_Waiting], length: int, *, alone: bool = False) -> None:
        try:
            vectors = self._run(items, length, alone=alone)
        except (NonFiniteError, EngineError) as error:
            if len(items) == 1:
                self._deliver_failure(items[0], error)
                return
            # To find the text that failed, compute each by itself: slow, but right.
            for item in items:
                self._compute([item], len(item.ids))
            return
        except ClosedError as error:  # the Encoder was closed
            for item in items:
                item.call.fail(error)
            return
        finished = []
        with self._changed:
            self._texts += len(items)
            self._batches += 1
            for vector, item in zip(vectors, items, strict=True):
                item.call.out[item.row] = vector
                item.call.left -= 1
                if not item.call.left:
                    finished.append(item.call)
        for call in finished:
            call.finish()

    def _run(self, items: list[_Waiting], length: int, *, alone: bool) -> Floats:
        batch = Batch(tuple(range(len(items))), length)
        return self._encoder.run([item.ids for item in items], [batch], alone=alone)

    def _deliver_failure(self, item: _Waiting, error: Exception) -> None:
        if isinstance(error, NonFiniteError):
            error = NonFiniteError(f"the model gave NaN or infinity for item {item.row}")
        item.call.fail(error)

    # --- life -----------------------------------------------------------------------------------

    def close(self, *, drain: bool = True) -> None:
        """Refuse new calls, and stop the workers; calling it twice is harmless.

        Args:
            drain: compute waiting texts first; otherwise their callers get a `ClosedError`.
        """
        with self._changed:
            self._closing = True
            if not drain:
                self._abandoned = True
                left = [*self._calls, *(item.call for item in self._waiting)]
                self._dropped += self._count
                self._count = 0
                self._calls.clear()
                self._waiting.clear()
                for call in left:
                    call.settle()
                    call.fail(_closed_before())
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _work(shared: weakref.ref[SharedEncoder], changed: threading.Condition) -> None:
    """One stream, until the encoder is closed or dropped; a waiting stream keeps no reference to
    it."""
    while True:
        with changed:
            while True:
                encoder = shared()
                if encoder is None or (encoder.is_closing and not encoder.has_work):
                    return
                if encoder.has_work:
                    break
                del encoder
                changed.wait()
        encoder.work_once()
        del encoder


_open: weakref.WeakSet[SharedEncoder] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Let running batches end: a thread that is killed inside an engine aborts the process."""
    for shared in list(_open):
        if shared._process == os.getpid():
            shared.close(drain=False)


def _wake(changed: threading.Condition) -> None:
    with changed:
        changed.notify_all()
