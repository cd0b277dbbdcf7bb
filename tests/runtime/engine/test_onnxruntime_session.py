"""The requested provider runs, or an error says why not."""

from __future__ import annotations

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from flowvec import Bundle, Encoder, EngineError, ProviderUnavailableError
from flowvec.engine import onnxruntime_session
from flowvec.engine.onnxruntime_session import Session, conflicting_wheels
from flowvec.engine.providers import (
    CPU,
    CUDA,
    PROVIDERS,
    TENSORRT,
    Engine,
)
from flowvec.engine.selection import (
    choose_engine,
    open_session,
)
from flowvec.errors import BundleError

LOGGER = onnxruntime_session.__name__


@pytest.mark.parametrize("provider", [CUDA, TENSORRT])
def test_a_provider_that_does_not_really_run_is_an_error(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    # The session runs on the CPU provider although another was requested: a silent fallback.
    falls_back = types.SimpleNamespace(
        InferenceSession=lambda *args, providers, **options: onnxruntime.InferenceSession(
            *args, providers=[CPU], **options
        ),
        SessionOptions=onnxruntime.SessionOptions,
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", falls_back)
    with pytest.raises(ProviderUnavailableError, match="runs CPUExecutionProvider"):
        Session(Bundle.load(tiny_dir), Engine(provider, "float32", 1))


class NamedCuda:
    """ONNX Runtime's session on the CPU, which says that it runs on CUDA."""

    def __init__(self, *args: Any, providers: Any, **options: Any) -> None:
        self._session = onnxruntime.InferenceSession(*args, providers=[CPU], **options)

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def test_the_engines_of_a_cpu_load_without_a_warning(
    tiny_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Session(Bundle.load(tiny_dir), Engine(CPU, "float32", 1))
    assert not [r for r in caplog.records if r.thread == threading.get_ident()]


def test_an_experimental_engine_says_so_once(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    named = types.SimpleNamespace(
        InferenceSession=NamedCuda, SessionOptions=onnxruntime.SessionOptions
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", named)
    onnxruntime_session._warned.clear()  # of other tests
    for _ in range(2):
        Session(Bundle.load(tiny_dir), Engine(CUDA, "float32", 1))
    (record,) = (r for r in caplog.records if r.thread == threading.get_ident())
    assert (record.name, record.levelname) == (LOGGER, "WARNING")
    assert "CUDAExecutionProvider is experimental" in record.message


@pytest.mark.parametrize("provider", PROVIDERS)
def test_engines_of_gpus_are_experimental(provider: str) -> None:
    engine = Engine(provider, "float32", 1)
    assert engine.is_experimental == (engine.device == "cuda")


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


def test_one_wheel_brings_onnxruntime() -> None:
    assert len(conflicting_wheels()) == 1
