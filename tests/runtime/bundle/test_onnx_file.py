"""How many rows the tables of a graph have that its inputs choose from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowvec.bundle.bundle import shipped_bundles
from flowvec.bundle.onnx_file import rows_read_by
from flowvec.errors import BundleError
from tests.conftest import DATA


def test_rows_of_committed_graphs() -> None:
    rows = {
        DATA / "bundles" / "tiny": 106,
        DATA / "bundles" / "multi_vector": 108,
        DATA / "optimum" / "roberta": 102,
        shipped_bundles()["mini"]: 56235,
    }
    assert {folder: rows_read_by(folder / "model.onnx", "input_ids") for folder in rows} == rows
    graph = DATA / "optimum" / "bert" / "model.onnx"
    assert rows_read_by(graph, "token_type_ids") == 2
    assert rows_read_by(graph, "attention_mask") is None


def test_tables_and_ids_are_followed_through_other_nodes(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra [export]")
    make, number = onnx.helper.make_node, onnx.numpy_helper.from_array
    nodes = [
        make("Constant", [], ["constant"], value=number(np.zeros((7, 2), np.float16))),
        make("Cast", ["constant"], ["wide"], to=1),
        make("Cast", ["input_ids"], ["ids"], to=7),
        make("Gather", ["wide", "ids"], ["a"]),
        make("DequantizeLinear", ["bytes", "scale"], ["table"]),
        make("Gather", ["table", "input_ids"], ["b"]),
        make("Gather", ["other", "places"], ["c"]),
    ]
    tensors = [
        number(np.zeros((5, 2), np.int8), "bytes"),
        number(np.float32(1), "scale"),
        number(np.zeros((3, 2), np.float32), "other"),
    ]
    graph = onnx.helper.make_graph(nodes, "graph", [], [], tensors)
    (tmp_path / "a.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    assert rows_read_by(tmp_path / "a.onnx", "input_ids") == 5
    assert rows_read_by(tmp_path / "a.onnx", "places") == 3


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for content in (b"", b"\x3a\xff\xff\xff\xff"):
        (tmp_path / "a.onnx").write_bytes(content)
        with pytest.raises(BundleError):
            rows_read_by(tmp_path / "a.onnx", "input_ids")
