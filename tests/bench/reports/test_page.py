"""The benchmarks page holds what its command makes of the newest results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs the extra [bench]")

from flowvec_bench.reports.page import TABLES, main, newest, page_with_tables

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/benchmarks.md"
RESULTS = ROOT / "bench/results"


def test_the_page_equals_what_the_command_makes(tmp_path: Path) -> None:
    copy = tmp_path / "docs" / PAGE.name
    copy.parent.mkdir()
    shutil.copy(PAGE, copy)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/results").symlink_to(RESULTS)
    main([str(copy), "--results", str(tmp_path / "bench/results")])
    made, shown = copy.read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    assert made == shown, "run `python -m flowvec_bench.reports.page`"


def test_every_table_has_its_place_and_its_sources() -> None:
    page = PAGE.read_text(encoding="utf-8")
    results = newest(RESULTS)
    for name, (kinds, _) in TABLES.items():
        table = page.partition(f"<!-- results: {name} -->\n")[2].partition("<!-- end")[0]
        for kind in kinds:
            result = results[kind]
            link = f"[{kind}, {result.date}](../bench/results/{result.report.name})"
            assert link in table
            assert result.record["machine"]["cpu"] in table


def record(speed: float, day: str) -> dict[str, Any]:
    machine = {"cpu": "C", "cpu_features": ["avx2"], "cores": 2, "measured": f"{day}T10:00:00"}
    rows = [
        {"batching": batching, "texts_per_second": times * speed, "padding": 0.25}
        for batching, times in (("none", 1), ("characters", 2), ("tokens", 3))
    ]
    return {"machine": machine, "results": rows}


def test_the_newest_result_of_a_kind_counts(tmp_path: Path) -> None:
    for day, speed in (("2026-01-02", 100.0), ("2025-12-31", 7.0)):
        path = tmp_path / f"{day}-smart-batching-backbone.json"
        path.write_text(json.dumps(record(speed, day)), encoding="utf-8")
    (tmp_path / "2026-01-02-smart-batching-backbone.md").touch()
    page = "before\n<!-- results: batching -->\nold\n<!-- end of results -->\nafter\n"
    made = page_with_tables(page, newest(tmp_path), lambda path: path.name)
    assert made.splitlines() == [
        "before",
        "<!-- results: batching -->",
        "|batches of|texts/s|padding|times|",
        "|---|---:|---:|---:|",
        "|32 in input order|100|25.0%|1.0|",
        "|32 sorted by characters|200|25.0%|2.0|",
        "|a limit of padded tokens, sorted by tokens|300|25.0%|3.0|",
        "",
        "C, 2 cores, avx2: [smart-batching-backbone, 2026-01-02]"
        "(2026-01-02-smart-batching-backbone.md)",
        "<!-- end of results -->",
        "after",
    ]
    assert page_with_tables(made, newest(tmp_path), lambda path: path.name) == made
