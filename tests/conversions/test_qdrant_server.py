"""Conversions to a Qdrant server, over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from flowvec.convert import ConvertError, convert, point_id, qdrant_connection, qdrant_points
from tests.job_folders import sparse_collection, write_job
from tests.makers import unit_vectors, vectors

pytest.importorskip("qdrant_client", reason="needs the extra [qdrant]")
from qdrant_client.models import PointStruct

from tests.conversions.qdrant_server import QdrantServer, running_server
from tests.conversions.test_qdrant import check_sparse, killed, points_of


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job", vectors(300, 5), [f"k{i}" for i in range(300)])


def test_points_arrive_bit_for_bit_in_requests_of_bounded_size(
    server: QdrantServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant_points, "MOST_BYTES", 20_000)
    monkeypatch.setattr(qdrant_points, "MOST_POINTS", 50)
    monkeypatch.setenv("QDRANT_API_KEY", "a key")
    server.key = "a key"
    rows, texts = vectors(200, 7), ["é" * (300 if i < 100 else 3) for i in range(200)]
    metadata = [{"n": i, "none": None, "tags": ["a", None]} for i in range(200)]
    with Collection.create(tmp_path / "notes", dim=7, metric="ip") as collection:
        collection.add_vectors([*range(199), "é"], rows, texts, metadata)
    with pytest.warns(UserWarning, match="insecure"):
        done = convert(tmp_path / "notes", f"{server.url}/", "qdrant")
    assert (done.rows, done.target) == (200, f"{server.url}/")
    assert server.keys == {"a key"}
    assert len(server.sizes) >= 10
    assert max(size for size, _ in server.sizes) <= 20_000
    assert max(points for _, points in server.sizes) == 50
    points = points_of(server.client, "notes")
    for i, key in enumerate([*range(199), "é"]):
        point = points[point_id(key)]
        assert np.asarray(point.vector, np.float32).tobytes() == rows[i].tobytes()
        assert (point.payload["text"], point.payload["metadata"]) == (texts[i], metadata[i])


def test_faults_that_pass_are_repeated(
    server: QdrantServer, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant_points, "MOST_POINTS", 40)
    monkeypatch.setattr(qdrant_connection, "_FIRST_PAUSE", 0.01)
    server.faults.extend([503, "drop", "lose", 500, 429, "lose", 502, "drop"])
    convert(job, server.url, "qdrant")
    assert not server.faults
    assert len(points_of(server.client, "job")) == 300
    assert len(server.names()) == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (413, r"cannot write \d+ points from the id 'k\d+' at http.*: the server answers 413: a f"),
        (503, r"the server answers 503: a fault \(tried for"),
        ("drop", r"Server disconnected .*\(tried for"),
        (401, r"access is refused \(401\); the API key in QDRANT_API_KEY is not set"),
    ],
)
def test_faults_that_last_end_it_and_nothing_is_left(
    server: QdrantServer, job: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, message: str
) -> None:
    monkeypatch.setattr(qdrant_points, "MOST_POINTS", 40)
    monkeypatch.setattr(qdrant_connection, "PATIENCE", 0.05)
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    server.faults.extend([fault] * 1000)
    with pytest.raises(ConvertError, match=message):
        convert(job, server.url, "qdrant")
    assert server.names() == []


def test_a_server_that_refuses_or_cannot_be_reached_is_named(
    server: QdrantServer, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "a key"
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    with pytest.raises(ConvertError, match=r"list .*access is refused"):
        convert(job, server.url, "qdrant")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConvertError, match=rf"list .*0\.0\.1:{port}: "):
        convert(job, f"http://127.0.0.1:{port}", "qdrant")


def test_an_existing_collection_stays_until_the_new_one_is_whole(
    server: QdrantServer, job: Path, tmp_path: Path
) -> None:
    convert(job, server.url, "qdrant")
    (first,) = server.names()
    other = write_job(tmp_path / "other", unit_vectors(3, 4), list("xyz"))
    with pytest.raises(ConvertError, match=r"'job' of http.* exists"):
        convert(other, server.url, "qdrant", collection="job")
    killed(job, server.url)
    assert len(server.names()) == 2
    assert server.client.get_aliases().aliases[0].collection_name == first
    assert server.client.count("job").count == 300
    convert(other, server.url, "qdrant", collection="job", overwrite=True)
    assert (len(server.names()), server.client.count("job").count) == (1, 3)
    assert server.names() != [first]


def test_a_collection_that_another_program_changes_is_not_published(
    server: QdrantServer, job: Path
) -> None:
    def delete(_: Any) -> None:
        for name in server.names():
            server.client.delete_collection(name)

    with pytest.raises(ConvertError, match="not found"):
        convert(job, server.url, "qdrant", on_progress=lambda p: p.stage == "writing" and delete(p))

    def write_more(_: Any) -> None:
        for name in server.names():
            server.client.upsert(name, [PointStruct(id=10**6, vector=[0.0] * 5)])

    with pytest.raises(ConvertError, match="301 points of 300"):
        convert(job, server.url, "qdrant", on_progress=write_more)
    assert server.names() == []


def test_sparse_vectors_arrive_in_requests_of_bounded_size(
    server: QdrantServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant_points, "MOST_BYTES", 2_000)
    weights = sparse_collection(tmp_path / "c", metric="ip")
    convert(tmp_path / "c", server.url, "qdrant")
    check_sparse(server.client, tmp_path / "c", weights)
    assert len(server.sizes) > 5
    assert all(size < 3_000 for size, _ in server.sizes)
