"""The format of a bundle: one test for each way in which it can be broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flowvec import Bundle, BundleError, Encoder
from flowvec.bundle.bundle import record_file, shipped_bundles
from flowvec.bundle.manifest import Manifest
from tests.conftest import DATA


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "manifest.json"
    raw = json.loads(file.read_text())
    change(raw)
    file.write_text(json.dumps(raw))


def test_the_committed_bundle_opens_and_its_manifest_survives_a_round_trip(tiny_dir: Path) -> None:
    bundle = Bundle.load(tiny_dir)
    text = bundle.manifest.to_json()
    assert Manifest.from_json(text, "here") == bundle.manifest
    assert text == (tiny_dir / "manifest.json").read_text()


def test_the_fingerprint_is_stable(tiny_dir: Path) -> None:
    expected = "04eed77a2ef7e96a0f6d273abaffde046ac2fb9d95bc361ceaa29f01ec558d16"
    assert Bundle.load(tiny_dir).fingerprint == expected


@pytest.mark.parametrize("key", ["max_length", "max_characters", "prompts", "normalised"])
def test_the_fingerprint_follows_what_decides_a_vector(tiny_copy: Path, key: str) -> None:
    before = Bundle.load(tiny_copy).fingerprint
    new = {"max_length": 32, "max_characters": 3072, "prompts": {}, "normalised": True}
    edit(tiny_copy, lambda raw: raw.update({key: new[key]}))
    assert Bundle.load(tiny_copy).fingerprint != before


def test_the_fingerprint_ignores_names_and_parity_figures(tiny_copy: Path) -> None:
    before = Bundle.load(tiny_copy).fingerprint
    edit(tiny_copy, lambda raw: raw.update(name="other", source="x", parity={"new": 1.0}))
    assert Bundle.load(tiny_copy).fingerprint == before


def test_a_path_is_not_a_shipped_bundle() -> None:
    message = "^there is no directory 'mini'; the shipped model is the text 'mini', not a Path$"
    with pytest.raises(BundleError, match=message):
        Bundle.load(Path("mini"))


def test_shipped_bundles_load_by_name() -> None:
    assert "mini" in shipped_bundles()
    assert Bundle.load("mini").handle == "mini"


def test_a_missing_bundle_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nowhere.*mini"):
        Bundle.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_changed_byte_is_refused(tiny_copy: Path, name: str) -> None:
    data = bytearray((tiny_copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (tiny_copy / name).write_bytes(data)
    with pytest.raises(BundleError, match=rf"{name} is damaged"):
        Bundle.load(tiny_copy)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_a_cut_file_is_refused(tiny_copy: Path, name: str) -> None:
    data = (tiny_copy / name).read_bytes()
    (tiny_copy / name).write_bytes(data[:-1])
    with pytest.raises(BundleError, match=rf"{name} has \d+ bytes"):
        Bundle.load(tiny_copy)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json", "manifest.json"])
def test_a_missing_file_is_refused(tiny_copy: Path, name: str) -> None:
    (tiny_copy / name).unlink()
    with pytest.raises(BundleError, match=name):
        Bundle.load(tiny_copy)


@pytest.mark.parametrize("name", ["model.onnx", "manifest.json"])
def test_a_link_is_refused(tiny_copy: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (tiny_copy / name).rename(outside)
    (tiny_copy / name).symlink_to(outside)
    with pytest.raises(BundleError):
        Bundle.load(tiny_copy)


def test_an_extra_file_is_refused(tiny_copy: Path) -> None:
    # Even notes: a graph might name any file beside it as external data.
    for name in ("model.onnx.data", "README.md"):
        (tiny_copy / name).write_bytes(b"x")
        with pytest.raises(BundleError, match=name):
            Bundle.load(tiny_copy)
        (tiny_copy / name).unlink()


@pytest.mark.parametrize(
    "text", ["", "not json", "[]", "null", "[" * 100_000, '{"format_version": 1}', "\x00"]
)
def test_a_file_that_is_not_a_manifest_is_refused(tiny_copy: Path, text: str) -> None:
    (tiny_copy / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.load(tiny_copy)


def test_a_manifest_that_is_not_utf8_or_huge_is_refused(tiny_copy: Path) -> None:
    (tiny_copy / "manifest.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(BundleError, match="cannot read"):
        Bundle.load(tiny_copy)
    (tiny_copy / "manifest.json").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(BundleError, match="larger than"):
        Bundle.load(tiny_copy)


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None])
def test_another_format_version_is_refused(tiny_copy: Path, version: object) -> None:
    edit(tiny_copy, lambda raw: raw.update(format_version=version))
    with pytest.raises(BundleError, match="format_version"):
        Bundle.load(tiny_copy)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dim", 0),
        ("dim", -1),
        ("dim", True),
        ("dim", 1.5),
        ("max_length", 1 << 30),
        ("layers", -1),
        ("layers", True),
        ("layers", False),
        ("layers", "2"),
        ("max_characters", 0),
        ("max_characters", True),
        ("max_characters", "512"),
        ("name", 1),
        ("normalised", "yes"),
        ("prompts", {"q": 1}),
        ("prompts", []),
        ("default_prompt_name", "unknown"),
        ("default_prompt_name", []),
        ("similarity", "euclid"),
        ("weights", "int4"),
        ("inputs", "input_ids"),
        ("inputs", [1]),
        ("inputs", ["input_ids"]),
        ("inputs", ["input_ids", "attention_mask", "token_type_ids"]),
        ("pad_id", -1),
        ("files", []),
        ("files", {"model.onnx": {"bytes": 1, "sha256": "0" * 64}}),
        ("licence", 3),
        ("parity", None),
    ],
)
def test_a_field_out_of_range_is_refused(tiny_copy: Path, key: str, value: object) -> None:
    edit(tiny_copy, lambda raw: raw.update({key: value}))
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.load(tiny_copy)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sparse", {"max_active_dims": 0}),
        ("sparse", {"max_active_dims": 10**6}),
        ("sparse", {"kind": "reranker"}),
        ("sparse", {"kind": "multi_vector"}),
        ("multi_vector", {"late_interaction": None}),
        ("multi_vector", {"late_interaction": {"query_length": 3}}),
        ("multi_vector", {"query_length": 65}),
        ("multi_vector", {"expansion_token": None}),
        ("multi_vector", {"expansion_length": True}),
        ("multi_vector", {"skipped_tokens": [-1]}),
        ("tiny", {"max_active_dims": 3}),
    ],
)
def test_what_other_kinds_say_is_checked(
    name: str, changes: dict[str, object], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(DATA / "bundles" / name, tmp_path / "copy"))
    assert Bundle.load(copy).manifest.to_json() == (copy / "manifest.json").read_text()

    def change(raw: dict[str, object]) -> None:
        inner = raw.get("late_interaction")
        for key, value in changes.items():
            (inner if isinstance(inner, dict) and key in inner else raw)[key] = value

    edit(copy, change)
    with pytest.raises(BundleError, match=r"manifest\.json: "):
        Bundle.load(copy)


@pytest.mark.parametrize("name", [field.name for field in fields(Manifest)])
def test_a_manifest_that_lacks_a_field_is_refused(tiny_copy: Path, name: str) -> None:
    edit(tiny_copy, lambda raw: raw.pop(name))
    with pytest.raises(BundleError, match=rf"manifest.*\b{name}\b"):
        Bundle.load(tiny_copy)


def test_an_unknown_field_is_refused(tiny_copy: Path) -> None:
    edit(tiny_copy, lambda raw: raw.update(surprise=1))
    with pytest.raises(BundleError, match="unknown fields surprise"):
        Bundle.load(tiny_copy)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", "..", "", "manifest.json"])
def test_a_file_name_that_leaves_the_bundle_is_refused(tiny_copy: Path, name: str) -> None:
    record = {"bytes": 1, "sha256": "0" * 64}
    edit(tiny_copy, lambda raw: raw["files"].update({name: record}))
    with pytest.raises(BundleError, match="not a plain file name"):
        Bundle.load(tiny_copy)


def rehash(folder: Path) -> None:
    """Make the manifest agree with changed files."""

    def update(raw: dict[str, Any]) -> None:
        for name in raw["files"]:
            record = record_file(folder / name)
            raw["files"][name] = {"bytes": record.bytes, "sha256": record.sha256}

    edit(folder, update)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
def test_rubbish_with_a_right_hash_is_a_typed_error(tiny_copy: Path, name: str) -> None:
    (tiny_copy / name).write_bytes(b"rubbish")
    rehash(tiny_copy)
    with pytest.raises(BundleError, match=name):
        Encoder.load(tiny_copy, provider="cpu")


def test_a_graph_without_the_promised_output_is_refused(tiny_copy: Path) -> None:
    edit(tiny_copy, lambda raw: raw.update(output="logits"))
    with pytest.raises(BundleError, match="logits"):
        Encoder.load(tiny_copy, provider="cpu")


def test_a_dim_that_is_not_the_graphs_is_refused(tiny_copy: Path) -> None:
    edit(tiny_copy, lambda raw: raw.update(dim=17))
    with pytest.raises(BundleError, match="17 dimensions"):
        Encoder.load(tiny_copy, provider="cpu")


def test_a_max_length_without_room_is_refused(tiny_copy: Path) -> None:
    edit(tiny_copy, lambda raw: raw.update(max_length=2))
    with pytest.raises(BundleError, match="no room"):
        Encoder.load(tiny_copy, provider="cpu")
