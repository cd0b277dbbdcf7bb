"""The README names every command, and what docstrings show runs; tests/docs runs the README."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import flowvec.collection.collection
import flowvec.encoder.encoder

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "module", [flowvec.encoder.encoder, flowvec.collection.collection], ids=lambda m: m.__name__
)
def test_the_docstrings_examples_run(module, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, extraglobs={"Encoder": flowvec.Encoder})
    assert result.attempted
    assert result.failed == 0


def test_the_readme_names_every_command() -> None:
    from importlib.metadata import entry_points

    for point in entry_points(group="flowvec.commands"):
        assert f"flowvec {point.name}" in README
