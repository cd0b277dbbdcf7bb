"""Checkpoints that are exported when they are loaded: in a child, with torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowvec import Encoder, Reranker
from flowvec.errors import BundleError, ExportError, InputValueError
from flowvec_export import export
from tests.export.conftest import Checkpoint
from tests.hub import Hub, files_of
from tests.runtime.bundle.conftest import LOAD

transformers = pytest.importorskip("transformers", reason="needs the extra [export]")

Load = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWVEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as started:
        yield started


@pytest.fixture
def load(hub: Hub, tmp_path: Path) -> Load:
    def run(name: str, **options: Any) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-c", LOAD, name, json.dumps(options)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=hub.environment(tmp_path),
            timeout=900,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.process
def test_weights_are_exported_by_a_child_as_flowvec_export_does(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    source = checkpoint("bert")
    whole = export(source, tmp_path / "bundle")
    with Encoder.load(source, provider="cpu") as encoder:
        assert encoder.fingerprint == whole.fingerprint
        assert encoder.bundle.handle == str(source)
    # The class is the only thing that tells a wrong kind: the bundle is there already.
    with pytest.raises(BundleError, match=r"an embedder.*flowvec\.Encoder"):
        Reranker.load(source)


def test_a_revision_is_for_a_name_of_the_hub(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(InputValueError, match=r"revision .*Hugging Face name"):
        export(checkpoint("bert"), tmp_path / "out", revision="main")
    assert not (tmp_path / "out").exists()


@pytest.mark.process
def test_a_cross_encoder_says_which_class_opens_it(checkpoint: Checkpoint, tmp_path: Path) -> None:
    source = Path(shutil.copytree(checkpoint("bert"), tmp_path / "judge"))
    config = transformers.AutoConfig.from_pretrained(source, num_labels=1)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(source)
    with pytest.raises(BundleError) as error:
        Encoder.load(source)
    message = (
        f"an embedder is needed, and {source} is a reranker; open it with "
        f"flowvec.Reranker.load({str(source)!r}), or use it with `flowvec rerank`"
    )
    assert str(error.value) == message
    with Reranker.load(source, provider="cpu") as reranker:
        assert reranker.predict([("a text", "another")]).shape == (1,)


@pytest.mark.process
def test_pickles_are_read_only_if_the_caller_says_so(
    checkpoint: Checkpoint, hub: Hub, load: Load, tmp_path: Path
) -> None:
    import torch

    source = Path(shutil.copytree(checkpoint("bert"), tmp_path / "pickled"))
    weights = transformers.AutoModel.from_pretrained(source).state_dict()
    (source / "model.safetensors").unlink()
    torch.save(weights, source / "pytorch_model.bin")
    hub.add("org/pickled", files_of(source))
    refused = load("org/pickled")
    assert refused["error"] == "ExportError"
    assert "allow_pickle=True" in refused["message"]
    assert "\n" not in refused["message"]
    trusted = load("org/pickled", allow_pickle=True)
    assert trusted["name"] == "pickled"
    assert trusted["handle"] == trusted["path"]
    assert load(trusted["handle"])["vector"] == trusted["vector"]
    # What one caller allowed is not allowed to the next.
    assert load("org/pickled")["error"] == "ExportError"


@pytest.mark.process
def test_code_runs_only_if_the_caller_says_so(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shutil.copytree(checkpoint("bert"), tmp_path / "coded"))
    config = json.loads((source / "config.json").read_text())
    ours = {"model_type": "tiny-own", "auto_map": {"AutoConfig": "code.C", "AutoModel": "code.M"}}
    (source / "config.json").write_text(json.dumps(config | ours))
    (source / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    # Neither a variable nor a manifest can allow it.
    for name in ("TRUST_REMOTE_CODE", "HF_TRUST_REMOTE_CODE", "FLOWVEC_TRUST_REMOTE_CODE"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(ExportError, match="trust_remote_code=True"):
        Encoder.load(source)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ExportError):  # the code defines no model
        Encoder.load(source, trust_remote_code=True)
    assert (tmp_path / "ran").exists()
