"""Indexes and pairs side by side: what is compared, and what makes a row void. Nothing is timed."""

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

from flowvec.cli import app
from flowvec.errors import FlowvecError, InputValueError
from flowvec_bench.ann.race import EFS, INDEXES, IndexRow, race_indexes, recall_at_10
from flowvec_bench.ann.report import cells, write_index_report
from flowvec_bench.peers.pairs import shared_pairs
from flowvec_bench.peers.roster import Peer

BROKEN = Peer("broken", "no such index", (), {}, (None,), "vectors")


def unit(rows: int, dim: int = 12, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[IndexRow]:
    racers = [INDEXES["flowvec"], INDEXES["flowvec-rows"], INDEXES["hnswlib"], BROKEN]
    folder = tmp_path_factory.mktemp("indexes")
    return race_indexes(racers, unit(600), unit(40, seed=1), folder, 2, rounds=2, builds=2)


def test_recall_is_the_share_of_the_true_neighbours() -> None:
    exact = np.array([[1, 2, 3], [4, 5, 6]])
    assert recall_at_10(np.array([[3, 2, 1], [4, 9, 9]]), exact) == pytest.approx(4 / 6)


def test_every_index_reaches_the_recall_at_the_least_effort_tried(found: list[IndexRow]) -> None:
    for row in found[:3]:
        assert row.error is None
        assert row.ef in EFS
        assert row.recall == row.curve[row.ef] >= 0.95
        assert all(recall < 0.95 for ef, recall in row.curve.items() if ef < row.ef)
        assert len(row.builds) == 2
        assert min(row.builds) <= (row.build_seconds or 0) <= max(row.builds)
        assert row.bytes is not None
        assert row.bytes > 600 * 12 * 4
        assert None not in (row.per_second, row.single_p50, row.single_p99, row.open_seconds)
        assert row.versions["hnswlib"]
    assert found[0].ratio == 1


def test_an_index_that_fails_fails_alone(found: list[IndexRow], tmp_path: Path) -> None:
    assert "no such index" in (found[3].error or "")
    assert found[3].per_second is None
    with pytest.raises(FlowvecError):
        race_indexes([BROKEN], unit(20), unit(2), tmp_path, 1)
    for vectors, queries in ((unit(9), unit(1)), (unit(20), unit(0))):
        with pytest.raises(InputValueError):
            race_indexes([INDEXES["hnswlib"]], vectors, queries, tmp_path, 1)


def test_a_report_names_everyone_and_no_path(found: list[IndexRow], tmp_path: Path) -> None:
    about = {
        "machine": {"cpu": "a cpu", "cpu_features": ["x"], "cores": 2, "memory_gib": 1,
                    "system": "s", "python": "3", "measured": "today"},
        "rows": 600, "dim": 12, "vectors": "v.npy", "queries": 40, "m": 16,
        "ef_construction": 200, "recall": 0.95, "rounds": 2, "builds": 2,
    }  # fmt: skip
    write_index_report(found, about, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    assert all(row.name in text for row in found)
    assert "did not run" in text
    assert str(tmp_path) not in text
    ElementTree.parse(tmp_path / "r.svg")


def test_an_index_that_never_reaches_the_recall_says_what_it_reached() -> None:
    row = IndexRow("slow", build_seconds=1.0, curve={10: 0.5, 14: 0.7})
    assert cells(row)[1:4] == ("", "0.700 at most", "")


def test_pairs_are_shared_whatever_their_order_and_scores() -> None:
    assert shared_pairs([[0.9, 1, 2], [0.8, 3, 4]], [[0.1, 4, 3], [0.7, 1, 5]]) == 0.5
    assert shared_pairs([], [[0.1, 4, 3]]) == 1.0


def test_the_command_takes_vectors(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", unit(320) * 3)
    out = tmp_path / "r.json"
    done = CliRunner().invoke(
        app,
        ["bench", "retrieval", "--vectors", str(tmp_path / "v.npy"), "--rows", "300", "--queries",
         "20", "--only", "hnswlib", "--rounds", "1", "--json", str(out)],
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
        (["--vectors", "v.npy", "--rows", "5000"], "need 7000 vectors"),
        (["--vectors", "zero.npy", "--rows", "100", "--queries", "1"], "a vector is zero"),
        (["--vectors", "v.npy", "--only", "nobody"], "is no peer here"),
        (["--corpus", "nowhere.txt"], "there is no file"),
        (["--corpus", "broken.txt.xz"], "cannot read broken.txt.xz"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", unit(150))
    np.save("zero.npy", np.zeros((150, 3), np.float32))
    Path("broken.txt.xz").write_bytes(b"this is no xz")
    with pytest.raises(InputValueError, match=part):
        CliRunner().invoke(app, ["bench", "retrieval", *arguments], catch_exceptions=False)


def test_pairs_are_found_by_all_who_can(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra [export]")
    from flowvec.demo import load_passages
    from flowvec.sentences import split_sentences
    from flowvec_bench.peers.forms import make_forms
    from flowvec_bench.peers.pairs import race_pairs
    from flowvec_bench.peers.roster import FLOWVEC, PEERS

    checkpoint = Path(__file__).resolve().parents[2] / "models/mini/checkpoint"
    here = replace(PEERS["st-float32"], requirements=())
    texts = [s for p in load_passages() for s in split_sentences(p.text)][:60]
    forms = make_forms(checkpoint, tmp_path, computes=())
    rows = race_pairs(
        [FLOWVEC["flowvec-float32"], here],
        forms.paths,
        {"max_length": forms.max_length, "dim": forms.dim, "threads": 2},
        texts,
        tmp_path,
        top_k=20,
        rounds=1,
    )
    assert [row.error for row in rows] == [None, None]
    assert all(row.shared >= 0.95 and not row.void and row.median > 0 for row in rows)
