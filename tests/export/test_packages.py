"""What an export needs is named as a whole, with torch where the source is a checkpoint."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "scipy")


@pytest.fixture
def without(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which these packages cannot be found."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        f"hidden = {HIDDEN!r}\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in hidden:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "find_spec = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: (\n"
        "    None if name.split('.')[0] in hidden else find_spec(name, package))\n"
    )
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return os.environ | {"PYTHONPATH": path, "FLOWVEC_CACHE": str(tmp_path / "cache")}


def message(environment: dict[str, str], code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600,
                         env=environment, check=False)  # fmt: skip
    assert run.returncode
    return run.stderr.strip().splitlines()[-1]


ALL = "torch, transformers, onnxscript"


def test_of_a_checkpoint_torch_is_named_and_the_constraints(without: dict[str, str]) -> None:
    source = str(ROOT / "models/backbone/checkpoint")
    load = f"from flowvec import Encoder; Encoder.load({source!r})"
    export = f"import sys; sys.argv = ['flowvec', 'export', {source!r}, '-o', 'b']\n"
    for code in (load, export + "from flowvec.cli.main import main; main()"):
        said = message(without, code)
        assert f"needs {ALL}" in said
        assert "pip install" in said
    if importlib.util.find_spec("torch") and sys.platform == "linux":
        assert "docs/install.md#torch" in message(without, load)
    assert ALL in message(without, "from flowvec_export import export")


def test_a_pointer_of_git_lfs_is_named_before_packages(
    without: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:01\nsize 9\n"
    (tmp_path / "model.safetensors").write_text(pointer)
    said = message(without, f"from flowvec import Encoder; Encoder.load({str(tmp_path)!r})")
    assert "model.safetensors is a pointer" in said


def test_a_graph_and_a_static_embedder_need_no_torch(
    without: dict[str, str], tmp_path: Path
) -> None:
    static = tmp_path / "static"
    static.mkdir()
    (static / "config.json").write_text('{"model_type": "model2vec"}')
    (static / "model.safetensors").touch()
    for source in (ROOT / "tests/data/optimum/bert", static):
        said = message(without, f"from flowvec import Encoder; Encoder.load({str(source)!r})")
        assert "needs onnx, onnx_ir, scipy" in said
        assert "[cpu,onnx]" in said
        assert "torch" not in said.replace(str(source), "")
