"""Without a visible NVIDIA GPU the CPU is chosen, and `device="cuda"` says why not."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from flowvec import Encoder, ProviderUnavailableError
from flowvec.engine import gpus
from flowvec.engine.gpus import hides_all_gpus, why_no_gpu
from flowvec.engine.providers import CPU, CUDA, TENSORRT
from flowvec.engine.selection import available_providers, choose_engine, provider_status


@pytest.mark.parametrize("visible", ["", " ", "-1", "-1,0", ",0", "none", "NoDevFiles", "2", "7,0"])
def test_values_that_hide_all_gpus(visible: str) -> None:
    assert hides_all_gpus(visible, 2)


@pytest.mark.parametrize(
    "visible", ["0", "1", " 1 ", "0,1", "1,-1", "0,7", "GPU-8932f937", "MIG-1"]
)
def test_values_that_leave_a_gpu(visible: str) -> None:
    assert not hides_all_gpus(visible, 2)


def test_an_index_is_believed_where_gpus_cannot_be_counted() -> None:
    assert not hides_all_gpus("7", None)
    assert hides_all_gpus("-1", None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine with this many GPUs, and an ONNX Runtime for them. Nothing can be opened on it."""
    names = types.SimpleNamespace(
        get_available_providers=lambda: [TENSORRT, CUDA, CPU], InferenceSession=None
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", names)
    count = [2]
    monkeypatch.setattr(gpus, "_installed_gpus", lambda: count[0])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return count


@pytest.mark.usefixtures("installed")
def test_a_visible_gpu_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for visible in (None, "1", "0,1", "GPU-8932f937"):
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert choose_engine().provider == CUDA
        assert choose_engine(device="cuda").provider == CUDA
        assert choose_engine(device="cpu").device == "cpu"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("visible", ["", "-1", "2"])
def test_a_hidden_gpu_is_not_chosen(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert choose_engine().device == "cpu"
    assert CUDA not in available_providers()
    for arguments in ({"device": "cuda"}, {"provider": "cuda"}, {"provider": "tensorrt"}):
        with pytest.raises(ProviderUnavailableError, match="CUDA_VISIBLE_DEVICES") as caught:
            choose_engine(**arguments)
        assert repr(visible) in str(caught.value)


def test_a_machine_without_a_gpu_says_so(
    monkeypatch: pytest.MonkeyPatch, installed: list[int]
) -> None:
    installed[0] = 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # names a GPU that is not there
    assert choose_engine().device == "cpu"
    with pytest.raises(ProviderUnavailableError, match="no NVIDIA GPU"):
        choose_engine(device="cuda")


@pytest.mark.parametrize("visible", ["", "-1"])
def test_an_encoder_runs_on_the_cpu_of_any_machine_whose_gpus_are_hidden(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert why_no_gpu() is not None
    assert provider_status()[CUDA] is not None
    with Encoder.load(tiny_dir, device="auto") as encoder:
        assert encoder.engine.device == "cpu"
        assert encoder.encode("the cat").shape == (encoder.dim,)
    with pytest.raises(ProviderUnavailableError, match="cuda was asked for, but"):
        Encoder.load(tiny_dir, device="cuda")
