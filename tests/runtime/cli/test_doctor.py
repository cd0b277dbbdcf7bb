"""`flowvec doctor` reports problems of an installation."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from flowvec.cli import doctor
from flowvec.engine.providers import EXPERIMENTAL, OPENVINO, PROVIDERS


def test_doctor_finds_two_wheels_of_one_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("onnxruntime", "1.31.1"), ("onnxruntime_gpu", "1.30.0")):
        about = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
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


def test_doctor_finds_a_damaged_model_in_the_package(tiny_copy: Path) -> None:
    (tiny_copy / "model.onnx").write_bytes(b"")
    report = doctor.examine(shipped=[str(tiny_copy)])
    assert report.models == []
    assert "model.onnx has 0 bytes" in report.problems[0]


@pytest.mark.parametrize(
    ("features", "lost"),
    [(["avx512_bf16"], "lack bfloat16"), (["avx2"], "lack its float32"), ([], "lack its float32")],
)
def test_doctor_says_what_a_machine_without_openvino_lacks(features: list[str], lost: str) -> None:
    without = doctor.without_openvino(features)
    assert lost in without
    assert "int8-openvino" in without


def test_doctor_shows_that_note_only_without_openvino(
    flowvec, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = doctor.provider_status()[OPENVINO] is None
    assert ("NOTE: without OpenVINO" in flowvec("doctor").stdout) != runs
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert "NOTE: without OpenVINO" in flowvec("doctor").stdout


def test_doctor_marks_the_engines_of_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.doctor()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    for provider in PROVIDERS:
        assert lines[provider].endswith("(experimental)") == (provider in EXPERIMENTAL)
