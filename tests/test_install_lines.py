"""No line installs flowvec by its name: it is not published, so the name may be anybody's."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# The project's own extras name each other there, and pip takes these from the project itself.
_ITS_OWN = ("pyproject.toml", "tests/")
_BY_NAME = re.compile(
    r"""(?<![\w./-])flowvec\[[\w,{}-]+\](?!\s*@)"""
    r"""|\b(?:pip3?|uv|pipx|poetry|conda|pixi)\b[^\n`]*?(?<![\w-])(?:install|add|download)\b"""
    r"""[^\n`|&#]*?[ \t"']flowvec(?=[\s"'`<>=~!]|$)""",
    re.MULTILINE,
)


def files() -> list[str]:
    """Every text file that users may read, by its path in the repository."""
    if (ROOT / ".git").exists():
        run = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=600
        )
        names = run.stdout.decode().split("\0")
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    return [name for name in names if name and not name.startswith(_ITS_OWN)]


@pytest.mark.parametrize(
    "line",
    [
        'pip install "flowvec[cpu,serve]"',
        "python -m pip install flowvec",
        "pip install -U flowvec==0.3.0",
        "uv add flowvec",
        "uv pip install 'flowvec>=0.2'",
        'f"needs it: pip install flowvec[{extras}]"',
        "RUN pip install --no-cache-dir flowvec",
    ],
)
def test_lines_by_name_are_recognized(line: str) -> None:
    assert _BY_NAME.search(line)


@pytest.mark.parametrize(
    "line",
    [
        'python -m pip install -c constraints.txt ".[cpu]" && flowvec demo',
        'pip install "flowvec[cpu] @ file:///dist/flowvec.whl"',
        "pip uninstall flowvec",
        "pip install dist/flowvec-0.3.0-py3-none-any.whl",
        '`pip install ".[docs]"`: flowvec serves',
    ],
)
def test_other_lines_are_not(line: str) -> None:
    assert not _BY_NAME.search(line)


@pytest.mark.process
def test_no_file_installs_it_by_name() -> None:
    found = []
    for name in files():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # not text, or deleted and not committed yet
        found += [f"{name}: {match.group()}" for match in _BY_NAME.finditer(text)]
    assert not found
