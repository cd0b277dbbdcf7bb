"""Shards that are built with sparse vectors and full-text indexes, in a folder and in a bucket."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra [ray]")
pytest.importorskip("s3fs", reason="needs the extra [s3]")
pytest.importorskip("moto", reason="needs the extra [test-buckets]")


from flowvec import Collection, Encoder, SparseEncoder
from flowvec.bulk import RayWorkers
from flowvec.errors import FingerprintMismatchError, InputTypeError, InputValueError
from flowvec.object_store import open_store
from flowvec.sharded import ShardedSearcher, index_shards, verify_shards
from flowvec.sharded.manifest import SHARDS_FILE, read_manifest
from tests.faults.bucket_server import url_of
from tests.makers import WORDS, write_jsonl

TWO = RayWorkers(2, cpus=1)
OPTIONS: dict[str, Any] = {"shards": 2, "workers": TWO, "id_field": "id", "rows_per_shard": 50}


pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    rng = random.Random(5)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + f" {i}" for i in range(130)]
    return [{"id": f"t{i}", "text": text} for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("texts") / "texts.jsonl", rows)


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path: Path, server: str) -> str:
    """An empty place for shards."""
    if request.param == "folder":
        return str(tmp_path / "shards")
    return url_of(server, f"shards-{random.Random(str(tmp_path)).randrange(10**9)}")


def read(place: str, name: str) -> bytes:
    if "://" in place:
        return open_store(place).read(name) or b""
    return (Path(place) / name).read_bytes()


def write(place: str, name: str, content: bytes) -> None:
    if "://" in place:
        open_store(place).write(name, content)
    else:
        (Path(place) / name).write_bytes(content)


def assert_searched_as_one(
    place: str, folder: Path, rows: list[dict[str, Any]], mini: Encoder, sparse: SparseEncoder
) -> None:
    query = "a dog that sleeps in the garden"
    with Collection.create(folder / "whole", encoder=mini, sparse_encoder=sparse) as whole:
        whole.add([row["id"] for row in rows], [row["text"] for row in rows])
        by_sparse, hybrid = whole.search_sparse(query, 9), whole.search(query, 9, hybrid=True)
    with ShardedSearcher(
        place, encoder=mini, sparse_encoder=sparse, cpus_per_shard=0.1, timeout=120,
        cache=folder / "cache",
    ) as searcher:  # fmt: skip
        for found, expected in (
            (searcher.search_sparse(query, 9), by_sparse),
            (searcher.search(query, 9, hybrid=True), hybrid),
        ):
            assert not found.missing
            assert [hit.score for hit in found.hits[0]] == pytest.approx(
                [hit.score for hit in expected], abs=1e-5
            )
            assert {hit.id for hit in found.hits[0][:5]} <= {hit.id for hit in expected}


def test_shards_get_sparse_vectors_of_all_rows_and_indexes(
    place: str, tmp_path: Path, file: Path, rows: list[dict[str, Any]], mini: Encoder,
    sparse_encoder: SparseEncoder,
) -> None:  # fmt: skip
    built = index_shards(
        mini, [file], place, sparse_encoder=sparse_encoder, full_text="unicode61", **OPTIONS
    )
    assert sum(one.rows for one in built) == 130
    about = read_manifest(place)
    assert about.sparse_fingerprint == sparse_encoder.fingerprint
    assert about.full_text == "unicode61"
    check = verify_shards(place)
    assert (check.rows, check.problems) == (130, ())
    assert_searched_as_one(place, tmp_path, rows, mini, sparse_encoder)
    with pytest.raises(InputValueError, match="give it as --sparse-model"):
        index_shards(mini, [file], place, **OPTIONS)
    other = json.dumps({"flowvec_shards": 1, "shards": 2, "model": about.model,
                        "fingerprint": about.fingerprint, "sparse_model": "another",
                        "sparse_fingerprint": "0" * 64}).encode()  # fmt: skip
    write(place, SHARDS_FILE, other)
    with pytest.raises(FingerprintMismatchError, match="sparse vectors of another"):
        index_shards(mini, [file], place, sparse_encoder=sparse_encoder, **OPTIONS)
    with pytest.raises(FingerprintMismatchError, match="sparse vectors of another"):
        ShardedSearcher(place, sparse_encoder=sparse_encoder)
    assert len(verify_shards(place).problems) == 2
    # Building all again replaces them.
    index_shards(mini, [file], place, resume=False, **OPTIONS)
    assert read_manifest(place).made == {}
    index_shards(mini, [file], place, **OPTIONS)
    assert verify_shards(place).problems == ()


def test_shards_that_lack_them_get_them_and_are_not_encoded_again(
    place: str, tmp_path: Path, file: Path, rows: list[dict[str, Any]], mini: Encoder,
    sparse_encoder: SparseEncoder,
) -> None:  # fmt: skip
    index_shards(mini, [file], place, **OPTIONS)
    # As a job leaves it that was killed before its shards were complete.
    about = json.loads(read(place, SHARDS_FILE))
    about |= {"sparse_model": "s", "sparse_fingerprint": sparse_encoder.fingerprint}
    write(place, SHARDS_FILE, json.dumps(about).encode())
    problems = verify_shards(place).problems
    assert [one.partition(" ")[0] for one in problems] == ["shard-000", "shard-001"]
    assert all("lacks sparse vectors; run the job again" in one for one in problems)
    again = index_shards(
        mini, [file], place, sparse_encoder=sparse_encoder, full_text="trigram", **OPTIONS
    )
    assert [one.encoded for one in again] == [0, 0]
    assert verify_shards(place).problems == ()
    names = set(open_store(place).sizes()) if "://" in place else set()
    if names:  # objects of the shards before are deleted
        assert len([name for name in names if name.endswith("collection.sqlite")]) == 2
    then = index_shards(mini, [file], place, sparse_encoder=sparse_encoder, **OPTIONS)
    assert [one.encoded for one in then] == [0, 0]
    assert read_manifest(place).full_text == "trigram"
    if names:  # nothing was uploaded
        assert set(open_store(place).sizes()) == names
    with ShardedSearcher(
        place, encoder=mini, sparse_encoder=sparse_encoder, cpus_per_shard=0.1, timeout=120,
        cache=tmp_path / "cache",
    ) as searcher:  # fmt: skip
        assert len(searcher.search_sparse("the cat", 200).hits[0]) == 130
        found = searcher.search("arden", 5, hybrid=True, vector_weight=0.0)
        assert all("garden" in (hit.text or "") for hit in found.hits[0])


def test_wrong_arguments_are_refused(tmp_path: Path, file: Path, mini: Encoder) -> None:
    with pytest.raises(InputTypeError, match="must be a SparseEncoder"):
        index_shards(mini, [file], tmp_path / "c", sparse_encoder=mini, **OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="full_text"):
        index_shards(mini, [file], tmp_path / "c", full_text="words", **OPTIONS)  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_the_commands_build_and_search_them(
    flowvec, tmp_path: Path, sparse_dir: Path, rows: list[dict[str, Any]]
) -> None:
    write_jsonl(tmp_path / "a.jsonl", rows[:20])
    sparse = ("--sparse-model", str(sparse_dir))
    built = flowvec(
        "index", "c", "a.jsonl", "--model", "mini", "--id-field", "id", "--engine", "ray",
        "--shards", "2", "--full-text", "unicode61", *sparse,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    shown = json.loads(flowvec("info", "c", "--json").stdout)
    assert (shown["full_text"], bool(shown["sparse_fingerprint"])) == ("unicode61", True)
    for words in (sparse, ("--hybrid", *sparse, "--sparse-weight", "0.5")):
        done = flowvec("search", "c", "the cat", "-k", "3", "--json", *words)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["hits"]) == 3
    assert flowvec("verify", "c").returncode == 0
