"""A batch that is alone gets all cores, a batch among others gets one, and vectors are the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from flowvec import Encoder, SharedEncoder
from flowvec.encoder import pipeline
from flowvec.engine.elastic_session import ElasticSession
from flowvec.engine.providers import OPENVINO, Engine
from flowvec.engine.selection import available_providers
from flowvec.errors import ClosedError, EngineError, EngineNotProvedError
from flowvec.machine import available_cores, available_memory
from tests.inside import pipeline_of
from tests.waiting import wait_until

IDS = np.ones((1, 3), dtype=np.int64)


class Recorder:
    """A session that says which it is, and can be held up."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls = 0
        self.error: EngineError | None = None
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()

    def run(
        self, input_ids: npt.NDArray[np.int64], attention_mask: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        self.calls += 1
        self.entered.set()
        assert self.may_go.wait(60)
        if self.error is not None:
            raise self.error
        return np.full((1, 1), self.engine.threads, dtype=np.float32)


@pytest.fixture
def streams() -> Recorder:
    return Recorder(Engine(OPENVINO, "float32", 2))


@pytest.fixture
def all_cores() -> Recorder:
    return Recorder(Engine(OPENVINO, "float32", 1, 2))


def at_once(work: Callable[[], None]) -> None:
    work()


def elastic(streams: Recorder, all_cores: Recorder) -> ElasticSession:
    """A session that has opened the graph for all cores."""
    session = ElasticSession(streams, lambda: all_cores, at_once)
    while session.threads_alone == 1:
        assert session.run(IDS, IDS, alone=True)[0, 0] == 1
    return session


def test_batches_that_are_alone_get_all_cores(streams: Recorder, all_cores: Recorder) -> None:
    session = elastic(streams, all_cores)
    assert streams.calls == 16  # short commands do not compile the graph twice
    assert session.run(IDS, IDS, alone=True)[0, 0] == 2
    assert session.run(IDS, IDS, alone=False)[0, 0] == 1
    assert session.run(IDS, IDS)[0, 0] == 1


def test_all_cores_take_several_batches_in_a_row_that_are_alone(
    streams: Recorder, all_cores: Recorder
) -> None:
    session = elastic(streams, all_cores)
    session.run(IDS, IDS)  # one that is not alone
    threads = [session.run(IDS, IDS, alone=True)[0, 0] for _ in range(5)]
    assert threads == [1, 1, 1, 2, 2]


def test_all_cores_that_need_not_be_opened_are_used_from_the_start(
    streams: Recorder, all_cores: Recorder
) -> None:
    session = ElasticSession(streams, all_cores=all_cores)
    assert session.threads_alone == 2
    threads = [session.run(IDS, IDS, alone=True)[0, 0] for _ in range(5)]
    assert threads == [1, 1, 1, 2, 2]
    assert session.run(IDS, IDS)[0, 0] == 1


@pytest.mark.parametrize("first", ["streams", "all_cores"])
def test_a_batch_beside_another_one_gets_one_core(
    streams: Recorder, all_cores: Recorder, first: str
) -> None:
    session = elastic(streams, all_cores)
    running = streams if first == "streams" else all_cores
    running.entered.clear()
    running.may_go.clear()
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(session.run, IDS, IDS, alone=first == "all_cores")
        assert running.entered.wait(60)
        before = streams.calls
        # Its caller has nothing else that waits, but another caller's batch runs.
        second = pool.submit(session.run, IDS, IDS, alone=True)
        wait_until(lambda: streams.calls > before)
        running.may_go.set()
        assert second.result(60)[0, 0] == 1
        assert other.result(60)[0, 0] == running.engine.threads
    threads = [session.run(IDS, IDS, alone=True)[0, 0] for _ in range(4)]
    assert threads[-1] == 2  # they are alone again


def test_without_the_second_graph_the_streams_go_on(streams: Recorder) -> None:
    def fails() -> Recorder:
        raise EngineError("no memory is left")

    session = ElasticSession(streams, fails, at_once)
    for _ in range(40):
        assert session.run(IDS, IDS, alone=True)[0, 0] == 1
    assert session.threads_alone == 1


def test_a_failing_batch_is_not_counted_as_running(streams: Recorder, all_cores: Recorder) -> None:
    session = elastic(streams, all_cores)
    all_cores.error = EngineError("it broke")
    with pytest.raises(EngineError):
        session.run(IDS, IDS, alone=True)
    all_cores.error = None
    assert session.run(IDS, IDS, alone=True)[0, 0] == 2


# --- with OpenVINO --------------------------------------------------------------------------------

needs_cores = pytest.mark.skipif(
    OPENVINO not in available_providers() or available_cores() < 2,
    reason="OpenVINORuntime cannot run on several cores on this machine",
)


@needs_cores
def test_single_texts_get_all_cores_and_the_same_vectors(tiny_dir: Path) -> None:
    texts = ["the cat", "a dog runs in the garden", "stocks fell"]
    with Encoder.load(tiny_dir, provider="openvino", compute="float32") as encoder:
        expected = [encoder.encode(text) for text in texts]
        for _ in range(20):
            encoder.encode("the cat")
        wait_until(lambda: encoder.info().threads_alone == available_cores())
        for text, vector in zip(texts, expected, strict=True):
            np.testing.assert_allclose(encoder.encode(text), vector, atol=1e-5)
        assert encoder.engine.threads == 1


@needs_cores
def test_threads_that_share_an_encoder_get_the_same_vectors(tiny_dir: Path) -> None:
    texts = [f"the cat {'runs ' * (i % 5)}" for i in range(60)]
    with Encoder.load(tiny_dir, provider="openvino", compute="float32") as encoder:
        expected = encoder.encode(texts)
        for _ in range(20):
            encoder.encode("the cat")
        with SharedEncoder(encoder) as shared, ThreadPoolExecutor(8) as pool:
            for encode in (encoder.encode, shared.encode):
                np.testing.assert_allclose(list(pool.map(encode, texts)), expected, atol=1e-5)


@needs_cores
@pytest.mark.parametrize("options", [{"streams": 2}, {"threads": 1}, {"provider": "cpu"}])
def test_streams_and_threads_that_were_named_stay(
    tiny_dir: Path, options: dict[str, int | str]
) -> None:
    with Encoder.load(tiny_dir, **({"provider": "openvino"} | options)) as encoder:
        for _ in range(40):
            encoder.encode("the cat")
        session, _ = pipeline_of(encoder).ready()
        assert session._open is None  # so it never will
        assert encoder.info().threads_alone == encoder.engine.threads == 1


@needs_cores
def test_with_little_memory_the_graph_is_compiled_once(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for left, threads in ((1000, 1), (1 << 40, available_cores())):
        monkeypatch.setattr(pipeline, "available_memory", partial(int, left))
        with Encoder.load(tiny_dir, provider="openvino") as encoder:
            session, _ = pipeline_of(encoder).ready()
            session._open_all_cores()  # what the background would do
            assert encoder.info().threads_alone == threads


@needs_cores
def test_closing_while_the_graph_is_compiled_again_is_harmless(tiny_dir: Path) -> None:
    for calls in (15, 16, 17, 18):
        encoder = Encoder.load(tiny_dir, provider="openvino")
        for _ in range(calls):
            encoder.encode("the cat")
        encoder.close()


def test_the_memory_that_is_left_is_at_most_the_machines() -> None:
    left = available_memory()
    if left is not None:
        assert 0 < left < 1 << 50


def test_an_encoder_that_is_closed_meanwhile_loses_no_result(streams: Recorder) -> None:
    def closed(work: Callable[[], None]) -> None:
        raise ClosedError("this Encoder is closed")

    session = ElasticSession(streams, lambda: streams, closed)
    for _ in range(20):
        assert session.run(IDS, IDS, alone=True)[0, 0] == 1


def test_an_engine_that_is_wrong_on_all_cores_is_not_used(
    streams: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong() -> Recorder:
        raise EngineNotProvedError("its vectors are wrong", OPENVINO, "float32")

    session = ElasticSession(streams, wrong, at_once)
    for _ in range(20):
        assert session.run(IDS, IDS, alone=True)[0, 0] == 1
    assert "one core: its vectors are wrong" in caplog.text
