"""The file of native weights: written and read back, and never trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowvec.errors import BundleError
from flowvec.native import Weights
from tests.runtime.native.models import STEPS, Model

MODEL = Model(
    layers=1, hidden=64, heads=2, wide=70, positions=9, vocabulary=11, steps=STEPS, uncounted=3,
    has_distances=True, has_types=True, weighted_words=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.native"
    MODEL.weights().write(path)
    return path


def parts(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors' bytes."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: object, tensors: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + tensors


def test_what_is_written_is_read_back(file: Path) -> None:
    wanted, read = MODEL.weights(), Weights.read(file)
    assert read.tensors.keys() == wanted.tensors.keys()
    for name, tensor in wanted.tensors.items():
        np.testing.assert_array_equal(read.tensors[name], tensor)
        assert not read.tensors[name].flags.writeable
    for name in (
        "layers",
        "heads",
        "epsilon",
        "poolings",
        "steps",
        "is_normalized",
        "uncounted",
        "logs",
    ):
        assert getattr(read, name) == getattr(wanted, name)
    assert (read.dim, read.most_tokens) == (5, 8)


def test_other_libraries_can_read_it(file: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy", reason="needs the extra [export]")
    for name, tensor in safetensors.load_file(file).items():
        np.testing.assert_array_equal(tensor, MODEL.tensors[name])


FACTS: list[dict[str, Any]] = [
    {"format": 2}, {"format": None}, {"layers": 0}, {"layers": 2},
    {"layers": 1 << 40}, {"layers": True}, {"heads": 0}, {"heads": "2"}, {"epsilon": 2.0},
    {"epsilon": "x"}, {"epsilon": float("nan")}, {"activation": "relu"}, {"poolings": []},
    {"poolings": "mean"}, {"poolings": ["mode"]}, {"poolings": [["mean"]]}, {"is_normalized": 1},
    {"uncounted": 11}, {"uncounted": -1}, {"uncounted": "3"}, {"steps": None}, {"steps": [3]},
    {"steps": []}, {"logs": None}, {"logs": 5}, {"logs": "1"},
]  # fmt: skip


@pytest.mark.parametrize("changed", FACTS, ids=str)
def test_wrong_facts_are_refused(file: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    header, tensors = parts(file)
    facts = {**json.loads(header["__metadata__"]["flowvec"]), **changed}
    header["__metadata__"]["flowvec"] = json.dumps(facts)
    damaged = tmp_path / "model.native"
    damaged.write_bytes(joined(header, tensors))
    with pytest.raises(BundleError, match="not a file of native weights"):
        Weights.read(damaged)


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        (1, {"operation": "mix"}), (1, {"operation": ["add"]}), (1, {"operands": [0]}),
        (1, {"operands": [0, 2]}), (1, {"operands": [0, -1]}), (1, {"operands": [0, "1"]}),
        (1, {"operands": 0}), (1, {"length": 65}), (1, {"length": 1 << 40}), (1, {"more": 1}),
        (0, {"length": 0}), (2, {"length": 101}), (4, {"operands": [4, 1]}), (5, {"begin": 64}),
        (5, {"begin": -1}), (5, {"begin": 1.0}), (8, {"operands": [8, 0]}), (10, {"length": 136}),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_steps_are_refused(
    file: Path, tmp_path: Path, number: int, changed: dict[str, Any]
) -> None:
    facts = json.loads(parts(file)[0]["__metadata__"]["flowvec"])
    facts["steps"][number] |= changed
    test_wrong_facts_are_refused(file, tmp_path, {"steps": facts["steps"]})


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("words.weight", "dtype", "F32"),
        ("relative", "shape", [2, 14]),
        ("head.words.weight", "shape", [4, 64]),
        ("tail.2", "shape", [64, 64]),
        ("words.weight", "shape", [11, 65]),
        ("words.weight", "shape", [1 << 30, 64]),
        ("words.weight", "shape", 64),
        ("words.weight", "shape", [-11, -64]),
        ("positions", "shape", [9, 0]),
        ("positions", "data_offsets", [0, 4]),
        ("layers.0.up.weight", "data_offsets", [1 << 60, (1 << 60) + 4480]),
        ("layers.0.up.weight", "data_offsets", None),
        ("layers.0.up.bias", "data_offsets", [-280, 0]),
    ],
)
def test_wrong_tensors_are_refused(
    file: Path, tmp_path: Path, name: str, field: str, value: object
) -> None:
    header, tensors = parts(file)
    header[name][field] = value
    damaged = tmp_path / "model.native"
    damaged.write_bytes(joined(header, tensors))
    with pytest.raises(BundleError, match="not a file of native weights"):
        Weights.read(damaged)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["words.scale", "positions", "layers.0.output_norm.bias"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, number: float, name: str) -> None:
    tensors = {key: tensor.copy() for key, tensor in MODEL.tensors.items()}
    tensors[name].flat[-1] = number
    MODEL.weights(tensors=tensors).write(tmp_path / "model.native")
    with pytest.raises(BundleError, match=rf"{name} has numbers that are not finite"):
        Weights.read(tmp_path / "model.native")


def test_a_smoothing_of_0_is_refused(tmp_path: Path) -> None:
    tensors = {key: tensor.copy() for key, tensor in MODEL.tensors.items()}
    tensors["embedding_norm.smoothing"][5] = 0
    MODEL.weights(tensors=tensors).write(tmp_path / "model.native")
    with pytest.raises(BundleError, match="above 0"):
        Weights.read(tmp_path / "model.native")


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"\0" * 8, b"\xff" * 64, b"{}" * 9, b"\2" + b"\0" * 7, b"\2" + b"\0" * 7 + b"12"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.native").write_bytes(content)
    with pytest.raises(BundleError, match=r"cannot read|not a file of native weights"):
        Weights.read(tmp_path / "model.native")
    with pytest.raises(BundleError, match="cannot read"):
        Weights.read(tmp_path / "missing")


@pytest.mark.parametrize("change", [-1, 1, -5000])
def test_other_lengths_are_refused(file: Path, tmp_path: Path, change: int) -> None:
    data = file.read_bytes()
    (tmp_path / "model.native").write_bytes(data[:change] if change < 0 else data + b"\0")
    with pytest.raises(BundleError, match="not a file of native weights"):
        Weights.read(tmp_path / "model.native")


@pytest.mark.property
@given(place=st.floats(0, 1), replaced=st.binary(min_size=1, max_size=6))
def test_any_damage_to_the_header_is_an_error_or_harmless(
    file: Path, tmp_path_factory: pytest.TempPathFactory, place: float, replaced: bytes
) -> None:
    data = bytearray(file.read_bytes())
    length = 8 + int.from_bytes(data[:8], "little")
    at = int(place * (length - len(replaced)))
    data[at : at + len(replaced)] = replaced
    path = tmp_path_factory.mktemp("damaged") / "model.native"
    path.write_bytes(data)
    try:
        read = Weights.read(path)
    except BundleError:
        return
    assert read.tensors.keys() == MODEL.tensors.keys()
