"""Rows that meet a filter: remembered, and evaluated again after a change."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowvec import (
    Collection,
)
from flowvec.collection.index import eligible
from flowvec.collection.index.eligible import EligibleMasks
from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.store.filters import Condition, compile_filter
from flowvec.collection.store.metadata_changes import MetadataChanges
from flowvec.collection.store.store import Store
from tests.drawing import examples
from tests.inside import store_of
from tests.makers import vectors


def test_a_repeated_filter_follows_every_change(tmp_path: Path) -> None:
    wanted = {"kind": "x"}
    with Collection.create(tmp_path / "c", dim=8) as c, Collection.open(tmp_path / "c") as reader:
        expected: set[int] = set()
        for n in range(12):
            c.add_vectors([n], vectors(1, seed=n), metadata=[{"kind": "x" if n % 2 else "y"}])
            if n % 2:
                expected.add(n)
            if n % 4 == 3:
                c.delete([n - 2])
                expected.discard(n - 2)
            for handle in (c, reader, c, reader):
                assert {h.id for h in handle.search(vectors(1)[0], k=99, filter=wanted)} == expected


def test_a_filter_is_evaluated_once_until_something_changes(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors([1, 2], vectors(2), metadata=[{"n": 1}, {"n": 2}])
        with store_of(c).reading():  # all searches of this thread use one connection
            statements: list[str] = []
            store_of(c).database.connection.set_trace_callback(statements.append)
            for _ in range(5):
                assert [h.id for h in c.search(vectors(1)[0], filter={"n": 2})] == [2]
        assert sum('$."n"' in statement for statement in statements) == 1


CONDITIONS = [
    compile_filter(filter)
    for filter in ({"n": 1}, {"n": {">": 1}}, {"not": {"n": 2}}, {}, {"n": None})
]


class WatchedStore:
    """A store that notes which conditions it is asked.

    Attributes:
        asked: the method, and the label or the number of rows.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def labels(self, condition: Condition, after: int = 0) -> np.ndarray:
        self.asked.append(("labels", after))
        return self._store.labels(condition, after)

    def meeting(self, condition: Condition, rows: np.ndarray) -> np.ndarray:
        self.asked.append(("meeting", len(rows)))
        return self._store.meeting(condition, rows)


class Watcher:
    """A table that follows a collection as an index does, and the masks over it."""

    def __init__(self, collection: Collection, **limits: int) -> None:
        self.store = store_of(collection)
        watched = WatchedStore(self.store)
        self.asked = watched.asked
        self.masks = EligibleMasks(cast(Store, watched), **limits)
        self.table = VectorTable(2, "ip")

    def follow(self, renumbered: bool = False) -> None:
        live = self.store.labels()
        if renumbered:
            self.table = VectorTable(2, "ip")
        new = live[live > self.table.newest]
        self.table.append(new, np.zeros((len(new), 2), np.float32))
        gone = self.table.labels[~np.isin(self.table.labels, live)]
        self.table.delete(gone)

    def labels(self, condition: Condition) -> list[int]:
        with self.store.reading():
            state = self.store.meta.state()
            self.follow()
            mask = self.masks.mask(condition, self.table, state)
            assert mask.shape == (self.table.slots,)
            assert self.masks.mask(condition, self.table, state) is mask
            return self.table.labels[mask & self.table.live].tolist()

    def check(self, condition: Condition) -> None:
        assert self.labels(condition) == self.store.labels(condition).tolist()


class MasksAgainstSql(RuleBasedStateMachine):
    """Any sequence of changes, after each of which some masks are asked for."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "c"
        self.writer = Collection.create(path, dim=2)
        self.reader = Collection.open(path)
        self.watchers = [Watcher(self.writer), Watcher(self.reader)]
        self.asked: set[int] = set()

    def teardown(self) -> None:
        self.reader.close()
        self.writer.close()
        self.folder.cleanup()

    @rule(ids=st.lists(st.integers(0, 12), max_size=5), n=st.integers(0, 3))
    def add(self, ids: list[int], n: int) -> None:
        rows = np.ones((len(ids), 2), np.float32)
        self.writer.add_vectors(ids, rows, metadata=[{"n": n} if n else None] * len(ids))

    @rule(ids=st.lists(st.integers(0, 12), max_size=5))
    def delete(self, ids: list[int]) -> None:
        self.writer.delete(ids)

    @rule(ids=st.lists(st.integers(0, 12), max_size=5), n=st.integers(0, 3))
    def update(self, ids: list[int], n: int) -> None:
        self.writer.update_metadata(ids, {"n": n or None})

    @rule(n=st.integers(1, 3))
    def update_all(self, n: int) -> None:
        self.writer.update_metadata(filter={"n": {">": n}}, changes={"n": n})

    @rule()
    def roll_back(self) -> None:
        store = store_of(self.writer)
        with suppress(KeyError), store.transaction():
            store.upsert([99], np.ones((1, 2), np.float32), [None], ['{"n": 1}'])
            items = store.page()
            store.replace_metadata(items, ['{"n": 3}'] * len(items))
            store.meta.touch()
            raise KeyError

    @rule(which=st.integers(0, 1))
    def renumber(self, which: int) -> None:
        with self.watchers[which].store.reading():
            self.watchers[which].follow(renumbered=True)

    @rule(condition=st.integers(0, len(CONDITIONS) - 1))
    def ask(self, condition: int) -> None:
        self.asked.add(condition)

    @invariant()
    def masks_are_right(self) -> None:
        for watcher in self.watchers:
            for condition in self.asked:
                watcher.check(CONDITIONS[condition])


MasksAgainstSql.TestCase.settings = examples(25, stateful_step_count=20)
TestMasksAgainstSql = MasksAgainstSql.TestCase


def test_only_rows_that_came_or_changed_are_looked_at(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(range(10), vectors(10, 2), metadata=[{"n": i % 3} for i in range(10)])
        watcher, condition = Watcher(c), compile_filter({"n": 1})
        expected = [2, 5, 8]
        steps = [
            (lambda: None, [("labels", 0)], expected),
            (lambda: None, [], expected),
            (lambda: c.add_vectors([10], vectors(1, 2), metadata=[{"n": 1}]), [("labels", 10)],
             [2, 5, 8, 11]),
            (lambda: c.delete([4]), [], [2, 8, 11]),
            (lambda: c.update_metadata([0, 1], {"n": 2}), [("meeting", 2)], [8, 11]),
            (lambda: c.update_metadata([0], {"n": 1}), [("meeting", 1)], [1, 8, 11]),
        ]  # fmt: skip
        for change, asked, labels in steps:
            change()
            watcher.asked.clear()
            assert watcher.labels(condition) == labels
            assert watcher.asked == asked


def test_changes_that_are_too_many_to_record_are_evaluated_again(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        store_of(c).metadata_changes = MetadataChanges(
            store_of(c).database, store_of(c).meta, kept=3, most_labels=4
        )
        c.add_vectors(range(10), vectors(10, 2), metadata=[{"n": 0}] * 10)
        watcher, condition = Watcher(c), compile_filter({"n": {">": 0}})
        watcher.labels(condition)
        for changed, asked in [(3, "meeting"), (4, "labels")]:
            for i in range(changed):
                c.update_metadata([i], {"n": i + changed})
            watcher.asked.clear()
            assert watcher.labels(condition) == list(range(1, changed + 1))
            assert [kind for kind, _ in watcher.asked] == [asked]
        c.update_metadata([0, 1, 2, 3, 4], {"n": -1})
        watcher.asked.clear()
        assert watcher.labels(condition) == []
        assert watcher.asked == [("labels", 0)]
        assert store_of(c).database.connection.execute(
            "SELECT count(*) FROM metadata_changes"
        ).fetchall() == [(3,)]


def test_the_memory_of_masks_is_bounded(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(range(2000), vectors(2000, 2), metadata=[{"n": i} for i in range(2000)])
        most = 5 * (eligible._BYTES_BESIDES + 2000)
        watcher = Watcher(c, most_bytes=most)
        for n in range(20):
            assert watcher.labels(compile_filter({"n": n})) == [n + 1]
            assert watcher.masks.nbytes <= most
            assert len(watcher.masks) == min(n + 1, 5)
        tiny = Watcher(c, most_bytes=100)  # the last one is kept whatever it takes
        for n in range(2):
            tiny.check(compile_filter({"n": n}))
            assert len(tiny.masks) == 1


def test_the_table_of_an_old_index_is_not_kept_alive(tmp_path: Path) -> None:
    import gc
    import weakref

    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors([1], vectors(1, 2), metadata=[{"n": 1}])
        watcher = Watcher(c)
        watcher.check(compile_filter({"n": 1}))
        old = weakref.ref(watcher.table)
        watcher.table = VectorTable(2, "ip")
        gc.collect()
        assert old() is None
        watcher.check(compile_filter({"n": 1}))


def test_masks_follow_a_table_whose_slots_are_renumbered(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(range(10), vectors(10, 2), metadata=[{"n": i % 3} for i in range(10)])
        watcher, condition = Watcher(c), compile_filter({"n": 1})
        assert watcher.labels(condition) == [2, 5, 8]
        c.delete([0, 4])
        for more in (0, 2):  # rows that come before the masks are asked for again
            c.add_vectors(range(20, 20 + more), vectors(more, 2), metadata=[{"n": 1}] * more)
            watcher.follow(renumbered=True)
            assert watcher.table.slots == 8 + more
            watcher.asked.clear()
            assert watcher.labels(condition) == [2, 8, 11, 12][: 2 + more]
            assert watcher.asked == [("labels", 10)] * (more > 0)
