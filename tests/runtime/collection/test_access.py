"""Changes of many threads: they share transactions, and each has its own outcome."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import flowvec
from flowvec import Added, Collection, CollectionBusyError, CollectionError
from tests.inside import access_of, index_of, store_of, waiting_changes
from tests.makers import vectors

DIM = 8


@pytest.fixture(params=[10_000, 20])
def collection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Collection]:
    """Searched exactly, and by a graph."""
    with Collection.create(
        tmp_path / "c", dim=DIM, index="graph", exact_below=request.param, write_timeout=60
    ) as c:
        c.add_vectors(range(40), vectors(40))
        c.search_ids(vectors(1), 1)
        yield c


@pytest.fixture
def commits(collection: Collection) -> list[str]:
    """One entry for each transaction that begins."""
    begun: list[str] = []

    def note(statement: str) -> None:
        if statement.startswith("BEGIN"):
            begun.append(statement)

    store_of(collection).database.connection.set_trace_callback(note)
    return begun


def all_at_once(c: Collection, changes: list[Callable[[], Any]]) -> list[Any]:
    """The outcomes of changes in threads that all wait when the turn is free again."""
    outcomes: list[Any] = [None] * len(changes)

    def make(i: int) -> None:
        try:
            outcomes[i] = changes[i]()
        except Exception as error:
            outcomes[i] = error

    threads = [threading.Thread(target=make, args=(i,)) for i in range(len(changes))]
    with access_of(c).writing():
        for i, thread in enumerate(threads):
            thread.start()
            while waiting_changes(c) <= i:  # in this order
                time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    return outcomes


def test_changes_that_wait_together_share_a_transaction(
    collection: Collection, commits: list[str]
) -> None:
    rows = vectors(8, seed=1)
    outcomes = all_at_once(
        collection,
        [lambda i=i: collection.add_vectors([f"new {i}"], rows[i : i + 1]) for i in range(8)]
        + [lambda: collection.delete([0, 1, "unknown"]), lambda: collection.delete([])],
    )
    assert outcomes == [Added(1, 0, 0)] * 8 + [2, 0]
    assert len(commits) == 1
    assert len(collection) == 46
    for i in range(8):
        assert collection.search_ids(rows[i : i + 1], 1)[0] == [[f"new {i}"]]
    assert collection.verify() == []


def test_changes_of_one_row_in_a_transaction_count_in_their_order(
    collection: Collection, commits: list[str]
) -> None:
    one, two, three = vectors(3, seed=1)
    outcomes = all_at_once(
        collection,
        [
            lambda: collection.add_vectors(["x", "y"], np.stack([one, one])),
            lambda: collection.add_vectors(["x", 3], np.stack([two, two])),
            lambda: collection.delete(["y", 4]),
            lambda: collection.add_vectors(["y"], three[None]),
            lambda: collection.delete(["y"]),
        ],
    )
    assert outcomes == [Added(2, 0, 0), Added(2, 2, 0), 2, Added(1, 0, 0), 1]
    assert len(commits) == 1
    rows = {item.id: item.vector for item in collection.rows()}
    assert rows.keys() == {*range(40), "x"} - {4}
    np.testing.assert_array_equal(rows["x"], two)
    (ids,), _ = collection.search_ids(two[None], 100)
    assert sorted(map(str, ids)) == sorted(map(str, rows))
    assert {*ids[:2]} == {"x", 3}
    assert collection.verify() == []


def test_a_change_that_fails_leaves_the_others_of_its_transaction(
    collection: Collection, commits: list[str]
) -> None:
    def fail() -> int:
        labels, gone = store_of(collection).upsert(["bad"], vectors(1), [None], [None])
        index_of(collection).stage(gone, labels, vectors(1), ["bad"])
        raise LookupError("refused")

    first, second = vectors(2, seed=1)
    outcomes = all_at_once(
        collection,
        [
            lambda: collection.add_vectors(["a"], first[None]),
            lambda: access_of(collection).change(fail),
            lambda: collection.add_vectors(["b"], second[None]),
        ],
    )
    assert outcomes[0] == outcomes[2] == Added(1, 0, 0)
    assert isinstance(outcomes[1], LookupError)
    assert len(commits) == 1
    assert {item.id for item in collection.rows()} == {*range(40), "a", "b"}
    (ids,), _ = collection.search_ids(first[None], 100)
    assert len(ids) == 42
    assert ids[0] == "a"
    assert collection.verify() == []


def test_changes_whose_transaction_fails_are_made_one_by_one(
    collection: Collection, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seal, sizes = index_of(collection).seal, []

    def full() -> int:
        sizes.append(index_of(collection).mark())
        if sizes[-1] > 1 or len(sizes) == 3:
            raise CollectionError("database or disk is full")
        return seal()

    monkeypatch.setattr(index_of(collection), "seal", full)
    outcomes = all_at_once(
        collection,
        [lambda i=i: collection.add_vectors([f"new {i}"], vectors(1)) for i in range(3)],
    )
    assert sizes == [3, 1, 1, 1]
    assert outcomes[0] == outcomes[2] == Added(1, 0, 0)
    assert isinstance(outcomes[1], CollectionError)
    assert {item.id for item in collection.rows()} == {*range(40), "new 0", "new 2"}
    assert len(collection.search_ids(vectors(1), 100)[0][0]) == 42


def test_a_thread_that_does_not_get_its_turn_changes_nothing(collection: Collection) -> None:
    outcomes: list[Exception] = []

    def change() -> None:
        try:
            impatient.add_vectors(["late"], vectors(1))
        except Exception as error:
            outcomes.append(error)

    with (
        Collection.open(collection.info().path, write_timeout=0.02) as impatient,
        access_of(impatient).writing(),
    ):
        thread = threading.Thread(target=change)
        thread.start()
        thread.join(60)
    assert isinstance(outcomes[0], CollectionBusyError)
    assert "by another thread" in str(outcomes[0])
    collection.add_vectors(["later"], vectors(1))
    assert {item.id for item in collection.rows()} == {*range(40), "later"}


def test_a_change_inside_a_turn_is_part_of_it(collection: Collection) -> None:
    with access_of(collection).writing():
        assert collection.add_vectors(["a"], vectors(1)) == Added(1, 0, 0)
        assert collection.delete(["a", 0]) == 2
    assert len(collection) == 39


FOLDER = str(Path(flowvec.__file__).parent)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_in_a_thread_that_leads_loses_no_change_of_others(
    collection: Collection,
) -> None:
    """At each point of a shared transaction: the other's change is made exactly once."""

    def run(at: int) -> int:
        """Lead with another thread's change waiting; returns the points that were passed."""
        seen = 0

        def interrupt(frame: FrameType, event: str, _: object) -> None:
            nonlocal seen
            name = frame.f_code.co_filename
            if event in ("call", "c_return") and FOLDER in name and "locks" not in name:
                seen += 1
                if seen == at:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        collection.add_vectors(["theirs"], vectors(1))
        outcomes: list[int] = []

        def wait() -> None:
            def delete() -> int:
                labels = store_of(collection).delete(["theirs"])
                index_of(collection).stage(labels)
                return len(labels)

            outcomes.append(access_of(collection).change(delete))

        thread = threading.Thread(target=wait)
        try:
            with access_of(collection).writing():
                thread.start()
                while not waiting_changes(collection):
                    time.sleep(0.001)
                # This thread leads: the other one cannot while this has the turn.
                try:
                    sys.setprofile(interrupt)
                    access_of(collection)._make_jobs()
                finally:
                    sys.setprofile(None)
        except KeyboardInterrupt:
            pass
        thread.join(60)
        assert outcomes == [1], at
        (ids,), _ = collection.search_ids(vectors(1), 100)
        assert sorted(map(str, ids)) == sorted(str(item.id) for item in collection.rows())
        assert len(ids) == 40
        return seen

    points = run(-1)
    assert points > 40
    for at in range(1, points):
        run(at)
    assert collection.verify() == []
