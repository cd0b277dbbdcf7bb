"""What the README and the docstrings show must run as it stands."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import flowvec.collection
import flowvec.encoder

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


# What a block that holds the one prints.
SHOWN = {
    "encode_files": "2 rows in, 1 vectors, 1 dead letter",
    "AsyncEncoder": "[(384,), (384,)]",
    'Collection.create("notes"': "The cat sleeps on the mat.",
    'Collection.create("articles"': "Cats sleep most of the day.",
}


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_readmes_code_runs(python, code: str) -> None:
    done = python(code)
    assert done.returncode == 0, done.stderr
    (shown,) = [text for part, text in SHOWN.items() if part in code]
    assert shown in done.stdout


@pytest.mark.parametrize("module", [flowvec.encoder, flowvec.collection], ids=lambda m: m.__name__)
def test_the_docstrings_examples_run(module, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, extraglobs={"Encoder": flowvec.Encoder})
    assert result.attempted
    assert result.failed == 0


def test_the_readme_names_every_command() -> None:
    from importlib.metadata import entry_points

    for point in entry_points(group="flowvec.commands"):
        assert f"flowvec {point.name}" in README
