"""`flowvec doctor` reports problems of an installation."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from flowvec.cli import doctor
from flowvec.engine import onnxruntime_session


def test_doctor_finds_two_wheels_of_one_package(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.30.0"}

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        raise onnxruntime_session.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(onnxruntime_session.metadata, "version", version)
    (problem,) = doctor.examine().problems
    assert "onnxruntime 1.31.1 and onnxruntime-gpu 1.30.0" in problem
    assert "uninstall" in problem


def test_doctor_finds_the_remains_of_a_removed_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
    # It is reported even if OpenVINO works without onnxruntime.
    assert any("pip install" in problem for problem in doctor.examine().problems)
    monkeypatch.setitem(sys.modules, "openvino", None)
    report = doctor.examine()
    assert report.engine is None
    assert len([problem for problem in report.problems if "pip install" in problem]) == 1


def test_doctor_finds_a_damaged_model_in_the_package(
    monkeypatch: pytest.MonkeyPatch, tiny_copy: Path
) -> None:
    (tiny_copy / "model.onnx").write_bytes(b"")
    monkeypatch.setattr(doctor, "shipped_bundles", lambda: {str(tiny_copy): tiny_copy})
    report = doctor.examine()
    assert report.models == []
    assert "model.onnx has 0 bytes" in report.problems[0]
