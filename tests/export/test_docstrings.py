"""Every public name of flowvec_export has an example in its docstring, and the examples run."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flowvec
import flowvec_export
from tests.docs.readers_files import READERS_FILES, SENTENCES
from tests.runtime.test_docstrings import OPTIONS, examples_of

CONSTANTS = {"LAYOUTS", "METHODS", "POOLINGS", "PRESETS"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples read: a checkpoint, and a whitening fitted on it."""
    made = tmp_path_factory.mktemp("examples")
    READERS_FILES["my-checkpoint"](made / "my-checkpoint")
    fitted = flowvec_export.fit("whitening", made / "my-checkpoint", SENTENCES[:1200])
    flowvec_export.save_transform(fitted.transform, fitted.recipe, made / "whitening.safetensors")
    return made


@pytest.mark.docs
@pytest.mark.parametrize("name", [*sorted({*flowvec_export.__all__} - CONSTANTS), "flowvec_export"])
def test_a_public_name_has_an_example_that_runs(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = flowvec_export if name == "flowvec_export" else getattr(flowvec_export, name)
    assert examples_of(value), f"the docstring of {name} has no example"
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {n: getattr(flowvec_export, n) for n in flowvec_export.__all__}
    names |= {"np": np, "torch": torch, "flowvec": flowvec, "sentences": SENTENCES[:1200]}
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in doctest.DocTestFinder(recurse=False).find(value, name, module=False, globs=names):
        runner.run(test, out=failures.append)
    if failures:
        pytest.fail("".join(failures), pytrace=False)


def test_constants_are_shown_in_the_packages_docstring() -> None:
    shown = " ".join(example.source for example in examples_of(flowvec_export))
    assert all(name in shown for name in CONSTANTS)
    assert inspect.ismodule(flowvec_export)
