"""Fixtures that all tests share. Nothing here needs torch, transformers or onnx."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import logging
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Encoder, MultiVectorEncoder, Reranker, SparseEncoder
from flowvec.engine.selection import available_providers
from tests import tiers

# torch's cache of operators takes two fifths of a trace, and changes no graph: see
# tests/export/assembly/test_tracing.py. torch, here and in processes of the tests, reads this name.
os.environ.setdefault("TORCH_FAKE_TENSOR_DISPATCH_CACHE", "0")

DATA = Path(__file__).resolve().parent / "data"
SHARED = Path(os.environ.get("FLOWVEC_SHARED", Path(__file__).resolve().parents[2] / "shared"))


# --- the native library ---------------------------------------------------------------------------

BUILD = Path(__file__).resolve().parents[1] / "hatch_build.py"


def pytest_configure(config: pytest.Config) -> None:
    """Build the native library where a source tree lacks it, or has an older one; choose tiers."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker and BUILD.is_file():
        builder = runpy.run_path(str(BUILD))
        if builder["is_stale"]():
            builder["build"]()
    for name, meaning in tiers.TIERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    gc.disable()  # until the tests run: packages that are imported stay
    config.add_cleanup(gc.unfreeze)  # the last one: they go as usual
    config.pluginmanager.register(tiers, "tiers")
    if not is_worker:
        config.pluginmanager.register(Failures(config), "failures")
    tiers.watch_for_processes()
    # Who names no path and no mark runs the unit tier.
    if is_worker:
        config.option.markexpr = config.workerinput["markexpr"]
    elif not (config.option.markexpr or config.args_source is pytest.Config.ArgsSource.ARGS):
        config.option.markexpr = "unit"


class Failures:
    """Names a failure at once: a run of many minutes may be stopped before its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\nFAILED {report.nodeid} ({report.when})", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--shuffle SEED` shows tests that depend on others."""
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run tests in another order")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Workers choose the same tests."""
    node.workerinput["markexpr"] = node.config.option.markexpr


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is left out."""
    if config.option.markexpr != "unit":
        return None
    others = " or ".join(list(tiers.TIERS)[1:])
    return f"the unit tier; `-m` or a path runs others: {others}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what another tier needs."""
    if collection_path.is_dir():
        return None  # a file in it may be of another tier
    is_left_out = tiers.of_place(collection_path) not in (None, config.option.markexpr)
    return True if config.option.markexpr in tiers.TIERS and is_left_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, before `-m` chooses."""
    tiers.mark(items)
    if config.option.shuffle is not None:
        tiers.shuffle(items, config.option.shuffle)


def pytest_collection_finish() -> None:
    """Collect garbage again, but do not look through the imported packages each time."""
    gc.freeze()
    gc.enable()


# --- Hypothesis -----------------------------------------------------------------------------------

if importlib.util.find_spec("hypothesis") is not None:  # tests of the wheels run without it
    from tests.drawing import register_profiles

    register_profiles()


# --- skips ----------------------------------------------------------------------------------------

ALLOWED_SKIPS = Path(__file__).resolve().parent / "allowed_skips.txt"
_refused_skips: list[str] = []


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        lines = ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()
        patterns = [line for line in lines if line and not line.startswith("#")]
        if not any(re.search(pattern, reason) for pattern in patterns):
            _refused_skips.append(f"{report.nodeid}: {reason}")


pytest_runtest_logreport = pytest_collectreport = _note_skip


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip whose reason is not in allowed_skips.txt is a failure."""
    if _refused_skips and os.environ.get("CI"):
        for line in _refused_skips:
            print(f"\nskipped without leave: {line}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True, scope="session")
def _no_tuning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests use an empty cache, so that a developer's tuned settings do not decide the engine."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # all workers share it: an engine is compared once
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWVEC_CACHE", str(folder / "cache"))
        # No test reaches the Internet: a name that is no path would be looked up on the hub.
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture
def listens_to_interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt; a process in a shell's background starts ignoring it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# --- data -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """STS sets, retrieval sets and Wikipedia text; tests that need them are skipped without."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("needs the data folder ../shared/data, which is not here")
    return folder


@pytest.fixture(scope="session")
def tiny_dir() -> Path:
    """A committed bundle: random BERT, mean, Dense with tanh, prompts, not normalized, dim 16."""
    return DATA / "bundles" / "tiny"


@pytest.fixture(scope="session")
def reranker_dir() -> Path:
    """A committed reranker: random BERT with token types, one label, sigmoid, 64 tokens."""
    return DATA / "bundles" / "reranker"


@pytest.fixture(scope="session")
def sparse_dir() -> Path:
    """A committed sparse encoder: random BERT, max, no prompts, 64 tokens."""
    return DATA / "bundles" / "sparse"


@pytest.fixture(scope="session")
def multi_vector_dir() -> Path:
    """A committed multi-vector encoder: random BERT, dim 16, queries filled up to 24 tokens."""
    return DATA / "bundles" / "multi_vector"


@pytest.fixture(scope="session")
def nan_dir() -> Path:
    """The tiny bundle with NaN in the embedding of the word "nan"."""
    return DATA / "bundles" / "nan"


@pytest.fixture
def tiny_copy(tiny_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle that a test may damage."""
    return Path(shutil.copytree(tiny_dir, tmp_path / "bundle"))


@pytest.fixture(scope="session", params=["CPUExecutionProvider", "OpenVINORuntime"])
def provider(request: pytest.FixtureRequest) -> str:
    """Every execution provider that can run here."""
    if request.param not in available_providers():
        pytest.skip(f"{request.param} cannot run on this machine")
    return str(request.param)


@pytest.fixture(scope="session")
def reranker(reranker_dir: Path) -> Iterator[Reranker]:
    with Reranker.load(reranker_dir, provider="cpu", streams=2) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def multi_vector(multi_vector_dir: Path) -> Iterator[MultiVectorEncoder]:
    with MultiVectorEncoder.load(multi_vector_dir, provider="cpu", streams=2) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def sparse_encoder(sparse_dir: Path) -> Iterator[SparseEncoder]:
    with SparseEncoder.load(sparse_dir, provider="cpu", streams=2) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path) -> Iterator[Encoder]:
    with Encoder.load(tiny_dir, provider="cpu", streams=2) as encoder:
        yield encoder


def first_layers_of_backbone(folder: Path, layers: int) -> Path:
    """A trained, anisotropic BERT that is quick to trace: the first layers of the repository's own.

    Its vectors have a mean cosine of more than .6 after each layer.
    """
    from safetensors.numpy import load_file, save_file

    shutil.copytree(Path(__file__).resolve().parents[1] / "models/backbone/checkpoint", folder)
    config = json.loads((folder / "config.json").read_text())
    assert layers < config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    weights = load_file(folder / "model.safetensors")
    left = re.compile(rf"layer\.(?!{'|'.join(map(str, range(layers)))})\d+\.")
    kept = {name: w for name, w in weights.items() if not left.search(name)}
    assert len(kept) == len(weights) - 16 * (config["num_hidden_layers"] - layers)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained BERT of two layers, followed by mean, Dense and normalization.

    A sentence-transformers directory: the first two layers of the repository's backbone, and a
    Dense layer close to the identity.
    """
    from safetensors.numpy import save_file

    folder = first_layers_of_backbone(tmp_path_factory.mktemp("trained") / "checkpoint", 2)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    names = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = []
    for number, name in enumerate(names):
        path = f"{number}_{name}" if number else ""
        (folder / path).mkdir(exist_ok=True)
        modules.append(
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{name}",
            }
        )
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": width, "pooling_mode_mean_tokens": True})
    )
    (folder / "2_Dense/config.json").write_text(
        json.dumps(
            {
                "in_features": width,
                "out_features": width,
                "bias": True,
                "activation_function": "torch.nn.modules.linear.Identity",
            }
        )
    )
    rng = np.random.default_rng(0)
    turn = np.eye(width) + 0.1 * rng.normal(size=(width, width)) / width**0.5
    save_file(
        {"linear.weight": turn.astype(np.float32), "linear.bias": np.zeros(width, np.float32)},
        folder / "2_Dense/model.safetensors",
    )
    return folder


@pytest.fixture(scope="session")
def mini() -> Iterator[Encoder]:
    with Encoder.load("mini", provider="cpu") as encoder:
        yield encoder


RunCommand = Callable[..., subprocess.CompletedProcess[str]]


@contextlib.contextmanager
def _piped(data: bytes) -> Iterator[TextIOWrapper]:
    """A pipe that holds some bytes, to be standard input."""
    reader, writer = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reader, encoding="utf-8") as stream:
        yield stream
    thread.join()


@pytest.fixture
def flowvec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunCommand:
    """The command line in this process, in an empty folder: starting Python takes longer."""

    def run(*arguments: object, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
        from flowvec.cli.main import main

        words = ["flowvec", *map(str, arguments)]
        data = stdin.encode() if isinstance(stdin, str) else stdin
        with monkeypatch.context() as patch, _piped(data) as stream:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", words)
            patch.setattr(sys, "stdin", stream)
            for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
                patch.setenv(name, value)
            handler = signal.getsignal(signal.SIGTERM)
            root = logging.getLogger()
            handlers, level = root.handlers[:], root.level
            capsys.readouterr()  # discards what was printed before
            try:
                with pytest.raises(SystemExit) as stop:
                    main()
            finally:
                signal.signal(signal.SIGTERM, handler)
                root.handlers[:] = handlers  # `flowvec serve` sets its own
                root.setLevel(level)
        return subprocess.CompletedProcess(words, int(stop.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def python(tmp_path: Path) -> RunCommand:
    """Run Python code in a fresh process."""

    def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=900,
        )

    return run
