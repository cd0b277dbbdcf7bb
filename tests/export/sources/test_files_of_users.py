"""Files as users have them: not downloaded by git-lfs, with a byte order mark, incomplete."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowvec import Encoder, ExportError
from flowvec_export import export
from flowvec_export.sources import read_source
from flowvec_export.sources.load import read_any_source
from flowvec_export.transforms.file import load_transform
from tests.export.conftest import Checkpoint

ROOT = Path(__file__).resolve().parents[3]
OPTIMUM = ROOT / "tests/data/optimum"
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db\nsize 90868376\n"
)


@pytest.fixture
def source(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A small checkpoint, whose files a test may change."""
    return Path(shutil.copytree(checkpoint("bert"), tmp_path / "source"))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_pointer_of_git_lfs_in_a_checkpoint_is_named(source: Path, name: str) -> None:
    (source / name).write_text(POINTER)
    with pytest.raises(ExportError, match=rf"{name} .*git lfs pull"):
        read_any_source(source)


def test_the_vocabulary_and_layers_above_may_be_pointers_too(source: Path, tmp_path: Path) -> None:
    (source / "vocab.txt").write_text(POINTER)
    with pytest.raises(ExportError, match=r"vocab\.txt .*git-lfs"):
        read_source(source)
    hub = Path(shutil.copytree(OPTIMUM / "hub", tmp_path / "hub"))
    (hub / "2_Dense/model.safetensors").write_text(POINTER)
    with pytest.raises(ExportError, match=r"2_Dense/model.* git-lfs"):
        read_source(hub)
    (tmp_path / "flow.safetensors").write_text(POINTER)
    with pytest.raises(ExportError, match=r"flow\.safetensors .*git-lfs"):
        load_transform(tmp_path / "flow.safetensors")


def test_a_graph_is_read_though_the_weights_beside_it_are_a_pointer(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(OPTIMUM / "bert", tmp_path / "m"))
    (folder / "model.safetensors").write_text(POINTER)
    assert read_source(folder).name == "m"
    (folder / "model.onnx").write_text(POINTER)
    with pytest.raises(ExportError, match=r"model\.onnx .*git-lfs"):
        read_source(folder)


def json_files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*.json"))


@pytest.mark.parametrize("form", ["checkpoint", "graph", "sentence-transformers", "static"])
def test_a_byte_order_mark_changes_nothing(
    checkpoint: Checkpoint, tmp_path: Path, form: str
) -> None:
    places = {
        "checkpoint": lambda: checkpoint("bert"),
        "graph": lambda: OPTIMUM / "bert",
        "sentence-transformers": lambda: OPTIMUM / "hub",
        "static": lambda: ROOT / "models/mini/checkpoint",
    }
    folder = Path(shutil.copytree(places[form](), tmp_path / "m"))
    expected = read_source(folder)
    for file in json_files(folder):
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    made = read_source(folder)
    assert made.sha256() == expected.sha256()
    assert made.tokenizer.to_str() == expected.tokenizer.to_str()
    assert made.own_tokens is not None


@pytest.mark.process
def test_pooling_without_modules_json_is_said_to_be_unread(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    with caplog.at_level(logging.WARNING):
        export(source, tmp_path / "b")
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("flowvec_export")]
    assert "1_Pooling is not read" in line
    assert "modules.json" in line
    assert "the pooling is mean" in line
    caplog.clear()
    # An export of its own process says it to the caller too.
    with caplog.at_level(logging.WARNING), Encoder.load(source, provider="cpu") as encoder:
        assert encoder.bundle.manifest.pooling == "mean"
    assert [r for r in caplog.records if "1_Pooling is not read" in r.getMessage()]
