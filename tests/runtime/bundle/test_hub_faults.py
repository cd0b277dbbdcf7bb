"""Faults while a model of the hub is downloaded and exported: nothing half-made is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import DATA
from tests.hub import Hub, files_of
from tests.runtime.bundle.conftest import LOAD, Load, answer_of
from tests.waiting import wait_until

pytestmark = pytest.mark.process

Start = Callable[..., subprocess.Popen[str]]


def entries(folder: Path) -> list[str]:
    """Finished bundles of the cache, and parts of unfinished ones."""
    bundles = folder / "cache" / "bundles"
    kept = (".locks", ".commits", ".checkpoints")
    return sorted(p.name for p in bundles.glob("*") if p.name not in kept)


def is_running(process: int) -> bool:
    try:
        # A process that has ended and is not collected yet is a zombie.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for file in listed for child in file.read_text().split()]


def begin_with(folder: Path, code: str) -> dict[str, str]:
    """Variables for a process, and its child, that run some code before all else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}


def hide(folder: Path, package: str) -> dict[str, str]:
    """Variables for a process, and its child, in which a package is not installed."""
    return begin_with(
        folder,
        f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] == {package!r} else find(name, path, target)
PathFinder.find_spec = staticmethod(find_spec)
""",
    )


# A child writes no manifest, which is the last file of a bundle; it marks that it could.
HOLD_BEFORE_MANIFEST = """
import sys, time
from pathlib import Path
def hold(event, arguments):
    if event == "open" and str(arguments[0]).endswith(".partial/manifest.json"):
        Path({mark!r}).touch()
        time.sleep(3600)
if "flowvec_export.on_demand" in sys.orig_argv:
    sys.addaudithook(hold)
"""


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def test_a_connection_that_breaks_once_is_continued(hub: Hub, load: Load) -> None:
    hub.break_at["model.safetensors"] = (20_000, 1)
    answer = load("org/tiny")
    if "error" in answer:  # the client continues by itself from version 1 on
        assert "\n" not in answer["message"]
        answer = load("org/tiny")
    assert "error" not in answer
    assert hub.broken["model.safetensors"] == 1


def test_a_connection_that_always_breaks_is_one_line(hub: Hub, load: Load, tmp_path: Path) -> None:
    hub.break_at["model.safetensors"] = (0, 1000)
    answer = load("org/tiny")
    assert answer["error"] == "ExportError"
    assert "org/tiny is not a directory" in answer["message"]
    assert "\n" not in answer["message"]
    assert entries(tmp_path) == []
    hub.break_at.clear()
    assert load("org/tiny")["name"] == "tiny"


@on_linux
@pytest.mark.usefixtures("listens_to_interrupts")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_is_ended_leaves_nothing(
    hub: Hub, start: Start, load: Load, tmp_path: Path, number: signal.Signals
) -> None:
    hub.pause_in = "model.safetensors"
    process = start("org/tiny")
    assert hub.paused.wait(600)
    (child,) = children_of(process.pid)
    process.send_signal(number)
    process.communicate(timeout=600)
    wait_until(lambda: not is_running(child))
    hub.go.set()
    if number == signal.SIGINT:
        assert entries(tmp_path) == []  # a process that can clean up does so
    answer = load("org/tiny")
    assert entries(tmp_path) == [Path(answer["path"]).parent.name]


@on_linux
def test_an_export_that_is_killed_leaves_nothing(
    hub: Hub, start: Start, load: Load, tmp_path: Path
) -> None:
    mark = tmp_path / "held"
    held = begin_with(tmp_path / "first", HOLD_BEFORE_MANIFEST.format(mark=str(mark)))
    process = start("org/tiny", environment=held)
    wait_until(mark.exists)
    assert list(tmp_path.glob("cache/bundles/.partial-*/.bundle.*.partial/model.onnx"))
    (child,) = children_of(process.pid)
    process.kill()
    process.communicate(timeout=600)
    wait_until(lambda: not is_running(child))
    assert all(name.startswith(".partial-") for name in entries(tmp_path))
    answer = load("org/tiny")
    assert entries(tmp_path) == [Path(answer["path"]).parent.name]


@on_linux
def test_a_child_that_is_killed_is_one_line(hub: Hub, start: Start, tmp_path: Path) -> None:
    hub.pause_in = "model.safetensors"
    process = start("org/tiny")
    assert hub.paused.wait(600)
    (child,) = children_of(process.pid)
    os.kill(child, signal.SIGKILL)
    answer = answer_of(process)
    assert answer["error"] == "ExportError"
    assert "killed by signal 9" in answer["message"]
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    "environment",
    [
        {"FLOWVEC_CACHE": "/dev/null/cache"},
        {"FLOWVEC_CACHE": "~nobody-of-this-name/cache"},
        {"FLOWVEC_CACHE": None, "HOME": "/dev/null", "XDG_CACHE_HOME": None},
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="needs /dev/null")
def test_a_cache_that_cannot_be_written_is_one_line(
    hub: Hub, load: Load, environment: dict[str, str | None]
) -> None:
    answer = load("org/tiny", environment=environment)
    assert answer["error"] == "CacheError"
    assert "FLOWVEC_CACHE" in answer["message"]
    assert "\n" not in answer["message"]


@pytest.mark.skipif(os.name == "nt", reason="needs limits of files")
def test_a_full_disk_leaves_nothing(hub: Hub, load: Load, tmp_path: Path) -> None:
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    answer = load(str(DATA / "optimum" / "bert"), code=limited + LOAD)
    assert answer["error"] == "CacheError"
    assert "FLOWVEC_CACHE" in answer["message"]
    assert entries(tmp_path) == []


def test_a_read_only_cache_is_read(hub: Hub, load: Load, tmp_path: Path) -> None:
    first = load("org/tiny")
    # As root, permissions refuse nothing: writes fail because names of folders are taken.
    bundles = tmp_path / "cache" / "bundles"
    for name in (".locks", ".commits"):
        for file in (bundles / name).iterdir():
            file.unlink()
        (bundles / name).rmdir()
        (bundles / name).touch()
    again = load("org/tiny")
    assert again["path"] == first["path"]


def test_a_damaged_bundle_says_how_to_make_it_again(hub: Hub, load: Load) -> None:
    first = load("org/tiny")
    model = Path(first["path"]) / "model.onnx"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    answer = load("org/tiny")
    assert answer["error"] == "BundleError"
    assert "SHA-256" in answer["message"]
    assert f"flowvec cache remove {first['handle']}" in answer["message"]


def test_without_the_extra_the_line_says_where_to_export(
    hub: Hub, load: Load, tmp_path: Path
) -> None:
    answer = load("org/tiny", environment=hide(tmp_path / "hidden", "onnx"))
    commit = hub.repositories["org/tiny"].refs["main"]
    assert answer["error"] == "MissingDependencyError"
    assert "needs onnx: python -m pip install" in answer["message"]
    assert f"`flowvec export org/tiny --revision {commit} -o DIR`" in answer["message"]
    assert "\n" not in answer["message"]


def test_without_torch_the_graph_is_enough(
    hub: Hub, load: Load, tmp_path: Path, graph_files: dict[str, bytes]
) -> None:
    without_torch = hide(tmp_path / "hidden", "torch")
    weights = {"model.safetensors": b"weights" * 10_000}
    hub.add("org/both", graph_files | weights)
    answer = load("org/both", environment=without_torch)
    assert "error" not in answer, answer
    assert not any("safetensors" in request for request in hub.requests)
    without_graph = {k: v for k, v in graph_files.items() if k != "model.onnx"}
    hub.add("org/weights", without_graph | weights)
    refused = load("org/weights", environment=without_torch)
    assert refused["error"] == "MissingDependencyError"
    assert re.search(r"needs torch.*flowvec export org/weights", refused["message"])


def test_without_torch_a_static_embedder_is_exported_from_its_table(
    hub: Hub, load: Load, tmp_path: Path
) -> None:
    """Its graph, which repositories of model2vec also have, takes other inputs."""
    pytest.importorskip("safetensors", reason="needs the extra [export]")
    from tests.docs.readers_files import READERS_FILES

    READERS_FILES["my-static"](tmp_path / "static")
    files = files_of(tmp_path / "static") | {"onnx/model.onnx": b"not read"}
    hub.add("org/static", files)
    answer = load("org/static", environment=hide(tmp_path / "hidden", "torch"))
    assert len(answer["vector"]) == 64
    assert not any("onnx/model.onnx" in request for request in hub.requests)


def test_modules_of_the_current_directory_are_not_imported_by_the_child(
    hub: Hub, load: Load, tmp_path: Path
) -> None:
    for name in ("onnx", "scipy", "onnx_ir"):
        (tmp_path / "work" / f"{name}.py").write_text("open('imported', 'w')\n")
    assert load("org/tiny")["name"] == "tiny"
    assert not (tmp_path / "work" / "imported").exists()
