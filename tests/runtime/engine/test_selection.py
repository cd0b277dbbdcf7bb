"""Which engine is chosen on this machine, and the errors if it cannot run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowvec import Encoder, InputValueError, ProviderUnavailableError
from flowvec.engine.providers import CPU, CUDA, NATIVE, OPENVINO, PROVIDERS, TENSORRT, choose
from flowvec.engine.selection import available_providers, choose_engine, provider_status
from flowvec.errors import MissingDependencyError
from flowvec.machine import available_cores, cpu_features


def test_the_cpu_provider_can_always_run() -> None:
    assert list(provider_status()) == list(PROVIDERS)
    assert available_providers()[-1] == CPU


def test_by_default_the_first_available_provider_is_used() -> None:
    engine = choose_engine()
    assert engine.provider == next(p for p in available_providers() if p not in (TENSORRT, NATIVE))
    if engine.device == "cpu":
        assert engine.streams == available_cores()


@pytest.mark.parametrize(("package", "provider", "line"), [("openvino", OPENVINO, "[cpu]")])
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


def test_bfloat16_needs_a_processor_that_has_it(provider: str) -> None:
    machine = provider_status(), ["avx2"], 2
    assert choose(*machine, provider=provider).compute == "float32"
    with pytest.raises(ProviderUnavailableError, match=r"amx_bf16|arm_bf16"):
        choose(*machine, provider=provider, compute="bfloat16")


def test_the_engine_that_runs_is_the_one_shown(provider: str, tiny_dir: Path) -> None:
    with Encoder.load(tiny_dir, provider=provider) as encoder:
        assert encoder.info().provider == provider
        assert encoder.engine.provider == provider
        if provider != CPU and {"amx_bf16", "avx512_bf16"} & set(cpu_features()):
            assert encoder.engine.compute == "bfloat16"


def test_streams_must_be_at_least_one() -> None:
    with pytest.raises(InputValueError, match="streams"):
        choose_engine("cpu", streams=0)


def test_a_limit_on_instruction_sets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if OPENVINO not in available_providers():
        pytest.skip(f"{OPENVINO} cannot run on this machine")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx2")
    with pytest.raises(ProviderUnavailableError, match="AVX2"):
        choose_engine("openvino", "bfloat16")
