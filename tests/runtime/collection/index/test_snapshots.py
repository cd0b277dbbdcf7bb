"""Files of the graph: verified, replaced when damaged, never trusted blindly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from flowvec import Collection
from tests.inside import run_sql, store_of
from tests.makers import vectors


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "link", "swapped", "stale"])
def test_a_damaged_graph_file_is_never_used(tmp_path: Path, damage: str, caplog) -> None:
    folder = tmp_path / "c"
    rows = vectors(200)
    with Collection.create(folder, dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(200), rows)
        c.prepare()
        expected = [h.id for h in c.search(rows[3], k=10)]
    file = folder / "graph-1.hnsw"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
    elif damage == "cut":
        file.write_bytes(data[:-8])
    elif damage == "missing":
        file.unlink()
    elif damage == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif damage == "swapped":
        file.write_bytes(bytes(len(data)))
    with Collection.open(folder, index="graph", exact_below=50) as c:
        c.prepare()
        if damage == "stale":
            # Rows added after the file was written, by a process that was killed before saving.
            c.add_vectors(range(200, 260), vectors(60, seed=5))
            assert c.search(vectors(60, seed=5)[0], k=1)[0].id == 200
        else:
            assert [h.id for h in c.search(rows[3], k=10)] == expected
            assert "rebuilt from the store" in caplog.text
        assert len(c.search(rows[3], k=1000)) == len(c)
    with Collection.open(folder, index="graph", exact_below=50) as c:
        assert c.search(rows[3], k=1)[0].id == 3


@pytest.mark.parametrize("compacts", [True, False])
def test_deleted_graphs_are_forgotten_when_the_next_is_saved(
    tmp_path: Path, compacts: bool
) -> None:
    folder = tmp_path / "c"
    for seed in range(2):  # two files
        with Collection.open_or_create(folder, dim=8, index="graph", exact_below=50) as c:
            c.add_vectors(range(200 * seed, 200 * seed + 200), vectors(200, seed=seed))
            c.prepare()
    graphs = list(folder.glob("graph-*.hnsw"))
    assert len(graphs) == 2
    for graph in graphs:
        graph.unlink()
    with Collection.open(folder, index="graph", exact_below=50) as c:
        assert list(c.verify()) == []  # caches may be deleted
        if compacts:
            c.compact()
        else:
            c.prepare()
    recorded = {name for (name,) in run_sql(folder, "SELECT file FROM snapshots")}
    assert recorded == {graph.name for graph in folder.glob("graph-*.hnsw")}


@pytest.mark.parametrize(
    "damage", ["file = 7", "file = '../graph-1.hnsw'", "bytes = 'x'", "M = 'x'", "max_label = 10"]
)
def test_a_damaged_record_of_a_graph_is_never_followed(tmp_path: Path, damage: str) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(200), vectors(200))
        expected = [h.id for h in c.search(vectors(1)[0], k=10)]
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        run_sql(tmp_path / "c", f"UPDATE snapshots SET {damage}")
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert [h.id for h in c.search(vectors(1)[0], k=10)] == expected
        assert len(c.search(vectors(1)[0], k=1000)) == 200


def test_a_record_that_claims_rows_its_graph_lacks_is_not_believed(tmp_path: Path, caplog) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(200), vectors(200))
        c.prepare()
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        c.add_vectors(["new"], vectors(1, seed=8))
        run_sql(tmp_path / "c", "UPDATE snapshots SET max_label = 1000000")
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert c.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
        c.prepare()
    assert "has rows missing" in caplog.text


def test_a_graph_is_not_saved_as_holding_rows_of_another_handle(tmp_path: Path, caplog) -> None:
    with Collection.create(tmp_path / "c", dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(200), vectors(200))
    late = Collection.open(tmp_path / "c", index="graph", exact_below=50)
    late.prepare()  # builds the graph, and will save it
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as other:
        other.add_vectors(["new"], vectors(1, seed=8))
    late.close()
    assert len(list((tmp_path / "c").glob("graph-*.hnsw"))) == 1
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert c.search(vectors(1, seed=8)[0], k=1)[0].id == "new"
        c.prepare()
    assert "has rows missing" not in caplog.text


def test_the_newest_two_graph_files_are_kept(tmp_path: Path) -> None:
    for n in (1, 2, 3, 4):
        opener = Collection.create if n == 1 else Collection.open
        options = {"dim": 8} if n == 1 else {}
        with opener(tmp_path / "c", index="graph", exact_below=50, **options) as c:
            c.add_vectors([f"{n}-{i}" for i in range(100)], vectors(100, seed=n))
            c.prepare()
            recorded = [snapshot.n for snapshot in store_of(c).snapshots.all()]
            assert recorded == [*range(n - 1, 0, -1)][:2]
        names = {file.name for file in (tmp_path / "c").glob("graph-*.hnsw")}
        assert names == {f"graph-{i}.hnsw" for i in (n - 1, n) if i}


def test_the_older_graph_is_used_if_the_newer_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for n in (1, 2):
        opener = Collection.create if n == 1 else Collection.open
        options = {"dim": 8, "metric": "ip"} if n == 1 else {}
        with opener(tmp_path / "c", index="graph", exact_below=50, **options) as c:
            c.add_vectors([f"{n}-{i}" for i in range(100)], vectors(100, seed=n))
            c.delete([f"{n}-0"])
            c.prepare()
    (tmp_path / "c" / "graph-2.hnsw").write_bytes(b"nonsense")
    with (
        caplog.at_level(logging.INFO, "flowvec"),
        Collection.open(tmp_path / "c", index="graph", exact_below=50) as c,
    ):
        c.prepare()
        assert "graph-2.hnsw" in caplog.text
        assert "building the graph" not in caplog.text
        assert c.info().graph_rows == 198
        hit_ids = {hit.id for hit in c.search(vectors(1)[0], k=198)}
        assert hit_ids == {f"{n}-{i}" for n in (1, 2) for i in range(1, 100)}


def saved_graph(folder: Path, rows: int = 400) -> Path:
    """A collection whose graph is in a file."""
    with Collection.create(folder, dim=8, index="graph", exact_below=50) as c:
        c.add_vectors(range(rows), vectors(rows))
        c.prepare()
    return folder / "graph-1.hnsw"


def test_compact_keeps_a_graph_that_others_search_by(tmp_path: Path) -> None:
    graph = saved_graph(tmp_path / "c")
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        c.prepare()
        with Collection.open(tmp_path / "c") as other:  # it compares all rows
            other.compact()
        assert c.search(vectors(400)[7], k=1)[0].id == 7
    assert graph.exists()
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        assert (c.info().graph_rows, c.verify()) == (400, [])


@pytest.mark.parametrize("replaced", [range(250), range(400)])
def test_compact_removes_a_graph_most_of_whose_rows_are_gone(
    tmp_path: Path, replaced: range
) -> None:
    graph = saved_graph(tmp_path / "c")
    with Collection.open(tmp_path / "c") as c:
        c.add_vectors(replaced, vectors(len(replaced), seed=1))
        c.compact()
    assert not graph.exists()


@pytest.mark.parametrize("searches_by", ["graph", "exact"])
def test_compact_removes_a_damaged_graph(tmp_path: Path, searches_by: str) -> None:
    graph = saved_graph(tmp_path / "c")
    graph.write_bytes(b"x")
    options: dict[str, Any] = {"index": "graph", "exact_below": 50}
    with Collection.open(tmp_path / "c", **(options if searches_by == "graph" else {})) as c:
        (problem,) = c.verify()
        assert problem.endswith(
            "graph-1.hnsw is damaged; no row is lost: the graph is built again from the rows"
        )
        c.compact()
        assert c.verify() == []
    assert len(list((tmp_path / "c").glob("graph-*"))) == (searches_by == "graph")


def test_a_damaged_graph_goes_when_the_next_is_saved(tmp_path: Path) -> None:
    graph = saved_graph(tmp_path / "c")
    with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
        c.add_vectors(range(400, 600), vectors(200, seed=2))
        c.prepare()  # an older and a newer file
    newest = graph.with_name("graph-2.hnsw")
    newest.write_bytes(b"x")
    for _ in range(2):
        with Collection.open(tmp_path / "c", index="graph", exact_below=50) as c:
            c.prepare()
    assert Collection.open(tmp_path / "c").verify() == []
    assert not newest.exists()
