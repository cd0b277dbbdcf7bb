"""Memory of a long stream: what counts as growth, and the command from end to end."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("psutil")

from flowvec.cli.main import app
from flowvec.errors import InputValueError
from flowvec_bench.speed.memory import growth
from flowvec_bench.speed.mixed_texts import mixed_lengths, mixed_texts


def test_growth_is_counted_from_the_end_of_the_warm_up() -> None:
    resident = [(1000, 10), (2000, 500), (3000, 510), (4000, 520), (5000, 500)]
    assert growth(resident, warm=2000) == (20, pytest.approx(1.0))


def test_a_steady_leak_is_the_slope() -> None:
    resident = [(1000 * i, 7_000 + 300 * i) for i in range(1, 20)]
    assert growth(resident, warm=5000) == (300 * 14, pytest.approx(300))


def test_memory_that_only_falls_has_not_grown() -> None:
    grown, slope = growth([(1000, 50), (2000, 40), (3000, 30)], warm=1000)
    assert grown == 0
    assert slope < 0


def test_texts_without_an_end_are_those_of_a_count() -> None:
    assert list(itertools.islice(mixed_texts(3), 50)) == mixed_lengths(50, 3)


def test_the_bench_memory_command_watches_every_text(tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    result = CliRunner().invoke(
        app, ["bench", "memory", "mini", "--texts", "500", "--warm", "100", "--json-out", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert "500 texts of mixed lengths" in result.output
    report = json.loads(out.read_text())
    done = [texts for texts, _ in report["resident"]]
    assert 100 in done
    assert done[-1] == 500
    assert done == sorted(set(done))
    assert all(size > 1 << 20 for _, size in report["resident"])
    assert "/" not in report["encoder"]["path"]


def test_a_warm_up_of_all_texts_is_refused() -> None:
    with pytest.raises(InputValueError, match="5 cannot be the warm-up"):
        CliRunner().invoke(
            app,
            ["bench", "memory", "mini", "--texts", "5", "--warm", "5"],
            catch_exceptions=False,
        )
