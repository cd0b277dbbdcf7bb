"""Many callers of one model: which calls share a run, and which a failure affects.

A gate holds the model's first run until the other calls have arrived, so nothing depends on time.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed, wait
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    AsyncEncoder,
    ClosedError,
    DeadlineError,
    Encoder,
    EngineError,
    InputTypeError,
    InputValueError,
    NonFiniteError,
    OverloadedError,
    SharedEncoder,
)
from flowvec.encoder.queue_reports import Pulse
from tests.inside import end_a_thread
from tests.runtime.encoder.conftest import texts
from tests.runtime.gate import Gate
from tests.waiting import wait_until


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def one(tiny_dir: Path) -> Iterator[Encoder]:
    """One stream: while it is busy, other calls wait."""
    with Encoder.load(tiny_dir, provider="cpu", streams=1) as encoder:
        yield encoder


# --- what comes out -------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [1, 3])
def test_many_threads_get_the_encoders_vectors(tiny_dir: Path, streams: int) -> None:
    with Encoder.load(tiny_dir, provider="cpu", streams=streams) as encoder:
        calls = [texts(1 + i % 7, seed=i) for i in range(60)]
        expected = [encoder.encode(call) for call in calls]
        with SharedEncoder(encoder) as shared, ThreadPoolExecutor(16) as pool:
            for actual, vectors in zip(pool.map(shared.encode, calls), expected, strict=True):
                np.testing.assert_allclose(actual, vectors, atol=1e-5)
            statistics = shared.statistics()
    assert (statistics.calls, statistics.texts) == (60, sum(map(len, calls)))
    assert (statistics.waiting, statistics.dropped, statistics.overloaded) == (0, 0, 0)


def test_shapes_and_options_are_the_encoders(tiny: Encoder) -> None:
    with SharedEncoder(tiny) as shared:
        assert shared.encode("the cat").shape == (tiny.dim,)
        assert shared.encode(iter(["the cat"])).shape == (1, tiny.dim)
        assert shared.encode([]).shape == (0, tiny.dim)
        for options in (
            {"prompt_name": "query"},
            {"normalize_embeddings": True},
            {"prompt_name": "", "normalize_embeddings": False},
        ):
            np.testing.assert_allclose(
                shared.encode(["a dog", ""], **options),
                tiny.encode(["a dog", ""], **options),
                atol=1e-5,
            )


def test_tasks_get_the_encoders_vectors(tiny: Encoder) -> None:
    calls = [texts(1 + i % 4, seed=i) for i in range(40)]

    async def main() -> list[np.ndarray]:
        async with AsyncEncoder(tiny) as model:
            return await asyncio.gather(*(model.encode(call) for call in calls))

    for vectors, call in zip(asyncio.run(main()), calls, strict=True):
        np.testing.assert_allclose(vectors, tiny.encode(call), atol=1e-5)


def test_a_call_whose_results_have_no_memory_leaves_the_queue(
    one: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SharedEncoder(one, max_waiting=4) as shared:

        def rows(*_: object) -> None:
            raise MemoryError("no memory")

        with monkeypatch.context() as without_memory:
            without_memory.setattr("flowvec.encoder.jobs.EncodeJob._rows", rows)
            for _ in range(3):
                with pytest.raises(EngineError, match="no memory"):
                    shared.encode(["the cat", "a dog"], timeout=60)
        statistics = shared.statistics()
        assert (statistics.waiting, statistics.dropped) == (0, 6)
        assert shared.encode(["the cat"] * 4, timeout=60).shape == (4, one.dim)


# --- calls that share a run -----------------------------------------------------------------------


def test_texts_of_several_callers_share_a_run(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one) as shared:
        gate.shut()
        first = shared.submit("the cat")
        assert gate.entered.wait(60)  # the stream is busy now
        others = [shared.submit(["a dog", "a man"]) for _ in range(4)]
        gate.open.set()
        assert first.result(60).shape == (one.dim,)
        for other in others:
            assert other.result(60).shape == (2, one.dim)
        assert [rows for rows, _ in gate.shapes] == [1, 8]
        assert shared.statistics().batches == 2


def test_an_idle_model_answers_a_single_text_at_once(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one) as shared:
        for _ in range(3):
            shared.encode("the cat", timeout=60)
    assert [rows for rows, _ in gate.shapes] == [1, 1, 1]


def test_batches_keep_the_budget(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one, max_batch_tokens=64) as shared:
        shared.encode(texts(50))
    assert all(rows == 1 or rows * length <= 64 for rows, length in gate.shapes)


def test_every_stream_works(tiny_dir: Path, gate: Gate) -> None:
    with (
        Encoder.load(tiny_dir, provider="cpu", streams=2) as encoder,
        SharedEncoder(encoder, max_batch_tokens=8) as shared,
    ):
        gate.shut()
        future = shared.submit(["the cat sleeps"] * 6)
        wait_until(lambda: len(gate.shapes) == 2)  # both streams are inside the model
        gate.open.set()
        future.result(60)


def test_a_queue_reports_its_batches_and_signs_of_life(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one) as shared:
        batches = []
        shared.on_batch = batches.append
        assert shared.pulse() == Pulse(waiting=0, oldest=None, busy_since=None, dead=0)
        gate.shut()
        before = time.perf_counter()
        call = shared._call
        first = call("the cat")
        assert gate.entered.wait(60)
        second = call(["a dog", "the cat " * one.max_length])
        pulse = shared.pulse()
        assert pulse.waiting == 2
        assert pulse.oldest == second.queued
        assert pulse.busy_since is not None
        assert before <= pulse.busy_since <= second.queued
        gate.open.set()
        second.future.result(60)
        assert first.tokens == len(one.tokenize("the cat").ids[0])
        assert second.tokens == len(one.tokenize("a dog").ids[0]) + one.max_length
        assert (first.truncated, second.truncated) == (0, 1)
        assert first.queued <= first.begun <= second.begun
        wait_until(lambda: shared.pulse().busy_since is None)
    assert sum(batch.texts for batch in batches) == 3
    assert sum(batch.tokens for batch in batches) == first.tokens + second.tokens
    assert all(batch.tokens <= batch.padded and batch.seconds > 0 for batch in batches)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_shows(one: Encoder) -> None:
    with SharedEncoder(one) as shared:
        end_a_thread(shared)
        wait_until(lambda: shared.pulse().dead == 1)


# --- failures affect their own call only ----------------------------------------------------------


def test_a_text_without_finite_vector_fails_its_own_caller_only(nan_dir: Path, gate: Gate) -> None:
    with (
        Encoder.load(nan_dir, provider="cpu", streams=1) as encoder,
        SharedEncoder(encoder) as shared,
    ):
        gate.shut()
        first = shared.submit("the cat")
        assert gate.entered.wait(60)
        good, bad = shared.submit(["a dog", "a man"]), shared.submit(["a dog", "nan"])
        gate.open.set()
        first.result(60)
        np.testing.assert_allclose(good.result(60), encoder.encode(["a dog", "a man"]), atol=1e-5)
        with pytest.raises(NonFiniteError, match="item 1"):
            bad.result(60)
        assert shared.encode("the cat", timeout=60).shape == (encoder.dim,)


def test_a_mistake_is_raised_at_once_to_its_caller(one: Encoder) -> None:
    with SharedEncoder(one) as shared:
        with pytest.raises(InputTypeError, match="item 1"):
            shared.submit(["a", 7])  # type: ignore[list-item]
        with pytest.raises(InputValueError, match="no prompt"):
            shared.submit("a", prompt_name="nonsense")
        with pytest.raises(InputValueError, match="item 0"):
            shared.submit("", on_empty="error")
        assert shared.statistics().calls == 0


def test_a_text_that_is_too_long_is_refused_if_requested(one: Encoder, gate: Gate) -> None:
    long = "the cat " * one.max_length
    with SharedEncoder(one) as shared:
        gate.shut()
        first = shared.submit("the cat")
        assert gate.entered.wait(60)
        refused, cut = shared.submit(["a", long], truncation="error"), shared.submit(["a", long])
        gate.open.set()
        first.result(60)
        with pytest.raises(InputValueError, match="item 1 has more than"):
            refused.result(60)
        np.testing.assert_allclose(cut.result(60), one.encode(["a", long]), atol=1e-5)
        assert shared.statistics().waiting == 0


def test_an_unexpected_failure_only_affects_its_calls(one: Encoder, gate: Gate) -> None:
    run = gate.run

    def fail_once(*arguments):
        gate.run = run
        raise MemoryError

    gate.run = fail_once
    with SharedEncoder(one) as shared:
        with pytest.raises(EngineError, match="MemoryError"):
            shared.encode("the cat", timeout=60)
        assert shared.encode("the cat", timeout=60).shape == (one.dim,)


@pytest.mark.process
def test_a_forked_child_gets_an_error(one: Encoder) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    with SharedEncoder(one) as shared:
        child = os.fork()
        if not child:
            try:
                shared.submit("the cat")
            except ClosedError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- a bounded queue ------------------------------------------------------------------------------


def test_a_full_queue_refuses_at_once(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one, max_waiting=4) as shared:
        with pytest.raises(OverloadedError, match="5 more"):
            shared.submit(["a"] * 5)
        gate.shut()
        first = shared.submit("the cat")
        assert gate.entered.wait(60)
        waiting = [shared.submit(["a", "b"]) for _ in range(2)]
        with pytest.raises(OverloadedError, match="4 texts wait"):
            shared.submit("c")
        gate.open.set()
        for future in (first, *waiting):
            future.result(60)
        assert shared.encode("c", timeout=60).shape == (one.dim,)
        assert shared.statistics().overloaded == 2


def test_what_was_cancelled_is_not_computed(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one) as shared:
        gate.shut()
        first = shared.submit("the cat")
        assert gate.entered.wait(60)
        cancelled, kept = shared.submit(["a"] * 7), shared.submit(["b"] * 3)
        assert cancelled.cancel()
        gate.open.set()
        first.result(60)
        kept.result(60)
        assert [rows for rows, _ in gate.shapes] == [1, 3]
        assert shared.statistics().dropped == 7
        assert shared.statistics().waiting == 0
        with pytest.raises(CancelledError):
            cancelled.result(0)
        assert not wait([cancelled], timeout=60).not_done


def test_cancelled_calls_leave_the_queue(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one, max_waiting=100) as shared:
        gate.shut()
        first = shared.submit("the cat")
        assert gate.entered.wait(60)
        for timeout in (0, -1):
            with pytest.raises(DeadlineError):
                shared.encode(["a"] * 50, timeout=timeout)
        assert shared.statistics().waiting == 0
        taken = shared.submit(["b"] * 100)
        gate.open.set()
        first.result(60)
        assert taken.result(60).shape == (100, one.dim)
        assert shared.statistics().dropped == 100
        assert shared.statistics().overloaded == 0


@pytest.mark.parametrize("fails", [False, True])
def test_waiting_for_a_call_that_was_cancelled_while_it_ran_raises(
    nan_dir: Path, gate: Gate, fails: bool
) -> None:
    with Encoder.load(nan_dir, provider="cpu", streams=1) as one, SharedEncoder(one) as shared:
        gate.shut()
        running = shared.submit("nan" if fails else "the cat")
        assert gate.entered.wait(60)
        assert running.cancel()
        gate.open.set()
        assert not wait([running], timeout=60).not_done
        assert list(as_completed([running], timeout=60)) == [running]


def test_a_timeout_ends_the_wait_and_drops_the_rest(one: Encoder, gate: Gate) -> None:
    with SharedEncoder(one) as shared:
        gate.shut()
        first = shared.submit("the cat")
        assert gate.entered.wait(60)
        with pytest.raises(DeadlineError, match=r"within 0\.01 s"):
            shared.encode(["a", "b"], timeout=0.01)
        with pytest.raises(TimeoutError):  # its base class, for callers without flowvec's errors
            shared.encode("c", timeout=0.01)
        gate.open.set()
        first.result(60)
        shared.encode("d", timeout=60)
        assert shared.statistics().dropped == 3


def test_the_event_loop_runs_on_while_the_model_works(one: Encoder, gate: Gate) -> None:
    async def main() -> None:
        async with AsyncEncoder(one) as model:
            gate.shut()
            first = asyncio.create_task(model.encode("the cat"))
            assert await asyncio.to_thread(gate.entered.wait, 60)
            cancelled = asyncio.create_task(model.encode(["a"] * 5))
            with pytest.raises(DeadlineError):
                await model.encode("b", timeout=0.01)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            gate.open.set()
            await first
            await model.encode("c")
            assert model.statistics().dropped == 6
        for use in (model.encode("a"), model.encode_query([]), model.__aenter__()):
            with pytest.raises(ClosedError, match="this AsyncEncoder is closed"):
                await use

    asyncio.run(main())
    assert [rows for rows, _ in gate.shapes] == [1, 1]


def test_many_texts_are_taken_in_by_a_thread(
    one: Encoder, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, seen = SharedEncoder.submit, []
    release = threading.Event()

    def spy(shared, items, **options):
        seen.append(threading.current_thread() is threading.main_thread())
        if options.pop("held", False):
            assert release.wait(60)
        return submit(shared, items, **options)

    monkeypatch.setattr(SharedEncoder, "submit", spy)
    many = texts(200)

    async def main() -> None:
        async with AsyncEncoder(one) as model:
            np.testing.assert_allclose(await model.encode(many), one.encode(many), atol=1e-5)
            assert (await model.encode(iter(["a", "b"]))).shape == (2, one.dim)
            assert (await model.encode("a")).shape == (one.dim,)
            assert (await model.encode(["a"] * 64)).shape == (64, one.dim)
            assert seen == [False, False, True, True]
            with pytest.raises(InputTypeError, match="item 150"):
                await model.encode([*many[:150], 7])
            # A call that times out while its texts are being checked leaves nothing in the queue.
            gate.shut()
            first = asyncio.create_task(model.encode("the cat"))
            assert await asyncio.to_thread(gate.entered.wait, 60)
            with pytest.raises(DeadlineError):
                await model.encode(many, timeout=0.01, held=True)
            release.set()
            while not model.statistics().dropped:
                await asyncio.sleep(0.001)
            gate.open.set()
            await first
            await model.encode("b")
            assert model.statistics().dropped == 200

    asyncio.run(main())


# --- closing --------------------------------------------------------------------------------------


def test_closing_computes_what_waits(one: Encoder, gate: Gate) -> None:
    shared = SharedEncoder(one)
    gate.shut()
    futures = [shared.submit(["a", "b"]) for _ in range(5)]
    assert gate.entered.wait(60)
    closing = threading.Thread(target=shared.close)
    closing.start()
    gate.open.set()
    closing.join(60)
    assert not closing.is_alive()
    assert all(future.result(0).shape == (2, one.dim) for future in futures)
    with pytest.raises(ClosedError):
        shared.submit("a")
    shared.close()
    assert one.encode("a").shape == (one.dim,)  # the Encoder stays open


def test_closing_without_drain_fails_waiting_calls(one: Encoder, gate: Gate) -> None:
    shared = SharedEncoder(one)
    gate.shut()
    first = shared.submit("the cat")
    assert gate.entered.wait(60)
    waiting = shared.submit(["a", "b"])
    closing = threading.Thread(target=shared.close, kwargs={"drain": False})
    closing.start()
    with pytest.raises(ClosedError):
        waiting.result(60)
    gate.open.set()
    closing.join(60)
    assert first.result(0).shape == (one.dim,)  # it had begun


def test_closing_without_drain_while_texts_are_tokenized(one: Encoder) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def gated(texts):
        entered.set()
        assert go_on.wait(60)
        return tokenize(texts)

    tokenize, one.tokenize = one.tokenize, gated
    shared = SharedEncoder(one)
    future = shared.submit(["a", "b"])
    assert entered.wait(60)
    closing = threading.Thread(target=shared.close, kwargs={"drain": False})
    closing.start()
    wait_until(lambda: not shared.statistics().waiting)
    assert closing.is_alive()
    go_on.set()
    closing.join(60)
    with pytest.raises(ClosedError):
        future.result(60)
    assert (shared.statistics().waiting, shared.statistics().dropped) == (0, 2)


def test_numbers_below_one_are_errors(one: Encoder) -> None:
    with pytest.raises(InputValueError, match="max_waiting"):
        SharedEncoder(one, max_waiting=0)
    with pytest.raises(InputValueError, match="max_batch_tokens"):
        SharedEncoder(one, max_batch_tokens=0)


def test_threads_of_a_queue_that_was_dropped_end(tiny: Encoder) -> None:
    def running() -> set[threading.Thread]:
        return {t for t in threading.enumerate() if t.name.startswith("flowvec-shared")}

    before = running()
    shared = SharedEncoder(tiny)
    assert shared.encode("a cat").shape == (16,)
    own = running() - before
    assert own
    del shared
    gc.collect()
    wait_until(lambda: not running() & own)


@pytest.mark.process
def test_a_busy_encoder_that_is_not_closed_does_not_abort_the_process(tiny_dir: Path) -> None:
    code = """
import sys, threading, time
from flowvec import ClosedError, Encoder, SharedEncoder
shared = SharedEncoder(Encoder.load(sys.argv[1]))
def work():
    # A thread that prints a traceback while Python ends can make Python itself abort.
    try:
        while True:
            shared.encode(["the cat runs " * 20] * 500)
    except ClosedError:
        pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
while shared.statistics().texts < 100:
    time.sleep(0.001)
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code, tiny_dir], capture_output=True, text=True, timeout=600
        )
        assert (done.returncode, "terminate" in done.stderr) == (0, False), done.stderr
