"""The examples of docs/integrations.md run where their libraries are installed."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowvec import MissingDependencyError
from tests.conftest import DATA
from tests.docs.pages import DOCS, Block, read_page

# Blocks that need no library are run by tests/docs.
BLOCKS = [block for block in read_page(DOCS / "integrations.md")[0] if block.not_run is not None]
LONGEST = 30


@pytest.mark.parametrize("block", BLOCKS, ids=[block.where for block in BLOCKS])
def test_an_example_prints_what_the_page_says(block: Block, tmp_path: Path) -> None:
    assert block.is_python
    assert len(block.code.splitlines()) <= LONGEST
    reason = re.fullmatch(r"needs (\w+); tests/integrations runs it", block.not_run or "")
    assert reason, f"{block.where}: the comment says what it needs"
    try:
        importlib.import_module(f"flowvec.integrations.{reason[1]}")
    except MissingDependencyError:
        pytest.skip(f"needs {reason[1]}, which has its environment")
    shutil.copytree(DATA / "bundles" / "reranker", tmp_path / "my-reranker")
    done = subprocess.run(
        [sys.executable, "-c", block.code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert block.printed is not None, f"{block.where}: a text block says what it prints"
    assert done.stdout.splitlines() == block.printed.splitlines()
