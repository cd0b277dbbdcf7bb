"""Every public name of flowvec has an example in its docstring, and the examples run."""

from __future__ import annotations

import asyncio
import doctest
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvec

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# What the examples may use: all of flowvec, numpy, asyncio and Path.
NAMES: dict[str, Any] = {name: getattr(flowvec, name) for name in flowvec.__all__} | {
    "np": np, "asyncio": asyncio, "Path": Path,
}  # fmt: skip
# Classes whose methods teach by example as well.
CLASSES = [flowvec.Encoder, flowvec.Collection, flowvec.AsyncEncoder, flowvec.SharedEncoder]


def examples_of(value: object) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")


@pytest.mark.parametrize("name", sorted({*flowvec.__all__} - {"__version__"}))
def test_a_public_name_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nan_dir: Path
) -> None:
    value = getattr(flowvec, name)
    assert examples_of(value), f"the docstring of {name} has no example"
    if name == "ExportError":
        pytest.importorskip("torch", reason="needs the extra [export]")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged-bundle").symlink_to(nan_dir)
    run(value, name)


def test_examples_of_the_package_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "__version__" in (flowvec.__doc__ or "")
    run(flowvec, "flowvec")


def run(value: object, name: str) -> None:
    """Run the examples in the docstring of a value, and of its methods if it is a class."""
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    finder = doctest.DocTestFinder(recurse=inspect.isclass(value))
    for test in finder.find(value, name, module=False, globs=dict(NAMES)):
        runner.run(test, out=failures.append)
    if failures:
        pytest.fail("".join(failures), pytrace=False)
