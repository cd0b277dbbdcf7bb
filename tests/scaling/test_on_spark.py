"""Vectors on a local Spark: the job of docs/scaling.md, and the helpers."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="needs pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java", allow_module_level=True)

from pyspark.sql import SparkSession

from flowvec import Encoder
from flowvec.errors import InputTypeError, InputValueError
from flowvec.integrations.spark import vectors_udf, with_vectors
from tests.docs.pages import DOCS
from tests.makers import texts_of


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("spark"))  # Spark keeps the folder where it started
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        yield session
        session.stop()


def of(rows: list[Any]) -> np.ndarray:
    return np.array([row["vector"] for row in rows], dtype=np.float32)


def test_the_documented_job_gives_the_vectors_of_one_encoder(
    session: SparkSession, mini: Encoder
) -> None:
    import pyarrow.parquet as pq

    page = (DOCS / "scaling.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (job,) = [block for block in blocks if "pyspark" in block]
    texts = [f"the cat number {i} sleeps in the garden" for i in range(300)]
    folder = Path.cwd()
    (folder / "texts").mkdir()
    for part in range(3):
        rows: list[dict[str, Any]] = [{"id": i, "text": texts[i]} for i in range(part, 300, 3)]
        rows.append({"id": 1000 + part, "text": None})
        (folder / "texts" / f"{part}.json").write_text("\n".join(map(json.dumps, rows)))
    exec(compile(job, "docs/scaling.md", "exec"), {})
    table = pq.read_table(folder / "vectors").sort_by("id")
    assert table["id"].to_pylist() == [*range(300), 1000, 1001, 1002]
    vectors = table["vector"].to_pylist()
    assert vectors[300:] == [None] * 3
    np.testing.assert_allclose(
        np.array(vectors[:300], dtype=np.float32), mini.encode(texts), atol=1e-5
    )


def test_both_helpers_give_the_vectors_of_encode(session: SparkSession, tiny: Encoder) -> None:
    texts = texts_of(200)
    rows = [(i, None if i % 50 == 7 else text) for i, text in enumerate(texts)]
    frame = session.createDataFrame(rows, "id long, body string").repartition(3)
    whole = {"prompt_name": "query", "load_options": {"provider": "cpu"}}
    mapped = with_vectors(frame, tiny.bundle.handle, text="body", **whole)
    assert mapped.columns == ["id", "body", "vector"]
    selected = frame.select("id", vectors_udf(tiny.bundle.handle, **whole)("body").alias("vector"))
    kept = [i for i, text in rows if text is not None]
    expected = tiny.encode([texts[i] for i in kept], prompt_name="query")
    for result in (mapped, selected):
        rows_out = result.orderBy("id").collect()
        assert [row["id"] for row in rows_out if row["vector"] is None] == [7, 57, 107, 157]
        vectors = of([rows_out[i] for i in kept])
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_wrong_arguments_are_errors_before_a_job_runs(session: SparkSession, tiny: Encoder) -> None:
    frame = session.createDataFrame([("the cat",)], "text string")
    with pytest.raises(InputTypeError, match="workers load it"):
        with_vectors(frame, tiny)  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="'body'; the columns are text"):
        with_vectors(frame, text="body")
    with pytest.raises(InputValueError, match="'text' beside column 'text'"):
        with_vectors(frame, vector="text")
