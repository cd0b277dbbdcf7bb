"""The race of filtered searches: its rows, cases, recall and reports. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("psutil", reason="needs the extra [bench]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec.cli.main import app
from flowvec.errors import InputValueError
from flowvec_bench.peers.filter_data import FilterData, cases_of, write_data
from flowvec_bench.peers.filters import COLLECTIONS, FilterRow, race_filters, recall_of
from flowvec_bench.peers.registry import Peer
from flowvec_bench.reports.filters import HEADER, cells

ROWS, QUERIES = 3000, 30
BROKEN = Peer("broken", "no such collection", (), {}, (None,), "rows")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FilterData:
    return write_data(tmp_path_factory.mktemp("data"), ROWS, QUERIES, 16, seed=3)


@pytest.fixture(scope="module")
def rows(data: FilterData, tmp_path_factory: pytest.TempPathFactory) -> list[FilterRow]:
    return race_filters(
        [COLLECTIONS["flowvec"], BROKEN], data, cases_of(data, [0.5, 0.02], 0),
        tmp_path_factory.mktemp("race"), tried=10, rate=100.0,
    )  # fmt: skip


def test_rows_and_queries_have_length_one_and_the_same_seed_makes_the_same(
    data: FilterData, tmp_path: Path
) -> None:
    again = write_data(tmp_path, ROWS, QUERIES, 16, seed=3)
    assert data.vectors.shape == (ROWS, 16)
    assert data.queries.shape == (QUERIES, 16)
    for one, other in ((data.vectors, again.vectors), (data.queries, again.queries)):
        np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1.0, rtol=1e-5)
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert {name: column.tolist() for name, column in data.fields.items()} == {
        name: column.tolist() for name, column in again.fields.items()
    }
    assert np.load(data.folder / "queries.npy").shape == data.queries.shape


def test_filters_let_their_share_pass_near_the_queries_or_far_from_them(data: FilterData) -> None:
    cases = {case.name: case for case in cases_of(data, [0.5, 0.02], 0)}
    assert list(cases)[:4] == ["none", "random 0.5", "near 0.5", "far 0.5"]
    towards = (data.queries @ np.asarray(data.vectors).T).mean(axis=0)
    for case in cases.values():
        assert len(case.filters) == QUERIES
        mask = data.eligible(case.filters[0])
        if mask is None:
            assert case.kind == "none"
            continue
        assert mask.mean() == pytest.approx(case.selectivity, rel=0.3)
        shift = towards[mask].mean() - towards.mean()
        if case.kind != "tenant":
            expected = {"near": 1, "far": -1}.get(case.kind, 0)
            assert int(shift > 0.05) - int(shift < -0.05) == expected, (case.name, shift)
    tenants = [one[2] for one in cases["tenant 0.0067"].filters if one]
    assert len(set(tenants)) == QUERIES


def test_the_true_neighbours_are_eligible_and_the_nearest(data: FilterData) -> None:
    for case in cases_of(data, [0.02], 0):
        exact = data.nearest(case)
        for query, wanted, line in zip(data.queries, case.filters, exact, strict=True):
            mask = data.eligible(wanted)
            scores = np.asarray(data.vectors) @ query
            scores[~(np.ones(ROWS, bool) if mask is None else mask)] = -np.inf
            best = np.sort(scores)[::-1][:10]
            np.testing.assert_allclose(scores[line[line >= 0]], best[np.isfinite(best)], atol=1e-5)


def test_recall_counts_the_neighbours_that_there_are() -> None:
    assert recall_of(np.array([[1, 2], [9, -1]]), np.array([[2, 3], [9, -1]])) == 0.75
    assert recall_of(np.array([[-1, -1]]), np.array([[-1, -1]])) == 1.0
    assert recall_of(np.array([[-1, -1]]), np.array([[5, -1]])) == 0.0


@pytest.mark.peers
def test_each_case_has_its_figures(rows: list[FilterRow]) -> None:
    own, broken = rows
    assert own.error is None
    assert [case.case for case in own.cases] == [
        "none", "random 0.5", "near 0.5", "far 0.5", "random 0.02", "near 0.02", "far 0.02",
        "tenant 0.0067",
    ]  # fmt: skip
    for case in own.cases:
        assert case.recall == 1.0  # so few rows are compared exactly
        assert case.queries == QUERIES - 10
        assert 0 < case.p50 <= case.p99
        assert case.writes_per_second > 0
        assert case.write_p50 is not None
    assert own.build_seconds is not None
    assert own.versions["hnswlib"]
    assert broken.cases == []
    assert broken.error is not None
    lines = list(cells(rows))
    assert all(len(line) == len(HEADER) for line in lines)
    assert [line[0] for line in lines[-2:]] == ["tenant 0.0067", "stopped"]


@pytest.mark.peers
def test_a_case_ends_when_its_time_is_over(data: FilterData, tmp_path: Path) -> None:
    row, = race_filters(
        [COLLECTIONS["flowvec"]], data, cases_of(data, [], 0)[:1], tmp_path, tried=5, rate=20.0,
        writes=0.0, most_seconds=0.2,
    )  # fmt: skip
    assert 1 <= row.cases[0].queries <= 10  # of 25
    assert (row.cases[0].write_p50, row.cases[0].writes_per_second) == (None, 0.0)


def test_a_race_without_timed_queries_is_refused(data: FilterData, tmp_path: Path) -> None:
    for peers, tried in (([], 5), ([COLLECTIONS["flowvec"]], QUERIES), ([BROKEN], 0)):
        with pytest.raises(InputValueError):
            race_filters(peers, data, [], tmp_path, tried=tried)


@pytest.mark.peers
def test_the_command_prints_a_table_and_writes_both_results(tmp_path: Path) -> None:
    arguments = ["bench", "filters", "--rows", "1000", "--dim", "8", "--queries", "5", "--tried",
                 "2", "--selectivities", "0.5", "--only", "flowvec", "--rate", "0"]  # fmt: skip
    out, report = tmp_path / "out.json", tmp_path / "report.md"
    done = CliRunner().invoke(app, [*arguments, "--json-out", str(out), "--report", str(report)])
    assert done.exit_code == 0, done.output
    assert "recall@10" in done.stdout
    record: dict[str, Any] = json.loads(out.read_text())
    assert (record["benchmark"], record["rows"], record["timed"]) == ("filters", 1000, 5)
    assert [case["case"] for case in record["collections"][0]["cases"]][:2] == [
        "none", "random 0.5",
    ]  # fmt: skip
    assert "| random 0.5 | flowvec | 1.000 |" in report.read_text()
    for wrong in (["--selectivities", "0"], ["--selectivities", "1.5"], ["--only", "nobody"]):
        assert CliRunner().invoke(app, [*arguments, *wrong]).exit_code != 0
