"""Conversions to collections of Qdrant, read by qdrant-client."""

from __future__ import annotations

import datetime
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from flowvec import Collection
from flowvec.bulk import encode_files
from flowvec.convert import ConvertError, convert, point_id
from flowvec.errors import InputValueError
from tests.job_folders import sparse_collection, write_job
from tests.makers import sparse_of, unit_vectors, vectors

qdrant_client = pytest.importorskip("qdrant_client", reason="needs the extra [qdrant]")


@contextmanager
def opened(folder: Path) -> Iterator[Any]:
    with closing(qdrant_client.QdrantClient(path=str(folder))) as client:
        yield client


def points_of(client: Any, name: str) -> dict[Any, Any]:
    """All points by their ids."""
    points, rest = client.scroll(name, limit=1000, with_vectors=True)
    assert rest is None
    return {point.id: point for point in points}


def names_of(client: Any) -> list[str]:
    return sorted(one.name for one in client.get_collections().collections)


@pytest.mark.parametrize(
    ("metric", "dtype", "out_format", "kind"),
    [
        ("cosine", "float32", "npy", "texts"),
        ("ip", "float32", "parquet", "texts"),
        ("l2", "float32", "npy", "numbers"),
        ("ip", "float16", "parquet", "numbers"),
    ],
)
def test_every_point_is_there_with_the_neighbours_of_an_exact_search(
    tmp_path: Path, metric: Any, dtype: str, out_format: str, kind: str
) -> None:
    rows = vectors(60, 9).astype(dtype)
    keys: list[Any] = [f"k{i * 7 % 60}" if kind == "texts" else i * 10**15 - 3 for i in range(60)]
    source = write_job(
        tmp_path / "job", rows, keys, {"n": list(range(60))}, out_format=out_format,
        rows_per_shard=25,
    )  # fmt: skip
    done = convert(source, tmp_path / "q", "qdrant", metric=metric)
    assert (done.rows, done.dtype, done.metric, done.bytes) == (60, dtype, metric, None)
    with (
        opened(tmp_path / "q") as client,
        Collection.create(tmp_path / "c", dim=9, metric=metric) as exact,
    ):
        points = points_of(client, "job")
        assert set(points) == {point_id(key) for key in keys}
        for i, key in enumerate(keys):
            point = points[point_id(key)]
            plain = point.payload if out_format == "parquet" else point.payload["metadata"]
            assert (point.payload["id"], plain["n"]) == (key, i)
            written = np.asarray(point.vector, np.float32)
            if metric == "cosine":  # Qdrant may divide by the length
                expected = rows[i] / np.linalg.norm(rows[i])
                np.testing.assert_allclose(
                    written / np.linalg.norm(written), expected, rtol=1e-5, atol=1e-7
                )
            else:
                assert written.tobytes() == rows[i].astype(np.float32).tobytes()
        exact.add_vectors(keys, rows.astype(np.float32))
        for query in vectors(3, 9, seed=7):
            best = client.query_points("job", query=query.tolist(), limit=5).points
            hits = exact.search(query, k=5)
            assert [point.payload["id"] for point in best] == [hit.id for hit in hits]


def test_a_collection_keeps_ids_of_both_kinds_texts_and_metadata(tmp_path: Path) -> None:
    uuid = "0191e0a4-7c5d-7bbb-8d5f-1f0f9a7f2b11"
    ids = ["1", 1, -1, "-1", 2**63, -(2**70), uuid, uuid.upper(), "é"]
    hard = {"né": ["ü\0", None, {"a": 1.5}], "big": 2**60, "none": None, "flag": True}
    fields: list[Any] = [hard, None, {}, *({"n": i} for i in range(6))]
    texts: list[Any] = ["The cat\nsleeps.", None, "", "日本語 🎉", *"abcde"]
    with Collection.create(tmp_path / "notes", dim=9, metric="l2") as collection:
        collection.add_vectors(ids, np.eye(9), texts, fields)
    convert(tmp_path / "notes", tmp_path / "q", "qdrant", collection="My notes.v1")
    with opened(tmp_path / "q") as client:
        points = points_of(client, "My notes.v1")
        about = client.get_collection("My notes.v1").config.metadata
    assert len(points) == len(ids)
    assert (about["flowvec_convert"], about["metric"], about["rows"]) == (1, "l2", 9)
    for place, key in enumerate(ids):
        point = points[point_id(key)]
        expected = str(key) if key == -(2**70) else key
        assert point.payload == {
            "id": expected, "id_is_int": isinstance(key, int), "text": texts[place],
            "metadata": fields[place],
        }  # fmt: skip
        assert np.argmax(point.vector) == place
    assert (point_id(1), point_id(2**63), point_id(uuid)) == (1, 2**63, uuid)
    assert {UUID(str(point_id(key))).version for key in ("1", -1, "-1", uuid.upper())} == {5}


def test_columns_of_parquet_become_values_of_json(tmp_path: Path, tiny: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    day, moment = datetime.date(1969, 7, 20), datetime.datetime(2026, 11, 27, 6, 30, 0, 123456)
    columns = {
        "id": ["a", "b"],
        "text": ["the cat", "the dog"],
        "small": pa.array([1, None], pa.int8()),
        "number": pa.array([0.1, None], pa.float32()),
        "flag": [True, None],
        "day": [day, None],
        "moment": [moment, None],
        "fine": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns")),
        "zoned": pa.array([moment, None], pa.timestamp("ms", "Europe/Berlin")),
        "kind": pa.array(["x", None]).dictionary_encode(),
        "raw": [b"\x00\xff", None],
        "nested": [[{"a": 1, "day": day}], None],
    }
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    keep = [name for name in columns if name not in ("id", "text")]
    encode_files(tiny, tmp_path / "in.parquet", tmp_path / "job", id_field="id", keep=keep)
    convert(tmp_path / "job", tmp_path / "q", "qdrant")
    with opened(tmp_path / "q") as client:
        points = points_of(client, "job")
    assert points[point_id("a")].payload == {
        "id": "a", "small": 1, "number": float(np.float32(0.1)), "flag": True, "day": "1969-07-20",
        "moment": "2026-11-27T06:30:00.123456", "fine": "2023-11-14T22:13:20.123456",
        "zoned": "2026-11-27T06:30:00.123000+00:00", "kind": "x", "raw": "00ff",
        "nested": [{"a": 1, "day": "1969-07-20"}],
    }  # fmt: skip
    assert points[point_id("b")].payload == {"id": "b", **dict.fromkeys(keep)}


def test_a_collection_of_that_name_is_refused_or_replaced(tmp_path: Path) -> None:
    first = write_job(tmp_path / "job", unit_vectors(5, 4), list("abcde"))
    other = write_job(tmp_path / "other", unit_vectors(3, 4), list("xyz"))
    target = tmp_path / "q"
    convert(first, target, "qdrant", collection="notes")
    with pytest.raises(ConvertError, match=r"'notes' of .* exists"):
        convert(other, target, "qdrant", collection="notes")
    convert(other, target, "qdrant", collection="notes-2")
    convert(other, target, "qdrant", collection="notes", overwrite=True)
    with opened(target) as client:
        assert {p.payload["id"] for p in points_of(client, "notes").values()} == set("xyz")
        assert len(names_of(client)) == 2
        params = qdrant_client.models.VectorParams(size=4, distance="Dot")
        client.create_collection("own", vectors_config=params)
        alias = qdrant_client.models.CreateAlias(collection_name="own", alias_name="alias")
        client.update_collection_aliases(
            [qdrant_client.models.CreateAliasOperation(create_alias=alias)]
        )
        before = names_of(client)
        with pytest.raises(ConvertError, match=r"q: another program has it open"):
            convert(first, target, "qdrant", collection="new")
    for name in ("own", "alias"):
        with pytest.raises(ConvertError, match="not made by `flowvec convert`"):
            convert(first, target, "qdrant", collection=name, overwrite=True)
    with opened(target) as client:
        assert names_of(client) == before


@pytest.mark.parametrize(
    ("keys", "fields", "message"),
    [
        (["b", "a", "b"], {}, "two rows have the id 'b'; Qdrant stores one point for each id"),
        ([3, 7, 7], {}, "two rows have the id 7; "),
        (list("abc"), {"n": ["x", "\ud800", "y"]}, "`metadata` of the id 'b' has a lone surrogate"),
        (list("abc"), {"n": [0, 1, 2**64]}, "the id 'c' has a whole number of over 64 bits"),
        (list("abc"), {"n": [0.5, float("nan"), 1.0]}, "the id 'b' has NaN or infinity in it"),
    ],
)
def test_rows_that_qdrant_cannot_store_are_refused_and_nothing_is_left(
    tmp_path: Path, keys: Any, fields: Any, message: str
) -> None:
    source = write_job(tmp_path / "job", vectors(3, 4), keys, fields)
    with pytest.raises(ConvertError, match=message):
        convert(source, tmp_path / "q", "qdrant")
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_wrong_vectors_targets_and_names_are_refused(tmp_path: Path) -> None:
    rows = vectors(3, 4)
    rows[1, 2] = np.inf
    source = write_job(tmp_path / "job", rows, list("abc"))
    with pytest.raises(ConvertError, match=r"`vector` .*'b' .*not finite"):
        convert(source, tmp_path / "q", "qdrant")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(ConvertError, match=r"full is not .*local mode"):
        convert(source, tmp_path / "full", "qdrant")
    with pytest.raises(ConvertError, match="the input"):
        convert(source, tmp_path / "job" / "q", "qdrant")
    for target, message in (
        ("localhost:6333", "give the server's URL: http://localhost:6333"),
        ("ftp://host:6333", "ftp://host:6333 is not the URL of a Qdrant server, such as http"),
        ("http://host:port", "is not the URL of a Qdrant server"),
        ("http://u:secret@host:6333", "the URL of the server at host has a password: give an"),
    ):
        with pytest.raises(InputValueError, match=message) as refused:
            convert(source, target, "qdrant")
        assert "secret" not in str(refused.value)
    for name in ("", "..", "a/b", "n" * 300):
        with pytest.raises(InputValueError, match="cannot have the name"):
            convert(source, tmp_path / "q", "qdrant", collection=name)
    with pytest.raises(InputValueError, match=r"ef_construction .*4, not 3"):
        convert(source, tmp_path / "q", "qdrant", ef_construction=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "job"]


# Kills itself once the first block was written.
KILLED = """
import os, signal, sys
from flowvec.convert import convert
source, target = sys.argv[1:]
def die(progress):
    if progress.stage == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
convert(source, target, "qdrant", overwrite=True, on_progress=die)
"""


def killed(source: Path, target: str) -> None:
    words = [sys.executable, "-c", KILLED, str(source), target]
    assert subprocess.run(words, timeout=600, check=False).returncode == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no fork")
def test_a_killed_conversion_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    source = write_job(tmp_path / "job", unit_vectors(40, 4), rows_per_shard=10)
    killed(source, str(tmp_path / "q"))
    with opened(tmp_path / "q") as client:
        (left,) = names_of(client)
        assert left.startswith("job-flowvec-")
        assert not client.collection_exists("job")
    convert(source, tmp_path / "q", "qdrant")
    with opened(tmp_path / "q") as client:
        (made,) = names_of(client)
        assert made != left
        assert client.count("job").count == 40


def test_an_interrupted_conversion_leaves_the_collection_that_was_there(tmp_path: Path) -> None:
    source = write_job(tmp_path / "job", unit_vectors(40, 4), rows_per_shard=10)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "q", "qdrant", on_progress=interrupt)
    assert not (tmp_path / "q").exists()
    convert(source, tmp_path / "q", "qdrant")
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "q", "qdrant", overwrite=True, on_progress=interrupt)
    with opened(tmp_path / "q") as client:
        assert (len(names_of(client)), client.count("job").count) == (1, 40)


def check_sparse(client: Any, source: Path, weights: dict[Any, Any]) -> None:
    """Compare points of the collection `c` with the rows, and searches with exact ones."""
    points = points_of(client, "c")
    assert len(points) == len(weights)
    for key, expected in weights.items():
        point = points[point_id(key)]
        assert set(point.payload) == {"id", "text", "metadata"}
        if expected:
            assert len(point.vector[""]) == 5
            sparse = point.vector["sparse"]
            assert dict(zip(sparse.indices, sparse.values, strict=True)) == expected
        else:
            assert len(point.vector) == 5
    with Collection.open(source) as collection:
        for first in range(0, 50, 7):
            query = {first: 2.0, 3: -1.0, 21: 1.0, 40: 3.0}
            hits = collection.search_sparse(sparse_of([query], 50), k=60)
            asked = qdrant_client.models.SparseVector(
                indices=sorted(query), values=[query[term] for term in sorted(query)]
            )
            best = client.query_points("c", query=asked, using="sparse", limit=60).points
            # Qdrant also has points whose product is zero or below.
            found = {point.payload["id"]: point.score for point in best if point.score > 0}
            assert found == {hit.id: hit.score for hit in hits}
            assert list(found.values()) == [hit.score for hit in hits]
        dense = np.ones(5, np.float32)
        nearest = client.query_points("c", query=dense.tolist(), limit=5).points
        assert [point.payload["id"] for point in nearest] == [
            hit.id for hit in collection.search(dense, k=5)
        ]


def test_sparse_vectors_are_named_vectors_that_searches_find(tmp_path: Path) -> None:
    weights = sparse_collection(tmp_path / "c", metric="ip")
    convert(tmp_path / "c", tmp_path / "q", "qdrant")
    with opened(tmp_path / "q") as client:
        check_sparse(client, tmp_path / "c", weights)
        about = client.get_collection("c").config.metadata
    assert about["sparse_dim"] == "50"
