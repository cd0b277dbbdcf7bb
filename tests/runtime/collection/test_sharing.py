"""Handles and processes that share a collection: many readers, many writers."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flowvec import (
    Collection,
    CollectionBusyError,
    InputTypeError,
    InputValueError,
)
from flowvec.collection.store.store import FILE
from tests.inside import access_of, index_of
from tests.makers import vectors


@pytest.mark.parametrize("rows", [5, 200])
def test_another_handle_sees_what_was_committed(tmp_path: Path, rows: int) -> None:
    with (
        Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as writer,
        Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader,
    ):
        assert reader.search(vectors(1)[0]) == []
        writer.add_vectors(range(rows), vectors(rows))
        assert len(reader.search(vectors(1)[0], k=1000)) == len(reader) == rows
        writer.delete(range(rows - 2))
        writer.add_vectors(["new"], vectors(1, seed=8))
        assert reader.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
        assert len(reader.search(vectors(1)[0], k=1000)) == len(reader) == 3
        assert reader.get([0]) == [None]


def test_handles_of_one_process_write_in_turn(tmp_path: Path) -> None:
    with (
        Collection.create(tmp_path / "c", dim=8) as one,
        Collection.open(tmp_path / "c", write_timeout=0) as other,
    ):
        one.add_vectors([1], vectors(1))
        other.add_vectors([1, 2], vectors(2, seed=2))
        assert one.delete([1]) == 1
        one.add_vectors([3], vectors(1, seed=3))
        assert [row.id for row in other.rows()] == [row.id for row in one.rows()] == [2, 3]
        assert one.search_ids(vectors(1), 5)[0] == other.search_ids(vectors(1), 5)[0]


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_change_that_does_not_get_its_turn_changes_nothing(
    tmp_path: Path, timeout: float
) -> None:
    with (
        Collection.create(tmp_path / "c", dim=8) as one,
        Collection.open(tmp_path / "c", write_timeout=timeout) as other,
    ):
        one.add_vectors([1], vectors(1))
        with access_of(one).writing():
            for change in (lambda: other.add_vectors([2], vectors(1)), lambda: other.delete([1])):
                with pytest.raises(CollectionBusyError, match="another handle of this process"):
                    change()
            assert [row.id for row in other.rows()] == [1]
        other.add_vectors([2], vectors(1))
        assert len(one) == 2


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_lock_of_another_program_is_waited_for_as_long(tmp_path: Path, timeout: float) -> None:
    with Collection.create(tmp_path / "c", dim=8, write_timeout=timeout) as c:
        c.add_vectors([1], vectors(1), ["a text"])
        with closing(sqlite3.connect(tmp_path / "c" / FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for change in (
                lambda: c.add_vectors([2], vectors(1)),
                lambda: c.delete(1),
                lambda: c.update_metadata(1, {"a": 1}),
                c.index_texts,
                lambda: c.search(vectors(1)[0], text="text", hybrid=True),
                c.compact,
            ):
                with pytest.raises(CollectionBusyError, match="locked by another program"):
                    change()
            with Collection.open(tmp_path / "c") as reader:
                assert [row.id for row in reader.rows()] == [1]
            other.execute("ROLLBACK")
        c.add_vectors([2], vectors(1))
        assert len(c.search(vectors(1)[0], text="text", hybrid=True)) == 2
        assert c.verify() == []


def test_a_lock_of_another_program_that_ends_in_time_delays_a_change(tmp_path: Path) -> None:
    with (
        Collection.create(tmp_path / "c", dim=8, write_timeout=None) as c,
        closing(
            sqlite3.connect(tmp_path / "c" / FILE, isolation_level=None, check_same_thread=False)
        ) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        end = threading.Timer(0.2, other.execute, ["ROLLBACK"])
        end.start()
        c.add_vectors([1], vectors(1))
        end.join()
        assert len(c) == 1


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_a_timeout_that_is_not_one_is_refused(tmp_path: Path, timeout: object) -> None:
    with pytest.raises((InputValueError, InputTypeError), match="write_timeout"):
        Collection.create(tmp_path / "c", dim=8, write_timeout=timeout)  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


WRITER = """
import sys, time
import numpy as np
from flowvec import Collection
c = Collection.open(sys.argv[1])
c.add_vectors(["theirs"], np.ones((1, 8)))
print("written", flush=True)
sys.stdin.readline()
c.close()
"""


@pytest.fixture
def another_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    Collection.create(tmp_path / "c", dim=8).close()
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "c")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    yield child
    child.kill()
    child.communicate()


@pytest.mark.process
def test_another_process_that_has_written_and_stays_open_is_not_in_the_way(
    tmp_path: Path, another_process
) -> None:
    with Collection.open(tmp_path / "c", write_timeout=0) as c:
        assert [hit.id for hit in c.search(np.ones(8))] == ["theirs"]
        c.add_vectors(["ours"], vectors(1))
        another_process.kill()  # it leaves nothing that must be cleared away
        another_process.wait(600)
        c.add_vectors(["ours too"], vectors(1))
        assert len(c) == 3


def test_whoever_built_the_graph_or_wrote_saves_it(tmp_path: Path) -> None:
    files = tmp_path / "c"
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as writer:
        writer.add_vectors(range(200), vectors(200))
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader:
            reader.prepare()
        assert len(list(files.glob("graph-*.hnsw"))) == 1
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader:
            reader.prepare()
        writer.prepare()
    assert [file.name for file in files.glob("graph-*.hnsw")] == ["graph-1.hnsw"]


def test_a_reader_takes_in_changes_without_reading_all_again(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as writer:
        writer.add_vectors(range(300), vectors(300))
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader:
            reader.prepare()
            graph = index_of(reader).growing.graph
            writer.delete(range(20))
            writer.add_vectors(["new"], vectors(1, seed=8))
            assert reader.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
            hit_ids = {hit.id for hit in reader.search(vectors(1)[0], k=281)}
            assert hit_ids == {*range(20, 300), "new"}
            reader.prepare()
            assert len(reader) == 281
            assert graph is not None
            assert index_of(reader).growing.graph is graph


@pytest.mark.parametrize("rows", [30, 300])
def test_without_deletions_only_new_rows_are_read(tmp_path: Path, rows: int) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as writer:
        writer.add_vectors(range(rows), vectors(rows))
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader:
            assert reader.search_ids(vectors(1), 1)[0][0]
            with sqlite3.connect(tmp_path / "c" / FILE) as db:  # older rows cannot be read
                db.execute("UPDATE items SET checksum = x'00'")
            db.close()
            for n in range(3):
                writer.add_vectors([f"new {n}"], vectors(1, seed=8 + n))
                assert reader.search_ids(vectors(1, seed=8 + n), 1)[0] == [[f"new {n}"]]
                assert len(reader) == rows + 1 + n


@pytest.mark.parametrize("sizes", [(150, 151, 190), (150, 600), (30, 150, 160)])
def test_ids_follow_however_many_rows_come(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    rows = vectors(sizes[-1])
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as writer:
        writer.add_vectors(range(sizes[0]), rows[: sizes[0]])
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader:
            assert reader.search_ids(rows[:1], 1)[0] == [[0]]
            for before, after in pairwise(sizes):
                writer.add_vectors(range(before, after), rows[before:after])
                reader.refresh()
            assert reader.search_ids(rows, 1)[0] == [[i] for i in range(sizes[-1])]


def test_a_tuned_search_is_followed(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as writer:
        writer.add_vectors(range(300), vectors(300))
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as reader:
            reader.search(vectors(1)[0])
            writer.tune_recall(0.2)
            assert reader.info().ef_search == writer.info().ef_search < 100
