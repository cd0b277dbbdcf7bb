"""A search sees one state of a collection, also while changes happen, fail or are interrupted."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, CollectionError, Hit
from flowvec.collection.index.codes import row_codes
from flowvec.collection.index.growing_graph import GrowthLimits
from flowvec.collection.index.state import IndexState
from flowvec.collection.index.vector_index import VectorIndex
from tests.inside import Interrupt, fail_to_add, index_of, store_of
from tests.makers import vectors
from tests.runtime.collection.conftest import refusing
from tests.waiting import wait_until

DIM = 8


# How a collection is opened that is always searched in one way.
OPTIONS: dict[str, Any] = {
    "exact": {"exact_below": 10_000},
    "scan": {"index": "scan", "exact_below": 0},
    "graph": {"index": "graph", "exact_below": 20},
}


@pytest.fixture(params=list(OPTIONS))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All ways of searching."""
    monkeypatch.setattr(row_codes, "_LEAST_ESTIMATED", 0)  # few rows are scanned, too
    return str(request.param)


def opened(folder: Path, kind: str) -> Collection:
    """A collection whose graph grows in many steps."""
    c = Collection.open(folder, **OPTIONS[kind])
    index_of(c).growing.limits = GrowthLimits(most_rows=4)
    return c


@pytest.fixture
def collection(kind: str, tmp_path: Path) -> Iterator[Collection]:
    Collection.create(tmp_path / "c", dim=DIM, metric="ip").close()
    with opened(tmp_path / "c", kind) as c:
        c.add_vectors(range(60), vectors(60), metadata=[{"n": i} for i in range(60)])
        c.prepare()  # now everything that follows changes is in memory
        yield c


def all_of(c: Collection) -> dict[object, float]:
    """Every row by `search_ids`, with its score as the store says, which is that of the search.

    The graph and the exact comparison round differently, and rows go from one to the other.
    """
    query = vectors(1, seed=99)
    (ids,), (scores,) = c.search_ids(query, 10_000)
    assert len(ids) == len(set(ids)) == len(c)
    expected = {item.id: float(item.vector @ query[0]) for item in c.rows()}
    assert dict(zip(ids, map(float, scores), strict=True)) == pytest.approx(expected, abs=1e-4)
    return expected


def in_another_thread(call: Callable[[], Any]) -> Any:
    """The result of a call in another thread, which must not have to wait for this one."""
    got: list[Any] = []

    def keep() -> None:
        try:
            got.append(call())
        except Exception as error:
            got.append(error)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    thread.join(60)
    assert got, "it waits for the writer"
    if isinstance(got[0], Exception):
        raise got[0]
    return got[0]


@pytest.fixture
def before_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Call a function before each commit, when everything else of a change is done."""
    seal = VectorIndex.seal

    def call(function: Callable[[], object]) -> None:
        def sealed(self: VectorIndex) -> int:
            state = seal(self)
            function()
            return state

        monkeypatch.setattr(VectorIndex, "seal", sealed)

    return call


def test_what_is_being_written_is_not_seen_before_it_is_committed(
    collection: Collection, before_commits: Callable[[Callable[[], object]], None]
) -> None:
    seen: list[dict[object, float]] = []
    before = all_of(collection)
    before_commits(lambda: seen.append(in_another_thread(lambda: all_of(collection))))
    collection.add_vectors([5, *range(100, 120)], vectors(21, seed=1))
    collection.delete([7])
    after_adding = {**before, **{i: s for i, s in all_of(collection).items() if i not in before}}
    assert seen[0] == before
    assert len(seen[1]) == len(after_adding) == 80
    assert len(all_of(collection)) == 79


def test_a_search_between_commit_and_return_sees_the_change(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_of(collection)
    monkeypatch.setattr(VectorIndex, "publish", lambda _: None)
    # What is new is known: nothing is read again.
    monkeypatch.setattr(IndexState, "catch_up", lambda _: pytest.fail("it was read again"))
    collection.add_vectors([5, "new"], vectors(2, seed=1))
    assert in_another_thread(lambda: all_of(collection)).keys() == {*before, "new"}
    collection.delete([7])
    assert in_another_thread(lambda: all_of(collection)).keys() == {*before, "new"} - {7}


@pytest.mark.parametrize("writers", ["this handle", "another handle"])
def test_a_row_that_is_replaced_is_found_once_by_every_search(
    kind: str, collection: Collection, tmp_path: Path, writers: str
) -> None:
    reader = collection if writers == "this handle" else opened(tmp_path / "c", kind)
    near = vectors(1, seed=5)[0] * 10
    collection.add_vectors(["x"], near[None], metadata=[{"kind": "x"}])
    wrong: list[str] = []
    stop = threading.Event()
    rounds = [0, 0, 0]

    def watch(number: int) -> None:
        def once(what: str, ids: list[object]) -> None:
            if ids.count("x") != 1 or len(ids) != len(set(ids)):
                wrong.append(f"{what}: {ids}")

        try:
            while not stop.is_set():
                if number == 0:
                    hits: list[Hit] = reader.search(near, 3, filter={"kind": "x"})
                    if [hit.id for hit in hits] != ["x"]:
                        wrong.append(f"filter: {hits}")
                    elif hits[0].score != pytest.approx(
                        float(near @ near) * (hits[0].metadata or {})["scale"], rel=1e-3
                    ):
                        wrong.append(f"another state's score: {hits}")
                elif number == 1:
                    once("ids", reader.search_ids(near[None], 12)[0][0])
                else:
                    once("hits", [hit.id for hit in reader.search(near, 12)])
                rounds[number] += 1
        except Exception as error:
            wrong.append(repr(error))

    collection.add_vectors(["x"], near[None], metadata=[{"kind": "x", "scale": 1}])
    threads = [threading.Thread(target=watch, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(rounds) or wrong)  # all of them search beside the changes
    for scale in [1, 2, 3] * 20:
        collection.add_vectors(["x"], near[None] * scale, metadata=[{"kind": "x", "scale": scale}])
    stop.set()
    for thread in threads:
        thread.join(120)
    assert not wrong, wrong[:3]
    if reader is not collection:
        reader.close()


@pytest.mark.parametrize("always", [False, True], ids=["once", "always"])
@pytest.mark.parametrize("options", [
    {"k": 2, "group_by": "g"},
    {"k": 2, "group_by": "g", "hybrid": True},
    {"k": 7, "hybrid": True},
])  # fmt: skip
def test_a_row_that_is_deleted_between_two_rankings_of_a_search_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], always: bool
) -> None:
    """The second ranking is of the newer state, and the first one has found the row."""
    monkeypatch.setattr("flowvec.collection.query.HYBRID_DEPTH", 6)
    rows = [([1, 0.001 * i], "near", 0) for i in range(40)]
    rows += [([0.001 * i, 1], "far", i) for i in range(1, 40)]
    with Collection.create(tmp_path / "c", dim=2) as c:
        c.add_vectors(
            range(len(rows)), [vector for vector, _, _ in rows], [text for _, text, _ in rows],
            [{"g": group} for _, _, group in rows],
        )  # fmt: skip
        c.index_texts()
        real, gone = VectorIndex.search, iter(range(40, 79))

        def search(index: VectorIndex, *args: Any, **given: Any) -> Any:
            found = real(index, *args, **given)
            for item in gone if always else [*gone]:
                in_another_thread(lambda item=item: c.delete([item]))
                break
            return found

        monkeypatch.setattr(VectorIndex, "search", search)
        texts = ["far", "near"] if options.get("hybrid") else None
        lines = c.search_batch([[0, 1], [1, 0]], texts=texts, **options)
        monkeypatch.undo()
        there = {item.id for item in c.rows()}
        assert len(there) < len(rows)
        for line in lines:
            assert line or always  # what was found first is deleted first
            # The last of the deletions comes after all rankings.
            assert len({hit.id for hit in line} - there) <= always


def test_a_writer_that_never_rests_does_not_keep_searches_waiting(
    kind: str, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search finishes even if the state changes all the time."""
    with opened(tmp_path / "c", kind) as reader:
        follow, changes, searching = VectorIndex._follow, [0], threading.get_ident()

        def followed(self: VectorIndex) -> None:
            follow(self)
            # Not in the thread of its graph, which never ends among the changes.
            is_search = self is index_of(reader) and threading.get_ident() == searching
            if is_search and changes[0] < 50:
                changes[0] += 1
                collection.add_vectors([f"again {changes[0]}"], vectors(1))

        monkeypatch.setattr(VectorIndex, "_follow", followed)
        assert len(reader.search(vectors(1)[0], k=5)) == 5
        assert 0 < changes[0] < 50


def test_a_change_that_fails_leaves_no_trace(
    collection: Collection, tmp_path: Path, kind: str
) -> None:
    before = all_of(collection)
    fail_to_add(collection, ["a", 5, "b"], vectors(3, seed=2) * 100)
    assert all_of(collection) == before
    far = vectors(1, seed=99) * 100  # first or last of all that `all_of` finds
    fail_to_add(collection, ["a", "b"], np.concatenate((far, -far)))
    assert collection.delete(["unknown"]) == 0  # a transaction without a change of its own
    assert collection.delete([]) == 0
    assert all_of(collection) == before
    # The vectors of the failed change stay in their file; later rows replace them.
    collection.add_vectors(["c"], vectors(1, seed=3))
    assert all_of(collection).keys() == {*before, "c"}
    fail_to_add(collection, ["d"], vectors(1, seed=4))
    collection.close()
    with opened(tmp_path / "c", kind) as other:
        other.add_vectors(["e"], vectors(1, seed=5))
    with opened(tmp_path / "c", kind) as again:
        assert all_of(again).keys() == {*before, "c", "e"}
        again.add_vectors(["f"], vectors(1, seed=6))
        assert all_of(again).keys() == {*before, "c", "e", "f"}
        assert again.verify() == []


def test_a_setting_that_could_not_be_kept_is_not_used(collection: Collection, kind: str) -> None:
    if kind == "exact":
        assert collection.tune_recall(0.1) == 1.0  # nothing to set
        return
    writer = store_of(collection).database.connection
    writer.set_authorizer(refusing(sqlite3.SQLITE_INSERT))
    with pytest.raises(CollectionError, match="not authorized"):
        collection.tune_recall(0.1)
    writer.set_authorizer(None)
    assert collection.info().ef_search == 200


def test_a_thread_that_the_system_refuses_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Collection.create(tmp_path / "d", dim=DIM, index="graph", exact_below=5) as c:
        c.add_vectors(range(40), vectors(40))
        c.search(vectors(1)[0])

        def refuse(_: object) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert c.delete(range(30)) == 30  # more tombstones than rows
        assert len(c.search(vectors(1)[0], k=99)) == 10
        monkeypatch.undo()
        c.compact()
        assert c.info().graph_rows == 10
    assert list((tmp_path / "d").glob("graph-*.hnsw"))


# An interrupt inside the cleanup of a generator cannot propagate; Python only reports it.
ANYWHERE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


# The unit tier takes a few of the points.
STEPS = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.campaign)])


@ANYWHERE
@STEPS
def test_a_ctrl_c_at_any_moment_leaves_one_state_or_the_other(
    collection: Collection, step: int
) -> None:
    """At each point the store has all of a change or nothing of it, and searches agree with it."""

    def change(n: int) -> None:
        collection.add_vectors([f"{n}-{i}" for i in range(6)] + [3], vectors(7, seed=n))

    def undo(n: int) -> None:
        collection.delete([f"{n}-{i}" for i in range(6)])

    count = Interrupt(-1)
    sys.setprofile(count)
    change(0)
    sys.setprofile(None)
    undo(0)
    assert count.seen > 60
    done = {True: 0, False: 0}
    for n in range(1, count.seen, step):
        before = all_of(collection)
        try:
            sys.setprofile(Interrupt(n))
            change(n)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        after = all_of(collection)
        assert after.keys() in (before.keys(), before.keys() | {f"{n}-{i}" for i in range(6)})
        committed = len(after) > len(before)
        done[committed] += 1
        if not committed:
            assert after == before
        undo(n)
        assert len(all_of(collection)) == 60
    assert min(done.values()) > 3 // step, "no moment after the commit was among them"
    assert collection.verify() == []


@ANYWHERE
@STEPS
def test_a_ctrl_c_while_a_reader_follows_leaves_it_in_order(
    kind: str, collection: Collection, tmp_path: Path, step: int
) -> None:
    with opened(tmp_path / "c", kind) as reader:
        all_of(reader)

        def change(n: int) -> None:
            collection.add_vectors([f"{n} a", f"{n} b"], vectors(2, seed=n))
            if n % 3 == 0:
                collection.delete([f"{n} a", f"{n - 1} a", f"{n - 2} a"])

        reader.search_ids(vectors(1), 5)
        change(1)
        count = Interrupt(-1)
        sys.setprofile(count)
        reader.search_ids(vectors(1), 5)
        sys.setprofile(None)
        assert count.seen > 50
        for n in range(2, count.seen, 2 * step):
            change(n)
            try:
                sys.setprofile(Interrupt(n))
                reader.search_ids(vectors(1), 5)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            assert all_of(reader) == pytest.approx(all_of(collection), abs=1e-4)


def test_a_graph_that_was_built_meanwhile_takes_all_of_a_change(
    collection: Collection, kind: str, before_commits: Callable[[Callable[[], object]], None]
) -> None:
    growing = index_of(collection).growing
    before_commits(lambda: in_another_thread(lambda: growing.rebuild() or True))
    collection.add_vectors([5, *range(100, 120)], vectors(21, seed=1))
    before_commits(lambda: None)
    collection.prepare()
    assert collection.info().graph_rows == (81 if kind == "graph" else 60)  # rebuilt, not dropped
    assert len(all_of(collection)) == 80
