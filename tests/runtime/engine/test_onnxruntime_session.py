"""The requested provider runs, or an error says why not."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flowvec import Bundle, Encoder, EngineError, InputValueError, ProviderUnavailableError
from flowvec.engine import onnxruntime_session, selection
from flowvec.engine.onnxruntime_session import Session, conflicting_wheels
from flowvec.engine.providers import (
    CPU,
    CUDA,
    OPENVINO,
    OPENVINO_RUNTIME,
    PROVIDERS,
    TENSORRT,
    Engine,
)
from flowvec.engine.selection import (
    available_providers,
    choose_engine,
    open_session,
    provider_status,
)
from flowvec.errors import BundleError, MissingDependencyError
from flowvec.machine import available_cores, cpu_features


def test_the_cpu_provider_can_always_run() -> None:
    assert list(provider_status()) == list(PROVIDERS)
    assert available_providers()[-1] == CPU


def test_by_default_the_first_available_provider_is_used() -> None:
    engine = choose_engine()
    assert engine.provider == next(p for p in available_providers() if p != TENSORRT)
    if engine.device == "cpu":
        assert engine.streams == available_cores()


@pytest.mark.parametrize(
    ("package", "provider", "line"),
    [
        ("onnxruntime_ep_openvino", OPENVINO, "[cpu]"),
        ("openvino", OPENVINO_RUNTIME, "[cpu,openvino]"),
    ],
)
def test_a_provider_whose_package_is_absent_names_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, package: str, provider: str, line: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ProviderUnavailableError) as caught:
        choose_engine(provider)
    assert line in str(caught.value)
    assert choose_engine().provider != provider


@pytest.mark.parametrize("provider", ["cuda", "tensorrt", CUDA, TENSORRT])
def test_a_gpu_that_is_not_there_is_an_error_that_says_so(provider: str) -> None:
    if CUDA in available_providers():
        pytest.skip("this machine has an NVIDIA GPU")
    with pytest.raises(ProviderUnavailableError, match=r"\[gpu\]|no NVIDIA GPU") as caught:
        choose_engine(provider)
    assert f"{provider} was asked for, but" in str(caught.value)
    with pytest.raises(ProviderUnavailableError):
        choose_engine(device="cuda")
    assert choose_engine(device="cpu").device == "cpu"


def test_without_onnxruntime_the_line_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingDependencyError, match=r"\[cpu\]"):
        choose_engine()
    with pytest.raises(ProviderUnavailableError, match=r"\[cpu\]"):
        choose_engine("cpu")


def test_bfloat16_needs_a_processor_that_has_it(
    monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    monkeypatch.setattr(selection, "cpu_features", lambda: ["avx2"])
    assert choose_engine(provider).compute == "float32"
    with pytest.raises(ProviderUnavailableError, match=r"amx_bf16|cannot compute in bfloat16"):
        choose_engine(provider, "bfloat16")


def test_the_engine_that_runs_is_the_one_shown(provider: str, tiny_dir: Path) -> None:
    with Encoder.load(tiny_dir, provider=provider) as encoder:
        assert encoder.info().provider == provider
        assert encoder.engine.provider == provider
        if provider != CPU and {"amx_bf16", "avx512_bf16"} & set(cpu_features()):
            assert encoder.engine.compute == "bfloat16"


@pytest.mark.parametrize("provider", [OPENVINO, CUDA, TENSORRT])
def test_a_provider_that_does_not_really_run_is_an_error(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    # A session on the CPU provider, asked to be another's: what a silent fallback looks like.
    monkeypatch.setattr(onnxruntime_session, "_add_openvino", lambda *_: None)
    monkeypatch.setattr(onnxruntime_session, "_gpu_providers", lambda *_: [CPU])
    with pytest.raises(ProviderUnavailableError, match="ONNX Runtime runs CPUExecutionProvider"):
        Session(Bundle.load(tiny_dir), Engine(provider, "float32", 1))


def test_a_file_that_is_not_a_graph_is_an_error(tiny_copy: Path, provider: str) -> None:
    bundle = Bundle.load(tiny_copy)
    bundle.model.write_bytes(b"no graph")
    with pytest.raises(BundleError, match=r"model\.onnx cannot be"):
        open_session(bundle, Engine(provider, "float32", 1))


def test_a_failing_run_is_a_typed_error(tiny_dir: Path) -> None:
    session = open_session(Bundle.load(tiny_dir), choose_engine("cpu"))
    ids = np.full((1, 4), 10**6, dtype=np.int64)
    with pytest.raises(EngineError, match=r"shape \(1, 4\)"):
        session.run(ids, np.ones_like(ids))


def test_run_may_be_called_from_many_threads(tiny_dir: Path, provider: str) -> None:
    session = open_session(Bundle.load(tiny_dir), choose_engine(provider, "float32", 2))
    rng = np.random.default_rng(0)
    batches = [rng.integers(5, 80, size=(1 + i % 5, 3 + i % 17)) for i in range(60)]
    expected = [session.run(ids, np.ones_like(ids)) for ids in batches]
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda ids: session.run(ids, np.ones_like(ids)), batches)
        for a, b in zip(results, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_every_provider_gives_the_same_vectors(tiny_dir: Path, provider: str) -> None:
    texts = ["the cat", "a dog runs in the garden " * 3, "", "stocks fell"] * 5
    with Encoder.load(tiny_dir, provider="cpu") as encoder:
        expected = encoder.encode(texts)
    with Encoder.load(tiny_dir, provider=provider, compute="float32") as encoder:
        np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5)


def test_streams_must_be_at_least_one() -> None:
    with pytest.raises(InputValueError, match="streams"):
        choose_engine("cpu", streams=0)


def test_one_wheel_brings_onnxruntime() -> None:
    assert len(conflicting_wheels()) == 1
