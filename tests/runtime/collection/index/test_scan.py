"""Collections that scan codes: what they find through all changes, and when they scan."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowvec import Collection, InputTypeError, InputValueError
from flowvec.collection.index import choice, vector_index
from flowvec.collection.index.choice import IndexChoice
from flowvec.collection.index.codes import codes_file
from flowvec.collection.index.vector_file import VectorFile, VectorFileError
from flowvec.collection.index.vector_format import HEADER_BYTES
from flowvec.collection.index.vector_table import VectorTable
from flowvec.hnsw import has_fast_scan
from flowvec.vectors import METRICS, Metric
from tests.inside import index_of
from tests.waiting import wait_until

DIM, ROWS = 24, 3000
SCAN: dict[str, Any] = {"index": "scan", "exact_below": 0}


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(60, DIM))
    rows: np.ndarray = centres[rng.integers(0, 60, count)] + 0.5 * rng.normal(size=(count, DIM))
    return rows.astype(np.float32)


def assert_as_exact(c: Collection, **options: Any) -> None:
    """A scan finds what an exact search does, and its scores are those of the exact search."""
    queries = rows_of(30, seed=5)
    assert c.info().search == "scan"
    assert c.prepare()
    scanned = c.search_batch(queries, 10, **options)
    exact = c.search_batch(queries, 10, exact=True, **options)
    same = 0
    for some, all_of in zip(scanned, exact, strict=True):
        assert len(some) == len(all_of)
        scores = {hit.id: hit.score for hit in all_of}
        same += len(scores.keys() & {hit.id for hit in some})
        for hit in some:
            assert hit.score == pytest.approx(scores.get(hit.id, hit.score), abs=2e-5)
        assert [hit.score for hit in some] == sorted((h.score for h in some), reverse=True)
    assert same >= 0.995 * sum(map(len, exact))
    one = c.search(queries[0], 10, **options)
    assert [hit.id for hit in one] == [hit.id for hit in scanned[0]]


@pytest.mark.parametrize("metric", METRICS)
def test_a_scan_finds_the_nearest_through_all_changes(tmp_path: Path, metric: Metric) -> None:
    rows = rows_of(ROWS)
    with Collection.create(tmp_path / "c", dim=DIM, metric=metric, **SCAN) as c:
        c.add_vectors(range(1000), rows[:1000], metadata=[{"n": i % 50} for i in range(1000)])
        assert_as_exact(c)
        assert_as_exact(c, filter={"n": {"<": 40}})
        assert_as_exact(c, filter={"n": 3})
        c.add_vectors(range(1000, ROWS), rows[1000:])
        c.delete(range(0, ROWS, 3))
        c.add_vectors(range(1, 500), rows_of(499, seed=3))
        assert_as_exact(c)
        with Collection.open(tmp_path / "c", **SCAN) as other:
            assert_as_exact(other)
            other.delete(range(1, ROWS, 3))
            other.add_vectors(["a", "b"], rows[:2])
            assert_as_exact(c)
            c.compact()
            assert_as_exact(other)
            assert_as_exact(c)
        assert not list((tmp_path / "c").glob("graph-*"))
        assert c.info().graph_rows == 0


def test_rows_are_found_as_soon_as_they_are_added(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM, **SCAN) as c:
        rows = rows_of(2000)
        for start in range(0, 2000, 400):
            c.add_vectors(range(start, start + 400), rows[start : start + 400])
            for i in (0, start, start + 399):
                assert c.search(rows[i], 1)[0].id == i
        c.delete([1999])
        assert c.search(rows[1999], 1)[0].id != 1999
        c.prepare()
        assert c.info().memory_bytes > 2000 * DIM // 2  # codes are counted


def table_of(c: Collection) -> VectorTable:
    table = index_of(c)._state.loaded.table
    assert table is not None
    return table


def test_searches_do_not_wait_for_codes(tmp_path: Path) -> None:
    """They are exact until a thread has made them."""
    rows = rows_of(ROWS)
    with Collection.create(tmp_path / "c", dim=DIM, **SCAN) as c:
        c.add_vectors(range(ROWS), rows)
        assert c.search(rows[5], 1)[0].id == 5
        wait_until(lambda: not table_of(c).lacks_codes)
        new = rows_of(1001, seed=10)
        c.add_vectors([ROWS], new[:1])
        assert c.search(new[0], 1)[0].id == ROWS
        wait_until(lambda: not table_of(c).lacks_codes)  # one is made at once
        c.add_vectors(range(ROWS + 1, ROWS + 1001), new[1:])
        assert c.search(new[7], 1)[0].id == ROWS + 7
        wait_until(lambda: not table_of(c).lacks_codes)
        assert_as_exact(c)


def test_a_record_that_is_damaged_after_its_code_was_made_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are in memory when the disk was full, and come to the file later."""
    rows = rows_of(17_000)  # more than a block of the file has
    with Collection.create(tmp_path / "c", dim=DIM, **SCAN) as c:
        c.add_vectors(range(10), rows[:10])
        with monkeypatch.context() as patch:
            patch.setattr(VectorFile, "append", full_disk)
            c.add_vectors(range(10, 17_000), rows[10:])
            c.prepare()
        assert table_of(c).mapped == 10
        c.add_vectors([17_000], rows_of(1, seed=9))
        (file,) = (tmp_path / "c").glob("vectors-*.f32")
        damage(file, 900)
        hit = c.search(rows[900], 1)[0]
        assert (hit.id, hit.score) == (900, pytest.approx(1.0))
        assert table_of(c).mapped == 17_001
        assert_as_exact(c)


def full_disk(*_: Any) -> None:
    raise VectorFileError("no space is left")


def damage(file: Path, slot: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(HEADER_BYTES + slot * DIM * 4 + 3)
        (byte,) = opened.read(1)
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 0x7F]))


def test_damaged_vectors_are_read_from_the_store(tmp_path: Path) -> None:
    rows = rows_of(2000)
    with Collection.create(tmp_path / "c", dim=DIM, **SCAN) as c:
        c.add_vectors(range(2000), rows)
    (file,) = (tmp_path / "c").glob("vectors-*.f32")
    damage(file, 777)
    with Collection.open(tmp_path / "c", **SCAN) as c:
        assert c.search(rows[777], 1)[0].id == 777
        assert_as_exact(c)


def test_vectors_near_the_limits_of_float32_are_compared_exactly(tmp_path: Path) -> None:
    rows = rows_of(1000)
    rows[10] *= np.float32(1e18)
    with Collection.create(tmp_path / "c", dim=DIM, metric="ip", **SCAN) as c:
        c.add_vectors(range(1000), rows)
        assert c.search(rows[10] * np.float32(1e-18), 1)[0].id == 10


def test_a_stopped_prepare_says_so(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM, **SCAN) as c:
        c.add_vectors(range(ROWS), rows_of(ROWS))
        stop = threading.Event()
        stop.set()
        assert not c.prepare(stop)
        assert c.prepare()
        assert c.prepare(stop)  # nothing is left to do


def test_prepare_makes_the_codes_and_tune_recall_measures_them(tmp_path: Path) -> None:
    with Collection.create(tmp_path / "c", dim=DIM, **SCAN) as c:
        c.add_vectors(range(ROWS), rows_of(ROWS))
        assert (c.info().recall, c.info().is_prepared) == (None, False)
        assert c.prepare()
        before = c.info()
        assert before.is_prepared
        assert c.tune_recall(0.99, queries=100) > 0.995
        info = c.info()
        assert info.recall is not None
        assert info.recall > 0.995
        assert info.ef_search == before.ef_search
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert (c.info().search, c.info().recall, c.info().is_prepared) == ("graph", None, False)
        c.search(rows_of(1)[0])
        assert c.prepare()
        assert c.info().is_prepared
        measured = c.tune_recall(0.5)
        assert c.info().recall == measured
    with Collection.open(tmp_path / "c", **SCAN) as c:
        assert c.info().recall == info.recall


def test_what_answers_depends_on_the_rows(tmp_path: Path) -> None:
    auto, most = IndexChoice.checked("auto", None), 500_000 if has_fast_scan() else 50_000
    assert [auto.of(n) for n in (0, 10_000, 10_001, most, most + 1)] == [
        "exact", "exact", "scan", "scan", "graph",
    ]  # fmt: skip
    assert IndexChoice.checked("scan", 5).of(10**8) == "scan"
    assert IndexChoice.checked("graph", 5).of(6) == "graph"
    assert IndexChoice.checked("graph", 5).of(5) == "exact"
    for wrong, error in (("hnsw", InputValueError), (None, InputValueError), (3, InputValueError)):
        with pytest.raises(error, match="index"):
            Collection.create(tmp_path / "c", dim=2, index=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputTypeError, match="exact_below"):
        Collection.create(tmp_path / "c", dim=2, exact_below="5")  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_another_way_of_searching_may_be_chosen_each_time(tmp_path: Path) -> None:
    rows = rows_of(800)
    with Collection.create(tmp_path / "c", dim=DIM, index="graph", exact_below=0) as c:
        c.add_vectors(range(800), rows)
        c.prepare()
        assert c.info().search == "graph"
    assert list((tmp_path / "c").glob("graph-*"))
    with Collection.open(tmp_path / "c", **SCAN) as c:
        assert_as_exact(c)
        assert c.info().graph_rows == 0
        assert index_of(c).growing.graph is None
        c.add_vectors([800], rows_of(1, seed=8))
    with Collection.open(tmp_path / "c", index="graph", exact_below=0) as c:
        c.prepare()
        assert c.info().graph_rows == 801
    with Collection.open(tmp_path / "c", **SCAN) as c:
        c.compact()  # leaves the graph to others
        assert c.verify() == []
        assert_as_exact(c)
    with Collection.open(tmp_path / "c", index="graph", exact_below=0) as c:
        assert c.info().graph_rows == 801


@pytest.mark.parametrize("is_near", [False, True])
def test_rows_of_a_narrow_filter_are_scanned_beside_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_near: bool
) -> None:
    """Through a graph it would be a long way to rows that are far from the query."""
    monkeypatch.setattr(choice, "_most_scanned", lambda: 1500)
    monkeypatch.setattr(codes_file, "_LEAST_WRITTEN", 2)
    rows = rows_of(ROWS)
    query = rows_of(1, seed=3)[0]
    order = np.argsort(rows @ query)
    marked = set((order[-300:] if is_near else order[:300]).tolist())
    with Collection.create(tmp_path / "c", dim=DIM, metric="ip", exact_below=100) as c:
        c.add_vectors(
            range(len(rows)), rows, metadata=[{"in": i in marked} for i in range(len(rows))]
        )
        c.prepare()
        assert c.info().search == "graph"
        c.search(query, 10, filter={"in": True})  # until codes are there, the graph answers
        wait_until(lambda: table_of(c).can_scan)
        c.compact()  # codes are of the vectors file, which is a new one
        assert list((tmp_path / "c").glob("codes-*.q4"))
        assert table_of(c).can_scan
        with monkeypatch.context() as patch:
            patch.setattr(vector_index, "search_graph", None)
            found = c.search(query, 10, filter={"in": True})
        exact = c.search(query, 10, filter={"in": True}, exact=True)
        assert [hit.id for hit in found] == [hit.id for hit in exact]
        assert len(c.search(query, 10, filter={"in": False})) == 10
    for file in (tmp_path / "c").glob("codes-*.q4"):
        file.unlink()
    with Collection.open(tmp_path / "c", exact_below=100) as c:
        found = c.search(query, 10, filter={"in": True})  # without codes
        assert {hit.id for hit in found} <= marked
        assert len(found) == 10
