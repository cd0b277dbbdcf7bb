"""Fixtures for tests of the runtime."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of tuned settings and proofs."""
    monkeypatch.setenv("FLOWVEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def three(reranker_dir: Path, tmp_path: Path) -> Path:
    """The tiny reranker with three labels: its logit, its negative, and zero."""
    onnx = pytest.importorskip("onnx", reason="needs the extra [export]")
    from flowvec.bundle.bundle import record_file
    from flowvec.encoder.references import References

    folder = Path(shutil.copytree(reranker_dir, tmp_path / "three"))
    graph = onnx.load(folder / "model.onnx")
    for node in graph.graph.node:
        node.output[:] = ["one" if name == "logits" else name for name in node.output]
    factors = onnx.numpy_helper.from_array(np.array([[1, -1, 0]], dtype=np.float32), "factors")
    graph.graph.initializer.append(factors)
    graph.graph.node.append(onnx.helper.make_node("MatMul", ["one", "factors"], ["logits"]))
    graph.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 3
    onnx.save(graph, folder / "model.onnx")
    file = folder / "manifest.json"
    raw = json.loads(file.read_text())
    raw["dim"], raw["head"] = 3, {"labels": ["yes", "no", "maybe"], "activation": "softmax"}
    references = References.read(folder / "references.npz", 1)
    stacked = references.vectors * np.array([[1, -1, 0]], dtype=np.float32)
    (folder / "references.npz").write_bytes(
        References(references.ids, stacked, references.second).to_bytes()
    )
    for name in raw["files"]:
        record = record_file(folder / name)
        raw["files"][name] = {"bytes": record.bytes, "sha256": record.sha256}
    file.write_text(json.dumps(raw))
    return folder
