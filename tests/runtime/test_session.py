"""What was asked for is what runs, or an error says why."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flowvec import Bundle, Encoder, EngineError, InputValueError, ProviderUnavailableError
from flowvec import session as session_module
from flowvec.machine import available_cores, cpu_features
from flowvec.session import (
    Engine,
    Session,
    available_providers,
    choose_engine,
    conflicting_wheels,
    provider_status,
)


def test_the_cpu_provider_can_always_run() -> None:
    assert available_providers()[-1] == "CPUExecutionProvider"
    assert provider_status()["CPUExecutionProvider"] is None


def test_without_being_asked_the_first_available_provider_is_taken() -> None:
    engine = choose_engine()
    assert engine.provider == available_providers()[0]
    assert engine.streams == available_cores()


@pytest.mark.parametrize(
    ("short", "full"), [("cpu", "CPUExecutionProvider"), ("openvino", "OpenVINOExecutionProvider")]
)
def test_short_and_full_names_mean_the_same(short: str, full: str) -> None:
    reason = provider_status()[full]
    for name in (short, short.upper(), full):
        if reason is None:
            assert choose_engine(name).provider == full
        else:
            with pytest.raises(ProviderUnavailableError) as caught:
                choose_engine(name)
            assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["cuda", "CUDAExecutionProvider", "nonsense", ""])
def test_a_provider_that_is_not_served_is_an_error(name: str) -> None:
    with pytest.raises(ProviderUnavailableError, match="cpu, openvino"):
        choose_engine(name)


def test_a_provider_whose_package_is_absent_names_the_pip_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_openvino", None)
    with pytest.raises(ProviderUnavailableError, match=r"pip install \"flowvec\[cpu\]\""):
        choose_engine("openvino")
    assert choose_engine().provider == "CPUExecutionProvider"


def test_compute_that_the_provider_does_not_have_is_an_error() -> None:
    with pytest.raises(ProviderUnavailableError, match="bfloat16"):
        choose_engine("cpu", "bfloat16")
    with pytest.raises(InputValueError, match="float64"):
        choose_engine("cpu", "float64")  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="streams"):
        choose_engine("cpu", streams=0)


def test_bfloat16_needs_a_processor_that_has_it(
    monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    monkeypatch.setattr(session_module, "cpu_features", lambda: ["avx2"])
    if provider == "OpenVINOExecutionProvider":
        assert choose_engine(provider).compute == "float32"
        with pytest.raises(ProviderUnavailableError, match="amx_bf16"):
            choose_engine(provider, "bfloat16")
    else:
        assert choose_engine(provider).compute == "float32"


def test_the_engine_that_runs_is_the_one_shown(provider: str, tiny_dir: Path) -> None:
    with Encoder.load(tiny_dir, provider=provider) as encoder:
        assert encoder.info().provider == provider
        assert encoder.engine.provider == provider
        if provider == "OpenVINOExecutionProvider" and "amx_bf16" in cpu_features():
            assert encoder.engine.compute == "bfloat16"


def test_a_provider_that_does_not_really_run_is_an_error(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session on the CPU provider, asked to be OpenVINO's: what a silent fallback looks like.
    monkeypatch.setattr(session_module, "_add_openvino", lambda *_: None)
    engine = Engine("OpenVINOExecutionProvider", "float32", 1)
    with pytest.raises(ProviderUnavailableError, match="ONNX Runtime runs CPUExecutionProvider"):
        Session(Bundle.load(tiny_dir), engine)


def test_a_failing_run_is_a_typed_error(tiny_dir: Path) -> None:
    session = Session(Bundle.load(tiny_dir), choose_engine("cpu"))
    ids = np.full((1, 4), 10**6, dtype=np.int64)
    with pytest.raises(EngineError, match=r"shape \(1, 4\)"):
        session.run(ids, np.ones_like(ids))


def test_run_may_be_called_from_many_threads(tiny_dir: Path, provider: str) -> None:
    session = Session(Bundle.load(tiny_dir), choose_engine(provider, "float32", 2))
    rng = np.random.default_rng(0)
    batches = [rng.integers(5, 80, size=(1 + i % 5, 3 + i % 17)) for i in range(60)]
    expected = [session.run(ids, np.ones_like(ids)) for ids in batches]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda ids: session.run(ids, np.ones_like(ids)), batches)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_one_wheel_brings_onnxruntime() -> None:
    assert len(conflicting_wheels()) == 1
