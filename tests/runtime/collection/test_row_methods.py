"""Rows by filter and in their order, and changes of their metadata."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowvec import (
    Collection,
    CorruptCollectionError,
    Encoder,
    InputTypeError,
    InputValueError,
    Row,
)
from flowvec.collection.store.store import FILE
from tests.drawing import examples
from tests.inside import access_of, store_of
from tests.makers import vectors
from tests.runtime.collection.store.test_filters import FILTERS, METADATA, matches


@pytest.fixture(params=[10_000, 5], ids=["exact", "graph"])
def numbered(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collection]:
    """Ten rows, 0 to 9, with their number as metadata."""
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=request.param) as c:
        c.add_vectors(
            range(10), vectors(10), [f"row {n}" for n in range(10)], [{"n": n} for n in range(10)]
        )
        c.prepare()
        yield c
        assert c.verify() == []


def all_pages(c: Collection, limit: int, **options: Any) -> list[Row]:
    rows: list[Row] = []
    while page := c.list(limit=limit, after=rows[-1] if rows else None, **options):
        assert len(page) <= limit
        rows += page
    return rows


# --- reading --------------------------------------------------------------------------------------


def test_rows_are_counted_named_and_listed_by_a_filter(numbered: Collection) -> None:
    c, wanted = numbered, {"n": {">=": 4, "!=": 6}}
    assert (c.count(), len(c)) == (10, 10)
    assert c.count(wanted) == 5
    assert c.count({}) == 10
    assert c.ids(wanted) == [4, 5, 7, 8, 9]
    assert c.ids() == c.ids({}) == list(range(10))
    assert [row.id for row in c.list(wanted)] == [4, 5, 7, 8, 9]
    assert c.list({"n": 4}) == [Row(5, 4, "row 4", {"n": 4})]
    assert c.list({"n": "4"}) == []


def test_pages_are_all_rows_in_their_order(numbered: Collection) -> None:
    for limit in (1, 3, 10, 11):
        assert [row.id for row in all_pages(numbered, limit)] == list(range(10))
        odd = {"or": [{"n": n} for n in range(1, 10, 2)]}
        assert [row.id for row in all_pages(numbered, limit, filter=odd)] == [1, 3, 5, 7, 9]
    assert numbered.list(limit=0) == []
    page = numbered.list(limit=3)
    assert numbered.list(limit=3, after=page[-1].label) == numbered.list(limit=3, after=page[-1])
    (item,) = numbered.get([2])
    assert [row.id for row in numbered.list(limit=2, after=item)] == [3, 4]
    assert numbered.list(after=1 << 80) == []


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Collection]:
    """More rows than are read at once."""
    with Collection.create(tmp_path / "many", dim=2) as c:
        numbers = range(9000)
        texts, metadata = [f"row {n}" for n in numbers], [{"n": n} for n in numbers]
        c.add_vectors(numbers, vectors(9000, dim=2), texts, metadata)
        yield c
        assert c.verify() == []


def test_a_page_may_be_larger_than_what_is_read_at_once(many: Collection) -> None:
    assert [row.id for row in many.list(limit=8900)] == list(range(8900))
    assert many.ids({"n": {"<": 8900}}) == list(range(8900))


def test_rows_have_their_vectors_if_they_are_wanted(numbered: Collection) -> None:
    assert all(row.vector is None for row in numbered.list())
    found = numbered.list(with_vectors=True)
    np.testing.assert_array_equal([row.vector for row in found], vectors(10))
    assert found == numbered.list()


def test_pages_are_stable_while_rows_come_and_go(numbered: Collection) -> None:
    c = numbered
    seen = [row.id for row in c.list(limit=4)]
    after = c.list(limit=4)[-1]
    c.delete([0, 3, 5])  # also the row that the next page begins after
    c.add_vectors([20, 6], vectors(2), metadata=[{"n": 20}, {"n": 6}])
    c.update_metadata([7], {"seen": True})
    seen += [row.id for row in c.list(limit=99, after=after)]
    assert seen == [0, 1, 2, 3, 4, 7, 8, 9, 20, 6]  # 6 was replaced, 7 only changed


def test_pages_of_hits_are_the_hits(numbered: Collection) -> None:
    query = vectors(1, seed=5)[0]
    for options in ({}, {"filter": {"n": {"<": 7}}}, {"exact": True}, {"min_score": 0.0}):
        every = numbered.search(query, 99, **options)  # type: ignore[arg-type]
        pages = [numbered.search(query, 3, offset=o, **options) for o in range(0, 12, 3)]  # type: ignore[arg-type]
        assert [hit for page in pages for hit in page] == every
    batch = numbered.search_batch(vectors(2, seed=5), 4, offset=2)
    assert batch == [line[2:] for line in numbered.search_batch(vectors(2, seed=5), 6)]
    assert numbered.search(query, 3, offset=99) == []
    for wrong in (-1, 1.5, True, "2", None):
        with pytest.raises((InputTypeError, InputValueError), match="offset"):
            numbered.search(query, offset=wrong)  # type: ignore[arg-type]


def test_pages_of_hybrid_and_reranked_hits_fit_together(
    tmp_path: Path, tiny: Encoder, reranker: Any
) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add(range(12), [f"the cat {n} sleeps" for n in range(12)])
        for options in ({"hybrid": True}, {"rerank": reranker, "rerank_from": 12}):
            every = c.search("the cat 3", 12, **options)  # type: ignore[arg-type]
            pages = [c.search("the cat 3", 5, offset=o, **options) for o in (0, 5, 10)]  # type: ignore[arg-type]
            assert [hit for page in pages for hit in page] == every


# --- deleting and changing ------------------------------------------------------------------------


def test_rows_are_deleted_by_a_filter(numbered: Collection) -> None:
    c = numbered
    assert c.delete(filter={"n": {"<": 4}}) == 4
    assert c.ids() == [4, 5, 6, 7, 8, 9]
    assert c.delete(filter={"n": {"<": 4}}) == 0
    assert {hit.id for hit in c.search(vectors(1)[0], 99)} == {4, 5, 6, 7, 8, 9}
    assert c.delete(filter={}) == 6
    assert len(c) == 0


def test_a_delete_by_filter_sees_what_was_committed_before_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are added while it waits for its turn are deleted too."""
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors([1], vectors(1), metadata=[{"old": True}])
        deleted: list[int] = []
        deleting = threading.Thread(target=lambda: deleted.append(c.delete(filter={"old": True})))
        with access_of(c).writing():
            deleting.start()
            deleting.join(0.2)
            assert deleting.is_alive()
            c.add_vectors([2], vectors(1), metadata=[{"old": True}])
        deleting.join(60)
        assert deleted == [2]
        assert c.ids() == []


def test_fields_are_set_kept_and_removed_without_embedding(tmp_path: Path, tiny: Encoder) -> None:
    with Collection.create(tmp_path / "c", encoder=tiny) as c:
        c.add([1, 2, 3], ["a cat", "a dog", "a man"], [{"a": 1, "b": {"c": 2}}, None, {}])
        before = {item.id: item for item in c.rows()}
        query = tiny.encode_query("a cat")
    with Collection.open(tmp_path / "c") as c:  # there is no encoder
        assert c.update_metadata([1, 2, 3, 99], {"x": np.int64(5), "a": None}) == 3
        assert [row.metadata for row in c.list()] == [{"b": {"c": 2}, "x": 5}, {"x": 5}, {"x": 5}]
        assert c.update_metadata([2, 1], [{"b": {"d": None}}, {"b": {"d": 3}, "x": None}]) == 2
        assert c.update_metadata([3], {"x": None}) == 1
        expected = [{"b": {"d": 3}}, {"b": {"d": None}, "x": 5}, {}]
        assert [row.metadata for row in c.list()] == expected
        for item in c.rows():
            assert (item.label, item.text) == (before[item.id].label, before[item.id].text)
            np.testing.assert_array_equal(item.vector, before[item.id].vector)
        assert [hit.id for hit in c.search(query, filter={"b.d": 3})] == [1]
        assert c.verify() == []
    with Collection.open(tmp_path / "c") as c:
        assert [row.metadata for row in c.list()] == expected


@pytest.mark.parametrize("key", ["n1", 7, np.int64(7)])
def test_one_id_is_one_row(tmp_path: Path, key: Any) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(["n1", 7, "n", "1"], np.ones((4, 2)))
        assert [row and row.id for row in c.get(key)] == [key]
        assert c.get("unknown") == c.get_sparse(key) == [None]
        assert c.update_metadata(key, {"a": 1}) == c.count({"a": 1}) == 1
        assert (c.delete(key), c.delete(key), len(c)) == (1, 0, 3)
        for wrong in (True, 1.5, b"n1"):
            with pytest.raises(InputTypeError):
                c.delete(wrong)  # type: ignore[arg-type]


def test_dots_in_names_of_changes_lead_inwards_as_in_filters(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1, 2], np.ones((2, 2)), metadata=[{"a": {"b": 1, "c": 2}, "n": 1}, None])
        assert c.update_metadata([1, 2], {"a.b": 5, r"a\.b": 6, "x.y.z": [1]}) == 2
        made = {"a.b": 6, "x": {"y": {"z": [1]}}}
        assert [row.metadata for row in c.list()] == [
            {"a": {"b": 5, "c": 2}, "n": 1, **made}, {"a": {"b": 5}, **made},
        ]  # fmt: skip
        assert c.ids({"a.b": 5}) == c.ids({r"a\.b": 6}) == [1, 2]
        assert c.update_metadata(2, {"a.b": None, "none.at.all": None, r"a\.b": None}) == 1
        assert c.list()[1].metadata == {"a": {}, "x": {"y": {"z": [1]}}}
        with pytest.raises(InputValueError, match="row 1: its field 'n'"):
            c.update_metadata(filter={}, changes={"n.m": 1})
        assert c.count({"n": 1}) == 1


def test_a_field_that_no_row_has_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        assert c.count({"lagn": "en"}) == 0  # there are no rows
        c.add_vectors([1], np.ones((1, 2)), metadata=[{"lang": "en", "author": {"name": "Bo"}}])
        for _ in range(2):
            assert c.search([1, 1], filter={"lang": "de"}) == []
            assert c.ids({"lagn": {"exists": True}}) == []
            assert c.count({"lagn": {"exists": False}}) == 1
        assert caplog.text == ""
        for _ in range(2):
            assert c.search([1, 1], filter={"or": [{"lagn": "en"}]}) == []
            assert c.count({"author.nam": "Bo"}) == c.delete(filter={"lagn": 1}) == 0
        assert caplog.text.count("the field 'lagn'") == 1
        assert caplog.text.count("did you mean 'lang'?") == 1
        assert caplog.text.count("did you mean 'author.name'?") == 1


def test_a_change_of_metadata_changes_what_filters_find(numbered: Collection) -> None:
    c, query = numbered, vectors(1)[0]
    even = {"n": {"in": [0, 2, 4, 6, 8]}}
    assert len(c.search(query, 99, filter={"kind": "even"})) == 0
    assert c.update_metadata(filter=even, changes={"kind": "even"}) == 5
    assert {hit.id for hit in c.search(query, 99, filter={"kind": "even"})} == {0, 2, 4, 6, 8}
    # All rows are chosen before the first is changed.
    assert c.update_metadata(filter={"n": {"<": 5}}, changes={"n": 5}) == 5
    assert c.count({"n": 5}) == 6
    assert c.update_metadata([0, 0, 1], [{"n": 1}, {"m": 2}, {"m": 3}]) == 2
    assert [row.metadata for row in c.list({"m": {"exists": True}})] == [
        {"n": 1, "m": 2, "kind": "even"}, {"n": 5, "m": 3},
    ]  # fmt: skip


def test_a_change_of_type_is_a_change(numbered: Collection) -> None:
    """1, 1.0 and True are equal to Python, and not to a filter."""
    for value in (True, 1, 1.0):
        numbered.update_metadata([3], {"v": value})
        stored = numbered.list({"n": 3})[0].metadata or {}
        assert (stored["v"], type(stored["v"])) == (value, type(value))
        assert numbered.count({"v": True}) == (value is True)


def test_other_processes_see_changed_metadata(tmp_path: Path) -> None:
    with (
        Collection.create(tmp_path / "c", dim=8) as writer,
        Collection.open(tmp_path / "c") as reader,
    ):
        writer.add_vectors([1, 2], vectors(2), metadata=[{"n": 1}, {"n": 2}])
        query = vectors(1)[0]
        assert [hit.id for hit in reader.search(query, filter={"n": 2})] == [2]
        writer.update_metadata([1], {"n": 2})
        assert {hit.id for hit in reader.search(query, filter={"n": 2})} == {1, 2}


def test_many_rows_are_changed_in_one_transaction(many: Collection) -> None:
    state = store_of(many).meta.state()
    assert many.update_metadata(filter={}, changes={"all": 1}) == 9000
    assert store_of(many).meta.state() == state + 1
    with sqlite3.connect(Path(many.info().path) / FILE) as db:
        db.execute("UPDATE items SET text = 'damaged' WHERE id = '8999'")
        db.commit()
        with pytest.raises(CorruptCollectionError, match="row 9000 does not match"):
            many.update_metadata(filter={}, changes={"all": 2})
        assert many.count({"all": 2}) == 0
        for call in (lambda: many.list(limit=9000), lambda: many.list({"n": {">": 8990}})):
            with pytest.raises(CorruptCollectionError, match="row 9000 does not match"):
                call()
        db.execute("UPDATE items SET text = 'row 8999' WHERE id = '8999'")
    assert many.update_metadata(filter={}, changes={"all": 2}) == 9000


def test_ids_by_a_filter_are_of_rows_that_match_their_checksums(numbered: Collection) -> None:
    with sqlite3.connect(Path(numbered.info().path) / FILE) as db:
        db.execute("UPDATE items SET text = 'damaged' WHERE id = '9'")
        db.commit()
        with pytest.raises(CorruptCollectionError, match="row 10 does not match"):
            numbered.ids({"n": {">": 1}})
        db.execute("UPDATE items SET text = 'row 9' WHERE id = '9'")


def test_a_change_without_effect_writes_nothing(numbered: Collection) -> None:
    state = store_of(numbered).meta.state()
    assert numbered.update_metadata([1, 2], [{"n": 1}, {"none": None}]) == 2
    assert numbered.update_metadata([99], {"n": 1}) == 0
    assert numbered.update_metadata(filter={"n": 77}, changes={"n": 1}) == 0
    assert numbered.update_metadata([], {"n": 1}) == numbered.update_metadata([], []) == 0
    assert store_of(numbered).meta.state() == state


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda c: c.delete(), InputValueError, "give ids or filter"),
        (lambda c: c.delete([1], filter={}), InputValueError, "give ids or filter"),
        (lambda c: c.delete(filter=[1]), InputTypeError, "must be a dict"),
        (lambda c: c.delete({"n": 1}), InputTypeError, "ids must be a list"),
        (lambda c: c.get(1.5), InputTypeError, "or one id, not float"),
        (lambda c: c.update_metadata([1]), InputTypeError, "changes must be a dict"),
        (lambda c: c.update_metadata(changes={}), InputValueError, "give ids or filter"),
        (lambda c: c.update_metadata([1], [{}, {}]), InputValueError, "1 ids for 2 changes"),
        (lambda c: c.update_metadata([1], [3]), InputTypeError, "changes 0 must be a dict"),
        (lambda c: c.update_metadata([1], {"a": b""}), InputTypeError, "changes, field 'a', is"),
        (lambda c: c.update_metadata([1], {1: 1}), InputTypeError, "changes must have text keys"),
        (lambda c: c.update_metadata(filter={}, changes=[{}]), InputTypeError, "must be a dict"),
        (lambda c: c.list(limit=-1), InputValueError, "limit"),
        (lambda c: c.list(limit=None), InputTypeError, "limit"),
        (lambda c: c.list(after="a"), InputTypeError, "after must be the last row"),
        (lambda c: c.list(after=True), InputTypeError, "after must be the last row"),
        (lambda c: c.list(with_vectors=1), InputTypeError, "with_vectors"),
        (lambda c: c.list({"n": {"~": 1}}), InputValueError, "not an operator"),
        (lambda c: c.count(["n"]), InputTypeError, "must be a dict"),
        (lambda c: c.ids("n"), InputTypeError, "must be a dict"),
    ],
)  # fmt: skip
def test_invalid_arguments_change_nothing(
    numbered: Collection, call: Any, error: Any, part: str
) -> None:
    with pytest.raises(error, match=part):
        call(numbered)
    assert [row.metadata for row in numbered.list()] == [{"n": n} for n in range(10)]


# --- any sequence of calls ------------------------------------------------------------------------

IDS = st.integers(0, 6) | st.sampled_from(["1", "x"])
CHANGES = st.dictionaries(
    st.sampled_from(["a", "b", "c d", "é"]),
    st.none() | st.booleans() | st.integers(0, 2) | st.text(max_size=2) | st.just({"b": 1}),
    max_size=3,
)


class RowsAgainstADict(RuleBasedStateMachine):
    """Rows and their metadata against a dict, and filters against Python."""

    @initialize(graph=st.booleans())
    def start(self, graph: bool) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.c = Collection.create(
            Path(self.folder.name) / "c", dim=2, index="graph", exact_below=0 if graph else 10_000
        )
        self.rows: dict[Any, Any] = {}

    def matching(self, wanted: Any) -> list[Any]:
        return [key for key, metadata in self.rows.items() if matches(wanted, metadata)]

    @rule(rows=st.dictionaries(IDS, METADATA, max_size=4))
    def add(self, rows: dict[Any, Any]) -> None:
        self.c.add_vectors(list(rows), np.ones((len(rows), 2)), metadata=list(rows.values()))
        for key, metadata in rows.items():
            self.rows.pop(key, None)
            self.rows[key] = metadata

    @rule(wanted=FILTERS)
    def delete_by_filter(self, wanted: Any) -> None:
        gone = self.matching(wanted)
        assert self.c.delete(filter=wanted) == len(gone)
        for key in gone:
            del self.rows[key]

    def change(self, keys: list[Any], changes: dict[str, Any]) -> None:
        for key in keys:
            fields = {**(self.rows[key] or {}), **changes}
            fields = {n: v for n, v in fields.items() if n not in changes or v is not None}
            if fields or self.rows[key] is not None:
                self.rows[key] = fields

    @rule(keys=st.lists(IDS, max_size=4), changes=CHANGES)
    def update_by_id(self, keys: list[Any], changes: dict[str, Any]) -> None:
        there = [key for key in dict.fromkeys(keys) if key in self.rows]
        assert self.c.update_metadata(keys, changes) == len(there)
        self.change(there, changes)

    @rule(wanted=FILTERS, changes=CHANGES)
    def update_by_filter(self, wanted: Any, changes: dict[str, Any]) -> None:
        there = self.matching(wanted)
        assert self.c.update_metadata(filter=wanted, changes=changes) == len(there)
        self.change(there, changes)

    @rule(wanted=FILTERS, limit=st.integers(1, 4))
    def read(self, wanted: Any, limit: int) -> None:
        there = self.matching(wanted)
        assert self.c.count(wanted) == len(there)
        assert self.c.ids(wanted) == there
        assert [row.id for row in all_pages(self.c, limit, filter=wanted)] == there
        assert {hit.id for hit in self.c.search([1, 0], 99, filter=wanted)} == set(there)

    @rule()
    def reopen(self) -> None:
        self.c.close()
        self.c = Collection.open(Path(self.folder.name) / "c", index="graph", exact_below=0)

    @invariant()
    def same(self) -> None:
        if hasattr(self, "c"):
            rows = [(row.id, row.metadata) for row in all_pages(self.c, 3)]
            assert rows == list(self.rows.items())
            assert self.c.verify() == []

    def teardown(self) -> None:
        if hasattr(self, "c"):
            self.c.close()
            self.folder.cleanup()


TestRowsAgainstADict = RowsAgainstADict.TestCase
TestRowsAgainstADict.settings = examples(40, stateful_step_count=10)
