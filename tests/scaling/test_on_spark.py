"""The job of docs/scaling.md on a local Spark, unchanged."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from flowvec import Encoder

pytest.importorskip("pyspark", reason="needs pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


def test_the_documented_job_gives_the_vectors_of_one_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (job,) = [block for block in blocks if "pyspark" in block]
    texts = [f"the cat number {i} sleeps in the garden" for i in range(300)]
    folder = tmp_path / "texts"
    folder.mkdir()
    for part in range(3):
        rows = [{"id": i, "text": texts[i]} for i in range(part, 300, 3)]
        rows.append({"id": 1000 + part, "text": None})  # type: ignore[dict-item]
        (folder / f"{part}.json").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    try:
        exec(compile(job, str(DOCUMENT), "exec"), {})
    finally:
        session.stop()
    table = pq.read_table(tmp_path / "vectors").sort_by("id")
    assert table["id"].to_pylist() == list(range(300))
    with Encoder.load("mini") as encoder:
        expected = encoder.encode(texts)
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
