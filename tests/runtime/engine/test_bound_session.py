"""Batches whose inputs and output are bound to memory: the same vectors, and one computes while the
other is copied. A GPU's steps, on the CPU provider's memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from flowvec import Bundle, EngineError
from flowvec.engine.bound_session import BoundSession
from flowvec.engine.onnxruntime_session import Session
from flowvec.engine.providers import CPU, CUDA, TENSORRT, Engine
from flowvec.errors import BundleError
from tests.runtime.engine.test_failures import LIMITED_ARENA

ON_CPU = Engine(CPU, "float32", 1)


def batch(rows: int, length: int, seed: int = 0) -> tuple[npt.NDArray[np.int64], ...]:
    """Random token ids with padding, and their mask."""
    rng = np.random.default_rng((rows, length, seed))
    lengths = rng.integers(1, length + 1, rows)
    mask = (np.arange(length) < lengths[:, np.newaxis]).astype(np.int64)
    return rng.integers(5, 80, (rows, length)) * mask, mask


# Small ones after large ones and back; the same tokens in other shapes.
SHAPES = [(1, 1), (7, 9), (64, 40), (9, 7), (3, 2), (40, 64), (1, 64), (128, 30), (2, 2), (7, 9)]


@pytest.fixture
def bound(tiny_dir: Path) -> BoundSession:
    return BoundSession(Bundle.load(tiny_dir), ON_CPU)


@pytest.fixture(scope="module")
def plain(tiny_dir: Path) -> Session:
    return Session(Bundle.load(tiny_dir), ON_CPU)


def test_the_vectors_are_those_of_a_plain_session(plain: Session, bound: BoundSession) -> None:
    batches = [batch(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    outputs = [bound.run(*feeds) for feeds in batches]
    # Compared at the end: later batches must not write into the vectors of earlier ones.
    for feeds, output in zip(batches, outputs, strict=True):
        np.testing.assert_array_equal(output, plain.run(*feeds))


def test_a_graph_with_three_inputs_gets_all_of_them(reranker_dir: Path) -> None:
    bundle = Bundle.load(reranker_dir)
    ids, mask = batch(6, 20)
    types = (np.arange(20) >= 8) * mask
    expected = Session(bundle, ON_CPU).run(ids, mask, types)
    np.testing.assert_array_equal(BoundSession(bundle, ON_CPU).run(ids, mask, types), expected)


def test_threads_may_share_it(plain: Session, bound: BoundSession) -> None:
    batches = [batch(1 + i % 9, 3 + i % 17, seed=i) for i in range(120)]
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda feeds: bound.run(*feeds), batches))
    for feeds, output in zip(batches, outputs, strict=True):
        np.testing.assert_array_equal(output, plain.run(*feeds))


def test_buffers_are_used_again(bound: BoundSession) -> None:
    bound.run(*batch(128, 30))
    idle = bound._idle
    (buffers,) = idle
    places = buffers._places
    before = [place.ctypes.data for place in places]
    for shape in SHAPES:
        bound.run(*batch(*shape))
    assert list(idle) == [buffers]
    assert [place.ctypes.data for place in places] == before


class Observed(BoundSession):
    """A session whose steps can be held up, and are counted."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        super().__init__(bundle, engine)
        self.computing = self.most_computing = self.begun = 0
        self.lock = threading.Lock()
        self.second_begun = threading.Event()
        self.fetching = threading.Event()
        self.may_fetch: threading.Event | None = None

    def compute(self, buffers: Any, options: Any) -> None:
        with self.lock:
            self.begun += 1
            self.computing += 1
            self.most_computing = max(self.most_computing, self.computing)
            if self.begun == 2:
                self.second_begun.set()
        try:
            super().compute(buffers, options)
        finally:
            with self.lock:
                self.computing -= 1

    def fetch(self, buffers: Any) -> npt.NDArray[np.float32]:
        may_fetch, self.may_fetch = self.may_fetch, None
        if may_fetch is not None:
            self.fetching.set()
            assert may_fetch.wait(60)
        return super().fetch(buffers)


def held_up(session: Observed, event: threading.Event, pool: ThreadPoolExecutor) -> Any:
    """A batch that is computed, and whose output is not copied before `event`."""
    session.may_fetch = event
    future = pool.submit(session.run, *batch(5, 11))
    assert session.fetching.wait(60)
    return future


def test_an_output_is_copied_back_while_the_next_batch_computes(
    tiny_dir: Path, plain: Session
) -> None:
    session = Observed(Bundle.load(tiny_dir), ON_CPU)
    with ThreadPoolExecutor(1) as pool:
        first = held_up(session, session.second_begun, pool)
        second = session.run(*batch(4, 6))
        np.testing.assert_array_equal(first.result(60), plain.run(*batch(5, 11)))
    np.testing.assert_array_equal(second, plain.run(*batch(4, 6)))


def test_one_batch_computes_at_a_time(tiny_dir: Path) -> None:
    session = Observed(Bundle.load(tiny_dir), ON_CPU)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: session.run(*batch(16, 40, seed=i)), range(40)))
    assert (session.begun, session.most_computing) == (40, 1)


def test_a_batch_that_fails_does_not_lose_the_other(tiny_dir: Path, plain: Session) -> None:
    session = Observed(Bundle.load(tiny_dir), ON_CPU)
    fails = np.full((1, 4), 10**6, dtype=np.int64)
    may_go = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = held_up(session, may_go, pool)
        with pytest.raises(EngineError, match=r"shape \(1, 4\)"):
            session.run(fails, np.ones_like(fails))
        np.testing.assert_array_equal(session.run(*batch(4, 6)), plain.run(*batch(4, 6)))
        may_go.set()
        np.testing.assert_array_equal(other.result(60), plain.run(*batch(5, 11)))


class Interrupted(BoundSession):
    """A session in whose steps Ctrl-C is pressed."""

    at = ""

    def bind(self, buffers: Any, feeds: Sequence[npt.NDArray[np.int64]]) -> None:
        super().bind(buffers, feeds)
        self._press("bind")

    def compute(self, buffers: Any, options: Any) -> None:
        super().compute(buffers, options)
        self._press("compute")

    def fetch(self, buffers: Any) -> npt.NDArray[np.float32]:
        output = super().fetch(buffers)
        self._press("fetch")
        return output

    def _press(self, step: str) -> None:
        if self.at == step:
            self.at = ""
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("listens_to_interrupts")
@pytest.mark.parametrize("step", ["bind", "compute", "fetch"])
def test_an_interrupt_leaves_a_session_that_works(
    tiny_dir: Path, plain: Session, step: str
) -> None:
    session = Interrupted(Bundle.load(tiny_dir), ON_CPU)
    session.at = step
    with pytest.raises(KeyboardInterrupt):
        session.run(*batch(5, 11))
    for shape in ((9, 3), (5, 11)):
        np.testing.assert_array_equal(session.run(*batch(*shape)), plain.run(*batch(*shape)))


# A batch too large for the arena, while the output of another one is not copied back yet.
ONE_OF_TWO_BATCHES = """
import threading
from flowvec.engine.bound_session import BoundSession

class HeldUp(BoundSession):
    fetching, may_fetch = threading.Event(), threading.Event()

    def fetch(self, buffers):
        if threading.current_thread() is not threading.main_thread():
            self.fetching.set()
            assert self.may_fetch.wait(60)
        return super().fetch(buffers)

bundle = Bundle.load(path)
engine = onnxruntime_session.Engine("CPUExecutionProvider", "float32", 1)
few = np.full((12, 64), 5, dtype=np.int64)
many = np.full((1000, 64), 5, dtype=np.int64)
expected = onnxruntime_session.Session(bundle, engine).run(few, np.ones_like(few))
onnxruntime_session._session_options = limited
session, outputs = HeldUp(bundle, engine), []
other = threading.Thread(target=lambda: outputs.append(session.run(few, np.ones_like(few))))
other.start()
assert session.fetching.wait(60)
for _ in range(3):
    try:
        session.run(many, np.ones_like(many))
    except OutOfMemoryError as error:
        assert "(1000, 64)" in str(error) and "64000" in str(error), error
    else:
        raise AssertionError("not out of memory")
    np.testing.assert_array_equal(session.run(few, np.ones_like(few)), expected)
session.may_fetch.set()
other.join()
np.testing.assert_array_equal(outputs[0], expected)
"""


def test_a_batch_that_is_out_of_memory_does_not_lose_the_other(python, tiny_dir: Path) -> None:
    run = python(LIMITED_ARENA + ONE_OF_TWO_BATCHES, tiny_dir, 4_000_000)
    assert run.returncode == 0, run.stderr


# ONNX Runtime allocates inputs where a device's description says: here, in an arena of the CPU.
ALLOCATED_INPUTS = """
from flowvec.engine.bound_session import BoundSession, _allocated

place, owner = _allocated(ort, arena, 100)
assert owner is not None and place.ctypes.data == owner.data_ptr() and place.size == 100
bundle = Bundle.load(path)
engine = onnxruntime_session.Engine("CPUExecutionProvider", "float32", 1)
plain, session = onnxruntime_session.Session(bundle, engine), BoundSession(bundle, engine)
session._pinned = arena
for rows, length in ((3, 5), (60, 20), (2, 7), (1, 1), (60, 21)):
    ids = np.arange(5, 5 + rows * length, dtype=np.int64).reshape(rows, length) % 80
    for _ in range(2):
        output = session.run(ids, np.ones_like(ids))
        np.testing.assert_array_equal(output, plain.run(ids, np.ones_like(ids)))
assert None not in session._idle[0]._owners
"""


def test_inputs_may_be_in_memory_of_onnx_runtime(python, tiny_dir: Path) -> None:
    run = python(LIMITED_ARENA + ALLOCATED_INPUTS, tiny_dir, 64_000_000)
    assert run.returncode == 0, run.stderr


def test_a_file_that_is_not_a_graph_is_an_error(tiny_copy: Path) -> None:
    bundle = Bundle.load(tiny_copy)
    bundle.model.write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"model\.onnx cannot be"):
        BoundSession(bundle, ON_CPU)


@pytest.mark.parametrize(
    ("engine", "in_flight"),
    [
        (Engine(CPU, "float32", 1), 1),
        (Engine(CPU, "float32", 4), 4),
        (Engine(CUDA, "float16", 1), 2),
        (Engine(TENSORRT, "float16", 1), 2),
    ],
)
def test_a_gpu_gets_two_batches_and_a_processor_one_for_each_stream(
    engine: Engine, in_flight: int
) -> None:
    assert engine.in_flight == in_flight
