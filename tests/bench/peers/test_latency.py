"""The latency benchmark: every peer is measured at every load."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra [export]")
pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec import Bundle
from flowvec.errors import FlowvecError, InputValueError
from flowvec_bench.peers.latency import LatencyRow, measure_latency
from flowvec_bench.peers.registry import FLOWVEC, PEERS, Peer
from flowvec_bench.reports import latency as latency_report
from flowvec_bench.reports.latency import cells, write_latency_report
from flowvec_bench.workers.load import arrivals

SECONDS, ROUNDS = 0.1, 2


# --- the benchmark --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def latencies(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory):
    bundle = Bundle.load(tiny_dir)
    options = {"max_length": bundle.manifest.max_length, "dim": bundle.manifest.dim, "threads": 2}
    other = replace(FLOWVEC["flowvec-float32"], name="other")
    one = FLOWVEC["flowvec-one"]
    peers = [
        FLOWVEC["flowvec-float32"],
        other,
        one,
        PEERS["fastembed"],
        Peer("broken", "none", (), form="bundle"),
    ]
    folder = tmp_path_factory.mktemp("latency")
    return measure_latency(
        peers, {"bundle": tiny_dir}, options, ["a man eats", "stocks fell"], folder,
        callers=(1, 4), seconds=SECONDS, rounds=ROUNDS,
    )  # fmt: skip


def test_every_peer_has_a_row_at_every_level(latencies) -> None:
    loads = [(row.load, row.level) for row in latencies.rows[::5]]
    assert loads[:2] == [("callers", 1), ("callers", 4)]
    assert [load for load, _ in loads[2:]] == ["rate"] * 3
    reached = next(r for r in latencies.rows if (r.load, r.level) == ("callers", 4)).per_second
    shares = [level / reached for _, level in loads[2:]]
    assert shares == pytest.approx([0.25, 0.5, 0.75], rel=0.06)
    for row in latencies.rows:
        if row.name in ("fastembed", "broken"):
            assert row.per_second is None
            assert row.error
        else:
            if row.load == "callers":
                assert row.calls >= row.level
            else:  # of a slow machine there may be no arrival, and none may be answered in time
                came = sum(len(arrivals(row.level, SECONDS, number)) for number in range(ROUNDS))
                assert row.calls + row.unanswered == came
            if row.calls:
                assert 0 < row.p50 <= row.p95 <= row.p99
            assert row.min_cosine == pytest.approx(1.0, abs=1e-3)
    failed = {row.name: row.error for row in latencies.rows if row.error}
    assert "does not support this model's layers" in failed["fastembed"]


def test_the_report_says_what_falls_behind_and_what_is_void(latencies, tmp_path: Path) -> None:
    machine = {"cpu": "A", "cpu_features": ["b"], "cores": 2, "memory_gib": 1, "system": "L",
               "python": "3", "measured": "now"}  # fmt: skip
    about = {"machine": machine, "model": "tiny", "corpus": "c.txt", "seed": 0}
    behind = LatencyRow("slow", "rate", 9.0, 1.0, 2.0, 3.0, 4.0, 50, 50, 9.1, 1.0, None)
    other = replace(behind, name="false", min_cosine=0.9)
    report = replace(latencies, rows=[*latencies.rows, behind, other])
    write_latency_report(report, about, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text(encoding="utf-8")
    assert "| slow |  |  |  | 4 | falls behind |" in text
    assert "| false |  |  |  | 4 | void: other vectors, falls behind |" in text
    assert "## 4 callers" in text
    assert str(tmp_path) not in text
    drawn = "".join(ElementTree.parse(tmp_path / "r.svg").getroot().itertext())
    assert "slow" in drawn
    assert "false" not in drawn
    assert cells(replace(behind, per_second=8.8)) == ("slow", "1.0", "2.0", "3.0", "9", "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"callers": ()}, {"callers": (0,)}, {"rates": [0.0]}, {"rates": [float("nan")]},
        {"seconds": 0.0}, {"rounds": 0},
    ],
)  # fmt: skip
def test_wrong_numbers_are_errors(tiny_dir: Path, tmp_path: Path, wrong) -> None:
    with pytest.raises(InputValueError):
        measure_latency([FLOWVEC["flowvec"]], {"bundle": tiny_dir}, {}, ["a"], tmp_path, **wrong)


def test_the_first_peer_must_run(tiny_dir: Path, tmp_path: Path) -> None:
    broken = Peer("broken", "none", (), form="bundle")
    with pytest.raises(FlowvecError, match="broken: KeyError"):
        measure_latency([broken], {"bundle": tiny_dir}, {}, ["a"], tmp_path)


def test_the_bench_latency_command_measures_a_bundle_by_itself(flowvec, tmp_path: Path) -> None:
    done = flowvec(
        "bench", "latency", "mini", "--callers", "1,3", "--rates", "40", "--seconds", "0.2",
        "--rounds", "1", "--json-out", tmp_path / "r.json", "--report", tmp_path / "r.md",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 callers" in done.stdout
    assert "40 arrivals per second" in done.stdout
    result = json.loads((tmp_path / "r.json").read_text())
    assert [row["level"] for row in result["rows"]] == [1, 3, 40]
    assert (tmp_path / "r.svg").is_file()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["mini", "--callers", "two"], "callers must be numbers"),
        (["mini", "--callers", "1.5"], "callers must be whole numbers"),
        (["mini", "--callers", "nan"], "callers must be whole numbers"),
        (["mini", "--only", "fastembed"], "'fastembed' is not a peer here"),
        (["mini", "--count", "100000"], "asked for 100000 texts"),
        (["nowhere"], "is neither minilm-l6 nor bert-base nor bert-large nor a directory"),
        (["minilm-l6"], "needs --tokenizer"),
        (["mini", "--report", "r.txt"], "a report is a .md file"),
    ],
)
def test_a_wrong_argument_is_one_line(flowvec, arguments: list[str], part: str) -> None:
    done = flowvec("bench", "latency", *arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_lines_keep_apart_more_peers_than_colours() -> None:
    assert len(latency_report.COLOURS) * len(latency_report.LINES) > len({**FLOWVEC, **PEERS})
