"""Conversions to Parquet, and what holds for all conversions of rows."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, CorruptCollectionError, Encoder
from flowvec.bulk import encode_files
from flowvec.convert import convert, sorting
from tests.inside import run_sql
from tests.job_folders import sparse_collection, write_job
from tests.makers import texts_of, unit_vectors, vectors, write_jsonl

pytestmark = pytest.mark.usefixtures("arrow")
# Their order as texts is neither that of numbers nor that of UTF-16.
ODD_IDS = ["b", "a", "", "é", "z", "10", "9", "\U0001f600", "\uffff", "a\x00", "-1", "B"]


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs so small that sorting a few rows takes several merges."""
    for name, value in {"RUN_BYTES": 512, "_BATCH_BYTES": 128, "_FAN_IN": 3}.items():
        monkeypatch.setattr(sorting, name, value)


def rows_of(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


def bits_of(path: Path) -> bytes:
    import pyarrow.parquet

    column = pyarrow.parquet.read_table(path)["vector"].combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).tobytes()


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("out_format", ["npy", "parquet"])
@pytest.mark.parametrize("kind", ["texts", "numbers", "none"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_row_is_there_once_in_order_of_ids_with_the_same_bits(
    tmp_path: Path, out_format: str, kind: str, dtype: str
) -> None:
    rng = random.Random(1)
    rows = vectors(130, 5).astype(dtype)
    numbers = [-(2**63), 2**63 - 1, *(rng.randrange(-(2**63), 2**63) for _ in range(128))]
    ids = {"texts": ODD_IDS + [f"k{n}" for n in numbers[12:]], "numbers": numbers, "none": None}
    tags = [f"tag {i}" for i in range(130)]
    source = write_job(
        tmp_path / "job", rows, ids[kind], {"tag": tags}, out_format=out_format, rows_per_shard=17
    )
    done = convert(source, tmp_path / "v.parquet", "parquet", row_group_rows=13)
    assert (done.rows, done.dim, done.dtype) == (130, 5, dtype)
    keys = ids[kind] or list(range(130))
    order = sorted(range(130), key=lambda i: keys[i].encode() if kind == "texts" else keys[i])
    found = rows_of(tmp_path / "v.parquet")
    assert [row["id"] for row in found] == [keys[i] for i in order]
    kept = [json.loads(r["metadata"])["tag"] if out_format == "npy" else r["tag"] for r in found]
    assert kept == [tags[i] for i in order]
    assert bits_of(tmp_path / "v.parquet") == rows[order].tobytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job", "v.parquet"]


def test_rows_with_the_same_id_are_all_kept(tmp_path: Path, small_runs: None) -> None:
    keys = [i % 3 for i in range(100)]
    source = write_job(tmp_path / "job", vectors(100, 2), keys)
    convert(source, tmp_path / "v.parquet", "parquet")
    assert [row["id"] for row in rows_of(tmp_path / "v.parquet")] == sorted(keys)


def test_engines_read_only_the_row_group_of_an_id(tmp_path: Path) -> None:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    duckdb = pytest.importorskip("duckdb")
    rows, keys = vectors(1000, 4), [f"key-{i * 7919 % 1000:04}" for i in range(1000)]
    source = write_job(tmp_path / "job", rows, keys, rows_per_shard=300)
    target = tmp_path / "v.parquet"
    convert(source, target, "parquet", row_group_rows=64)
    about = pq.ParquetFile(target).metadata
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    assert [group.num_rows for group in groups] == [64] * 15 + [40]
    spans = [(g.column(0).statistics.min, g.column(0).statistics.max) for g in groups]
    assert all(one[1] < next_[0] for one, next_ in itertools.pairwise(spans))
    assert groups[0].sorting_columns == (pq.SortingColumn(0),)
    (fragment,) = ds.dataset(target).get_fragments()
    assert len(fragment.split_by_row_group(ds.field("id") == "key-0500")) == 1
    found = duckdb.execute(
        "SELECT id, vector FROM read_parquet(?) WHERE id = 'key-0500'", [str(target)]
    ).fetchall()
    (place,) = (i for i, key in enumerate(keys) if key == "key-0500")
    assert [(key, list(vector)) for key, vector in found] == [("key-0500", rows[place].tolist())]


def test_a_job_of_encode_files_goes_out_whole(tmp_path: Path, tiny: Encoder) -> None:
    texts = texts_of(40)
    lines = [
        {"url": f"/{i * 7 % 40}", "text": text, "year": 2000 + i, "tags": [i, {"a": None}]}
        for i, text in enumerate(texts)
    ]
    source = write_jsonl(tmp_path / "rows.jsonl", lines)
    made = {}
    for out_format in ("npy", "parquet"):
        folder = tmp_path / out_format
        encode_files(
            tiny, source, folder, out_format=out_format, id_field="url", keep=["year", "tags"],
            rows_per_shard=16, precision="float16",
        )  # fmt: skip
        convert(folder, tmp_path / f"{out_format}.parquet", "parquet", metric="ip")
        with Collection.from_parquet(tmp_path / f"c-{out_format}", f"{folder}.parquet") as c:
            made[out_format] = [(i.id, i.metadata, i.vector.tobytes()) for i in c.rows()]
            assert c.info().fingerprint == tiny.fingerprint
    parts = [np.load(part) for part in sorted((tmp_path / "npy").glob("*.npy"))]
    expected = np.concatenate(parts).astype(np.float32)
    order = sorted(range(40), key=lambda i: lines[i]["url"])
    assert made["npy"] == made["parquet"]
    for place, (key, metadata, bits) in zip(order, made["npy"], strict=True):
        line = lines[place]
        assert (key, metadata) == (line["url"], {"year": line["year"], "tags": line["tags"]})
        assert bits == expected[place].tobytes()


def test_shares_of_a_job_are_one_source(tmp_path: Path, tiny: Encoder) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [{"text": text} for text in texts_of(40)])
    for i in (1, 2, 3):
        encode_files(
            tiny, tmp_path / "rows.jsonl", tmp_path / "job", out_format="npy", rows_per_shard=4,
            share=(i, 3),
        )  # fmt: skip
    convert(tmp_path / "job", tmp_path / "v.parquet", "parquet")
    assert [row["id"] for row in rows_of(tmp_path / "v.parquet")] == list(range(40))
    parts = [np.load(part) for part in sorted((tmp_path / "job").glob("*.npy"))]
    assert bits_of(tmp_path / "v.parquet") == np.concatenate(parts).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("kind", ["mixed", "texts", "numbers", "large"])
def test_a_collection_goes_out_and_comes_back(tmp_path: Path, kind: str, dtype: Any) -> None:
    ids: list[Any] = {
        "mixed": ["1", 1, "a", -(2**70), "é"], "texts": ["b", "a", "10", "9", ""],
        "numbers": [5, -3, 2**63 - 1, -(2**63), 0], "large": [2**63, 1, 2, 3, -(2**900)],
    }[kind]  # fmt: skip
    rows = vectors(5, 3)
    fields: list[Any] = [{"a": [1, None]}, None, {}, {"ü": "\x00"}, {"x": 1.5}]
    texts = ["x", None, "", "y\x00", "z"]
    with Collection.create(tmp_path / "c", dim=3, metric="l2", vector_dtype=dtype) as c:
        c.add_vectors(ids, rows, texts, fields)
    done = convert(tmp_path / "c", tmp_path / "v.parquet", "parquet")
    assert (done.metric, done.dtype) == ("l2", dtype)
    with Collection.from_parquet(tmp_path / "d", tmp_path / "v.parquet") as d:
        found = {item.id: item for item in d.rows()}
        assert d.info().metric == "l2"
    assert set(map(repr, found)) == set(map(repr, ids))
    for key, row, text, metadata in zip(ids, rows.astype(dtype), texts, fields, strict=True):
        assert (found[key].text, found[key].metadata) == (text, metadata)
        assert found[key].vector.tobytes() == row.astype(np.float32).tobytes()


def test_a_collection_is_converted_as_it_was_at_the_start(tmp_path: Path) -> None:
    rows = unit_vectors(9000, 2)
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(list(range(9000)), rows)

        def change(_: Any) -> None:
            c.delete([8000])
            c.add_vectors([8001, 10_000], rows[:2])

        done = convert(tmp_path / "c", tmp_path / "v.parquet", "parquet", on_progress=change)
    assert done.rows == 9000
    assert bits_of(tmp_path / "v.parquet") == rows.tobytes()


def test_normalized_vectors_have_length_one(tmp_path: Path) -> None:
    rows = vectors(50, 6)
    rows[7] = 0.0
    source = write_job(tmp_path / "job", rows)
    convert(source, tmp_path / "v.parquet", "parquet", normalize=True)
    written = np.frombuffer(bits_of(tmp_path / "v.parquet"), np.float32).reshape(50, 6)
    np.testing.assert_allclose(
        written[np.arange(50) != 7],
        (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30))[np.arange(50) != 7],
        rtol=1e-6,
    )
    assert not written[7].any()


@pytest.mark.usefixtures("small_runs")
def test_sparse_vectors_of_a_collection_come_along_and_back(tmp_path: Path) -> None:
    weights = sparse_collection(tmp_path / "c")
    convert(tmp_path / "c", tmp_path / "rows.parquet", "parquet")
    rows = rows_of(tmp_path / "rows.parquet")
    assert [row["id"] for row in rows] == sorted(weights)
    for row in rows:
        expected = weights[row["id"]]
        assert row["sparse_indices"] == (None if expected is None else list(expected))
        assert row["sparse_values"] == (None if expected is None else list(expected.values()))
    with Collection.from_parquet(tmp_path / "back", tmp_path / "rows.parquet") as back:
        assert back.info().sparse_dim == 50
        for key, one in zip(weights, back.get_sparse(list(weights)), strict=True):
            expected = weights[key]
            assert (one is None) == (expected is None)
            if one is not None:
                assert dict(zip(one.indices.tolist(), one.values.tolist(), strict=True)) == expected


def test_indexes_of_dense_vectors_have_the_sparse_ones_beside_them(tmp_path: Path) -> None:
    weights = sparse_collection(tmp_path / "c")
    done = convert(tmp_path / "c", tmp_path / "f", "faiss", metric="ip")
    assert "sparse vectors are in rows.parquet" in done.notes[-1]
    rows = rows_of(tmp_path / "f" / "rows.parquet")
    assert [row["id"] for row in rows] == list(weights)
    for row, expected in zip(rows, weights.values(), strict=True):
        assert row["sparse_values"] == (None if expected is None else list(expected.values()))


def test_a_damaged_sparse_vector_is_refused(tmp_path: Path) -> None:
    sparse_collection(tmp_path / "c")
    damage = "UPDATE sparse_vectors SET weights = zeroblob(length(weights)) WHERE n = 5"
    run_sql(tmp_path / "c", damage)
    with pytest.raises(CorruptCollectionError, match="the sparse vector of row"):
        convert(tmp_path / "c", tmp_path / "rows.parquet", "parquet")
    run_sql(tmp_path / "c", "DELETE FROM sparse_vectors WHERE n = 5")
    with pytest.raises(CorruptCollectionError, match="sparse vectors, but"):
        convert(tmp_path / "c", tmp_path / "rows.parquet", "parquet")
    assert not (tmp_path / "rows.parquet").exists()
