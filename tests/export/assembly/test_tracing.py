"""What makes the tests' traces quicker changes no graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowvec_export import export
from tests import trace_memo


def test_a_graph_is_the_same_however_torch_traces_it(
    checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced_anew
) -> None:
    """As torch does by itself, and as it does in all tests."""
    source = checkpoint("bert")
    for as_in_tests in (True, False):
        traced_anew()
        if not as_in_tests:
            for module, name in trace_memo.TABLES:
                place = trace_memo.place_of(module)
                monkeypatch.setattr(place, name, getattr(place, name).__wrapped__)
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=not as_in_tests):
            export(source, tmp_path / str(as_in_tests), name="same")
    for file in ("manifest.json", "model.onnx"):
        first, second = ((tmp_path / name / file).read_bytes() for name in ("True", "False"))
        assert first == second
