"""Codes in a file: all processes use them, and a damaged file never changes what is found."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection
from flowvec.collection.index.codes import codes_file
from flowvec.collection.index.vector_file import VectorFile, path_of
from flowvec.collection.index.vector_table import VectorTable
from flowvec.collection.store.writer_locks import CODES_LOCK_FILE, FolderLock
from flowvec.hnsw import Codes
from tests.inside import Interrupt

DIM, ROWS, CHUNK = 24, 17 * 512 + 100, 512
STRIDE = (6 * 4 * CHUNK + DIM // 2 * CHUNK) + 64
VECTORS = np.random.default_rng(0).normal(size=(ROWS + 10_000, DIM)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(20, DIM)).astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> VectorFile:
    """A vectors file, without codes."""
    made = VectorFile.create(tmp_path, 1, DIM)
    made.append(0, np.arange(1, ROWS + 1), VECTORS[:ROWS])
    return made


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with codes, for tests that copy it."""
    folder = tmp_path_factory.mktemp("codes") / "c"
    with Collection.create(folder, dim=DIM, index="scan", exact_below=0) as c:
        c.add_vectors(range(ROWS), VECTORS[:ROWS])
        c.prepare()
    return folder


def table_of(file: VectorFile, rows: int = ROWS) -> VectorTable:
    """As another process has it."""
    return VectorTable(DIM, "ip", VectorFile.open(file.path, DIM), rows)


def mapped_chunks(table: VectorTable) -> int:
    return (table.mapped_bytes - table.mapped * DIM * 4) // STRIDE


def codes_path(file: VectorFile) -> Path:
    return file.path.with_name("codes-1.q4")


def assert_as_exact(table: VectorTable) -> None:
    labels, scores = table.scan(QUERIES, 10)
    exact, best = table.search(QUERIES, 10)
    assert np.mean(labels == exact) > 0.98
    np.testing.assert_allclose(scores, best, atol=2e-5)


def test_codes_are_written_once_and_mapped_by_all(file: VectorFile) -> None:
    first = table_of(file)
    assert first.make_codes()
    assert mapped_chunks(first) == 17
    assert first.memory_bytes < 600_000  # of 16 bytes of each row, and one chunk of codes
    content = codes_path(file).read_bytes()
    assert len(content) == 4096 + 17 * STRIDE
    second = table_of(file)
    assert_as_exact(second)  # 100 rows are made in a moment: nothing waits
    assert mapped_chunks(second) == 17
    assert second.can_scan
    assert second.make_codes()
    assert codes_path(file).read_bytes() == content
    np.testing.assert_array_equal(first.scan(QUERIES, 10)[0], second.scan(QUERIES, 10)[0])


def test_new_rows_are_appended_and_the_others_stay(file: VectorFile) -> None:
    first, second = table_of(file), table_of(file)
    assert first.make_codes()
    assert second.make_codes()
    content = codes_path(file).read_bytes()
    file.append(ROWS, np.arange(ROWS + 1, ROWS + 10_001), VECTORS[ROWS:])
    for table in (first, second):
        table.extend_mapped(ROWS + 10_000)
        assert_as_exact(table)  # rows without codes are compared exactly
    assert first.make_codes()
    longer = codes_path(file).read_bytes()
    assert longer.startswith(content)
    assert len(longer) > len(content) + 16 * STRIDE
    assert second.make_codes()
    assert mapped_chunks(second) == mapped_chunks(first) == (ROWS + 10_000) // CHUNK
    assert codes_path(file).read_bytes() == longer
    assert_as_exact(second)


def flip(place: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[place] ^= 0x10

    return change


def swap(content: bytearray) -> None:
    a, b = (slice(4096 + i * STRIDE, 4096 + (i + 1) * STRIDE) for i in (2, 9))
    content[a], content[b] = content[b], content[a]


def cut(length: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[length:]

    return change


@pytest.mark.parametrize(
    ("change", "good"),
    [
        (flip(0), 0), (flip(9), 0), (flip(30), 0), (flip(4000), 0), (cut(0), 0), (cut(100), 0),
        (cut(4096), 0), (cut(4096 + 5 * STRIDE + 77), 5), (flip(4096), 0),
        (flip(4096 + 3 * STRIDE + 5000), 3), (flip(4096 + 4 * STRIDE + 9000), 4),
        (flip(4096 + 8 * STRIDE - 64), 7), (swap, 2),
    ],
)  # fmt: skip
def test_a_damaged_file_is_used_as_far_as_it_is_right(
    file: VectorFile, change: Callable[[bytearray], None], good: int
) -> None:
    assert table_of(file).make_codes()
    right = codes_path(file).read_bytes()
    content = bytearray(right)
    change(content)
    codes_path(file).write_bytes(content)
    table = table_of(file)
    assert_as_exact(table)
    assert mapped_chunks(table) == good
    assert table.make_codes()
    assert_as_exact(table)
    if good <= 1:  # otherwise too few chunks are missing
        assert codes_path(file).read_bytes() == right


@pytest.mark.parametrize(
    ("change", "is_wrong"),
    [
        (flip(9), True), (cut(100), True), (cut(0), True), (swap, True),
        (flip(4096 + 9000), True), (cut(4096 + 5 * STRIDE + 77), False), (cut(4096), False),
        (flip(4096 + 16 * STRIDE + 50), False),
    ],
)  # fmt: skip
def test_verify_reports_damaged_codes_but_not_what_a_kill_left(
    collection: Path, tmp_path: Path, change: Callable[[bytearray], None], is_wrong: bool
) -> None:
    shutil.copytree(collection, tmp_path / "c")
    with Collection.open(tmp_path / "c", index="scan", exact_below=0) as c:
        path = tmp_path / "c/codes-1.q4"
        content = bytearray(path.read_bytes())
        change(content)
        path.write_bytes(content)
        assert ["codes-1.q4" in problem for problem in c.verify()] == [True] * is_wrong
        c.compact()
        assert c.verify() == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX's")
def test_a_pipe_in_place_of_the_file_is_not_opened(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM, index="scan", exact_below=0) as c:
        c.add_vectors(range(1000), VECTORS[:1000])
        os.mkfifo(tmp_path / "c/codes-1.q4")
        c.prepare()
        assert c.search(VECTORS[7], 1)[0].id == 7
        assert len(c.verify()) == 1


def test_codes_of_other_vectors_are_not_used(file: VectorFile) -> None:
    """A power failure may lose rows; the file has others in their place then."""
    assert table_of(file).make_codes()
    file.append(5 * CHUNK, np.arange(9000, 9000 + 600), VECTORS[ROWS : ROWS + 600])
    table = table_of(file, 5 * CHUNK + 600)
    assert_as_exact(table)
    assert mapped_chunks(table) == 5


def test_codes_of_rows_that_are_not_committed_are_not_used(file: VectorFile) -> None:
    assert table_of(file).make_codes()
    table = table_of(file, 1000)
    assert_as_exact(table)
    assert mapped_chunks(table) == 1


def test_codes_with_another_frame_are_left_alone(file: VectorFile) -> None:
    """Two processes that begin at different sizes."""
    one, other = table_of(file, 5000), table_of(file)
    assert one.make_codes()
    assert other.make_codes()
    content = codes_path(file).read_bytes()
    one.extend_mapped(ROWS)
    assert one.make_codes()
    assert_as_exact(one)
    assert mapped_chunks(one) == 0
    assert codes_path(file).read_bytes() == content


@pytest.mark.parametrize("has_codes", [False, True])
def test_codes_that_began_with_few_rows_begin_again(file: VectorFile, has_codes: bool) -> None:
    """The first rows do not say how all are turned best."""
    table = table_of(file, 600)
    assert table.make_codes()
    assert_as_exact(table)
    if has_codes:  # another process has made them, from another number of rows
        other = table_of(file, 5000)
        assert other.make_codes()
        other.extend_mapped(ROWS)
        assert other.make_codes()
    table.extend_mapped(ROWS)
    snapshot = table.snapshot()
    assert table.make_codes()
    assert mapped_chunks(table) == 17
    assert_as_exact(table)
    assert_as_exact(snapshot)
    fresh = table_of(file)
    assert fresh.make_codes()
    assert mapped_chunks(fresh) == 17
    np.testing.assert_array_equal(fresh.scan(QUERIES, 10)[0], table.scan(QUERIES, 10)[0])


def test_codes_stay_in_memory_where_they_cannot_be_written(
    file: VectorFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(opened: Any, content: bytes) -> None:
        opened.write(content[:5000])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(codes_file, "_write_all", full)
        table = table_of(file)
        assert table.make_codes()
    assert_as_exact(table)
    assert table.make_codes()  # it does not try again and again
    assert {path.name for path in file.path.parent.iterdir()} <= {file.path.name, CODES_LOCK_FILE}


def test_an_append_that_was_interrupted_is_written_again(
    file: VectorFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table_of(file).make_codes()
    file.append(ROWS, np.arange(ROWS + 1, ROWS + 10_001), VECTORS[ROWS:])

    def half(opened: Any, content: bytes) -> None:
        opened.write(content[: STRIDE // 2])
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(codes_file, "_write_all", half)
        assert table_of(file, ROWS + 10_000).make_codes()
    table = table_of(file, ROWS + 10_000)
    assert table.make_codes()
    assert_as_exact(table)
    assert len(codes_path(file).read_bytes()) == 4096 + (ROWS + 10_000) // CHUNK * STRIDE


def test_one_process_writes_at_a_time(file: VectorFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes_file, "_RETRY_SECONDS", 0.0)
    lock = FolderLock(file.path.with_name(CODES_LOCK_FILE))
    assert lock.acquire(0)
    table = table_of(file)
    assert table.make_codes()
    assert not codes_path(file).exists()
    lock.close()
    assert table.lacks_codes  # they are to be written
    assert table.make_codes()
    assert mapped_chunks(table) == 17


def test_a_process_that_waits_for_its_turn_does_not_try_at_each_search(file: VectorFile) -> None:
    lock = FolderLock(file.path.with_name(CODES_LOCK_FILE))
    assert lock.acquire(0)
    table = table_of(file)
    assert table.make_codes()
    assert not table.lacks_codes
    lock.close()


def test_a_file_that_replaced_the_mapped_one_is_checked_from_its_beginning(
    file: VectorFile,
) -> None:
    table, other = table_of(file), table_of(file)
    assert table.make_codes()
    assert other.make_codes()
    file.append(ROWS, np.arange(ROWS + 1, ROWS + 10_001), VECTORS[ROWS:])
    other.extend_mapped(ROWS + 10_000)
    assert other.make_codes()
    assert mapped_chunks(other) == 36
    content = bytearray(codes_path(file).read_bytes())
    codes_path(file).rename(file.path.with_name("older"))
    content[4096 : 4096 + 8192] = bytes(8192)
    codes_path(file).write_bytes(content)
    table.extend_mapped(ROWS + 10_000)
    assert table.make_codes()
    assert_as_exact(table)
    assert mapped_chunks(table) == 17
    assert codes_path(file).read_bytes() == content


def test_a_collection_has_the_codes_of_its_vectors_file_alone(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM, index="scan", exact_below=0) as c:
        c.add_vectors(range(ROWS), VECTORS[:ROWS])
        c.prepare()
        assert c.verify() == []
        folder = tmp_path / "c"
        (folder / "codes-9.q4").write_bytes(b"left by a kill")
        c.delete(range(10))
        c.compact()
        (vectors,) = folder.glob("vectors-*.f32")
        assert path_of(folder, 2) == vectors
        assert [path.name for path in folder.glob("codes-*")] == ["codes-2.q4"]
        assert c.verify() == []
    with Collection.open(tmp_path / "c", index="scan", exact_below=0) as c:
        assert c.search(VECTORS[77], 1)[0].id == 77
        assert c.info().memory_bytes < 700_000


def in_memory(rows: int) -> VectorTable:
    """A table of the first rows, none of which is in a file."""
    table = VectorTable(DIM, "ip")
    table.append(np.arange(1, rows + 1), VECTORS[:rows])
    return table


def test_a_ctrl_c_after_codes_were_made_makes_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    table, add = in_memory(3000), Codes.add

    def interrupted(*arguments: Any) -> None:
        add(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Codes, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.make_codes()
    assert table.make_codes()
    table.append(np.arange(3001, 6001), VECTORS[3000:6000])
    assert table.make_codes()
    assert_as_exact(table)


def test_a_ctrl_c_at_any_moment_of_a_search_leaves_codes_to_others() -> None:
    """A thread that makes codes is waited for when a collection is closed."""
    table = in_memory(3000)
    assert table.make_codes()

    def scan(moment: int) -> int:
        """How many moments there were."""
        label = table.newest + 1  # whose code is made at once
        table.append(np.array([label]), VECTORS[label : label + 1])
        count = Interrupt(moment)
        try:
            sys.setprofile(count)
            table.scan(QUERIES[:1], 10)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        other = threading.Thread(target=table.make_codes, daemon=True)
        other.start()
        other.join(60)
        assert not other.is_alive(), f"codes are locked after moment {moment}"
        return count.seen

    last = scan(-1)
    assert last > 20
    for moment in range(1, last + 1):
        scan(moment)
    assert_as_exact(table)
