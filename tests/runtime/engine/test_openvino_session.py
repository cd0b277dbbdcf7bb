"""What flowvec tells OpenVINO, and what comes of it in the compiled model."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flowvec import Bundle, Encoder
from flowvec.engine import openvino_session
from flowvec.engine.openvino_session import OpenVinoSession, openvino_config
from flowvec.engine.providers import OPENVINO, Engine, has_bfloat16
from flowvec.engine.selection import available_providers, provider_status
from flowvec.machine import cpu_features

if OPENVINO not in available_providers():
    pytest.skip(f"{OPENVINO} cannot run on this machine", allow_module_level=True)


def node_types(session: OpenVinoSession) -> Counter[str]:
    """How many nodes of each type the compiled model has."""
    nodes = session._compiled.get_runtime_model().get_ops()
    return Counter(node.get_rt_info()["layerType"].astype(str) for node in nodes)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_attention_is_not_fused_unless_tuning_says_so(tiny_dir: Path, compute: str) -> None:
    if compute == "bfloat16" and not has_bfloat16(cpu_features()):
        pytest.skip("this processor has no bfloat16")
    bundle = Bundle.load(tiny_dir)
    plain = node_types(OpenVinoSession(bundle, Engine(OPENVINO, compute, 1)))
    assert plain["Softmax"] > 0
    assert plain["MatMul"] == 2 * plain["Softmax"]  # of each layer
    fused = node_types(OpenVinoSession(bundle, Engine(OPENVINO, compute, 1, fused_attention=True)))
    assert (fused["Softmax"], fused["MatMul"]) == (0, 0)


def test_an_openvino_without_that_property_still_runs(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openvino_session, "_NOT_FUSED", {"NO_SUCH_PROPERTY": "DISABLE"})
    with (
        caplog.at_level(logging.DEBUG, logger=openvino_session.__name__),
        Encoder.load(tiny_dir, provider="openvino", proof="always") as encoder,
    ):
        assert encoder.proof.proved
    assert "attention stays fused" in caplog.text


def test_no_stream_is_pinned_and_shapes_are_bounded() -> None:
    config = openvino_config(Engine(OPENVINO, "float32", 2, 3))
    assert config["ENABLE_CPU_PINNING"] == "NO"
    assert config["CPU_RUNTIME_CACHE_CAPACITY"] == "256"
    assert (config["NUM_STREAMS"], config["INFERENCE_NUM_THREADS"]) == ("2", "6")


@pytest.mark.parametrize(
    ("compute", "features", "hint"),
    [
        ("float32", ["avx512_bf16"], "f32"),
        ("bfloat16", ["avx512_bf16"], "bf16"),
        ("float16", ["amx_bf16", "amx_fp16"], "f16"),
        ("int8", ["amx_bf16"], "bf16"),
        ("int8", ["avx512f"], "f32"),
    ],
)
def test_the_hint_follows_the_compute_type(compute: str, features: list[str], hint: str) -> None:
    config = openvino_config(Engine(OPENVINO, compute, 1), features)
    assert config["INFERENCE_PRECISION_HINT"] == hint


def test_a_broken_openvino_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("a plugin is missing")

    stand_in = ModuleType("openvino")
    stand_in.Core = broken  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openvino", stand_in)
    assert "does not run: a plugin is missing" in str(provider_status()[OPENVINO])


def test_a_signal_is_harmless_after_another_thread_closed_a_model(
    python: Any, tiny_dir: Path
) -> None:
    done = python(
        "import os, signal, sys, threading; from flowvec import Encoder\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "encoder = Encoder.load(sys.argv[1], provider='openvino', streams=1)\n"
        "encoder.encode(['a'])\n"
        "thread = threading.Thread(target=encoder.close); thread.start(); thread.join()\n"
        "signal.raise_signal(signal.SIGTERM)\n",
        tiny_dir,
    )
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
