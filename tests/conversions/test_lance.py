"""Conversions to Lance datasets, read by pylance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from flowvec.convert import ConvertError, convert
from tests.job_folders import sparse_collection, write_job
from tests.makers import unit_vectors

lance = pytest.importorskip("lance", reason="needs the extra [lance]")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
def test_lance_reads_every_row_in_order_with_its_vector_bit_for_bit(
    tmp_path: Path, dtype: str, out_format: str
) -> None:
    rows, keys = unit_vectors(300, 9).astype(dtype), [f"k{i * 7 % 300}" for i in range(300)]
    numbers = {"n": list(range(300))}
    source = write_job(tmp_path / "job", rows, keys, numbers, out_format=out_format)
    done = convert(source, tmp_path / "v.lance", "lance")
    assert (done.rows, done.dtype) == (300, dtype)
    dataset = lance.dataset(tmp_path / "v.lance")
    table = dataset.to_table()
    assert table["id"].to_pylist() == keys
    vectors = table["vector"].combine_chunks()
    assert str(vectors.type).startswith("fixed_size_list")
    assert vectors.values.to_numpy().tobytes() == rows.tobytes()
    if out_format == "parquet":
        assert table["n"].to_pylist() == numbers["n"]
    else:
        assert [json.loads(one)["n"] for one in table["metadata"].to_pylist()] == numbers["n"]
    if dtype == "float32":
        query = {"column": "vector", "q": rows[7], "k": 1, "metric": "cosine"}
        assert dataset.to_table(nearest=query)["id"].to_pylist() == [keys[7]]


def test_a_collection_is_replaced_whole(tmp_path: Path) -> None:
    texts: list[Any] = ["The cat sleeps.", None]
    with Collection.create(tmp_path / "c", dim=2, metric="l2") as collection:
        collection.add_vectors(["a", 1], np.eye(2), texts, [{"x": [1]}, None])
    target = tmp_path / "c.lance"
    convert(tmp_path / "c", target, "lance")
    with pytest.raises(ConvertError, match="exists: name another target"):
        convert(tmp_path / "c", target, "lance")
    convert(tmp_path / "c", target, "lance", overwrite=True)
    rows = {row["id"]: row for row in lance.dataset(target).to_table().to_pylist()}
    assert (rows["a"]["text"], rows["1"]["text"]) == ("The cat sleeps.", None)
    assert (rows["a"]["id_is_int"], rows["1"]["id_is_int"]) == (False, True)
    assert (json.loads(rows["a"]["metadata"]), rows["1"]["metadata"]) == ({"x": [1]}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "c.lance"]
    with Collection.create(tmp_path / "empty", dim=4):
        pass
    for _ in range(2):  # a dataset without rows is recognized, too
        assert convert(tmp_path / "empty", target, "lance", overwrite=True).rows == 0
    assert lance.dataset(str(target)).count_rows() == 0


def test_a_damaged_source_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    source = write_job(tmp_path / "job", unit_vectors(300, 4), [f"k{i}" for i in range(300)])
    part = source / "part-000002.npy"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(ConvertError, match=r"^(?!cannot).*part-000002\."):
        convert(source, tmp_path / "v.lance", "lance")
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_sparse_vectors_are_list_columns(tmp_path: Path) -> None:
    weights = sparse_collection(tmp_path / "c")
    convert(tmp_path / "c", tmp_path / "c.lance", "lance")
    rows = lance.dataset(tmp_path / "c.lance").to_table().to_pylist()
    assert [row["id"] for row in rows] == list(weights)
    for row, expected in zip(rows, weights.values(), strict=True):
        assert row["sparse_indices"] == (None if expected is None else list(expected))
        assert row["sparse_values"] == (None if expected is None else list(expected.values()))
