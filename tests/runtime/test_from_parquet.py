"""A collection of Parquet files: what a bulk job wrote goes in whole."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, Encoder
from flowvec.bulk import encode_files
from flowvec.errors import FingerprintMismatchError, FlowvecError, InputTypeError, InputValueError

pytest.importorskip("pyarrow.parquet", reason="needs the extra [files]")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    lines = [
        {"id": f"k{i}", "text": f"a cat {i}", "n": i, "w": i / 2, "tags": [i, "x"]}
        for i in range(40)
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


KEEP: dict[str, Any] = {"id_field": "id", "keep": ["text", "n", "w", "tags"], "rows_per_shard": 9}


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("source", ["folder", "glob", "parts", "one file", "shares"])
def test_a_bulk_job_becomes_a_collection(
    tmp_path: Path, tiny: Encoder, rows: Path, source: str, precision: Any
) -> None:
    out = tmp_path / ("vecs.parquet" if source == "one file" else "vecs")
    shares = [(1, 2), (2, 2)] if source == "shares" else [(1, 1)]
    for share in shares:
        encode_files(tiny, rows, out, precision=precision, share=share, **KEEP)
    given: Any = {
        "glob": str(out / "part-*.parquet"), "parts": sorted(out.glob("*.parquet")),
    }.get(source, out)  # fmt: skip
    with Collection.from_parquet(tmp_path / "c", given) as made:
        info = made.info()
    assert (info.rows, info.model, info.fingerprint, info.compute, info.vector_dtype) == (
        40, "tiny", tiny.fingerprint, tiny.engine.compute, precision
    )  # fmt: skip
    with Collection.open(tmp_path / "c", encoder=tiny) as c:
        (item,) = c.get(["k7"])
        assert item.text == "a cat 7"
        assert item.metadata == {"n": 7, "w": 3.5, "tags": [7, "x"]}
        np.testing.assert_allclose(item.vector, tiny.encode("a cat 7"), rtol=2e-3, atol=2e-3)
        assert c.search("a cat 7", k=1, filter={"n": 7})[0].id == "k7"


def test_it_holds_what_the_job_would_have_put_there(
    tmp_path: Path, tiny: Encoder, rows: Path
) -> None:
    keep = KEEP | {"keep": ["n", "w", "tags"]}
    encode_files(tiny, rows, tmp_path / "vecs", **keep)
    encode_files(tiny, rows, tmp_path / "into", out_format="collection", **keep)
    with (
        Collection.from_parquet(tmp_path / "c", tmp_path / "vecs") as c,
        Collection.open(tmp_path / "into") as into,
    ):
        for mine, its in zip(c.rows(), into.rows(), strict=True):
            assert (mine.id, mine.metadata) == (its.id, its.metadata)
            assert mine.text is None  # which no column holds
            np.testing.assert_array_equal(mine.vector, its.vector)


def test_another_model_is_refused(tmp_path: Path, tiny: Encoder, mini: Encoder, rows: Path) -> None:
    encode_files(tiny, rows, tmp_path / "vecs", **KEEP)
    Collection.from_parquet(tmp_path / "c", tmp_path / "vecs").close()
    with pytest.raises(FingerprintMismatchError):
        Collection.open(tmp_path / "c", encoder=mini)
    encode_files(mini, rows, tmp_path / "others", **KEEP)
    both = [tmp_path / "vecs", tmp_path / "others"]
    with pytest.raises(InputValueError, match="cannot stand in one collection"):
        Collection.from_parquet(tmp_path / "d", both)
    assert not (tmp_path / "d").exists()


def test_an_unfinished_job_is_refused(tmp_path: Path, tiny: Encoder, rows: Path) -> None:
    encode_files(tiny, rows, tmp_path / "share", share=(1, 2), **KEEP)
    with pytest.raises(InputValueError, match="not complete"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "share")
    encode_files(tiny, rows, tmp_path / "vecs", **KEEP)
    manifest = json.loads((tmp_path / "vecs/_manifest.json").read_text())
    del manifest["shards"]
    (tmp_path / "vecs/_manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputValueError, match="not complete"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "vecs")
    parts = sorted((tmp_path / "vecs").glob("*.parquet"))
    with Collection.from_parquet(tmp_path / "c", parts[:2]) as c:  # asked for by name
        assert len(c) == 18


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_quantised_vectors_are_refused(
    tmp_path: Path, tiny: Encoder, rows: Path, precision: Any
) -> None:
    encode_files(tiny, rows, tmp_path / "vecs", precision=precision, **KEEP)
    with pytest.raises(InputValueError, match="a collection takes float32 or float16"):
        Collection.from_parquet(tmp_path / "c", tmp_path / "vecs")


def test_what_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.parquet").write_text("x")
    for wrong in (tmp_path / "empty", tmp_path / "none.parquet", str(tmp_path / "x*.parquet"), [],
                  tmp_path / "bad.parquet"):  # fmt: skip
        with pytest.raises(InputValueError):
            Collection.from_parquet(tmp_path / "c", wrong)
    for odd in (None, 3, [3], {"a": 1}, threading):
        with pytest.raises(FlowvecError):
            Collection.from_parquet(tmp_path / "c", odd)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError):
        Collection.from_parquet(tmp_path / "c", [None])  # type: ignore[list-item]


def test_columns_of_other_origin_become_metadata(tmp_path: Path) -> None:
    import datetime

    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({
        "id": [1, 2],
        "vector": [[1.0, 0.0], [0.0, 1.0]],
        "metadata": ['{"a": 1, "n": 5}', None],
        "n": [1.5, float("nan")],
        "when": [datetime.date(2026, 1, 2), None],
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet") as c:
        assert [item.metadata for item in c.get([1, 2])] == [
            {"a": 1, "n": 1.5, "when": "2026-01-02"}, {"n": None, "when": None}
        ]  # fmt: skip
