"""The vectors file of a collection: it follows every change, and nothing depends on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flowvec import Collection
from flowvec.collection.index.vector_file import VectorFile, VectorFileError
from tests.inside import fail_to_add, run_sql, state_of, store_of
from tests.makers import vectors


def file_of(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("vectors-*"))


def is_right(c: Collection) -> bool:
    """Whether exact searches find every row by its own vector."""
    rows = list(c.rows())
    found = c.search_ids(np.stack([row.vector for row in rows]), 1, exact=True)[0]
    return found == [[row.id] for row in rows]


def table_of(c: Collection) -> tuple[int, int]:
    """Slots in the file, and all slots."""
    table = state_of(c).loaded.table
    assert table is not None
    return table.mapped, table.slots


def test_every_change_reaches_the_file(tmp_path: Path) -> None:
    with (
        Collection.create(tmp_path / "c", dim=8) as one,
        Collection.open(tmp_path / "c") as other,
    ):
        assert other.search(vectors(1)[0]) == []
        for n in range(6):
            writer, reader = (one, other) if n % 2 else (other, one)
            writer.add_vectors([f"{n} {i}" for i in range(100)], vectors(100, seed=n))
            writer.add_vectors([f"{n} 0"], vectors(1, seed=100 + n))
            writer.delete([f"{n} 1"])
            assert is_right(reader)
            assert is_right(writer)
            assert table_of(writer) == table_of(reader) == (101 * (n + 1), 101 * (n + 1))
        assert file_of(tmp_path / "c") == ["vectors-1.f32"]
        assert one.verify() == []
    with Collection.open(tmp_path / "c") as c:
        assert is_right(c)
        assert table_of(c) == (606, 606)


@pytest.mark.parametrize(
    "damage", ["gone", "cut", "zeros", "other dim", "fewer", "more", "nonsense"]
)
def test_a_file_that_is_damaged_is_replaced_by_the_next_change(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(300), vectors(300))
    file = tmp_path / "c" / "vectors-1.f32"
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
    elif damage == "zeros":
        file.write_bytes(bytes(file.stat().st_size))
    elif damage == "other dim":
        file.unlink()
        VectorFile.create(tmp_path / "c", 1, 16).close()
    else:
        value = {"fewer": "7", "more": "301", "nonsense": "x"}[damage]
        run_sql(tmp_path / "c", "UPDATE meta SET value = ? WHERE key = 'vectors records'", value)
    with Collection.open(tmp_path / "c") as c:
        assert is_right(c)
        for n in range(2):  # "more" shows after the first
            c.add_vectors([f"new {n}"], vectors(1, seed=8 + n))
            assert is_right(c)
    with Collection.open(tmp_path / "c") as c:
        assert is_right(c)
        assert table_of(c) == (302, 302)
        assert c.verify() == []


def test_rows_of_a_flowvec_that_knows_no_file_are_added_by_the_next_change(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with Collection.create(folder, dim=8) as c:
        c.add_vectors(range(100), vectors(100))
        cache = state_of(c).cache
        append = cache.append
        cache.append = lambda *_: None  # type: ignore[method-assign]
        c.add_vectors(range(90, 150), vectors(60, seed=1))  # it replaces some
        c.delete([3, 140])
        assert is_right(c)
        with Collection.open(folder) as other:
            assert is_right(other)
            assert table_of(other) == (100, 159)
            other.add_vectors(["new"], vectors(1, seed=8))
            assert is_right(other)
            assert is_right(c)
        cache.append = append  # type: ignore[method-assign]
        c.add_vectors(["newer"], vectors(1, seed=9))
        assert is_right(c)
    with Collection.open(folder) as c:
        assert is_right(c)
        mapped, slots = table_of(c)
        assert mapped == slots


def test_an_older_collection_gets_a_file_with_its_first_change(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with Collection.create(folder, dim=8) as c:
        c.add_vectors(range(100), vectors(100))
        run_sql(folder, "DELETE FROM meta WHERE key IN ('vectors file', 'vectors records')")
    (folder / "vectors-1.f32").unlink()
    with Collection.open(folder) as c:
        assert is_right(c)
        assert file_of(folder) == []  # opening and searching write nothing
        c.delete([1])
        assert file_of(folder) == []
        c.add_vectors(["new"], vectors(1, seed=8))
        assert is_right(c)
        assert table_of(c) == (100, 100)


def test_a_change_is_made_though_its_vectors_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c, Collection.open(tmp_path / "c") as other:
        c.add_vectors(range(100), vectors(100))
        assert is_right(other)

        def full(self: VectorFile, *_: object) -> None:
            raise VectorFileError(f"cannot write {self.path}: no space")

        monkeypatch.setattr(VectorFile, "append", full)
        c.add_vectors(range(100, 150), vectors(50, seed=1))
        assert "held in memory" in caplog.text
        assert is_right(c)
        assert is_right(other)
        assert table_of(c) == table_of(other) == (100, 150)
        monkeypatch.undo()
        c.delete([120])
        other.add_vectors(["new"], vectors(1, seed=8))
        assert is_right(c)
        assert is_right(other)
    with Collection.open(tmp_path / "c") as c:
        assert is_right(c)
        assert table_of(c) == (150, 150)


def test_a_change_that_failed_leaves_records_that_nobody_sees(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c:
        c.add_vectors(range(10), vectors(10))
        for _ in range(3):
            fail_to_add(c, ["x"], vectors(1, seed=5))
            c.add_vectors(["y"], vectors(1, seed=6))
            assert is_right(c)
    with Collection.open(tmp_path / "c") as c:
        assert is_right(c)
        assert c.verify() == []


def test_compacting_leaves_one_file_without_deleted_rows(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=8) as c, Collection.open(tmp_path / "c") as other:
        c.add_vectors(range(300), vectors(300))
        c.delete(range(0, 300, 2))
        assert is_right(other)
        c.compact()
        assert file_of(tmp_path / "c") == ["vectors-2.f32"]
        assert is_right(c)
        assert is_right(other)
        assert table_of(c) == table_of(other) == (150, 150)
        other.add_vectors(["new"], vectors(1, seed=8))
        assert is_right(c)


def test_the_file_follows_whoever_writes(tmp_path: Path) -> None:
    """A handle that wrote last need not look; after others, failures and compaction it must."""
    rows = vectors(400, seed=3)
    with (
        Collection.create(tmp_path / "c", dim=8) as one,
        Collection.open(tmp_path / "c") as two,
    ):
        draw = np.random.default_rng(0)
        for n in range(300):
            writer = one if draw.integers(3) else two
            step = draw.integers(12)
            if step == 0:
                writer.delete([int(draw.integers(50))])
            elif step == 1 and writer.get([0])[0] is not None:
                writer.update_metadata([0], [{"n": n}])
            elif step == 2:
                fail_to_add(writer, [99], rows[:1])
            elif step == 3 and n % 4 == 0:
                writer.compact()
            else:
                writer.add_vectors([int(draw.integers(50))], rows[n : n + 1])
        assert state_of(one).cache.problem() is None
        assert one.verify() == []
        file = state_of(one).cache.current()
        assert file is not None
        held = set(file[0].labels(file[1]).tolist())
        assert set(store_of(one).labels().tolist()) <= held
        assert is_right(one)
        assert is_right(two)
