"""Damaged files: a typed error or a rebuild, never a wrong row; verify and salvage."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    Collection,
    CollectionError,
    CorruptCollectionError,
    Encoder,
)
from flowvec.collection.store.store import FILE
from tests.inside import run_sql
from tests.makers import vectors


def test_a_damaged_row_is_a_typed_error_never_a_wrong_row(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1, 2], [[1, 0], [0, 1]], ["one", "two"])
        run_sql(tmp_path / "c", "UPDATE items SET text = 'tvo' WHERE label = 2")
    with Collection.open(tmp_path / "c") as c:
        with pytest.raises(CorruptCollectionError, match="row 2"):
            c.get([2])
        with pytest.raises(CorruptCollectionError, match="row 2"):
            c.search([1, 0])


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM meta WHERE key = 'dim'",
        "UPDATE meta SET value = 'many' WHERE key = 'dim'",
        "UPDATE meta SET value = 'hamming' WHERE key = 'metric'",
        "UPDATE meta SET value = '' WHERE key = 'M'",
    ],
)
def test_damaged_settings_are_a_typed_error(tmp_path: Path, change: str) -> None:
    Collection.create(tmp_path / "c", dim=2).close()
    run_sql(tmp_path / "c", change)
    with pytest.raises(CorruptCollectionError, match="meta"):
        Collection.open(tmp_path / "c")


def test_salvage_saves_all_intact_rows(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny, vector_dtype="float16") as c:
        c.add(range(9), ["the cat"] * 9, [{"n": i} for i in range(9)])
        kept = [item for item in c.rows() if item.id not in (2, 5)]
        run_sql(tmp_path / "c", "UPDATE items SET text = 'x' WHERE label = 3")
        run_sql(tmp_path / "c", "DELETE FROM items WHERE label = 6")
    with pytest.raises(CorruptCollectionError):
        Collection.open(tmp_path / "c")
    assert Collection.salvage(tmp_path / "c", tmp_path / "new") == 2
    with Collection.open(tmp_path / "new", encoder=tiny) as new:
        for one, other in zip(new.rows(), kept, strict=True):
            assert (one.id, one.text, one.metadata) == (other.id, other.text, other.metadata)
            np.testing.assert_array_equal(one.vector, other.vector)
        assert new.verify() == []
        assert new.info().vector_dtype == "float16"
    with pytest.raises(CollectionError, match="is not empty"):
        Collection.salvage(tmp_path / "c", tmp_path / "new")


@pytest.mark.parametrize(
    "damage",
    ["UPDATE meta SET value = '5' WHERE key = 'dim'", "DELETE FROM meta WHERE key = 'metric'",
     "UPDATE meta SET value = 'l2' WHERE key = 'metric'",
     "UPDATE meta SET value = 'f' WHERE key = 'vector_dtype'",
     "UPDATE meta SET value = 'x' WHERE key = 'fingerprint'",
     "UPDATE meta SET value = '0' WHERE key = 'M'",
     "DELETE FROM meta WHERE key = 'settings checksum'",
     "DROP TABLE snapshots", "DROP TABLE meta", "DROP TABLE items"],
)  # fmt: skip
def test_damaged_settings_and_tables_are_never_believed(
    tmp_path: Path, tiny: Encoder, damage: str
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1], ["the cat"])
    run_sql(tmp_path / "c", damage)
    try:
        with Collection.open(tmp_path / "c") as c:
            assert c.verify() != []
    except CorruptCollectionError:
        pass  # noticed before


def test_a_damaged_id_is_never_given(tmp_path: Path) -> None:
    rows = vectors(30, dim=4)
    with Collection.create(tmp_path / "c", dim=4, metric="ip", index="graph", exact_below=20) as c:
        c.add_vectors([f"needle-{i:06}" for i in range(30)], rows)
        c.add_vectors(["needle-000007", 5], rows[:2])  # one is replaced, and one is a number
        c.delete(["needle-000009"])
        c.add_vectors([5], rows[1:2])
        right = c.search_ids(rows, 3)[0]
    raw = (tmp_path / "c" / FILE).read_bytes()
    places = [match.start() for match in re.finditer(b"needle-000003", raw)]
    assert len(places) == 2  # the row, and the index
    outcomes = []
    for place in places:
        damaged = bytearray(raw)
        damaged[place + 12] = ord("9")
        (tmp_path / "c" / FILE).write_bytes(damaged)
        with Collection.open(tmp_path / "c", index="graph", exact_below=20) as c:
            assert c.verify() != []
            try:
                outcomes.append(c.search_ids(rows, 3)[0] == right)
            except CorruptCollectionError:
                outcomes.append("an error")
    assert sorted(outcomes, key=str) == [True, "an error"]
    (tmp_path / "c" / FILE).write_bytes(raw)
    with Collection.open(tmp_path / "c", index="graph", exact_below=20) as c:
        assert c.search_ids(rows, 3)[0] == right


@pytest.mark.parametrize(
    ("key", "value"), [("dim", "x"), ("dim", "0"), ("metric", "cos"), ("vector_dtype", "f")]
)
def test_salvage_needs_intact_settings(tmp_path: Path, key: str, value: str) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], [[1, 0]])
    run_sql(tmp_path / "c", "UPDATE meta SET value = ? WHERE key = ?", value, key)
    with pytest.raises(CorruptCollectionError, match="table meta is damaged"):
        Collection.salvage(tmp_path / "c", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TRIGGER words_of_new",
        "DROP TABLE words",
        "UPDATE words SET text = 'b' WHERE rowid = 1",
    ],
)
def test_a_damaged_full_text_index_is_reported_and_repaired_for_hybrid_searches(
    tmp_path: Path, tiny: Encoder, damage: str
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1, 2], ["the cat", "the dog"])
        c.index_texts()
        run_sql(tmp_path / "c", damage)
        assert "full-text index" in "".join(c.verify())
        c.compact()
        assert c.verify() == []
        c.add([3], ["the man"])
        assert c.search("man", k=1, hybrid=True)[0].id == 3
        assert c.verify() == []


def test_verify_checks_the_full_text_index_beside_a_writer(tmp_path: Path, tiny: Encoder) -> None:
    """`verify` only reads: it blocks no writer, and waits for none."""
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1, 2], ["the cat", "the dog"])
        c.index_texts()
        writing = sqlite3.connect(tmp_path / "c" / FILE, isolation_level=None)
        writing.execute("BEGIN IMMEDIATE")
        assert c.verify() == []
        writing.execute("ROLLBACK")
        writing.execute("UPDATE words SET text = 'b' WHERE rowid = 1")
        writing.execute("BEGIN IMMEDIATE")
        assert "full-text index does not match its rows" in "".join(c.verify())
        writing.close()
        before = set(tmp_path.rglob("*"))
        assert c.verify()
        assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("page", [13, 25, 38])
def test_salvage_saves_rows_beside_a_lost_page(tmp_path: Path, page: int) -> None:
    with Collection.create(tmp_path / "c", dim=64) as c:
        rows = np.random.default_rng(0).normal(size=(600, 64)).astype(np.float32)
        c.add_vectors(range(600), rows)
        run_sql(tmp_path / "c", "VACUUM")
    file = tmp_path / "c" / FILE
    data = bytearray(file.read_bytes())
    data[4096 * page : 4096 * (page + 1)] = bytes(4096)
    file.write_bytes(data)
    lost = Collection.salvage(tmp_path / "c", tmp_path / "new")
    with Collection.open(tmp_path / "new") as new:
        assert len(new) == 600 - lost
        assert 0 < lost < 100
        for item in new.rows():
            np.testing.assert_array_equal(item.vector, rows[int(item.id)])


def test_verify_names_every_problem(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(200), vectors(200))
        c.prepare()
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert c.verify() == []
    graph = next((tmp_path / "c").glob("graph-*.hnsw"))
    data = bytearray(graph.read_bytes())
    data[500] ^= 1
    graph.write_bytes(data)
    (tmp_path / "c" / "stray.txt").write_text("x")
    run_sql(tmp_path / "c", "UPDATE items SET text = 'x' WHERE label = 7")
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        problems = c.verify()
    assert len(problems) == 3
    assert "row 7 (id 6) does not match its checksum" in problems[0]
    assert "is damaged" in problems[1]
    assert "stray.txt is not part" in problems[2]
