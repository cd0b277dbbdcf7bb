"""Indexes and pairs side by side: what is compared, which rows are void. No time is asserted."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("psutil", reason="needs the extra [bench]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec.cli.main import app
from flowvec.errors import FlowvecError, InputValueError
from flowvec_bench.peers.indexes import (
    INDEXES,
    MOST,
    IndexRow,
    least_effort,
    race_indexes,
    recall_at_10,
)
from flowvec_bench.peers.pairs import PairRow, shared_pairs
from flowvec_bench.peers.registry import Peer
from flowvec_bench.reports.indexes import cells, write_index_report
from flowvec_bench.reports.pairs import write_pair_report
from tests.makers import unit_vectors

MACHINE = {
    "cpu": "a cpu", "cpu_features": ["x"], "cores": 2, "memory_gib": 1, "system": "s",
    "python": "3", "measured": "today",
}  # fmt: skip
BROKEN = Peer("broken", "no such index", (), {}, (None,), "vectors")


@pytest.fixture(scope="module")
def index_rows(tmp_path_factory: pytest.TempPathFactory) -> list[IndexRow]:
    racers = [INDEXES["flowvec"], INDEXES["flowvec-rows"], INDEXES["hnswlib"], BROKEN]
    folder = tmp_path_factory.mktemp("indexes")
    return race_indexes(
        racers, unit_vectors(600, 12), unit_vectors(40, 12, seed=1), folder, 2, rounds=2, builds=2
    )


def test_recall_is_the_share_of_the_true_neighbours() -> None:
    exact = np.array([[1, 2, 3], [4, 5, 6]])
    assert recall_at_10(np.array([[3, 2, 1], [4, 9, 9]]), exact) == pytest.approx(4 / 6)


@pytest.mark.peers
def test_every_index_reaches_the_recall_at_the_least_effort_tried(
    index_rows: list[IndexRow],
) -> None:
    for row in index_rows[:3]:
        assert row.error is None
        assert row.ef is not None
        assert row.curve[row.ef] >= 0.95
        assert all(recall < 0.95 for ef, recall in row.curve.items() if ef < row.ef)
        assert list(row.curve) == sorted(row.curve)
        assert None not in (row.per_second, row.single_p50, row.single_p99, row.open_seconds)
        assert row.versions["hnswlib"]
    for row in (index_rows[0], index_rows[2]):
        assert len(row.builds) == 2
        assert min(row.builds) <= (row.build_seconds or 0) <= max(row.builds)
        assert row.bytes is not None
        assert row.bytes > 600 * 12 * 4
    assert index_rows[1].builds == []  # it reads what the first has built
    assert index_rows[0].ratio == 1


@pytest.mark.parametrize("needed", [1, 10, 11, 97, 333, 4096, 4097])
def test_the_least_effort_is_found_to_a_fiftieth(needed: int) -> None:
    effort = least_effort(lambda ef: min(1.0, ef / needed), 1.0)
    if needed > MOST:
        assert effort is None
    else:
        assert effort is not None
        assert needed <= effort <= max(10, needed + 1, needed * 51 / 50)
    assert least_effort(lambda ef: min(0.9, ef / needed), 1.0) is None
    deeper = least_effort(lambda ef: min(1.0, max(ef, 28) / needed), 1.0)  # than it was told
    assert deeper == (10 if needed <= 28 else effort)


@pytest.mark.peers
def test_several_recalls_give_the_rows_of_each_alone(tmp_path: Path) -> None:
    import hnswlib

    vectors, queries = unit_vectors(600, 16), unit_vectors(80, 16, seed=1)
    racers, options = [INDEXES["hnswlib"]], {"m": 2, "ef_construction": 10, "rounds": 1}

    def found(*recalls: float) -> list[tuple[object, ...]]:
        rows = race_indexes(racers, vectors, queries, tmp_path, 1, recalls=recalls, **options)
        return [(row.target, row.ef, row.recall, row.bytes, cells(row)[3]) for row in rows]

    low, high = found(0.6, 1.0)
    assert [low, high] == found(0.6) + found(1.0)
    assert (high[1], str(high[4])[5:]) == (None, " at most")
    index = hnswlib.Index("ip", 16)
    index.init_index(600, M=2, ef_construction=10)
    index.add_items(vectors, num_threads=1)
    index.set_ef(low[1])
    hits, _ = index.knn_query(queries[1::2], k=10)
    exact = np.argsort(-queries[1::2] @ vectors.T, axis=1)[:, :10]
    assert low[2] == round(recall_at_10(hits, exact), 4)


@pytest.mark.peers
@pytest.mark.parametrize(
    "key",
    ["faiss", "faiss-ivfpq", "faiss-sq8", "usearch", "usearch-int8", "turbovec", "turbovec-2bit"],
)
def test_a_peer_reaches_the_recall(tmp_path: Path, key: str) -> None:
    pytest.importorskip(key.split("-")[0], reason="needs faiss, usearch and turbovec, peers")
    peer = replace(INDEXES[key], requirements=())
    vectors, queries = unit_vectors(600, 16), unit_vectors(80, 16, seed=1)
    (row,) = race_indexes([peer], vectors, queries, tmp_path, 2, recalls=(0.99,), rounds=1)
    assert row.curve[row.ef or 0] >= 0.99
    assert (row.recall or 0) > 0.95
    assert (row.bytes or 0) > 600 * 16 / 4


@pytest.mark.peers
def test_an_index_that_fails_fails_alone(index_rows: list[IndexRow], tmp_path: Path) -> None:
    assert "no such index" in (index_rows[3].error or "")
    assert index_rows[3].per_second is None
    with pytest.raises(FlowvecError):
        race_indexes([BROKEN], unit_vectors(20, 12), unit_vectors(2, 12), tmp_path, 1)
    for vectors, queries in (
        (unit_vectors(9, 12), unit_vectors(1, 12)),
        (unit_vectors(20, 12), unit_vectors(1, 12)),
    ):
        with pytest.raises(InputValueError):
            race_indexes([INDEXES["hnswlib"]], vectors, queries, tmp_path, 1)


@pytest.mark.peers
def test_a_report_names_everyone_and_no_path(index_rows: list[IndexRow], tmp_path: Path) -> None:
    about = {
        "machine": MACHINE,
        "rows": 600, "dim": 12, "vectors": "v.npy", "queries": 40, "m": 16,
        "ef_construction": 200, "recall": [0.95], "rounds": 2, "builds": 2,
    }  # fmt: skip
    write_index_report(index_rows, about, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    assert all(row.name in text for row in index_rows)
    assert "did not run" in text
    assert str(tmp_path) not in text
    ElementTree.parse(tmp_path / "r.svg")


def test_an_index_that_misses_the_recall_shows_its_best() -> None:
    row = IndexRow("slow", build_seconds=1.0, curve={10: 0.5, 14: 0.7})
    assert cells(row)[1:5] == ("0.95", "", "0.700 at most", "")


def test_pairs_are_shared_whatever_their_order_and_scores() -> None:
    assert shared_pairs([[0.9, 1, 2], [0.8, 3, 4]], [[0.1, 4, 3], [0.7, 1, 5]]) == 0.5
    assert shared_pairs([], [[0.1, 4, 3]]) == 1.0


@pytest.mark.peers
def test_the_bench_indexes_command_takes_vectors(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", unit_vectors(320, 12) * 3)
    out = tmp_path / "r.json"
    done = CliRunner().invoke(
        app,
        ["bench", "retrieval", "--vectors", str(tmp_path / "v.npy"), "--rows", "300", "--queries",
         "20", "--only", "hnswlib", "--rounds", "1", "--json-out", str(out)],
        catch_exceptions=False,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "hnswlib 0.8" in done.output
    result = json.loads(out.read_text())
    assert (result["rows"], result["dim"], result["vectors"]) == (300, 12, "v.npy")
    assert [row["name"] for row in result["indexes"]] == [
        INDEXES["flowvec"].name, INDEXES["hnswlib"].name,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "either --corpus or --vectors"),
        (["--vectors", "v.npy", "--corpus", "c.txt"], "either --corpus or --vectors"),
        (["--vectors", "nowhere.npy"], "cannot read"),
        (["--vectors", "v.npy", "--rows", "5000"], "need 9000 vectors"),
        (["--vectors", "v.npy", "--recall", ".9,2"], "must be from 0.01 to 1"),
        (["--vectors", "zero.npy", "--rows", "100", "--queries", "2"], "a vector is zero"),
        (["--vectors", "v.npy", "--only", "nobody"], "is not a peer here"),
        (["--corpus", "nowhere.txt"], "there is no file"),
        (["--corpus", "broken.txt.xz"], "cannot read broken.txt.xz"),
    ],
)
def test_a_wrong_argument_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", unit_vectors(150, 12))
    np.save("zero.npy", np.zeros((150, 3), np.float32))
    Path("broken.txt.xz").write_bytes(b"this is no xz")
    with pytest.raises(InputValueError, match=part):
        CliRunner().invoke(app, ["bench", "retrieval", *arguments], catch_exceptions=False)


@pytest.mark.peers
def test_pairs_are_found_by_all_who_can(tmp_path: Path, trained: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra [export]")
    from flowvec.demo import load_passages
    from flowvec.texts.sentences import split_sentences
    from flowvec_bench.peers.model_forms import make_forms
    from flowvec_bench.peers.pairs import pair_peers, race_pairs
    from flowvec_bench.peers.registry import PEERS

    here = replace(PEERS["st-float32"], requirements=())
    texts = [s for p in load_passages() for s in split_sentences(p.text)][:60]
    forms = make_forms(trained, tmp_path, computes=())
    racers = [pair_peers()["flowvec-float32"], replace(here, batch_sizes=(4, 16))]
    options = {"max_length": forms.max_length, "dim": forms.dim, "threads": 2}
    rows = race_pairs(racers, forms.paths, options, texts, tmp_path, top_k=20, rounds=2)
    assert [row.error for row in rows] == [None, None]
    assert all(row.shared >= 0.95 and not row.void and row.median > 0 for row in rows)
    assert [len(row.seconds) for row in rows] == [2, 2]
    flowvec_row, chosen = rows
    assert (flowvec_row.batch_size, flowvec_row.by_batch_size, flowvec_row.ratio) == (None, {}, 1)
    assert set(chosen.by_batch_size) == {"4", "16"}
    assert chosen.by_batch_size[str(chosen.batch_size)] == max(chosen.by_batch_size.values())


def test_pairs_become_a_report_with_a_chart(tmp_path: Path) -> None:
    rows = [
        PairRow("flowvec", seconds=[2.0, 1.0], ratio=1.0, shared=1.0, versions={"flowvec": "9"}),
        PairRow("another", 16, {"16": 5.0}, [8.0, 4.0], ratio=4.0, shared=0.97),
        PairRow("of other vectors", 16, {}, [1.0], ratio=0.5, shared=0.3),
        PairRow("broken", error="it cannot be installed"),
    ]
    about = {
        "machine": MACHINE, "model": "a model", "corpus": "c.txt", "seed": 0, "max_length": 128,
        "count": 100, "top_k": 10, "rounds": 2,
    }  # fmt: skip
    write_pair_report(rows, about, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    assert "4,950 pairs" in text
    assert "| flowvec | default | 1.50 | 1.00 | 1.000 |  |" in text
    assert "| another | 16 | 6.00 | 4.00 | 0.970 |  |" in text
    assert "void: other pairs" in text
    assert "did not run: it cannot be installed" in text
    drawn = "".join(ElementTree.parse(tmp_path / "r.svg").getroot().itertext())
    assert "another" in drawn
    assert "of other vectors" not in drawn
