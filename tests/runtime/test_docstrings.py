"""Every public name of flowvec and flowvec.bulk has an example in its docstring that runs."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowvec
import flowvec.bulk

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Public names; an alias of a type cannot have a docstring.
PUBLIC: dict[str, Any] = {
    name: getattr(module, name)
    for module in (flowvec, flowvec.bulk)
    for name in module.__all__
    if name not in ("__version__", "BulkPrecision", "OutFormat")
}
NEED_PYARROW = ("BulkSummary", "ConvertError", "DeadLetter")
# What the examples may use.
NAMES = PUBLIC | {"np": np, "asyncio": asyncio, "json": json, "Path": Path}


def examples_of(value: object) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_has_an_example_that_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nan_dir: Path,
    reranker_dir: Path,
    sparse_dir: Path,
    multi_vector_dir: Path,
) -> None:
    value = PUBLIC[name]
    assert examples_of(value), f"the docstring of {name} has no example"
    if name == "ExportError":
        pytest.importorskip("torch", reason="needs the extra [export]")
    if name in NEED_PYARROW:
        pytest.importorskip("pyarrow", reason="needs the extra [files]")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged-bundle").symlink_to(nan_dir)
    (tmp_path / "my-reranker").symlink_to(reranker_dir)
    (tmp_path / "my-sparse").symlink_to(sparse_dir)
    (tmp_path / "my-colbert").symlink_to(multi_vector_dir)
    run(value, name)


@pytest.mark.parametrize("module", [flowvec, flowvec.bulk], ids=lambda module: module.__name__)
def test_examples_of_the_packages_run(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert examples_of(module)
    if module is flowvec.bulk:  # it writes Parquet
        pytest.importorskip("pyarrow", reason="needs the extra [files]")
    monkeypatch.chdir(tmp_path)
    run(module, module.__name__)


def run(value: object, name: str) -> None:
    """Run the examples in the docstring of a value, and of its methods if it is a class."""
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    finder = doctest.DocTestFinder(recurse=inspect.isclass(value))
    for test in finder.find(value, name, module=False, globs=dict(NAMES)):
        runner.run(test, out=failures.append)
    if failures:
        pytest.fail("".join(failures), pytrace=False)
