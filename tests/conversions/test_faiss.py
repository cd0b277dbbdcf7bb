"""Conversions to faiss's index files, read by faiss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec.convert import convert
from tests.job_folders import write_job
from tests.makers import unit_vectors, vectors

faiss = pytest.importorskip("faiss", reason="needs the extra [test-convert]")


@pytest.mark.parametrize("metric", ["cosine", "ip", "l2"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_the_file_has_the_bytes_of_write_index(
    tmp_path: Path, metric: Any, dtype: str, kind: str
) -> None:
    import pyarrow.parquet as pq

    rows = unit_vectors(300, 9) if metric == "cosine" else vectors(300, 9)
    rows = rows.astype(dtype)
    numbers = [i * 7919 % 300 * 10**12 for i in range(300)]
    keys = [f"k{i}" for i in range(300)] if kind == "texts" else numbers
    convert(write_job(tmp_path / "job", rows, keys), tmp_path / "f", "faiss", metric=metric)
    order = list(range(300)) if kind == "texts" else np.argsort(numbers).tolist()
    labels = np.arange(300) if kind == "texts" else np.sort(numbers)
    flat = faiss.IndexFlatL2(9) if metric == "l2" else faiss.IndexFlatIP(9)
    index = faiss.IndexIDMap(flat)
    index.add_with_ids(rows[order].astype(np.float32), labels.astype(np.int64))
    faiss.write_index(index, str(tmp_path / "own.faiss"))
    written = tmp_path / "f" / "index.faiss"
    assert written.read_bytes() == (tmp_path / "own.faiss").read_bytes()
    _, found = faiss.read_index(str(written)).search(rows[:5].astype(np.float32), 300)
    by_label = {r["label"]: r["id"] for r in pq.read_table(tmp_path / "f/rows.parquet").to_pylist()}
    assert {by_label[label] for label in found[0]} == set(keys)
