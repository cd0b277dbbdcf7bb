"""The store: durable settings, checksums over every field, labels that are never used twice."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowvec.collection.store.meta import Counts
from flowvec.collection.store.rows import check_ids, checksum, encode_metadata, id_sum
from flowvec.collection.store.snapshot_table import Snapshot
from flowvec.collection.store.store import FILE, Store
from flowvec.errors import (
    CollectionError,
    CorruptCollectionError,
    InputTypeError,
    InputValueError,
)
from tests.runtime.collection.conftest import SETTINGS


def counted(store: Store) -> Counts:
    """The counts of rows; the sum over ids has tests of its own."""
    return replace(store.meta.counts(), id_sum=0)


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / FILE, create=SETTINGS)
    with made.transaction():
        made.upsert(
            ["a", 1, "1", 2**70], ROWS, ["text", None, "", "é\x00"], ['{"k": 1}', None, "{}", None]
        )
    return made


def test_a_commit_is_an_acknowledgement(store: Store) -> None:
    assert store.database.connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert store.database.connection.execute("PRAGMA synchronous").fetchone()[0] == 2  # FULL


def test_rows_come_back_as_they_were_given(store: Store, tmp_path: Path) -> None:
    store.close()
    again = Store(tmp_path / FILE)
    items = again.page()
    assert [item.id for item in items] == ["a", 1, "1", 2**70]
    assert [item.text for item in items] == ["text", None, "", "é\x00"]
    assert [item.metadata for item in items] == [{"k": 1}, None, {}, None]
    np.testing.assert_array_equal([item.vector for item in items], ROWS)
    for wanted, places in ((None, [0, 1, 2, 3]), ([2, 4, 99], [1, 3])):
        ((labels, vectors),) = again.vectors(wanted)
        assert labels.tolist() == [place + 1 for place in places]
        np.testing.assert_array_equal(vectors, ROWS[places])
    assert list(again.vectors([99])) == []


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


def test_rows_are_counted_as_they_come_and_go(store: Store) -> None:
    assert counted(store) == Counts(rows=4, deletions=0, state=1, id_sum=0)
    with store.transaction():
        store.upsert(["a", "b"], ROWS[:2], ["new", "new"], [None, None])
    assert counted(store) == Counts(rows=5, deletions=1, state=2, id_sum=0)
    with store.transaction():
        store.delete(["a", "b", "unknown"])
    assert counted(store) == Counts(rows=3, deletions=3, state=3, id_sum=0)
    with store.transaction():
        assert store.delete(["unknown"]) == []
    assert store.meta.state() == 3
    assert store.count() == 3


@pytest.mark.parametrize("read", ["count", "labels", "vectors"])
def test_a_row_that_vanishes_is_noticed(store: Store, read: str) -> None:
    """The row's checksum vanishes with it: only the count shows it."""
    store.database.connection.execute("DELETE FROM items WHERE label = 2")
    with pytest.raises(CorruptCollectionError, match="holds 3 rows, but 4"):
        list(store.vectors()) if read == "vectors" else getattr(store, read)()
    assert list(store.problems())[-1].endswith("it holds 3 rows, but 4 were written")


@pytest.mark.parametrize("value", ["'many'", "''", "NULL"])
def test_a_damaged_count_is_a_typed_error(store: Store, value: str) -> None:
    with contextlib.suppress(sqlite3.IntegrityError):
        store.database.connection.execute(f"UPDATE meta SET value = {value} WHERE key = 'rows'")
        with pytest.raises(CorruptCollectionError, match="count of rows is damaged"):
            store.count()


@pytest.mark.parametrize("key", ["rows", "deletions", "state", "id_sum"])
def test_a_missing_count_is_a_typed_error(store: Store, key: str) -> None:
    store.database.connection.execute("DELETE FROM meta WHERE key = ?", (key,))
    with pytest.raises(CorruptCollectionError, match=f"count of rows.*{key}"):
        store.count()
    if key == "state":
        with pytest.raises(CorruptCollectionError, match="number of its state is damaged"):
            store.meta.state()


@pytest.mark.parametrize("key", ["settings checksum", "vector_dtype"])
def test_settings_without_a_key_are_damaged(store: Store, tmp_path: Path, key: str) -> None:
    store.database.connection.execute("DELETE FROM meta WHERE key = ?", (key,))
    store.close()
    with (
        contextlib.closing(Store(tmp_path / FILE)) as again,
        pytest.raises(CorruptCollectionError, match="does not match its checksum"),
    ):
        again.meta.read_settings()


def test_no_label_is_given_twice(store: Store) -> None:
    """Graphs and vectors files may hold rows of a failed transaction, and deleted ones."""

    def failed() -> None:
        with store.transaction():
            store.upsert(["x", "y"], ROWS[:2], [None, None], [None, None])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failed()
    with store.transaction():
        assert store.upsert(["x"], ROWS[:1], [None], [None]) == ([7], [])
        store.delete(["x"])
    with store.transaction():
        assert store.upsert(["x"], ROWS[:1], [None], [None]) == ([8], [])
    store.close()
    again = Store(store.database.path)
    with again.transaction():
        assert again.upsert(["y"], ROWS[:1], [None], [None]) == ([9], [])
    again.close()


# --- states ---------------------------------------------------------------------------------------


def test_a_reader_keeps_its_state_while_another_thread_commits(store: Store) -> None:
    with store.reading(), ThreadPoolExecutor(1) as other:
        assert len(store.labels()) == 4

        def delete() -> None:
            with store.transaction():
                store.delete(["a"])

        other.submit(delete).result(60)
        assert len(store.labels()) == 4
        with store.reading():
            assert len(store.labels()) == 4
        assert store.meta.state() == 1
        store.database.renew()
        assert len(store.labels()) == 3
        assert store.meta.state() == 2


def test_a_transaction_reads_what_it_has_written(store: Store) -> None:
    with store.reading():
        assert len(store.labels()) == 4
        with store.transaction():
            store.delete(["a"])
            assert len(store.labels()) == 3


def test_a_folder_that_cannot_be_written_is_read_all_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flowvec.collection.store.sqlite.os.access", lambda path, mode, **_: not mode & os.W_OK
    )
    Store(tmp_path / FILE).close()  # another reads the log together with the one that writes it
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in (FILE, f"{FILE}-wal"):
        shutil.copy(tmp_path / name, alone)
    with pytest.raises(CollectionError, match="open it once"):
        Store(alone / FILE)  # its log has not been merged, and no process has it open
    shutil.rmtree(alone)
    store.close()
    again = Store(tmp_path / FILE)
    assert again.count() == 4
    assert sorted(file.name for file in tmp_path.iterdir()) == [FILE]
    with pytest.raises(CollectionError, match="readonly"), again.transaction():
        again.delete(["a"])


# --- damage ---------------------------------------------------------------------------------------

FIELDS = {
    "id": "'b'",
    "id_is_int": "1",
    "text": "'texT'",
    "metadata": "'{\"k\": 2}'",
    "vector": "x'000000000000803F00000041'",
    "checksum": "x'00'",
}


READS: dict[str, Callable[[Store], object]] = {
    "page": Store.page,
    "read": lambda store: store.read([1]),
    "all vectors": lambda store: list(store.vectors()),
    "vectors": lambda store: list(store.vectors([1])),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("read", READS)
def test_a_change_of_any_field_is_noticed(store: Store, field: str, read: str) -> None:
    store.database.connection.execute(f"UPDATE items SET {field} = {FIELDS[field]} WHERE label = 1")
    with pytest.raises(CorruptCollectionError, match="row 1 does not match"):
        READS[read](store)


@pytest.mark.parametrize("field", ["id", "text", "metadata"])
def test_bytes_that_are_not_text_any_more_are_a_damaged_row(store: Store, field: str) -> None:
    store.database.connection.execute(
        f"UPDATE items SET {field} = CAST(x'6180' AS TEXT) WHERE label = 1"
    )
    with pytest.raises(CorruptCollectionError, match="row 1 does not match"):
        store.read([1])
    assert "row 1 (id " in "".join(store.problems())
    if field == "id":
        with pytest.raises(CorruptCollectionError, match="decode"):
            store.ids()


def test_more_than_a_row_can_hold_is_refused(store: Store) -> None:
    import sqlite3

    if not hasattr(sqlite3.Connection, "setlimit"):
        return  # Python 3.10 cannot lower it
    with store.transaction():
        store.database.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
    with pytest.raises(InputValueError, match="cannot store a row this large"), store.transaction():
        store.upsert(["b"], ROWS[:1], ["x" * 2000], [None])
    assert store.count() == 4


@pytest.mark.parametrize("value", ["NULL", "7", "'text'", "x''"])
@pytest.mark.parametrize("field", ["text", "metadata", "vector", "checksum", "id"])
def test_a_field_of_another_type_is_noticed(store: Store, field: str, value: str) -> None:
    try:
        store.database.connection.execute(f"UPDATE items SET {field} = {value} WHERE label = 1")
    except sqlite3.IntegrityError:
        return  # SQLite itself refuses a NULL
    if field == "text" and value == "'text'":
        assert store.read([1])[1].text == "text"
    else:
        with pytest.raises(CorruptCollectionError):
            store.read([1])


def test_no_two_rows_share_a_checksum_by_moving_a_border() -> None:
    variants = [
        (b"ab", 0, b"c", None, b""),
        (b"a", 0, b"bc", None, b""),
        (b"ab", 0, b"c", b"", b""),
        (b"ab", 0, None, b"c", b""),
        (b"ab", 1, b"c", None, b""),
        (b"ab", 0, b"", b"c", b""),
    ]
    assert len({checksum(*variant) for variant in variants}) == len(variants)


def test_what_is_not_a_database_is_a_typed_error(tmp_path: Path) -> None:
    file = tmp_path / FILE
    file.write_bytes(b"rubbish" * 1000)
    with pytest.raises(CorruptCollectionError, match=FILE):
        Store(file)


@pytest.mark.parametrize("version", [0, 2, 7])
def test_another_layout_version_is_refused(store: Store, tmp_path: Path, version: int) -> None:
    store.database.connection.execute(f"PRAGMA user_version={version}")
    store.close()
    with pytest.raises(CollectionError, match=f"layout version {version}; "):
        Store(tmp_path / FILE)


def test_create_and_open_refuse_what_they_should(store: Store, tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="exists already"):
        Store(tmp_path / FILE, create=SETTINGS)
    with pytest.raises(CollectionError, match="is not a collection"):
        Store(tmp_path / "nowhere" / FILE)


def test_snapshots_come_newest_first(store: Store) -> None:
    made = [Snapshot(n, f"graph-{n}.hnsw", 1, "0", 1, 1, 16, 200, "now") for n in (1, 2)]
    with store.transaction():
        for snapshot in made:
            store.snapshots.add(snapshot)
    assert store.snapshots.all() == made[::-1]
    with store.transaction():
        store.snapshots.remove([1])
    assert store.snapshots.all() == made[1:]


@pytest.mark.parametrize("good", [0, -1, 2**63, 10**40, "", "a", "\x00", "é", np.int64(3)])
def test_any_text_and_any_whole_number_is_an_id(good: object) -> None:
    assert check_ids([good]) == [good]


@pytest.mark.parametrize("bad", [1.0, float("nan"), None, True, b"a", ("a",)])
def test_other_types_are_not_ids(bad: object) -> None:
    with pytest.raises(InputTypeError, match=f"id 1 is {type(bad).__name__}"):
        check_ids(["fine", bad])


@pytest.mark.parametrize("bad", ["\ud800", 2**1024, -(10**5000)], ids=["surrogate", "big", "huge"])
def test_ids_that_cannot_be_stored_are_refused(bad: object) -> None:
    with pytest.raises(InputValueError, match="id 1"):
        check_ids(["fine", bad])
    assert check_ids([2**1024 - 1]) == [2**1024 - 1]


@pytest.mark.parametrize(
    "bad", [[], "text", {1: 2}, {"a": {1, 2}}, {"a": b""}, {"a": [{"b": {1: "c"}}]}]
)
def test_metadata_that_is_not_json_object_is_refused(bad: object) -> None:
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


def test_the_sum_over_ids_follows_them_in_any_order() -> None:
    rows = [(1, "a", 0), (2, "5", 1), (30, "", 0)]
    assert id_sum(rows) == id_sum(rows[::-1]) == id_sum(rows[:1]) + id_sum(rows[1:])
    for other in ((1, "b", 0), (2, "a", 0), (1, "a", 1)):
        assert id_sum([other, *rows[1:]]) != id_sum(rows)
    assert id_sum([(1, "b", 0), (2, "a", 0)]) != id_sum([(1, "a", 0), (2, "b", 0)])


def test_a_damaged_sum_over_ids_is_said(store: Store) -> None:
    with store.transaction():
        store.meta.write({"dim": "3"})
    assert list(store.problems()) == []
    with store.transaction():
        store.meta.write({"id_sum": str(store.meta.counts().id_sum + 1)})
    assert list(store.problems()) == [f"{FILE}: the checksum over all ids does not match its rows"]
    with pytest.raises(CorruptCollectionError, match="ids does not match"):
        store.ids()
