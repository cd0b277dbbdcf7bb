"""Conversions to hnswlib's index files, read by hnswlib."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.convert import ConvertError, convert
from tests.job_folders import write_job
from tests.makers import unit_vectors, vectors

pytestmark = pytest.mark.usefixtures("arrow")


@pytest.fixture
def hnswlib() -> Any:
    return pytest.importorskip("hnswlib", reason="needs hnswlib, a peer")


def opened(hnswlib: Any, folder: Path) -> tuple[Any, dict[int, dict[str, Any]]]:
    """The index, and for each label its row."""
    import pyarrow.parquet

    about = json.loads((folder / "flowvec.json").read_text())
    index = hnswlib.Index(about["space"], about["dim"])
    index.load_index(str(folder / about["index"]))
    rows = pyarrow.parquet.read_table(folder / "rows.parquet").to_pylist()
    return index, {row["label"]: row for row in rows}


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
def test_hnswlib_reads_every_vector_under_its_label(
    tmp_path: Path, hnswlib: Any, metric: Any
) -> None:
    rows = unit_vectors(300, 8) if metric == "cosine" else vectors(300, 8)
    keys = [f"k{i}" for i in range(300)]
    source = write_job(tmp_path / "job", rows, keys, {"n": list(range(300))})
    done = convert(source, tmp_path / "h", "hnswlib", metric=metric, m=8, ef_construction=50)
    assert (done.rows, done.dtype, done.metric) == (300, "float32", metric)
    index, by_label = opened(hnswlib, tmp_path / "h")
    assert (index.get_current_count(), index.M, index.ef_construction) == (300, 8, 50)
    labels = sorted(index.get_ids_list())
    assert labels == sorted(by_label) == list(range(300))
    assert np.asarray(index.get_items(labels), np.float32).tobytes() == rows.tobytes()
    index.set_ef(300)
    best, _ = index.knn_query(rows[:20], 1)
    scores = -((rows[:20, None] - rows[None]) ** 2).sum(2) if metric == "l2" else rows[:20] @ rows.T
    assert (best[:, 0] == scores.argmax(1)).mean() > 0.9
    assert [by_label[label]["id"] for label in labels] == keys
    assert json.loads(by_label[5]["metadata"]) == {"n": 5}


def test_whole_numbers_are_the_labels(tmp_path: Path, hnswlib: Any) -> None:
    rows, keys = unit_vectors(200, 4), [(i * 7919) % 200 * 10**14 for i in range(200)]
    source = write_job(tmp_path / "job", rows.astype(np.float16), keys)
    convert(source, tmp_path / "h", "hnswlib")
    index, by_label = opened(hnswlib, tmp_path / "h")
    found = np.asarray(index.get_items(keys), np.float32)
    assert found.tobytes() == rows.astype(np.float16).astype(np.float32).tobytes()
    assert {row["id"]: label for label, row in by_label.items()} == {k: k for k in keys}
    convert(source, tmp_path / "r", "hnswlib", labels="rows")
    index, by_label = opened(hnswlib, tmp_path / "r")
    assert [by_label[label]["id"] for label in range(200)] == keys


def test_ids_that_cannot_be_labels_are_named(tmp_path: Path) -> None:
    for name, keys, message in (
        ("negative", [3, -2, 1], "the id -2 cannot be a label; give --labels rows"),
        ("twice", [3, 1, 3], "two rows have the id 3, so it cannot be a label"),
        ("texts", ["a", "b", "c"], "ids that are texts, which cannot be labels"),
    ):
        source = write_job(tmp_path / name, unit_vectors(3, 4), keys)
        with pytest.raises(ConvertError, match=message):
            convert(source, tmp_path / "h", "hnswlib", labels="ids")
        assert convert(source, tmp_path / f"h-{name}", "hnswlib", labels="rows").rows == 3
    assert not (tmp_path / "h").exists()


@pytest.mark.parametrize("to", ["hnswlib", "faiss"])
def test_the_inner_product_of_longer_vectors_is_not_passed_off_as_the_cosine(
    tmp_path: Path, to: Any
) -> None:
    rows = unit_vectors(9, 4)
    rows[4] *= 2
    source = write_job(tmp_path / "job", rows, [f"k{i}" for i in range(9)])
    with pytest.raises(ConvertError, match=r"'k4' .*length 2, .*--normalize"):
        convert(source, tmp_path / "out", to)
    assert not (tmp_path / "out").exists()
    convert(source, tmp_path / "out", to, normalize=True)
