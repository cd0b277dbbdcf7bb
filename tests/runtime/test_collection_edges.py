"""A collection where it is used unusually: permissions, odd inputs, closing, who may write."""

from __future__ import annotations

import enum
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import (
    Added,
    ClosedError,
    Collection,
    CollectionError,
    CorruptCollectionError,
    Encoder,
    FingerprintMismatchError,
    InputTypeError,
    InputValueError,
)
from flowvec.collection.index import vector_index as neighbours
from flowvec.collection.store.locks import LOCK_FILE, WriterLock
from flowvec.collection.store.store import FILE

DIM = 4


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "EXACT_BELOW", 20)


# --- permissions ----------------------------------------------------------------------------------

# Modules may lie where that user cannot read: whatever is needed is imported before.
SOMEBODY = """
import mmap, os, sys, tempfile
from pathlib import Path
import numpy as np
from flowvec import Collection, CollectionError
from flowvec.collection.index import vector_index as neighbours
neighbours.EXACT_BELOW = 20
with tempfile.TemporaryDirectory() as warm, Collection.create(warm, dim=4) as c:
    c.add_vectors(range(30), np.eye(30, 4), ["x"] * 30)
    c.search(np.ones(4), filter={"x": 1})
    c.verify()
    c.compact()
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
folder = Path(sys.argv[1])
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that any user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="flowvec-"))
    folder.chmod(0o755)
    yield folder
    for level, _, _ in os.walk(folder):
        Path(level).chmod(0o755)
    shutil.rmtree(folder)


def as_somebody(folder: Path, code: str) -> str:
    """What a program prints that is run by a user for whom permissions hold, as for root not."""
    done = subprocess.run(
        [sys.executable, "-c", SOMEBODY + code, str(folder)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")


@posix
def test_a_folder_that_cannot_be_written_is_searched(public: Path, small_graphs: None) -> None:
    with Collection.create(public / "c", dim=DIM) as c:
        c.add_vectors(range(50), vectors(50), [f"text {i}" for i in range(50)])
        expected = [hit.id for hit in c.search(np.ones(DIM))]
    for file in (public / "c").iterdir():
        file.chmod(0o444)
    (public / "c").chmod(0o555)
    code = """
with Collection.open(folder / "c") as c:
    print([hit.id for hit in c.search(np.ones(4))])
    assert c.verify() == []
    for change in (lambda: c.delete([1]), c.compact, c.tune_recall, c.index_texts):
        try:
            change()
        except CollectionError as error:
            assert "cannot be written" in str(error), error
        else:
            raise AssertionError(change)
    assert len(c) == 50
"""
    assert as_somebody(public, code) == str(expected)
    assert sorted(file.name for file in (public / "c").glob("*.sqlite*")) == ["collection.sqlite"]


@posix
def test_who_may_only_read_sees_what_another_writes_meanwhile(public: Path) -> None:
    with Collection.create(public / "c", dim=DIM) as c:
        c.add_vectors(range(5), vectors(5))
        for file in (public / "c").iterdir():
            file.chmod(0o644)
        (public / "c").chmod(0o755)
        c.add_vectors(["late"], vectors(1, seed=1))
        code = "print(len(Collection.open(folder / 'c')))"
        if os.geteuid() == 0:  # else it is the same user, who may write
            assert as_somebody(public, code) == "6"
        c.delete([1])
        assert as_somebody(public, code) == "5"


@posix
def test_a_parent_that_cannot_be_listed_is_no_hindrance(public: Path) -> None:
    (public / "parent").mkdir()
    (public / "parent" / "own").mkdir()
    for folder, mode in ((public / "parent" / "own", 0o777), (public / "parent", 0o111)):
        folder.chmod(mode)
    code = """
with Collection.create(folder / "parent" / "own", dim=4) as c:
    c.add_vectors([1], np.ones((1, 4)))
print(len(Collection.open(folder / "parent" / "own")))
"""
    assert as_somebody(public, code) == "1"


@posix
def test_a_folder_that_cannot_be_entered_is_a_typed_error(public: Path) -> None:
    Collection.create(public / "c", dim=DIM).close()
    (public / "c").chmod(0o600)
    code = """
for use in (lambda: Collection.open(folder / "c"), lambda: Collection.create(folder / "c", dim=4),
            lambda: Collection.create(folder / "c" / "d", dim=4)):
    try:
        use()
    except CollectionError as error:
        assert str(folder / "c") in str(error), error
    else:
        raise AssertionError(use)
"""
    as_somebody(public, code)


# --- who may write --------------------------------------------------------------------------------


def test_a_hybrid_search_makes_nobody_a_writer(tmp_path: Path, mini: Encoder) -> None:
    with (
        Collection.create(tmp_path / "c", encoder=mini) as writer,
        Collection.open(tmp_path / "c", encoder=mini) as reader,
    ):
        writer.add(["a", "b"], ["a cat sleeps", "stocks fell"])
        with pytest.raises(CollectionError, match=r"its writer can make with index_texts\(\)"):
            reader.search("cat", hybrid=True)
        writer.index_texts()
        writer.index_texts()  # again is nothing
        assert reader.search("cat", k=1, hybrid=True)[0].id == "a"
    with Collection.create(tmp_path / "d", encoder=mini) as writer:
        writer.add(["a", "b"], ["a cat sleeps", "stocks fell"])
    with (
        Collection.open(tmp_path / "d", encoder=mini) as reader,
        Collection.open(tmp_path / "d", encoder=mini) as writer,
    ):
        assert reader.search("cat", k=1, hybrid=True)[0].id == "a"  # it made the index
        writer.add(["c"], ["a zyxwv sleeps"])
        assert reader.search("zyxwv", k=1, hybrid=True)[0].id == "c"


# --- odd inputs -----------------------------------------------------------------------------------


class Kind(str, enum.Enum):  # noqa: UP042 - a StrEnum's text is its value already
    CAT = "cat"


class Number(enum.IntEnum):
    ONE = 1


def test_an_enum_counts_as_its_value(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM) as c:
        c.add_vectors([Kind.CAT, Number.ONE], vectors(2), metadata=[{"k": Kind.CAT}, None])
        assert [item.id for item in c.rows()] == ["cat", 1]
        assert c.search(vectors(1)[0], filter={"k": Kind.CAT})[0].metadata == {"k": "cat"}
        assert c.search(vectors(1)[0], filter={"k": {"in": [Kind.CAT]}})[0].id == "cat"
        assert c.delete([Kind.CAT, 1]) == 2


class Twice:
    """A DataFrame with two columns of one name, of which it gives both for one."""

    columns = ("a", "a")

    def __getitem__(self, _: str) -> list[str]:
        return ["a", "a"]


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.add_vectors(7, vectors(1)),
        lambda c: c.add_vectors([1], vectors(1), metadata=7),
        lambda c: c.add_vectors([1], vectors(1), metadata="x"),
        lambda c: c.add_vectors([1], [[10**400, 0, 0, 0]]),
        lambda c: c.add_vectors([1], "text"),
        lambda c: c.add_vectors("id", vectors(2)),
        lambda c: c.delete("id"),
        lambda c: c.delete(7),
        lambda c: c.search([1, 2, 3]),
        lambda c: c.search([[1, 2, 3, 4]]),
        lambda c: c.search([1, 2, 3, [4]]),
        lambda c: c.search(vectors(1)[0], k=1.5),
        lambda c: c.search(vectors(1)[0], k=-1),
        lambda c: c.search_ids(vectors(1)[0], 1),
        lambda c: c.search_batch("text"),
        lambda c: c.tune_recall(0.9, seed=-1),
        lambda c: c.tune_recall(0.9, queries=0),
        lambda c: c.tune_recall(0.9, queries=2.5),
        lambda c: c.tune_recall("x"),
        lambda c: c.tune_recall(0.9, queries=vectors(0)),
        lambda c: c.tune_recall(0.9, queries=np.ones((2, 3))),
        lambda c: c.add_vectors([1], [[1j, 0, 0, 0]]),
        lambda c: c.add_vectors([1], [["1", "2", "3", "4"]]),
        lambda c: c.add_vectors([1], vectors(1), metadata={"a": 1}),
        lambda c: c.search(vectors(1)[0], min_score="0.1"),
        lambda c: c.search_batch(vectors(1), min_score=float("nan")),
        lambda c: c.add_vectors([1, 2], vectors(2), metadata=Twice()),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    tmp_path: Path, call: Callable[[Collection], Any]
) -> None:
    with Collection.create(tmp_path / "c", dim=DIM) as c:
        c.add_vectors(["i", "d"], vectors(2))
        with pytest.raises((InputTypeError, InputValueError)):
            call(c)
        assert len(c) == 2


def test_more_hits_than_any_number_holds_are_all_there_are(tmp_path: Path, mini: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=mini) as c:
        c.add(["a", "b"], ["a cat sleeps", "stocks fell"])
        for options in ({}, {"hybrid": True}, {"filter": {}}):
            assert len(c.search("cat", k=10**400, **options)) == 2  # type: ignore[arg-type]
        assert c.search("cat", min_score=float("inf")) == []
        c.delete(["a", "b"])
        assert c.search("cat", k=3, hybrid=True) == []


@pytest.mark.usefixtures("small_graphs")
def test_deletions_before_there_is_a_graph_are_harmless(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM) as c:
        c.add_vectors(range(30), vectors(30))
        c.search(vectors(1)[0])
    (tmp_path / "c" / "graph-1.hnsw").unlink()
    with Collection.open(tmp_path / "c") as c:
        c.delete(range(9))
        c.compact()
        c.delete(range(30))
        assert c.search(vectors(1)[0]) == []
        c.compact()
        c.add_vectors(range(30), vectors(30))
        assert len(c.search(vectors(1)[0], k=99)) == 30


def test_a_name_that_no_folder_can_have_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(InputValueError, match="cannot be a path"):
        Collection.create(tmp_path / "a\0b", dim=2)


@pytest.mark.usefixtures("small_graphs")
def test_nothing_is_shown_where_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tqdm's lock is shared by forked processes: one that is killed with it stops the others."""
    monkeypatch.setattr(
        "flowvec.collection.index.state.tqdm", lambda **_: pytest.fail("a bar was made")
    )
    with Collection.create(tmp_path / "c", dim=DIM) as c:
        c.add_vectors(range(30), vectors(30))
        assert len(c.search(vectors(1)[0])) == 10
        c.compact()


@pytest.mark.usefixtures("small_graphs")
def test_a_graph_is_asked_for_more_than_there_are(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM) as c:
        c.add_vectors(range(30), vectors(30))
        for wanted in (None, {}, {"n": {"exists": False}}):
            assert len(c.search(vectors(1)[0], k=10**400, filter=wanted)) == 30


@pytest.mark.usefixtures("small_graphs")
def test_a_filtered_batch_is_the_same_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_MAX_FETCHED_SHARE", 1.0)
    with Collection.create(tmp_path / "c", dim=DIM) as c:
        c.add_vectors(range(400), vectors(400), metadata=[{"n": i % 2} for i in range(400)])
        whole = c.search_ids(vectors(30, seed=1), 5, filter={"n": 1})
        parts = []
        in_parts = neighbours.Neighbours._search_graph_in_parts
        monkeypatch.setattr(
            neighbours.Neighbours,
            "_search_graph_in_parts",
            lambda *args: parts.append(1) or in_parts(*args),
        )
        monkeypatch.setattr(neighbours, "_MOST_FETCHED", 90)
        again = c.search_ids(vectors(30, seed=1), 5, filter={"n": 1})
        assert parts
        assert again[0] == whole[0]
        np.testing.assert_array_equal(again[1], whole[1])


def test_another_models_queries_are_refused_as_soon_as_there_is_one(
    tmp_path: Path, tiny: Encoder, tiny_copy: Path
) -> None:
    import json

    manifest = json.loads((tiny_copy / "manifest.json").read_text())
    manifest["max_length"] -= 1
    (tiny_copy / "manifest.json").write_text(json.dumps(manifest))
    Collection.create(tmp_path / "c", dim=tiny.dim).close()
    with (
        Encoder.load(tiny_copy) as other,
        Collection.open(tmp_path / "c", encoder=other) as late,
        Collection.open(tmp_path / "c", encoder=tiny) as c,
    ):
        c.add(["a"], ["the cat"])
        assert late.search(np.ones(tiny.dim), k=1)[0].id == "a"
        with pytest.raises(FingerprintMismatchError):
            late.search("the cat")


# --- damage ---------------------------------------------------------------------------------------


def test_all_intact_rows_of_a_damaged_collection_are_saved(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny, vector_dtype="float16") as c:
        c.add(range(9), ["the cat"] * 9, [{"n": i} for i in range(9)])
        kept = [item for item in c.rows() if item.id not in (2, 5)]
        c._store._db.execute("UPDATE items SET text = 'x' WHERE label = 3")
        c._store._db.execute("DELETE FROM items WHERE label = 6")
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
    with Collection.open(tmp_path / "c") as c:
        c._store._db.execute(damage)
    try:
        with Collection.open(tmp_path / "c") as c:
            assert c.verify() != []
    except CorruptCollectionError:
        pass  # noticed before


@pytest.mark.usefixtures("small_graphs")
def test_a_damaged_id_is_never_given(tmp_path: Path) -> None:
    rows = vectors(30)
    with Collection.create(tmp_path / "c", dim=DIM, metric="ip") as c:
        c.add_vectors([f"needle-{i:06}" for i in range(30)], rows)
        c.add_vectors(["needle-000007", 5], rows[:2])  # one is replaced, and one is a number
        c.delete(["needle-000009"])
        c.add_vectors([5], rows[1:2])
        right = c.search_ids(rows, 3)[0]
    raw = (tmp_path / "c" / FILE).read_bytes()
    places = [found.start() for found in re.finditer(b"needle-000003", raw)]
    assert len(places) == 2  # the row, and the index
    outcomes = []
    for place in places:
        damaged = bytearray(raw)
        damaged[place + 12] = ord("9")
        (tmp_path / "c" / FILE).write_bytes(damaged)
        with Collection.open(tmp_path / "c") as c:
            assert c.verify() != []
            try:
                outcomes.append(c.search_ids(rows, 3)[0] == right)
            except CorruptCollectionError:
                outcomes.append("an error")
    assert sorted(outcomes, key=str) == [True, "an error"]
    (tmp_path / "c" / FILE).write_bytes(raw)
    with Collection.open(tmp_path / "c") as c:
        assert c.search_ids(rows, 3)[0] == right


@pytest.mark.parametrize(
    ("key", "value"), [("dim", "x"), ("dim", "0"), ("metric", "cos"), ("vector_dtype", "f")]
)
def test_nothing_is_salvaged_without_its_settings(tmp_path: Path, key: str, value: str) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], [[1, 0]])
        c._store._db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
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
def test_a_damaged_full_text_index_is_said_and_mended(
    tmp_path: Path, tiny: Encoder, damage: str
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1, 2], ["the cat", "the dog"])
        c.index_texts()
        c._store._db.execute(damage)
        assert "full-text index" in "".join(c.verify())
        c.compact()
        assert c.verify() == []
        c.add([3], ["the man"])
        assert c.search("man", k=1, hybrid=True)[0].id == 3
        assert c.verify() == []


def test_the_full_text_index_is_checked_beside_a_writer(tmp_path: Path, tiny: Encoder) -> None:
    """Checking it keeps nobody waiting, and waits for nobody: it only reads."""
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1, 2], ["the cat", "the dog"])
        c.index_texts()
        writing = sqlite3.connect(tmp_path / "c" / FILE, isolation_level=None)
        writing.execute("BEGIN IMMEDIATE")
        assert c.verify() == []
        writing.execute("ROLLBACK")
        writing.execute("DROP TRIGGER words_of_old")
        writing.execute("UPDATE words SET text = 'b' WHERE rowid = 1")
        writing.execute(
            "CREATE TRIGGER words_of_old AFTER DELETE ON items BEGIN INSERT INTO words(words, "
            "rowid, text) VALUES ('delete', old.label, old.text); END"
        )
        writing.execute("BEGIN IMMEDIATE")
        assert "full-text index does not match its rows" in "".join(c.verify())
        writing.close()
        before = set(tmp_path.rglob("*"))
        assert c.verify()
        assert set(tmp_path.rglob("*")) == before


def test_a_collection_whose_making_was_killed_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / FILE).touch()
    with pytest.raises(CollectionError, match="its making was interrupted"):
        Collection.open(tmp_path / "c")
    assert Collection.is_unmade(tmp_path / "c")
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], [[1, 0]])
    assert not Collection.is_unmade(tmp_path / "c")
    assert not Collection.is_unmade(tmp_path / "nowhere")
    with pytest.raises(CollectionError, match="is not empty"):
        Collection.create(tmp_path / "c", dim=2)


# --- what holds texts and numbers -----------------------------------------------------------------


def test_texts_may_come_in_any_column(tmp_path: Path, tiny: Encoder) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(range(3), ["the cat", "the dog", "a man"])
        expected = c.search_batch(["the dog", "a man"], 2)
        for texts in (
            pandas.Series(["the dog", "a man"]), np.array(["the dog", "a man"]),
            np.array(["the dog", "a man"], dtype=object), ("the dog", "a man"),
        ):  # fmt: skip
            assert c.search_batch(texts, 2) == expected
            assert c.tune_recall(0.5, queries=texts) == 1.0
        frame = pandas.DataFrame({"tags": [["a", "b"], np.array(["c"]), []], "n": [1, 2, 3]})
        c.add(range(3), ["the cat", "the dog", "a man"], frame)
        assert [item.metadata for item in c.rows()] == [
            {"tags": ["a", "b"], "n": 1}, {"tags": ["c"], "n": 2}, {"tags": [], "n": 3},
        ]  # fmt: skip
        assert c.search("x", filter={"tags": {"contains": "c"}})[0].id == 1


def test_a_date_is_asked_for_as_it_was_kept(tmp_path: Path) -> None:
    from datetime import date

    with Collection.create(tmp_path / "c", dim=DIM) as c:
        when = Columns(when=[date(2026, 1, 2), date(2026, 3, 4)])
        c.add_vectors([1, 2], vectors(2), metadata=when)
        hits = c.search(vectors(1)[0], filter={"when": {">": date(2026, 2, 1)}})
        assert [hit.id for hit in hits] == [2]


class Columns(dict[str, list[Any]]):
    """What DataFrames have in common."""

    @property
    def columns(self) -> list[str]:
        return list(self)


@pytest.mark.parametrize("opener", [Collection.create, Collection.open])
def test_an_encoder_is_no_name(tmp_path: Path, opener: Callable[..., Collection]) -> None:
    with pytest.raises(InputTypeError, match=r"Encoder\.load"):
        opener(tmp_path / "c", encoder="mini")
    assert not (tmp_path / "c").exists()


def test_a_recall_that_was_measured_long_ago_is_not_told(
    tmp_path: Path, small_graphs: None
) -> None:
    with Collection.create(tmp_path / "c", dim=DIM) as c:
        c.add_vectors(range(10), vectors(10))
        assert c.info().recall == 1.0  # searched exactly
        c.add_vectors(range(100), vectors(100))
        assert c.info().recall is None
        measured = c.tune_recall(0.9, queries=vectors(50, seed=3))
        assert c.info().recall == measured >= 0.9
        c.add_vectors(range(140), vectors(140))
        assert c.info().recall == measured
        c.add_vectors(range(200), vectors(200))
        assert c.info().recall is None


# --- closing --------------------------------------------------------------------------------------


def test_what_is_closed_says_so(tmp_path: Path) -> None:
    c = Collection.create(tmp_path / "c", dim=DIM)
    c.add_vectors([1], vectors(1))
    rows = c.rows()
    c.close()
    c.close()
    for use in (
        lambda: len(c), lambda: c.get([1]), lambda: next(rows), c.info, c.verify, c.refresh,
        c.compact, c.tune_recall, c.index_texts, lambda: c.delete([1]),
        lambda: c.search(vectors(1)[0]), lambda: c.search_ids(vectors(1), 1),
        lambda: c.add_vectors([2], vectors(1)),
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="closed"):
            use()


def test_a_parquet_file_that_cannot_be_taken_in_leaves_nothing(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra [files]")
    import pyarrow.parquet

    table = pa.table({"id": ["a", "b"], "vector": [[1.0, 2.0], [float("nan"), 1.0]]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputValueError):
        Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet")
    assert not (tmp_path / "c").exists()
    (tmp_path / "c").mkdir()
    with pytest.raises(InputValueError):
        Collection.from_parquet(tmp_path / "c", tmp_path / "t.parquet")
    assert list((tmp_path / "c").iterdir()) == []


@pytest.mark.parametrize("page", [8, 20, 33])
def test_rows_beside_a_lost_page_are_saved(tmp_path: Path, page: int) -> None:
    with Collection.create(tmp_path / "c", dim=64) as c:
        rows = np.random.default_rng(0).normal(size=(600, 64)).astype(np.float32)
        c.add_vectors(range(600), rows)
        c._store.vacuum()
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


# --- made, or there already -----------------------------------------------------------------------


def test_open_or_create_opens_what_is_there(tmp_path: Path, tiny: Encoder) -> None:
    for count in (1, 2, 3):
        with Collection.open_or_create(tmp_path / "c", encoder=tiny) as c:
            c.add([count], ["a cat"])
            assert len(c) == count
    with Collection.create(tmp_path / "c", encoder=tiny, exist_ok=True) as c:
        assert len(c) == 3
    with pytest.raises(CollectionError, match="is not empty: it holds a collection"):
        Collection.create(tmp_path / "c", encoder=tiny)
    for wrong in ({"metric": "ip"}, {"vector_dtype": "float16"}):
        with pytest.raises(InputValueError, match=r"has (metric cosine|vector_dtype float32), not"):
            Collection.open_or_create(tmp_path / "c", encoder=tiny, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputValueError, match="has dim 16, not 3"):
        Collection.open_or_create(tmp_path / "c", dim=3)


def test_open_or_create_refuses_another_model_and_other_files(
    tmp_path: Path, tiny: Encoder, mini: Encoder
) -> None:
    Collection.open_or_create(tmp_path / "c", encoder=tiny).close()
    with pytest.raises(FingerprintMismatchError):
        Collection.open_or_create(tmp_path / "c", encoder=mini)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/notes.txt").write_text("mine")
    with pytest.raises(CollectionError, match=r"is not empty: it holds notes\.txt"):
        Collection.open_or_create(tmp_path / "d", encoder=tiny)
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["notes.txt"]


def test_the_second_process_waits_for_the_full_text_index(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(list(range(20)), [f"a cat {i}" for i in range(20)])
    found: list[int] = []
    holder = WriterLock(tmp_path / "c")
    holder.acquire(briefly=True)  # as one that makes the index

    def search() -> None:
        with Collection.open(tmp_path / "c", encoder=tiny) as other:
            found.append(len(other.search("a cat", k=3, hybrid=True)))

    thread = threading.Thread(target=search)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive(), found
    holder.release()
    thread.join(60)
    assert found == [3]


def test_a_lock_that_was_just_taken_is_looked_at_again(tmp_path: Path) -> None:
    """Between taking the lock and writing who it is there is a moment."""
    first, second = WriterLock(tmp_path), WriterLock(tmp_path)
    first.acquire(briefly=True)
    (tmp_path / LOCK_FILE).write_bytes(b"")  # not written yet
    timer = threading.Timer(0.02, lambda: (tmp_path / LOCK_FILE).write_bytes(b"77 briefly"))
    timer.start()
    threading.Timer(0.3, first.release).start()
    second.acquire()
    assert second.held
    second.release()


@pytest.mark.parametrize("place", [0, 700, 1999])
def test_one_long_vector_does_not_spoil_inner_products(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "EXACT_BELOW", 100)
    rng = np.random.default_rng(place)
    vectors, queries = rng.standard_normal((2000, 24)), rng.standard_normal((50, 24))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[place] *= 1e5
    with Collection.create(tmp_path / "c", dim=24, metric="ip") as c:
        c.add_vectors(list(range(2000)), vectors)
        ids, scores = c.search_ids(queries, 10)
        exact, _ = c.search_ids(queries, 10, exact=True)
    shared = [len(set(found) & set(true)) for found, true in zip(ids, exact, strict=True)]
    assert np.mean(shared) > 8.5
    products = np.take_along_axis(queries @ vectors.T, np.asarray(ids), axis=1)
    np.testing.assert_allclose(scores, products, rtol=1e-4, atol=1e-5)


def test_an_add_says_what_it_did(tmp_path: Path, tiny: Encoder, caplog: Any) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        assert c.add([1, 2, 2], ["a cat", "a dog", "the cat " * 100]) == Added(2, 0, 1)
        assert c.add([1, 3], ["the cat " * 100, "a"]) == Added(2, 1, 1)
        assert c.add_vectors([3, 4], np.ones((2, 16))) == Added(2, 1, 0)
        assert c.add([], []) == Added(0, 0, 0)
    (record,) = caplog.records  # once
    assert "1 of 2 texts have more than 64 tokens, and were cut" in record.getMessage()


def test_preparing_is_given_up_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "EXACT_BELOW", 100)
    rows = np.random.default_rng(0).standard_normal((3000, 8))
    stop = threading.Event()
    stop.set()
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(list(range(3000)), rows)
        assert c.prepare(stop) is False
        assert c.info().graph_rows == 0
        assert c.prepare(threading.Event()) is True
        assert c.info().graph_rows == 3000
        assert c.search(rows[7], k=1)[0].id == 7
