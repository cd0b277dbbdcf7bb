"""`bench bulk`: every mode runs on the same rows, and a job's memory is measured from outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowvec_bench.reports.bulk import cells
from flowvec_bench.speed.bulk import MODES, BulkRow, Resident, grown


def resident(*sizes: int) -> list[Resident]:
    return [Resident(float(i), 10 * i, size) for i, size in enumerate(sizes)]


def test_growth_counts_after_the_warm_up() -> None:
    assert grown(resident(5, 90, 20, 35, 30), warm=15) == 15
    assert grown(resident(5, 90, 20), warm=0) == 85
    assert grown([], warm=0) == 0


def test_a_share_is_the_median_of_rounds_side_by_side() -> None:
    memory = BulkRow("memory", 100, [1.0, 2.0, 4.0])
    job = BulkRow("npy", 100, [2.0, 2.5, 4.0], [0.1, 0.2, 0.3], 7.0, resident(1, 2, 3))
    assert memory.rate == 50.0
    assert job.share_of(memory) == pytest.approx(0.8)
    assert cells(job, [memory, job])[:4] == (MODES["npy"], "40", "80.0%", "2.5")


@pytest.mark.process
def test_the_bench_bulk_command_races_and_reports(flowvec, tmp_path: Path, tiny_dir: Path) -> None:
    sentence = "The quick brown fox number {} jumps over the lazy dog near the river."
    (tmp_path / "c.txt").write_text("\n".join(sentence.format(i) for i in range(1200)))
    done = flowvec(
        "bench", "bulk", "--corpus", "c.txt", "--model", tiny_dir, "--rows", "1000",
        "--rounds", "1", "--folder", ".", "--report", "r.md", "--json-out", "r.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert [row["mode"] for row in report["rows"]] == ["memory", "parquet", "npy"]
    assert all(row["rows"] == 1000 and row["seconds"][0] > 0 for row in report["rows"])
    assert report["rows"][1]["megabytes"] > 0.06  # 1,000 vectors of 16 numbers
    page = (tmp_path / "r.md").read_text()
    assert all(MODES[row["mode"]] in page for row in report["rows"])
    assert str(tmp_path) not in page + json.dumps(report)
    assert (tmp_path / "r.svg").is_file()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["c.txt", "r.json", "r.md", "r.svg"]  # the outputs of the jobs were removed
    few = flowvec("bench", "bulk", "--corpus", "c.txt", "--model", tiny_dir, "--rows", "5000")
    assert (few.returncode, "has only 1200 sentences" in few.stderr) == (2, True)
