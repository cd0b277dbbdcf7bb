"""The record of a shard below a URL is checked, and only the holder of the lease cleans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from flowvec.errors import BulkError, CollectionError
from flowvec.object_store import ObjectStore, open_store
from flowvec.sharded.manifest import read_manifest, shard_name
from flowvec.sharded.stored_shard import clean_shards, read_shard

pytest.importorskip("fsspec", reason="needs fsspec")

OBJECT = "shard-000.0123456789ab.collection.sqlite"
FILE = {"name": "collection.sqlite", "object": OBJECT, "bytes": 3, "sha256": "0" * 64}


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    import fsspec

    fsspec.filesystem("memory").store.clear()
    yield open_store("memory://shards/c")
    fsspec.filesystem("memory").store.clear()


def record(**fields: Any) -> bytes:
    collection = [{**FILE, **fields}]
    about = {"flowvec_shard": 1, "summary": {}, "job": [], "made": {}, "collection": collection}
    return json.dumps(about).encode()


def test_a_record_is_read(store: ObjectStore) -> None:
    store.write("shard-000.json", record())
    shard = read_shard(store, "shard-000")
    assert shard is not None
    assert shard.version == "0123456789ab"


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ".."}, {"name": ""}, {"name": "."}, {"name": "../x"}, {"name": "a/b"},
        {"name": 5}, {"name": None}, {"object": 5}, {"object": "shard-000.../x"},
        {"bytes": "3"}, {"bytes": None}, {"bytes": True}, {"sha256": None},
    ],
)  # fmt: skip
def test_a_record_of_other_values_is_refused(store: ObjectStore, fields: dict[str, Any]) -> None:
    store.write("shard-000.json", record(**fields))
    with pytest.raises(CollectionError, match="does not describe a shard"):
        read_shard(store, "shard-000")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_record_of_another_format_is_refused(store: ObjectStore, version: Any) -> None:
    store.write(
        "shard-000.json", json.dumps(json.loads(record()) | {"flowvec_shard": version}).encode()
    )
    with pytest.raises(CollectionError, match="written by another version"):
        read_shard(store, "shard-000")
    shards = {"flowvec_shards": version, "shards": 1, "model": "mini", "fingerprint": "f"}
    store.write("shards.json", json.dumps(shards).encode())
    with pytest.raises(CollectionError, match="written by another version"):
        read_manifest(store.url)


def test_who_has_lost_the_lease_deletes_nothing(store: ObjectStore) -> None:
    """Another job may have uploaded what no record names yet."""
    store.write("shard-000.json", record())
    store.write(OBJECT, b"one")
    left = [f"shard-000.00000000000{i}.collection.sqlite" for i in range(3)]
    for name in left:
        store.write(name, b"left")
    answers = iter([None, BulkError("taken over")])

    def check() -> None:
        if (error := next(answers)) is not None:
            raise error

    with pytest.raises(BulkError, match="taken over"):
        list(clean_shards(store, 1, shard_name, check))
    assert store.sizes().keys() == {"shard-000.json", OBJECT, *left[1:]}
    assert list(clean_shards(store, 1, shard_name)) == left[1:]
    assert store.sizes().keys() == {"shard-000.json", OBJECT}
