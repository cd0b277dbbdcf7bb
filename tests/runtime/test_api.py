"""The public surface, and what a process that serves must never import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

import flowvec
import flowvec.bulk

RUNTIME = Path(flowvec.__file__).resolve().parent

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (flowvec, flowvec.bulk)
    for name in module.__all__
    if not name.startswith("__")
}


def methods(thing: Any) -> Iterator[tuple[str, Any]]:
    """The callables of a public name: the function itself, or the methods of a class."""
    if inspect.isfunction(thing):
        yield thing.__name__, thing
    for name, value in vars(thing).items() if inspect.isclass(thing) else ():
        if isinstance(value, property):
            yield name, value.fget
        elif isinstance(value, classmethod | staticmethod):
            yield name, value.__func__
        elif inspect.isfunction(value):
            yield name, value


def test_every_public_name_is_documented() -> None:
    for name, thing in PUBLIC.items():
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue  # a type of texts, as OutFormat
        assert inspect.getdoc(thing), name
        for method, function in methods(thing):
            if not method.startswith("_"):
                assert inspect.getdoc(function) or hasattr(thing.__base__, method), (
                    f"{name}.{method}"
                )


def test_what_is_returned_or_raised_can_be_imported() -> None:
    """Every class of flowvec that a public function says it gives or raises has a public name."""
    public = {id(thing) for thing in PUBLIC.values()}
    hidden = set()
    for name, thing in PUBLIC.items():
        for method, function in methods(thing):
            if method.startswith("_") and method != "__init__":
                continue
            returned = re.findall(r"\w+", str(function.__annotations__.get("return", "")))
            raised = re.findall(
                r"^ {4,12}(\w+Error):", inspect.getdoc(function) or "", re.MULTILINE
            )
            for word in (*returned, *raised):
                named = function.__globals__.get(word, getattr(flowvec.errors, word, None))
                if not inspect.isclass(named) or not named.__module__.startswith("flowvec"):
                    continue
                if id(named) not in public:
                    hidden.add(f"{name}.{method}: {word}")
    assert not hidden


def test_every_error_is_public() -> None:
    errors = {e for e in vars(flowvec.errors).values() if inspect.isclass(e)}
    assert {e for e in errors if issubclass(e, flowvec.FlowvecError)} <= set(PUBLIC.values())


def test_names_come_from_the_modules_that_type_checkers_are_told() -> None:
    tree = ast.parse(Path(flowvec.__file__).read_text("utf-8"))
    told = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flowvec.")
        for alias in node.names
    }
    assert sorted(set(flowvec.__all__) - set(told)) == []
    for name, module in flowvec._MODULES.items():
        assert (module, getattr(flowvec, name)) == (
            told[name],
            getattr(importlib.import_module(module), name),
        )
    assert set(flowvec.__all__) <= set(dir(flowvec))
    with pytest.raises(AttributeError, match="has no attribute 'Encodr'"):
        _ = flowvec.Encodr


@pytest.mark.process
def test_what_encodes_does_not_import_what_stores() -> None:
    code = """
import sys
import flowvec
assert "numpy" not in sys.modules
from flowvec import Encoder
names = ("flowvec.collection", "flowvec.hnsw", "flowvec.reranker", "sqlite3", "asyncio")
print([name for name in names if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.process
def test_each_module_can_be_imported_first() -> None:
    """Nothing is left to the order in which a program imports them."""
    code = """
import importlib, sys
for name in sys.argv[1:]:
    for loaded in [loaded for loaded in sys.modules if loaded.startswith("flowvec")]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""
    modules = sorted(set(flowvec._MODULES.values()))
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_serving_imports_no_training_stack(python, tiny_dir: Path) -> None:
    code = """
import sys
from flowvec import Collection, Encoder
with Encoder.load(sys.argv[1]) as encoder, Collection.create("c", encoder=encoder) as collection:
    collection.add(["a"], ["the cat sleeps"])
    assert collection.search("a cat")[0].id == "a"
heavy = {"torch", "transformers", "onnx", "sentence_transformers", "scipy", "sklearn"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert not [m for m in sys.modules if m.startswith(("flowvec_export", "flowvec_bench"))]
"""
    done = python(code, tiny_dir)
    assert done.returncode == 0, done.stderr


def test_a_process_without_onnxruntime_is_told_which_line_to_run(python, tiny_dir: Path) -> None:
    code = """
import sys
sys.modules["onnxruntime"] = sys.modules["openvino"] = None
import flowvec
with flowvec.Collection.create("c", dim=2) as collection:
    collection.add_vectors([1], [[1, 0]])
try:
    flowvec.Encoder.load(sys.argv[1])
except flowvec.MissingDependencyError as error:
    print(error)
"""
    done = python(code, tiny_dir)
    assert done.returncode == 0, done.stderr
    assert "[cpu]" in done.stdout


def test_no_engine_reports_to_its_maker(python, tmp_path, monkeypatch) -> None:
    # What their reports would leave: a file of ONNX Runtime, a folder of OpenVINO.
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CI", "TF_BUILD", "JENKINS_URL", "ORT_DISABLE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)  # OpenVINO's is off in CI
    (tmp_path / "scratch").mkdir()
    (tmp_path / "home").mkdir()
    code = """
import sys
reached = []
sys.addaudithook(lambda name, _: name.startswith("socket.") and reached.append(name))
import flowvec
from flowvec.engine.providers import computes_of
from flowvec.engine.selection import available_providers
for provider in available_providers():
    if "float32" not in computes_of(provider):
        continue  # flowvec's own engine
    flowvec.Encoder.load("mini", provider=provider, compute="float32").encode(["a text"])
assert "onnxruntime" in sys.modules and not reached, reached
assert "openvino_telemetry" not in sys.modules
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "scratch").iterdir())
    assert not list((tmp_path / "home").iterdir())


@pytest.mark.parametrize("package", ["flowvec", "flowvec_export", "flowvec_bench"])
def test_each_package_switches_reports_off_first(python, monkeypatch, package) -> None:
    pytest.importorskip(package, reason="needs the extra [bench]")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    done = python(
        f"import os, sys, {package}; print(os.environ.get('ORT_DISABLE_TELEMETRY'), "
        "'onnxruntime' in sys.modules)"
    )
    assert done.stdout == "1 False\n", done.stderr


def test_telemetry_can_be_allowed(python, monkeypatch) -> None:
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    done = python("import flowvec, os; print(os.environ['ORT_DISABLE_TELEMETRY'])")
    assert done.stdout == "0\n"


REFUSED_IMPORTS = {
    "pickle", "joblib", "marshal", "shelve", "torch", "transformers", "onnx", "requests",
    "urllib", "http", "socket", "huggingface_hub", "subprocess",
}  # fmt: skip
REFUSED_NAMES = {"eval", "exec", "compile", "__import__"}
# A name of the hub is looked up by the hub's client, and exported by a child: nowhere else.
ALLOWED_IMPORTS = {"bundle/hub.py": {"huggingface_hub"}, "bundle/child.py": {"subprocess"}}
# A module without any of these words need not be parsed.
WORDS = re.compile(rf"\b({'|'.join([*REFUSED_IMPORTS, *REFUSED_NAMES, 'allow_pickle'])})\b")


def offences(text: str, allowed: Collection[str] = ()) -> Iterator[str]:
    """What in a module could run pickled code or reach the network, with its line."""
    for node in ast.walk(ast.parse(text)) if WORDS.search(text) else ():
        words: set[str] = set()
        match node:
            case ast.Import(names=names):
                words = REFUSED_IMPORTS & {alias.name.partition(".")[0] for alias in names}
            # It takes addresses apart, and opens none.
            case ast.ImportFrom(module=str(module)) if module != "urllib.parse":
                words = REFUSED_IMPORTS & {module.partition(".")[0]}
            case ast.Name(id=name):
                words = REFUSED_NAMES & {name}
            # `allow_pickle` is also an option of exports; no reader of arrays may have it.
            case ast.Call(func=reader) if ast.unparse(reader).startswith(("np.", "numpy.")):
                words = {"allow_pickle"} & {keyword.arg for keyword in node.keywords}
        for word in sorted(words.difference(allowed)):
            yield f"line {node.lineno}: {word}"


def test_code_that_could_run_pickles_or_reach_the_network_is_seen() -> None:
    for line in (
        "import pickle", "import numpy, urllib.request", "from http.client import HTTPConnection",
        "eval('1')", "run = exec", "np.load(file, allow_pickle=True)",
        "def f():\n    import subprocess",
    ):  # fmt: skip
        assert list(offences(line)), line
    harmless = "import json\nfrom urllib.parse import quote\nre.compile('a')\nf(allow_pickle=True)"
    assert not list(offences(harmless))


def test_no_file_of_the_runtime_can_run_pickled_code_or_reach_the_network() -> None:
    found = []
    for path in sorted(RUNTIME.rglob("*.py")):
        name = path.relative_to(RUNTIME).as_posix()
        allowed = ALLOWED_IMPORTS.get(name, set())
        found += [f"{name}, {what}" for what in offences(path.read_text(encoding="utf-8"), allowed)]
    assert not found
