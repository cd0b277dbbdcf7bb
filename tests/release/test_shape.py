"""The gauge of the code's shape, on small trees."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / ".ci/shape"))

SETTINGS = """
[limits]
files_in_folder = 4
lines_of_module = 30
lines_of_class = 8
parameters = 3

[lines]
runtime = 100000
tests = 100000

[modules_per_kind]
runtime = 100000

[kinds]
Reranker = "runtime/pack/reranker"
"""
LONG = "\n" * 31
BASES = """\
from __future__ import annotations
from typing import TypedDict, Unpack
import typer
from pack.base import Base as Below
from pack.reranker import Reranker
app = typer.Typer()

class Options(TypedDict):
    a: int
    b: int

class More(Options):
    c: int

class Face(Below):
    one = 1
    two = 2
    three = 3

    def method(self, *, f: int, **options: Unpack[More]) -> None: ...

    @staticmethod
    def free(a, b, c): ...

@app.command()
def command(a, b, c, d, e): ...

def called(a, b, c, d, e): ...

app.command(epilog="")(called)

async def many(a, /, b, *rest, d=1): ...
"""
BASE = "class Base:\n    x = 1\n    y = 2\n    z = 3\n"


def grown(folder: Path, files: dict[str, str], settings: str = SETTINGS) -> Path:
    """A tree with these files beside a package that is within all limits."""
    made = {
        ".ci/shape.toml": settings,
        "runtime/pack/__init__.py": "",
        "runtime/pack/reranker/__init__.py": "class Reranker:\n    pass\n",
        "tests/__init__.py": "",
        **files,
    }
    for name, text in made.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def judged(root: Path) -> Any:
    """The sizes of a tree, what is wrong with them, and what can be lowered."""
    settings = SCRIPT["tomllib"].loads((root / ".ci/shape.toml").read_text("utf-8"))
    shape = SCRIPT["measure"](root, settings)
    return shape, *SCRIPT["judge"](shape, settings)


def test_sizes_are_counted_as_described(tmp_path: Path) -> None:
    files = {"runtime/pack/face.py": BASES, "runtime/pack/base.py": BASE, "tests/test_a.py": LONG}
    shape, wrong, _ = judged(grown(tmp_path, files))
    assert shape.sizes["files_in_folder"]["runtime/pack"] == 3
    assert shape.sizes["lines_of_module"]["tests/test_a.py"] == 31
    # Its own nine lines and the four of its base, which has another name here.
    assert shape.sizes["lines_of_class"]["runtime/pack/face.py:Face"] == 13
    # `self` is not counted, each key of the TypedDict and of its base is.
    counts = {name.partition(":")[2]: n for name, n in shape.sizes["parameters"].items()}
    assert counts == {"Face.method": 4, "Face.free": 3, "many": 4}
    assert shape.packages["lines"] == {"runtime": len(BASES.splitlines()) + 4 + 2, "tests": 31}
    assert shape.packages["modules_per_kind"] == {"runtime": 1}
    assert [line.partition(" has ")[0] for line in wrong] == [
        "lines of a module: runtime/pack/face.py",
        "lines of a module: tests/test_a.py",
        "lines of a class: runtime/pack/face.py:Face",
        "parameters: runtime/pack/face.py:Face.method",
        "parameters: runtime/pack/face.py:many",
    ]


def test_an_exception_may_shrink_and_not_grow(tmp_path: Path) -> None:
    file = "runtime/pack/long.py"
    settings = f'{SETTINGS}\n[exceptions.lines_of_module]\n"{file}" = 40\n'
    for lines, is_wrong, is_lower in ((41, 1, 0), (40, 0, 0), (35, 0, 1)):
        _, wrong, lower = judged(grown(tmp_path, {file: "\n" * lines}, settings))
        about_it = [line for line in lower if file in line]
        assert (len(wrong), len(about_it)) == (is_wrong, is_lower)


@pytest.mark.parametrize("files", [{}, {"runtime/pack/long.py": "\n" * 30}])
def test_an_exception_that_is_not_needed_is_wrong(tmp_path: Path, files: dict[str, str]) -> None:
    settings = f'{SETTINGS}\n[exceptions.lines_of_module]\n"runtime/pack/long.py" = 40\n'
    _, (wrong,), _ = judged(grown(tmp_path, files, settings))
    assert "runtime/pack/long.py" in wrong
    assert "remove its exception" in wrong


def test_a_package_may_not_grow(tmp_path: Path) -> None:
    settings = SETTINGS.replace("tests = 100000", "tests = 3")
    _, (wrong,), _ = judged(grown(tmp_path, {"tests/test_a.py": "\n" * 4}, settings))
    assert wrong.startswith("lines of a package: tests has 4")


def test_writing_lists_exceptions_and_lowers_packages(tmp_path: Path, capsys: Any) -> None:
    root = grown(
        tmp_path, {"tests/test_a.py": LONG, "runtime/pack/many.py": "def f(a, b, c, d): 0"}
    )
    main = SCRIPT["main"]
    assert main([str(root)]) == 1
    assert "tests/test_a.py has 31, and may have 30" in capsys.readouterr().out
    assert main(["--write", str(root)]) == 0
    assert "raised: parameters: runtime/pack/many.py:f: none -> 4" in capsys.readouterr().out
    written = (root / ".ci/shape.toml").read_text("utf-8")
    settings = SCRIPT["tomllib"].loads(written)
    assert settings["lines"] == {"runtime": 500, "tests": 500}
    assert settings["modules_per_kind"] == {"runtime": 0}
    assert settings["limits"]["lines_of_module"] == 30
    assert settings["exceptions"] == {
        "lines_of_module": {"tests/test_a.py": 31},
        "parameters": {"runtime/pack/many.py:f": 4},
    }
    assert main(["--write", str(root)]) == 0
    assert "raised" not in capsys.readouterr().out
    assert (root / ".ci/shape.toml").read_text("utf-8") == written


def test_writing_raises_no_limit(tmp_path: Path) -> None:
    settings = SETTINGS.replace("tests = 100000", "tests = 3")
    root = grown(tmp_path, {"tests/test_a.py": "\n" * 4}, settings)
    assert SCRIPT["main"](["--write", str(root)]) == 1
    assert "\ntests = 3\n" in (root / ".ci/shape.toml").read_text("utf-8")
