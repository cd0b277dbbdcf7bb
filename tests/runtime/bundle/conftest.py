"""A hub on the loopback interface and processes that load models from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.conftest import DATA
from tests.hub import Hub, files_of

# Loads the model of the first argument, with options in JSON as the second, and prints one line.
LOAD = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
logging.getLogger("httpx").setLevel(logging.WARNING)
from flowvec import Encoder
from flowvec.errors import FlowvecError
options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
try:
    with Encoder.load(sys.argv[1], provider="cpu", streams=1, proof="never", **options) as encoder:
        info = encoder.info()
        result = {
            "path": info.path, "name": info.name, "source": info.source,
            "handle": encoder.bundle.handle, "fingerprint": encoder.fingerprint,
            "vector": encoder.encode("the cat").tolist(),
        }
except FlowvecError as error:
    result = {"error": type(error).__name__, "message": str(error)}
imported = [n for n in ("torch", "onnx", "transformers", "huggingface_hub") if sys.modules.get(n)]
print(json.dumps(result | {"imported": imported}))
"""

Load = Callable[..., dict[str, Any]]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def graph_files() -> dict[str, bytes]:
    """A checkpoint of a few kilobytes with an ONNX graph, which is exported without torch."""
    return files_of(DATA / "optimum" / "bert")


@pytest.fixture(scope="session")
def model_files() -> dict[str, bytes]:
    """A table of words as model2vec saves it: of all models it takes the least time to export."""
    pytest.importorskip("onnx", reason="needs the extra [export]")
    from safetensors.numpy import save

    words = ["[UNK]", "the", "a", "cat", "dog", "sleeps", "runs", *map(str, range(300))]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    rows = np.random.default_rng(0).standard_normal((len(words), 64), dtype=np.float32)
    config = {"model_type": "model2vec", "normalize": True, "hidden_dim": 64}
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors": save({"embeddings": rows}),
        "tokenizer.json": tokenizer.to_str().encode(),
    }


@pytest.fixture
def hub(model_files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub with the model `org/tiny`."""
    with Hub() as started:
        started.add("org/tiny", model_files)
        yield started


@pytest.fixture
def start(hub: Hub, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start a process that loads a model; `environment` changes variables, None removes one."""
    (tmp_path / "work").mkdir(exist_ok=True)

    def run(
        name: str,
        *,
        environment: dict[str, str | None] | None = None,
        code: str = LOAD,
        **options: Any,
    ) -> subprocess.Popen[str]:
        variables = hub.environment(tmp_path) | (environment or {})
        return subprocess.Popen(
            [sys.executable, "-c", code, name, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path / "work",
            env={key: value for key, value in variables.items() if value is not None},
        )

    return run


@pytest.fixture
def load(start: Callable[..., subprocess.Popen[str]]) -> Load:
    """Load a model in a process; returns what it printed, with its log as `log`."""

    def run(name: str, **options: Any) -> dict[str, Any]:
        return answer_of(start(name, **options))

    return run


@pytest.fixture
def command(hub: Hub, tmp_path: Path) -> Command:
    """Run the command line against the hub."""
    (tmp_path / "work").mkdir(exist_ok=True)

    def run(*words: object, offline: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "flowvec", *map(str, words)],
            capture_output=True,
            text=True,
            cwd=tmp_path / "work",
            env=hub.environment(tmp_path) | {"HF_HUB_OFFLINE": "1" if offline else "0"},
            timeout=900,
        )

    return run


def answer_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a process of `start` printed, with its log as `log`."""
    out, log = process.communicate(timeout=900)
    assert process.returncode == 0, log
    return json.loads(out.splitlines()[-1]) | {"log": log}
