"""Ray Data with `EmbedTexts`: the vectors of one Encoder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")

import ray
import ray.data

from flowvec import Encoder
from flowvec.errors import InputTypeError, InputValueError
from flowvec.integrations.ray import EmbedTexts
from tests.docs.pages import DOCS
from tests.makers import texts_of

pytestmark = pytest.mark.usefixtures("cluster")


def test_a_dataset_gets_the_vectors_of_encode(tiny: Encoder) -> None:
    texts = texts_of(500)
    dataset = ray.data.from_items([{"id": i, "body": text} for i, text in enumerate(texts)])
    options = {"model": tiny.bundle.handle, "text": "body", "prompt_name": "query",
               "truncate_dim": 4, "load_options": {"provider": "cpu"}}  # fmt: skip
    embedded = dataset.map_batches(
        EmbedTexts, fn_constructor_kwargs=options, num_cpus=1, batch_size=64,
        compute=ray.data.ActorPoolStrategy(size=2),
    )  # fmt: skip
    rows = sorted(embedded.take_all(), key=lambda row: row["id"])
    assert [row["body"] for row in rows] == texts
    expected = tiny.encode(texts, prompt_name="query", truncate_dim=4)
    np.testing.assert_allclose(np.stack([row["vector"] for row in rows]), expected, atol=1e-5)


def test_a_worker_computes_on_the_cores_that_ray_gives_it(tiny: Encoder) -> None:
    class Streams(EmbedTexts):
        def __call__(self, batch):
            return {"streams": np.array([self._encoder.info().streams])}

    for cpus in (1, 2):
        dataset = ray.data.from_items([{"text": "the cat"}]).map_batches(
            Streams, fn_constructor_kwargs={"model": tiny.bundle.handle}, num_cpus=cpus,
            compute=ray.data.ActorPoolStrategy(size=1),
        )  # fmt: skip
        assert dataset.take_all() == [{"streams": cpus}]


def test_wrong_batches_are_errors(tiny: Encoder) -> None:
    embed = EmbedTexts(tiny.bundle.handle)
    with pytest.raises(InputTypeError, match=r"row 1 .*None in 'text'"):
        embed({"text": np.array(["the cat", None], object)})
    with pytest.raises(InputTypeError, match="leave out batch_format"):
        embed(["the cat"])  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="'text'; the columns are body"):
        embed({"body": np.array(["the cat"])})
    with pytest.raises(InputValueError, match="already 'vector' beside column"):
        embed({"text": np.array(["the cat"]), "vector": np.zeros(1)})
    assert embed({"text": np.array([], object)})["vector"].shape == (0, tiny.dim)


def test_several_columns_are_one_text(tiny: Encoder) -> None:
    embed = EmbedTexts(tiny.bundle.handle, text="title,text")
    titles = np.array(["A title", None, np.nan, "a cat"], object)
    bodies = np.array(["a body", "a body", "a dog", None], object)
    made = embed({"title": titles, "text": bodies})["vector"]
    wanted = tiny.encode(["A title a body", "a body", "a dog", "a cat"])
    np.testing.assert_allclose(made, wanted, atol=0.05)
    with pytest.raises(InputTypeError, match=r"row 0 .*None in 'title'"):
        embed({"title": np.array([None], object), "text": np.array([None], object)})
    with pytest.raises(InputValueError, match="no column 'title'"):
        embed({"text": bodies})


def test_the_documented_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```", (DOCS / "scaling.md").read_text(encoding="utf-8"), re.DOTALL
    )
    (example,) = [block for block in blocks if "EmbedTexts" in block]
    assert len(example.splitlines()) <= 30
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.jsonl").write_text('{"text": "the cat"}\n{"text": "a dog"}\n')
    code = f"import ray\nray.init(num_cpus=4, include_dashboard=False)\n{example}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True,
                          text=True, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(tmp_path / "vectors")
    assert (table.num_rows, set(table.column_names)) == (2, {"text", "vector"})
