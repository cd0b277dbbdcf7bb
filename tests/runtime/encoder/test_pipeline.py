"""The pipeline for a GPU: tokenizing is ahead, two batches are in flight, vectors are the same.

The CPU provider runs under the name of CUDA's, at a rate that the test sets. What happens at the
same time is shown by waiting for it: a batch that needs another one beside it would wait forever.
"""

from __future__ import annotations

import _thread
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from flowvec import Bundle, ClosedError, Encoder, EncodeStatistics, EngineError, SharedEncoder
from flowvec.encoder import pipeline
from flowvec.encoder.batching import ENOUGH_ON_GPU, MOST_ROWS_ON_GPU, Batch, plan
from flowvec.engine import bound_session, selection
from flowvec.engine.bound_session import BoundSession
from flowvec.engine.providers import CPU, CUDA, Engine
from flowvec.texts.window import WINDOW
from tests.inside import pipeline_of
from tests.runtime.encoder.conftest import texts
from tests.runtime.engine.test_onnxruntime_session import NamedCuda

ON_GPU = Engine(CUDA, "float32", 1)
LONGEST = 600.0


class Device(BoundSession):
    """A session that computes `rate` padded tokens per second, and says what is in flight.

    Attributes:
        before: called with the number of the batch, from 0, before it computes.
        after: called with it when it is computed, and not copied back yet.
        in_flight: batches in `run`.
        most_in_flight: most batches in `run` at once.
        arrived: batches whose inputs are on the device.
        begun: batches that began to compute.
        computing: the shape of the batch that computes, or of the last one.
        sizes: shape of each batch, in order of arrival.
    """

    rate = 1e9

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        self.before: Callable[[int], object] = int
        self.after: Callable[[int], object] = int
        self.in_flight = self.most_in_flight = self.arrived = self.begun = 0
        self.sizes: list[tuple[int, ...]] = []
        self.computing: tuple[int, ...] = ()
        self.changed = threading.Condition()
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.numbers: dict[int, int] = {}

    def run(self, *feeds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        with self.changed:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return super().run(*feeds)
        finally:
            with self.changed:
                self.in_flight -= 1
                self.changed.notify_all()

    def bind(self, buffers: Any, feeds: Sequence[npt.NDArray[np.int64]]) -> None:
        super().bind(buffers, feeds)
        with self.changed:
            self.arrived += 1
            self.sizes.append(feeds[0].shape)
            self.shapes[id(buffers)] = feeds[0].shape
            self.changed.notify_all()

    def compute(self, buffers: Any, options: Any) -> None:
        with self.changed:
            number, self.begun = self.begun, self.begun + 1
            self.computing = self.shapes[id(buffers)]
            self.changed.notify_all()
        self.before(number)
        super().compute(buffers, options)
        time.sleep(math.prod(self.computing) / self.rate)
        self.numbers[id(buffers)] = number

    def fetch(self, buffers: Any) -> npt.NDArray[np.float32]:
        self.after(self.numbers[id(buffers)])
        return super().fetch(buffers)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so; fail if it never is."""
        with self.changed:
            assert self.changed.wait_for(condition, LONGEST)


@pytest.fixture
def named_cuda(monkeypatch: pytest.MonkeyPatch) -> list[type[Device]]:
    """The CPU provider runs under the name of CUDA's; the last class of the list is its session."""
    named = SimpleNamespace(
        InferenceSession=NamedCuda,
        SessionOptions=onnxruntime.SessionOptions,
        RunOptions=onnxruntime.RunOptions,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", named)
    monkeypatch.setattr(bound_session, "_device_of", lambda engine: "cpu")
    kinds = [Device]
    monkeypatch.setattr(selection, "BoundSession", lambda *given: kinds[-1](*given))
    return kinds


@pytest.fixture
def encoder(named_cuda: None, tiny_dir: Path) -> Iterator[Encoder]:
    with Encoder(Bundle.load(tiny_dir), ON_GPU, proof="never") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def on_cpu(tiny_dir: Path) -> Iterator[Encoder]:
    with Encoder.load(tiny_dir, provider="cpu", compute="float32") as loaded:
        yield loaded


def device_of(encoder: Encoder) -> Device:
    session = pipeline_of(encoder).ready()[0]._streams
    assert isinstance(session, Device)
    return session


@pytest.fixture(scope="module")
def passages(on_cpu: Encoder) -> tuple[list[str], np.ndarray]:
    """Texts of about the length of passages, all similar, so that every budget can be used."""
    items = ["the cat sleeps on the red bread " * 4 + text for text in texts(WINDOW + 100, 3, 6)]
    return items, on_cpu.encode(items)


@pytest.mark.parametrize("budget", [1 << 14, 1 << 15, 1 << 17])
def test_vectors_do_not_depend_on_the_budget(
    encoder: Encoder, passages: tuple[list[str], np.ndarray], budget: int
) -> None:
    items, expected = passages
    vectors = encoder.encode(items, max_batch_tokens=budget)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    padded = [rows * length for rows, length in device_of(encoder).sizes]
    # Row counts come in steps of a third.
    assert budget / 2 < max(padded) <= budget
    assert device_of(encoder).most_in_flight <= 2


def test_a_large_budget_does_not_pad_short_texts_to_long_ones(
    named_cuda: None, tiny_dir: Path
) -> None:
    calls: list[EncodeStatistics] = []
    bundle = Bundle.load(tiny_dir)
    with Encoder(bundle, ON_GPU, proof="never", on_statistics=calls.append) as loaded:
        for budget in (1 << 14, 1 << 17):
            loaded.encode(texts(WINDOW, seed=3), max_batch_tokens=budget)
    assert calls[1].padding < 1.5 * calls[0].padding


class BesideAnother(Device):
    """A device whose first batch waits for another one beside it."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        self.before = lambda number: number or self.wait(lambda: self.arrived >= 2)


def test_a_model_is_proved_on_two_batches_at_a_time(
    named_cuda: list[type[Device]], tiny_dir: Path
) -> None:
    named_cuda.append(BesideAnother)
    with Encoder(Bundle.load(tiny_dir), ON_GPU, proof="always") as loaded:
        assert loaded.proof.proved
        assert device_of(loaded).most_in_flight == 2


def test_two_batches_are_in_flight_and_no_more(encoder: Encoder, on_cpu: Encoder) -> None:
    device, items = device_of(encoder), texts(600)
    device.rate = 1e6

    def beside_another(number: int) -> None:
        # Each batch but the last waits until the next one's inputs are on the device.
        device.wait(lambda: device.arrived > min(number + 1, batches - 1))

    batches = len(batches_of(on_cpu, items, 512))
    device.before = beside_another
    np.testing.assert_allclose(
        encoder.encode(items, max_batch_tokens=512), on_cpu.encode(items), atol=1e-5
    )
    assert device.begun == batches
    assert device.most_in_flight == 2


def batches_of(encoder: Encoder, items: list[str], budget: int) -> list[Batch]:
    """The batches of one window."""
    lengths = encoder.tokenize(items).token_ids.lengths
    return plan(lengths, budget, encoder.max_length, MOST_ROWS_ON_GPU, ENOUGH_ON_GPU)


def test_an_output_is_copied_back_while_the_next_batch_computes(encoder: Encoder) -> None:
    device = device_of(encoder)
    device.after = lambda number: device.wait(lambda: device.begun > min(number + 1, 2))
    items = texts(3 * 64, seed=1, longest=9)
    batches = len(batches_of(encoder, items, 512))
    assert batches >= 3
    encoder.encode(items, max_batch_tokens=512)
    assert device.begun == batches


def test_windows_of_one_batch_are_in_flight_together(encoder: Encoder, on_cpu: Encoder) -> None:
    # The length of its texts says which window a batch is.
    windows = 6
    parts = [["the cat " * (i + 1)] * 8 for i in range(windows)]
    lengths = [encoder.tokenize(part).token_ids.lengths[0] for part in parts]
    device = device_of(encoder)

    def beside_another(number: int) -> None:
        # Batches may overtake each other: both windows ahead of this one may be computed already,
        # and then nothing can be beside it. After the last window there is nothing either.
        window = lengths.index(device.computing[1])
        if number not in (window + 2, windows - 1):
            device.wait(lambda: device.arrived > number + 1)

    device.before = beside_another
    encoded = list(encoder.windows(parts, encoder.job(max_batch_tokens=1 << 17)))
    for window, part in zip(encoded, parts, strict=True):
        np.testing.assert_allclose(window.vectors, on_cpu.encode(part), atol=1e-5)
    assert sorted(device.sizes) == [(8, length) for length in lengths]
    assert device.most_in_flight == 2


def test_a_shared_encoder_has_two_batches_in_flight(encoder: Encoder, on_cpu: Encoder) -> None:
    device, items = device_of(encoder), texts(4)
    # The first batch waits for another one beside it.
    device.before = lambda number: number or device.wait(lambda: device.arrived >= 2)
    with SharedEncoder(encoder) as shared:
        calls = [shared.submit(items[0])]
        device.wait(lambda: device.arrived == 1)
        calls += [shared.submit(item) for item in items[1:]]
        vectors = [call.result(LONGEST) for call in calls]
    np.testing.assert_allclose(vectors, on_cpu.encode(items), atol=1e-5)
    assert device.most_in_flight == 2


class Reader:
    """Texts that say how many were read."""

    def __init__(self, count: int) -> None:
        self.read = 0
        self._items = texts(count, longest=6)

    def __iter__(self) -> Iterator[str]:
        for item in self._items:
            self.read += 1
            yield item


class Counted:
    """A tokenizer that says how many texts it has tokenized."""

    def __init__(self, inner: Any, device: Device) -> None:
        self._inner, self._device = inner, device
        self.texts = 0

    def __call__(self, items: Sequence[str]) -> Any:
        tokenized = self._inner(items)
        with self._device.changed:
            self.texts += len(items)
            self._device.changed.notify_all()
        return tokenized

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_tokenizing_is_two_windows_ahead_of_a_gpu(encoder: Encoder) -> None:
    device, reader = device_of(encoder), Reader(5 * WINDOW)
    inner = pipeline_of(encoder)
    counted = inner.tokenizer = Counted(inner.tokenizer, device)
    ahead: list[int] = []

    def before(number: int) -> None:
        if number == 0:
            device.wait(lambda: counted.texts >= 3 * WINDOW)
            ahead.append(reader.read)

    device.before = before
    assert sum(1 for _ in encoder.stream(reader)) == 5 * WINDOW
    assert counted.texts == 5 * WINDOW
    # It is bounded: a source is not read into memory.
    assert ahead == [3 * WINDOW]


def test_a_processor_reads_one_window_ahead(tiny_dir: Path) -> None:
    reader = Reader(4 * WINDOW)
    with Encoder(Bundle.load(tiny_dir), Engine(CPU, "float32", 1), proof="never") as loaded:
        vectors = loaded.stream(reader)
        next(vectors)
        assert reader.read == 2 * WINDOW


def test_several_threads_tokenize_for_a_gpu(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "available_cores", lambda: 2)
    device, inner = device_of(encoder), pipeline_of(encoder).tokenizer
    both = threading.Barrier(2)

    class Together(Counted):
        is_parallel = True

        def __call__(self, items: Sequence[str]) -> Any:
            if self.texts == 0:
                both.wait(LONGEST)  # the first two pieces of texts are tokenized together
            return super().__call__(items)

    pipeline_of(encoder).tokenizer = Together(inner, device)
    encoder.encode(texts(2048, longest=6))
    assert not both.broken


@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_failing_window_comes_after_those_before_it(encoder: Encoder, window: int) -> None:
    device, items = device_of(encoder), texts(5 * 8)
    parts = [items[i : i + 8] for i in range(0, len(items), 8)]
    usual = device.run

    def run(*feeds: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        if feeds[0].shape[0] == 6:
            raise EngineError("it broke")
        return usual(*feeds)

    device.run = run  # type: ignore[method-assign]
    parts[window] = parts[window][:6]
    seen: list[Any] = []
    job = encoder.job(max_batch_tokens=1 << 17)
    with pytest.raises(EngineError, match="it broke"):
        seen.extend(encoder.windows(parts, job))
    assert len(seen) == window
    assert encoder.encode(items[:4]).shape == (4, 16)


def test_batches_of_a_caller_that_stops_early_are_dropped(encoder: Encoder) -> None:
    device, holds, may_go = device_of(encoder), threading.Event(), threading.Event()
    # The first window has texts of its own length, so that its batches are known by their shape.
    parts = [["the cat"] * 600, *(texts(600, seed=i) for i in range(1, 4))]
    (length,) = set(encoder.tokenize(parts[0]).token_ids.lengths)
    first, last = (len(batches_of(encoder, part, 512)) for part in (parts[0], parts[3]))
    shapes: list[tuple[int, ...]] = []
    held: list[int] = []

    def hold(number: int) -> None:
        # Batches of the next window may overtake the last ones of the first.
        shapes.append(device.computing)
        if [each[1] for each in shapes[:-1]].count(length) >= first:
            held.append(number)
            holds.set()
            may_go.wait(LONGEST)

    device.before = hold
    windows = encoder.windows(parts, encoder.job(max_batch_tokens=512))
    next(windows)
    assert holds.wait(LONGEST)
    windows.close()
    may_go.set()
    # Those that waited would be computed before these. Two were in flight already.
    encoder.encode(parts[3], max_batch_tokens=512)
    assert held[0] + last < device.arrived <= held[0] + last + 2


@pytest.mark.usefixtures("listens_to_interrupts")
def test_an_interrupt_leaves_an_encoder_that_works(encoder: Encoder, on_cpu: Encoder) -> None:
    device, items = device_of(encoder), texts(600)
    # Ctrl-C, while the second batch is computed.
    device.before = lambda number: number == 1 and _thread.interrupt_main()
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(items, max_batch_tokens=512)
    np.testing.assert_allclose(
        encoder.encode(items, max_batch_tokens=512), on_cpu.encode(items), atol=1e-5
    )


def test_closing_waits_for_what_is_in_flight(encoder: Encoder, on_cpu: Encoder) -> None:
    device, items = device_of(encoder), texts(64)
    may_go, results = threading.Event(), []
    device.before = lambda number: may_go.wait(LONGEST)

    def encode() -> None:
        try:
            results.append(encoder.encode(items, max_batch_tokens=256))
        except ClosedError as error:
            results.append(error)

    caller = threading.Thread(target=encode)
    caller.start()
    device.wait(lambda: device.arrived == 2)
    closer = threading.Thread(target=encoder.close)
    closer.start()
    may_go.set()
    for thread in (caller, closer):
        thread.join(LONGEST)
        assert not thread.is_alive()
    (result,) = results
    if not isinstance(result, ClosedError):
        np.testing.assert_allclose(result, on_cpu.encode(items), atol=1e-5)
    with pytest.raises(ClosedError):
        encoder.encode("the cat")
