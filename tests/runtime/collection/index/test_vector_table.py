"""The table of vectors against a plain model, and what it does about damage."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flowvec.collection.index.vector_file import (
    VectorFile,
    VectorFileError,
    path_of,
    write_generation,
)
from flowvec.collection.index.vector_format import HEADER_BYTES, Layout
from flowvec.collection.index.vector_table import VectorTable
from flowvec.errors import CollectionError
from flowvec.vectors import METRICS, Metric, top_k
from tests.drawing import examples
from tests.makers import unit, vectors
from tests.runtime.collection.index.vector_files import small_file

Model = dict[int, np.ndarray]


def expected_search(
    model: Model, queries: np.ndarray, k: int, metric: Metric, allowed: set[int] | None = None
) -> tuple[list[list[int]], np.ndarray]:
    """The nearest by one product over all rows of a model."""
    labels = [label for label in sorted(model) if allowed is None or label in allowed]
    rows = np.array([model[label] for label in labels], np.float32).reshape(-1, queries.shape[1])
    best, scores = top_k(queries, rows, k, metric)
    return np.array(labels, np.int64)[best].tolist(), scores


class TableAgainstADict(RuleBasedStateMachine):
    """Any sequence of changes by two processes with one file, against a dict."""

    @initialize(metric=st.sampled_from(METRICS), dim=st.sampled_from([1, 2, 3]))
    def start(self, metric: Metric, dim: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.metric, self.dim = metric, dim
        self.file = small_file(self.folder, [], np.empty((0, dim), np.float32))
        self.n, self.last, self.seed = 0, 0, 0
        self.in_file: Model = {}  # by label, deleted ones too
        self.model: Model = {}
        self.table = VectorTable(dim, metric, self.file, 0, self.live, self.reread)

    def teardown(self) -> None:
        self.file.close()
        shutil.rmtree(self.folder)

    @property
    def live(self) -> np.ndarray:
        return np.array(sorted(self.model), np.int64)

    def reread(self, labels: np.ndarray) -> np.ndarray:
        return np.stack([self.model[int(label)] for label in labels])

    def new_rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        self.seed += 1
        # Whole numbers, so that products are exact and ties are real.
        rows = np.random.default_rng(self.seed).integers(-2, 3, (count, self.dim))
        labels = self.last + np.cumsum(np.random.default_rng(self.seed).integers(1, 3, count))
        self.last = int(labels[-1]) if count else self.last
        return labels, rows.astype(np.float32)

    def append_to_file(self, labels: np.ndarray, rows: np.ndarray) -> None:
        self.file.append(self.n, labels, rows)
        self.n += len(labels)
        self.in_file.update(zip(labels.tolist(), rows, strict=True))

    @property
    def tail(self) -> list[int]:
        return [int(label) for label in self.table.labels[self.table.mapped :]]

    @rule(count=st.integers(0, 11))
    def add_to_memory(self, count: int) -> None:
        labels, rows = self.new_rows(count)
        self.table.append(labels, rows)
        self.model.update(zip(labels.tolist(), rows, strict=True))

    @rule(count=st.integers(0, 11))
    def add_to_file(self, count: int) -> None:
        """The rows of the tail go first, as after a disk that was full."""
        tail = np.array(self.tail, np.int64)
        self.append_to_file(tail, self.table.vectors_of(self.table.slots_of(tail)))
        labels, rows = self.new_rows(count)
        self.append_to_file(labels, rows)
        self.model.update(zip(labels.tolist(), rows, strict=True))
        self.table.extend_mapped(self.n)

    @rule(count=st.integers(0, 11), kept=st.integers(0, 2**11 - 1))
    def follow_another_process(self, count: int, kept: int) -> None:
        """Some of its new rows are deleted again before this process looks."""
        if self.tail:
            return
        labels, rows = self.new_rows(count)
        self.append_to_file(labels, rows)
        new = {int(label): row for i, (label, row) in enumerate(zip(labels, rows, strict=True))
               if kept >> i & 1}  # fmt: skip
        self.model.update(new)
        self.table.extend_mapped(self.n, np.array(sorted(new), np.int64))

    @rule(count=st.integers(1, 11))
    def interrupted_change(self, count: int) -> None:
        last = self.last
        labels, rows = self.new_rows(count)
        self.file.append(self.n, labels + 50, rows)
        self.last = last

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if not self.model:
            return
        gone = data.draw(st.lists(st.sampled_from(sorted(self.model)), max_size=5))
        self.table.delete(np.array([*gone, 0, 10**6], np.int64))
        for label in gone:
            self.model.pop(label, None)

    @rule()
    def reopen(self) -> None:
        path = self.file.path
        self.file.close()
        self.file = VectorFile.open(path, self.dim)
        self.table = VectorTable(self.dim, self.metric, self.file, self.n, self.live, self.reread)
        missing = self.live[self.live > self.table.newest]
        if len(missing):
            self.table.append(missing, self.reread(missing))

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Damage of the disk that a process finds when it opens the file."""
        if not self.n:
            return
        layout = self.file.layout
        with self.file.path.open("r+b") as file:
            for _ in range(data.draw(st.integers(1, 3))):
                slot = data.draw(st.integers(0, self.n - 1))
                block, row = divmod(slot, layout.rows)
                start, length = data.draw(
                    st.sampled_from(
                        [(4 * self.dim * row, 4 * self.dim), (layout.labels_at + 8 * row, 8),
                         (layout.checksums_at + 8 * row, 8)]
                    )
                )  # fmt: skip
                file.seek(HEADER_BYTES + block * layout.block_bytes + start)
                file.write(data.draw(st.binary(min_size=length, max_size=length)))
        # Its labels are no longer those that the file holds: the next change writes a new one.
        self.reopen()
        self.compact()

    @rule()
    def compact(self) -> None:
        path = self.file.path
        number = int(path.stem.split("-")[-1]) + 1
        self.file.close()
        self.in_file = dict(self.model)
        labels = self.live
        rows = self.reread(labels) if len(labels) else np.empty((0, self.dim), np.float32)
        self.file = small_file(self.folder, labels.tolist(), rows, number)
        self.n = len(labels)
        self.reopen()

    @rule(data=st.data())
    def search(self, data: st.DataObject) -> None:
        k = data.draw(st.integers(0, 12))
        first = data.draw(st.integers(0, self.table.slots))
        share = data.draw(st.sampled_from([None, 0.05, 0.5, 1.0]))
        seed = data.draw(st.integers(0, 9))
        rng = np.random.default_rng(seed)
        queries = rng.integers(-2, 3, (data.draw(st.integers(1, 3)), self.dim)).astype(np.float32)
        mask = None if share is None else rng.random(self.table.slots) < share
        allowed = set(self.table.labels[first:].tolist())
        if mask is not None:
            allowed &= set(self.table.labels[mask].tolist())
        labels, scores = self.table.search(queries, k, mask, first)
        wanted, wanted_scores = expected_search(self.model, queries, k, self.metric, allowed)
        assert labels.tolist() == wanted
        assert np.array_equal(scores, wanted_scores)

    @invariant()
    def holds_the_rows(self) -> None:
        table = self.table
        assert table.count == len(table) == len(self.model)
        assert table.labels[table.live].tolist() == sorted(self.model)
        assert (np.diff(table.labels) >= 0).all()
        slots = table.slots_of(self.live)
        assert table.labels[slots].tolist() == self.live.tolist()
        assert table.live[slots].all()
        if len(slots):
            assert np.array_equal(table.vectors_of(slots), self.reread(self.live))
        assert table.slots_of(np.array([0, 10**9])).tolist() == [-1, -1]


TableAgainstADict.TestCase.settings = examples(60, stateful_step_count=25)
TestTableAgainstADict = TableAgainstADict.TestCase


@examples(40)
@given(
    metric=st.sampled_from(METRICS),
    total=st.integers(1, 400),
    queries=st.sampled_from([1, 2, 33]),
    k=st.integers(1, 20),
    share=st.sampled_from([0.01, 0.3, 1.0]),
    in_file=st.booleans(),
)
def test_any_search_equals_one_product(
    metric: Metric, total: int, queries: int, k: int, share: float, in_file: bool
) -> None:
    dim = 40
    rows = vectors(total, dim)
    rows = unit(rows) if metric == "cosine" else rows
    asked = vectors(queries, dim, seed=1)
    mask = np.random.default_rng(2).random(total) < share
    with tempfile.TemporaryDirectory() as folder:
        labels = np.arange(1, total + 1)
        if in_file:
            file = small_file(Path(folder), labels.tolist(), rows, rows=64)
            table = VectorTable(dim, metric, file, total, labels)
        else:
            file, table = None, VectorTable(dim, metric)
            table.append(labels, rows)
        got, scores = table.search(asked, k, mask)
        model = dict(zip(labels.tolist(), rows, strict=True))
        wanted, wanted_scores = expected_search(model, asked, k, metric, set(labels[mask].tolist()))
        assert got.tolist() == wanted
        np.testing.assert_allclose(scores, wanted_scores, rtol=2e-5, atol=2e-5)
        if file is not None:
            file.close()


def damaged_table(
    folder: Path, reread: object, offset: int, content: bytes, live: list[int] | None = None
) -> tuple[VectorTable, VectorFile]:
    """A table of ten rows in blocks of four, with a file that was damaged before it was opened."""
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    file = small_file(folder, list(range(2, 22, 2)), rows)
    file.close()
    with file.path.open("r+b") as opened:
        opened.seek(HEADER_BYTES + offset)
        opened.write(content)
    file = VectorFile.open(file.path, 3)
    labels = np.array(list(range(2, 22, 2)) if live is None else live, np.int64)
    return VectorTable(3, "ip", file, 10, labels, reread), file  # type: ignore[arg-type]


def test_only_damaged_rows_are_read_again_and_once(tmp_path: Path) -> None:
    asked: list[list[int]] = []

    def reread(labels: np.ndarray) -> np.ndarray:
        asked.append(labels.tolist())
        return np.stack([np.arange(3) + 3 * (label // 2 - 1) for label in labels]).astype("f4")

    table, file = damaged_table(tmp_path, reread, 12, b"\0" * 4)  # a number of slot 1
    assert asked == []
    for _ in range(2):
        labels, scores = table.search(np.ones((1, 3), np.float32), 10)
        assert labels.tolist() == [list(range(20, 0, -2))]
        assert scores[0, -2:].tolist() == [12.0, 3.0]
        assert table.vectors_of(np.array([1, 0, 9])).tolist() == [
            [3, 4, 5], [0, 1, 2], [27, 28, 29],
        ]  # fmt: skip
    assert asked == [[4]]
    file.close()


@pytest.mark.parametrize("offset", [12, 48 + 8])  # its vector, its label
def test_a_damaged_row_that_was_deleted_is_not_read_again(tmp_path: Path, offset: int) -> None:
    live = [2, *range(6, 22, 2)]
    table, file = damaged_table(tmp_path, None, offset, b"\xff" * 8, live)
    labels, _ = table.search(np.ones((1, 3), np.float32), 10)
    assert labels.tolist() == [sorted(live, reverse=True)]
    file.close()


def test_rows_that_join_a_repaired_block_are_found(tmp_path: Path) -> None:
    rows = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    file = small_file(tmp_path, [1, 2], rows[:2])
    with file.path.open("r+b") as opened:
        opened.seek(HEADER_BYTES)
        opened.write(b"\0" * 12)
    table = VectorTable(3, "ip", file, 2, np.array([1, 2]), lambda labels: rows[labels - 1])
    query = np.ones((1, 3), np.float32)
    for n in (2, 3, 4):
        if n > 2:
            file.append(n - 1, np.array([n]), rows[n - 1 : n])
            table.extend_mapped(n)
        labels, scores = table.search(query, 9)
        assert labels.tolist() == [list(range(n, 0, -1))]
        assert scores[0].tolist() == rows[:n].sum(axis=1)[::-1].tolist()
        assert np.array_equal(table.vectors_of(np.arange(n)), rows[:n])
    file.close()


def test_a_damaged_row_that_nobody_can_read_again_is_an_error(tmp_path: Path) -> None:
    table, file = damaged_table(tmp_path, None, 12, b"\0" * 4)
    with pytest.raises(VectorFileError, match="damaged"):
        table.search(np.ones((1, 3), np.float32), 10)
    with pytest.raises(VectorFileError, match="damaged"):
        table.vectors_of(np.array([0]))
    # Its other blocks are good.
    assert table.vectors_of(np.array([9])).tolist() == [[27, 28, 29]]
    file.close()


@pytest.mark.parametrize("live", [[2, 3, 4], [1, 2], [2, 4, 5, 6]])
def test_a_file_that_lacks_rows_is_refused(tmp_path: Path, live: list[int]) -> None:
    with pytest.raises(VectorFileError, match="lacks rows"):
        damaged_table(tmp_path, None, 12, b"", live)


def test_a_file_that_does_not_continue_the_table_is_refused(tmp_path: Path) -> None:
    file = small_file(tmp_path, [1, 2, 3], vectors(3, 3))
    table = VectorTable(3, "ip", file, 2)
    table.append(np.array([4]), vectors(1, 3))
    for n in (2, 3):
        with pytest.raises(VectorFileError, match="continue"):
            table.extend_mapped(n)
    other = VectorTable(3, "ip", file, 2)
    with pytest.raises(VectorFileError, match="lacks rows"):
        other.extend_mapped(3, np.array([4]))
    with pytest.raises(VectorFileError, match="shorter"):
        other.extend_mapped(9)
    other.extend_mapped(3, np.array([3]))
    assert other.labels.tolist() == [1, 2, 3]
    file.close()


def test_labels_of_a_table_ascend() -> None:
    table = VectorTable(3, "ip")
    table.append(np.array([4, 6]), vectors(2, 3))
    for labels in ([6], [5], [8, 7], [9, 9]):
        with pytest.raises(CollectionError, match="ascending"):
            table.append(np.array(labels), vectors(len(labels), 3))
    assert table.labels.tolist() == [4, 6]


def test_a_table_of_real_blocks_reads_a_whole_generation(tmp_path: Path) -> None:
    dim, total = 3001, 1500
    labels, rows = np.arange(1, total + 1), unit(vectors(total, dim))
    write_generation(tmp_path, 1, dim, [(labels, rows)])
    file = VectorFile.open(path_of(tmp_path, 1), dim, read_only=True)
    assert file.layout.rows < total
    table = VectorTable(dim, "cosine", file, total)
    got, scores = table.search(rows[::50], 1)
    assert got[:, 0].tolist() == labels[::50].tolist()
    assert scores == pytest.approx(1.0)
    assert table.memory_bytes < 20 * total  # the vectors are mapped
    for query in rows[::400]:  # on all cores
        got, scores = table.search(query[None], total)
        assert sorted(got[0].tolist()) == labels.tolist()
        np.testing.assert_allclose(scores[0], rows[got[0] - 1] @ query, atol=1e-5)
    file.close()


def test_rows_are_read_again_by_the_thread_that_searches(tmp_path: Path) -> None:
    """It alone reads the right state of the store."""
    dim, total = 3001, 1500
    labels, rows = np.arange(1, total + 1), vectors(total, dim)
    write_generation(tmp_path, 1, dim, [(labels, rows)])
    layout = Layout.of(dim)
    with path_of(tmp_path, 1).open("r+b") as opened:
        for block in range(total // layout.rows):
            opened.seek(HEADER_BYTES + block * layout.block_bytes)
            opened.write(b"\0" * 4)
    file = VectorFile.open(path_of(tmp_path, 1), dim)
    readers: list[threading.Thread] = []

    def reread(wanted: np.ndarray) -> np.ndarray:
        readers.append(threading.current_thread())
        return rows[wanted - 1]

    for mask in (None, np.arange(total) % 4 == 0):
        table = VectorTable(dim, "ip", file, total, labels, reread)
        readers.clear()
        got, _ = table.search(rows[:1], total, mask)
        assert len(got[0]) == (total if mask is None else total // 4)
        assert len(readers) == total // layout.rows
        assert set(readers) == {threading.current_thread()}
    file.close()


def test_no_slots_is_a_table_too(tmp_path: Path) -> None:
    file = VectorFile.create(tmp_path, 1, 3)
    for table in (VectorTable(3, "l2"), VectorTable(3, "l2", file, 0, np.empty(0, np.int64))):
        labels, scores = table.search(vectors(2, 3), 5)
        assert labels.shape == scores.shape == (2, 0)
        assert table.slots_of(np.array([1])).tolist() == [-1]
        assert table.vectors_of(np.empty(0, np.int64)).shape == (0, 3)
        assert (table.newest, table.count) == (0, 0)
        table.delete(np.array([3]))
    file.close()
    assert os.listdir(tmp_path) == ["graph-vectors-1.f32"]  # noqa: PTH208
