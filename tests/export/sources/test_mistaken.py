"""Paths that are not checkpoints: the error says what they are, and what to give."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection, ExportError
from flowvec_export.sources.load import read_any_source, read_source

EXPECTED = "give a folder with config.json, tokenizer.json and model.safetensors, or with an ONNX"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of a sentence-transformers folder."""
    shipped = Path(__file__).resolve().parents[3] / "models/mini/checkpoint"
    return Path(shutil.copytree(shipped, tmp_path / "checkpoint"))


def collection(folder: Path) -> None:
    Collection.create(folder, dim=2).close()


def bundle(folder: Path) -> None:
    for name in ("manifest.json", "model.onnx"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")


def file(name: str, content: bytes = b"x") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)

    return make


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Path.mkdir, f"PATH is an empty folder: {EXPECTED}"),
        (file(".git/config"), f"PATH is an empty folder: {EXPECTED}"),
        (bundle, "PATH is a bundle, which has been exported already; give its chec"),
        (collection, f"PATH is a collection, not a checkpoint: {EXPECTED}"),
        (file("shards.json"), f"PATH is a collection in shards, not a checkpoint: {EXPECTED}"),
        (file("_manifest.json"), f"PATH is the folder of a bulk job, not a checkpoint: {EXPECTED}"),
        (file("m-q4.gguf"), "PATH holds a GGUF file (m-q4.gguf), a format of llama.cpp, which is "),
        (file("model.safetensors"), "PATH has weights (model.safetensors) but no config.json, whi"),
        (file("run/config.json"), "PATH has no config.json, but a folder in it has: give PATH/run"),
        (file("snapshots/a1/config.json"), "a folder in it has: give PATH/snapshots/a1"),
        (file("notes.txt"), f"PATH is a folder without config.json: {EXPECTED}"),
    ],
)
def test_a_folder(make: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "given"
    make(path)
    for read in (read_source, read_any_source):
        with pytest.raises(ExportError) as raised:
            read(path)
        assert message.replace("PATH", str(path)) in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.gguf", b"", "is a GGUF file, a format of llama.cpp, which is not read. Of the mod"),
        ("blob", b"GGUF\3\0\0\0", "is a GGUF file, a format of llama.cpp, which is not read. Of "),
        ("model.safetensors", b"", "is a file of weights, which do not say what model they are "),
        ("model.zip", b"PK", "is an archive: unpack it, and give the folder"),
        ("notes.txt", b"a", f"is neither a folder nor an .onnx file: {EXPECTED}"),
        ("nothing", None, "does not exist"),
    ],
)
def test_a_file(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ExportError) as raised:
        read_any_source(path)
    assert str(raised.value).startswith(f"{path} {message}")


@pytest.mark.parametrize("module", ["1_WordWeights", "2_Pooling"])
def test_a_missing_module_is_named(checkpoint: Path, module: str) -> None:
    shutil.rmtree(checkpoint / module)
    message = f"without the folder {module} of its module {module[2:]}, which modules.json names"
    with pytest.raises(ExportError, match=message):
        read_any_source(checkpoint)


def test_normalize_has_no_files_that_could_be_missing(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "3_Normalize")
    assert read_source(checkpoint).normalize


def test_a_missing_tokenizer_is_named(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(ExportError, match=r"tokenizer\.json is missing"):
        read_source(checkpoint)


def test_the_command_says_it_in_one_line(tmp_path: Path, flowvec: Any) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = flowvec("export", empty, "-o", "out", "--quiet")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"flowvec: {empty} is an empty folder: {EXPECTED}")
