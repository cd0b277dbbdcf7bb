"""The store: durable settings, checksums over every field, labels that are never used twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from flowvec.errors import (
    CollectionError,
    CorruptCollectionError,
    InputTypeError,
    InputValueError,
)
from flowvec.store import FILE, Snapshot, Store, check_ids, encode_metadata

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / FILE, create={"key": "value"})
    with made.transaction():
        made.upsert(
            ["a", 1, "1", 2**70], ROWS, ["text", None, "", "é\x00"], ['{"k": 1}', None, "{}", None]
        )
    return made


def test_a_commit_is_an_acknowledgement(store: Store) -> None:
    assert store._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert store._db.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_rows_come_back_as_they_were_given(store: Store, tmp_path: Path) -> None:
    store.close()
    again = Store(tmp_path / FILE)
    items = [item for part in again.scan() for item in part]
    assert [item.id for item in items] == ["a", 1, "1", 2**70]
    assert [item.text for item in items] == ["text", None, "", "é\x00"]
    assert [item.metadata for item in items] == [{"k": 1}, None, {}, None]
    np.testing.assert_array_equal([item.vector for item in items], ROWS)


def test_an_upsert_takes_a_new_label_and_a_label_is_never_used_again(store: Store) -> None:
    with store.transaction():
        labels, replaced = store.upsert(["a"], ROWS[:1], ["new"], [None])
    assert (labels, replaced) == ([5], [1])
    with store.transaction():
        assert store.delete(["a", "unknown"]) == [5]
    with store.transaction():
        labels, replaced = store.upsert(["a"], ROWS[:1], ["third"], [None])
    assert (labels, replaced) == ([6], [])
    assert store.count() == 4


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    def fail_midway() -> None:
        with store.transaction():
            store.upsert(["b"], ROWS[:1], ["x"], [None])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_midway()
    assert store.count() == 4
    with store.transaction():
        store.delete(["a"])
    assert store.count() == 3


FIELDS = {
    "id": "'b'",
    "id_is_int": "1",
    "text": "'texT'",
    "metadata": "'{\"k\": 2}'",
    "vector": "x'000000000000803F00000041'",
    "checksum": "x'00'",
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("read", ["read", "scan"])
def test_a_change_of_any_field_is_noticed(store: Store, field: str, read: str) -> None:
    store._db.execute(f"UPDATE items SET {field} = {FIELDS[field]} WHERE label = 1")
    with pytest.raises(CorruptCollectionError, match="row 1 does not match its checksum"):
        store.read([1]) if read == "read" else list(store.scan())


@pytest.mark.parametrize("value", ["NULL", "7", "'text'", "x''"])
@pytest.mark.parametrize("field", ["text", "metadata", "vector", "checksum", "id"])
def test_a_field_of_another_type_is_noticed(store: Store, field: str, value: str) -> None:
    try:
        store._db.execute(f"UPDATE items SET {field} = {value} WHERE label = 1")
    except sqlite3.IntegrityError:
        return  # SQLite itself refuses a NULL
    if field == "text" and value == "'text'":
        assert store.read([1])[1].text == "text"
    else:
        with pytest.raises(CorruptCollectionError):
            store.read([1])


def test_no_two_rows_share_a_checksum_by_moving_a_border() -> None:
    from flowvec.store import _checksum

    variants = [
        (("ab", 0), "c", None, b""),
        (("a", 0), "bc", None, b""),
        (("ab", 0), "c", "", b""),
        (("ab", 0), None, "c", b""),
        (("ab", 1), "c", None, b""),
        (("ab", 0), "", "c", b""),
    ]
    assert len({_checksum(*variant) for variant in variants}) == len(variants)


def test_what_is_no_database_is_a_typed_error(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_bytes(b"rubbish" * 1000)
    with pytest.raises(CorruptCollectionError, match=FILE):
        Store(file)


def test_another_layout_version_is_refused(store: Store, tmp_path: Path) -> None:
    store._db.execute("PRAGMA user_version=2")
    store.close()
    with pytest.raises(CollectionError, match="layout version 2"):
        Store(tmp_path / FILE)


def test_create_and_open_refuse_what_they_should(store: Store, tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="exists already"):
        Store(tmp_path / FILE, create={})
    with pytest.raises(CollectionError, match="no collection"):
        Store(tmp_path / "nowhere" / FILE)


def test_snapshots_come_newest_first(store: Store) -> None:
    made = [Snapshot(n, f"graph-{n}.hnsw", 1, "0", 1, 1, 16, 200, "now") for n in (1, 2)]
    with store.transaction():
        for snapshot in made:
            store.add_snapshot(snapshot)
    assert store.snapshots() == made[::-1]
    with store.transaction():
        store.forget_snapshots([1])
    assert store.snapshots() == made[1:]


@pytest.mark.parametrize("good", [0, -1, 2**63, 10**40, "", "a", "\x00", "é", np.int64(3)])
def test_any_text_and_any_whole_number_is_an_id(good: object) -> None:
    assert check_ids([good]) == [good]


@pytest.mark.parametrize("bad", [1.0, float("nan"), None, True, b"a", ("a",)])
def test_other_types_are_no_ids(bad: object) -> None:
    with pytest.raises(InputValueError, match=f"id 1 is {type(bad).__name__}"):
        check_ids(["fine", bad])


@pytest.mark.parametrize("bad", ["\ud800", 2**1024, -(10**5000)], ids=["surrogate", "big", "huge"])
def test_ids_that_cannot_be_stored_are_refused(bad: object) -> None:
    with pytest.raises(InputValueError, match="id 1"):
        check_ids(["fine", bad])
    assert check_ids([2**1024 - 1]) == [2**1024 - 1]


@pytest.mark.parametrize(
    "bad", [[], "text", {1: 2}, {"a": {1, 2}}, {"a": b""}, {"a": [{"b": {1: "c"}}]}]
)
def test_metadata_that_is_no_json_object_is_refused(bad: object) -> None:
    with pytest.raises(InputTypeError, match="metadata 4"):
        encode_metadata(bad, 4)


def test_metadata_with_nan_or_a_circle_is_refused() -> None:
    circle: dict[str, object] = {}
    circle["self"] = circle
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"a": [deep]}
    for bad in ({"a": float("nan")}, circle, deep):
        with pytest.raises(InputValueError, match="metadata 0"):
            encode_metadata(bad, 0)
